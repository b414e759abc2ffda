//! `monitor ps`, `monitor threads`, `monitor mappings` and `monitor break-in`. These commands list the guest's
//! processes, show the guest's threads as threads of gdb, list mapped files, and restrict breakpoints to one process.

use std::fmt::Write;
use std::sync::Arc;

use gdb::Refusal;
use guest_symbols::mappings::Mappings;
use guest_symbols::switched_out::SwitchFrame;
use guest_symbols::tasks::{AddressSpace, Process, Processes, Tasks};
use guest_symbols::{USER_ROOT_BIT, page_table_root};

use super::GdbTarget;
use super::bounds::Only;
use super::threads::{ShownThreads, running_on};
use history::timeline::{address_space, number};
use views::tasks::{Task, TaskList};

/// `PID_MAX_LIMIT` of Linux: no process has a higher number.
const MAX_PID: u64 = 1 << 22;

impl GdbTarget<'_> {
    pub(super) fn ps(&mut self) -> Result<String, Refusal> {
        let (_, processes) = self.processes()?;
        let running = processes.current.clone();
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let list = TaskList::of(self.timeline.machine(), processes, &symbols);
        let mut text = String::from("      PID  PARENT STATE CR3            WAITS IN                 NAME\n");
        for task in &list.tasks {
            let Task { pid, name, .. } = task;
            let waits = task.waits_in.as_deref().unwrap_or("-");
            if let Some(process) = task.thread_of {
                let _ = writeln!(text, "  {pid:7}   thread of {process:<19} {waits:24} {name}");
                continue;
            }
            let mark = if running.as_ref().is_some_and(|thread| thread.process == *pid) { '*' } else { ' ' };
            let (parent, state) = (task.parent.unwrap_or(0), task.state.unwrap_or(' '));
            let _ =
                writeln!(text, "{mark} {pid:7} {parent:7} {state}     {:14} {waits:24} {name}", task.space());
        }
        if let Some(thread) = running.filter(|thread| thread.id != thread.process) {
            let _ = writeln!(text, "(* of process {} it is thread {})", thread.process, thread.id);
        }
        if let Some(damage) = list.damage {
            let _ = writeln!(text, "(the list is incomplete: {damage})");
        }
        Ok(text)
    }

    /// The files that a process has mapped.
    pub(super) fn mappings(&mut self, pid: &str) -> Result<String, Refusal> {
        let (_, processes) = self.processes()?;
        let process = match (pid, number(pid)) {
            ("", _) => {
                processes.current.as_ref().and_then(|current| processes.with(current.process)).cloned()
            }
            (_, Some(pid)) => u32::try_from(pid).ok().and_then(|pid| processes.with(pid)).cloned(),
            (_, None) => return Err(Refusal::new("write: monitor mappings [PID]")),
        };
        let process = process.ok_or_else(|| match pid {
            "" => Refusal::new("ttvm cannot find out which process runs here: give a PID"),
            pid => {
                Refusal::new(format!("there is no process {pid} at this position: 'monitor ps' lists them"))
            }
        })?;
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let machine = self.timeline.machine();
        let mappings = Mappings::of_kernel(machine, &symbols);
        let mappings = mappings.map_err(|missing| Refusal::new(missing.to_string()))?;
        let mappings = mappings.of_task(machine, process.task);
        let mut text = format!("process {} ({})\n", process.pid, process.name);
        mappings.iter().for_each(|mapping| {
            let _ = writeln!(text, "{mapping}");
        });
        if mappings.is_empty() {
            let Process { pid, name, .. } = process;
            return Err(Refusal::new(format!(
                "process {pid} ({name}) has no file in its memory here: name another one; 'monitor ps' lists them"
            )));
        }
        Ok(text)
    }

    /// Switches whether gdb shows the guest's threads or only the processors.
    pub(super) fn set_threads(&mut self, argument: &str) -> Result<String, Refusal> {
        if let Some(number) = argument.strip_prefix("look-at ") {
            let number = number.parse().map_err(|_| Refusal::new("write: monitor threads look-at NUMBER"))?;
            self.looked_at = Some(number);
            return Ok(String::new());
        }
        match argument {
            "" => {}
            "off" => self.shown_threads = None,
            "on" => self.shown_threads = Some(self.threads_here()?),
            _ => return Err(Refusal::new("write: monitor threads [on|off]")),
        }
        let said = match self.shown_threads {
            Some(_) => "gdb sees the guest's threads; thread 1 is the CPU, and the only one that moves\n",
            None => "gdb sees only the CPU\n",
        };
        let processors = self.timeline.machine().processors();
        Ok(match self.shown_threads {
            _ if processors == 1 => said.to_string(),
            Some(_) => format!(
                "gdb sees the guest's threads; threads 1 to {processors} are the processors, and only they move\n"
            ),
            None => format!("gdb sees only the processors, as threads 1 to {processors}\n"),
        })
    }

    /// For each processor, a description of its running thread. Empty if the kernel is unknown.
    pub(super) fn running_threads(&mut self) -> Vec<String> {
        // If the machine has one processor and `monitor threads on` was not used, gdb does not show the running thread.
        let is_wanted = self.shown_threads.is_some() || self.timeline.machine().processors() > 1;
        let tasks = if is_wanted { self.known_tasks() } else { None };
        let machine = self.timeline.machine();
        machine.all_processors().map(|processor| running_on(&processor, tasks.as_deref())).collect()
    }

    fn threads_here(&mut self) -> Result<ShownThreads, Refusal> {
        let tasks = self.tasks().map_err(|error| Refusal::new(error.to_string()))?;
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let frame = SwitchFrame::of_kernel(self.timeline.machine(), &symbols);
        let frame = frame.map_err(|missing| Refusal::new(missing.to_string()))?;
        Ok(ShownThreads::new(tasks, frame))
    }

    /// If gdb shows threads, lists the current kernel's threads. After kexec the current kernel is another kernel than
    /// before.
    pub(super) fn show_threads_of_kernel(&mut self) {
        if self.shown_threads.is_none() {
            return;
        }
        let tasks = self.known_tasks();
        let is_known = |shown: &ShownThreads| tasks.as_ref().is_none_or(|tasks| shown.is_of(tasks));
        if !self.shown_threads.as_ref().is_some_and(is_known)
            && let Ok(threads) = self.threads_here()
        {
            self.shown_threads = Some(threads);
        }
    }

    pub(super) fn break_in(&mut self, text: &str) -> Result<String, Refusal> {
        let (wanted, rest) = first_word(text);
        if wanted.is_empty() {
            return Ok(self.bounds.to_string());
        }
        let (only, said) = match wanted {
            "anywhere" => (None, String::new()),
            "here" => {
                let root = address_space(self.timeline.machine());
                let (only, said) = self.tables(root);
                (Some(only), said)
            }
            _ => {
                let (only, said) = self.process_or_tables(wanted)?;
                (Some(only), said)
            }
        };
        let addresses =
            rest.split_whitespace().map(|word| self.address(word)).collect::<Result<Vec<_>, _>>()?;
        self.bounds.bind(only, &addresses);
        self.points_changed();
        Ok(said + &self.bounds.to_string())
    }

    /// The process or page tables that the user named, and a message about them.
    fn process_or_tables(&mut self, wanted: &str) -> Result<(Only, String), Refusal> {
        match number(wanted) {
            Some(pid) if !wanted.starts_with("0x") && pid <= MAX_PID => self.process(pid as u32),
            Some(cr3) => Ok(self.tables(cr3)),
            None => self.named(wanted),
        }
    }

    /// The address space with these page tables.
    fn tables(&mut self, cr3: u64) -> (Only, String) {
        let root = page_table_root(cr3);
        let Ok(tasks) = self.tasks() else { return (Only::Tables(root, None), String::new()) };
        let machine = self.timeline.machine();
        let root = if tasks.is_isolated(machine) { root & !USER_ROOT_BIT } else { root };
        let processes = tasks.list(machine);
        let owner = processes.all.iter().find(|process| process.space == AddressSpace::Own(root));
        let mut said = match owner {
            Some(owner) => format!("these are the page tables of process {} ({})\n", owner.pid, owner.name),
            None => "no process has these page tables here\n".to_string(),
        };
        let current = processes.current.as_ref().and_then(|current| processes.with(current.process));
        if let Some(thread) = current.filter(|process| process.space == AddressSpace::KernelThread)
            && root == tasks.address_space(machine)
        {
            let Process { pid, name, .. } = thread;
            let _ =
                writeln!(said, "{pid} ({name}), which runs here, is a kernel thread and only borrows them");
        }
        (Only::Tables(root, Some(tasks)), said)
    }

    fn process(&mut self, pid: u32) -> Result<(Only, String), Refusal> {
        let (tasks, processes) = self.processes()?;
        let Some(process) = processes.with(pid) else {
            let said =
                format!("there is no process {pid} at this position; points stop where there is one\n");
            return Ok((Only::Process(pid, tasks), said));
        };
        let mut said = described(process);
        if process.pid != pid {
            said = format!("{pid} is a thread of it: {said}");
        }
        Ok((Only::Process(process.pid, tasks), said))
    }

    fn named(&mut self, name: &str) -> Result<(Only, String), Refusal> {
        let (tasks, processes) = self.processes()?;
        let only = Only::named(name, tasks);
        let Only::Named(kept, _) = &only else { unreachable!("it was just made so") };
        let has_name = |process: &&Process| {
            process.name == *kept || process.threads.iter().any(|thread| thread.name == *kept)
        };
        let mut said: String = processes.all.iter().filter(has_name).map(described).collect();
        match said.lines().count() {
            0 => {
                said =
                    format!("no process is named '{kept}' at this position; points stop where there is one\n")
            }
            1 => {}
            count => {
                let _ = writeln!(
                    said,
                    "points stop in all {count} of them; a number instead of the name means one"
                );
            }
        }
        Ok((only, said))
    }

    fn processes(&mut self) -> Result<(Arc<Tasks>, Processes), Refusal> {
        let tasks = self.tasks().map_err(|error| Refusal::new(error.to_string()))?;
        let processes = tasks.list(self.timeline.machine());
        if processes.all.is_empty() {
            return Err(Refusal::new("there are no processes yet: go to a later position"));
        }
        Ok((tasks, processes))
    }
}

/// A line about a process.
fn described(process: &Process) -> String {
    let Process { pid, name, space, .. } = process;
    match space {
        AddressSpace::Own(root) => format!("process {pid} ({name}) has CR3 {root:#x}\n"),
        AddressSpace::KernelThread => {
            format!(
                "{pid} ({name}) is a kernel thread without an address space of its own: points stop while it runs\n"
            )
        }
        AddressSpace::None => format!("process {pid} ({name}) has no address space any more\n"),
    }
}

/// The first word, which may be in double quotes, and the rest.
fn first_word(text: &str) -> (&str, &str) {
    let quoted = text.strip_prefix('"').and_then(|text| text.split_once('"'));
    quoted.or_else(|| text.split_once(char::is_whitespace)).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_may_be_quoted() {
        for (text, expected) in [
            ("", ("", "")),
            ("12", ("12", "")),
            ("sh 0x10 0x20", ("sh", "0x10 0x20")),
            ("\"tmux: server\" 0x10", ("tmux: server", " 0x10")),
            ("\"open", ("\"open", "")),
        ] {
            assert_eq!(first_word(text), expected, "{text}");
        }
    }
}
