//! `monitor` commands, for features that gdb has no commands for. `gdb/commands/tt.py` defines gdb commands that use
//! these `monitor` commands, and also clear gdb's caches.

use std::fmt::Write;

use cpu::{AddressKind, Traps, WatchKind, Watchpoint};
use gdb::{FIRST_CPU, Poll, Refusal};

use super::kernel::told_at;
use super::{GdbTarget, refused};
use history::timeline::{
    Breakpoint, CONDITIONS, Condition, Direction, Filter, Hit, Names, NoNames, Stops, TravelStop, Watch,
    number,
};
use machine::Machine;
use machine::notation::PositionSpec;
use machine::position::Instructions;
use views::board::Board;
use views::console;
use views::filters::Filters;
use views::guest_kernel::GuestKernels;

/// The largest number of hits in one list.
const MAX_LISTED: usize = 1000;
/// The largest size in bytes of a variable that a name stands for. A symbol's size may include the gap to the next
/// symbol. So of a large symbol only the first word is used.
const MAX_VARIABLE_BYTES: u64 = 8;
/// The largest number of bytes of physical memory shown at once.
const MAX_PHYSICAL_BYTES: u64 = 1 << 16;

const HELP: &str = "\
monitor when                        show the position: instructions, branches, guest time
monitor goto POS                    go to a position: start, end, panic, oops, fault, report:N, event:N,
                                    insn:N or N, branch:N, syscall:N, last-syscall, 12.5s, 5ms, 37%,
                                    +N, -N, +10ms, -10ms (from here), mark:NAME, hit:N (of the last list)
monitor back-to WHAT                go back to just before WHAT happened last
monitor forward-to WHAT             go forward to just after WHAT happens next
                                    WHAT: write ADDR [LEN], change ADDR [LEN], read ADDR [LEN], call ADDR,
                                    syscall [N or NAME], interrupt [VECTOR], or a condition; ADDR can be a
                                    kernel symbol; pid:N and comm:NAME at the end choose a process or thread,
                                    and cpu:N a processor
monitor traps CONDITION [FROM TO]   list all places where a condition holds; goto hit:N goes to one
monitor search CONDITION            show where a condition held last and holds next
monitor calls FUNCTION [FROM TO]    list the calls of a function with arguments and results; goto hit:N goes to one
monitor values VARIABLE [FROM TO]   list all values of a variable, such as jiffies_64, 0x1000:8 or
                                    (struct task_struct)init_task.comm; goto hit:N goes to one
monitor diff POS [POS]              compare the guest at two positions, or at a position and here
monitor disk info                   show the partitions and file systems of the guest's disk at this position
monitor disk ls PATH, disk cat PATH list a folder of the guest's disk, or show the beginning of a file;
                                    partition:N at the end chooses a partition
monitor tree [FROM] TO              show the calls of the running thread as a tree, from here or FROM
monitor profile [FROM] TO           count the calls and instructions of the kernel's functions, from here or FROM
monitor who-set LOCATION            show where a value came from, back through copies; LOCATION: a register,
                                    ADDRESS[:LENGTH] or SYMBOL[+OFFSET][:LENGTH]
monitor where-to LOCATION [TO]      show where a value went from here on: its copies and uses, until position TO
monitor origin [FUNCTION]           show who armed the callback that the kernel executes here, such as a timer's function
monitor object ADDRESS [N]          show which object of the kernel is at an address here, who allocated it,
                                    and who freed it, with N earlier objects there (default: 1)
monitor mark [NAME]                 name this position, or list the names
monitor checkpoint                  add a checkpoint here, so the next session gets here fast
monitor console [LINES]             show the guest's console at this position
monitor board                       show the board's chips and devices: interrupts, timers, PCI, virtio
                                    queues, and the next events
monitor physical ADDR LEN           show physical memory
monitor ps                          show the guest's processes; * marks the running one
monitor threads [on|off]            show the guest's threads in gdb, or only the CPU
monitor backtrace                   show the kernel's call stack, from its unwind tables (ORC)
monitor dmesg [LINES]               show the kernel's messages at this position
monitor reports                     list the kernel's panics, oopses, BUG, WARNING, KASAN and lockdep reports;
                                    goto report:N goes to one
monitor break-in PID|NAME|here|CR3|anywhere [ADDR...]
                                    limit breakpoints and watchpoints, or those at ADDR, to one process,
                                    to processes of one name, or to one address space
monitor symbols [modules]           write symbol files of the guest's kernel and modules, or of modules only,
                                    and show how gdb loads them
monitor symbols module NAME         show the addresses of a module's sections
monitor mappings [PID]              show the files in a process's memory; without PID: of the running process
monitor step-interrupts [on|off]    let steps go into interrupts, faults and other threads, or not
monitor back                        leave the scratch fork that a change began
For scripts:
monitor pass-calls                  let the next steps of a program pass its system calls
monitor user-breakpoints ADDR...    name the user's breakpoints; all others are gdb's own
monitor threads look-at NUMBER      choose the thread whose memory gdb reads
monitor position                    show the position, the recording's end, and 1 in a fork; with several
                                    processors also the thread of the one that gdb shows
After a movement gdb needs `maintenance flush register-cache`. The tt commands do this.
";

impl GdbTarget<'_> {
    /// Runs a command and returns the text for gdb to print.
    pub(super) fn obey(&mut self, command: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (word, rest) = command.trim().split_once(' ').unwrap_or((command.trim(), ""));
        let rest = rest.trim();
        match word {
            "when" => Ok(self.when()),
            "end" => Ok(format!("the recording ends at instruction {}\n", self.timeline.end())),
            "position" => Ok(self.position()),
            "goto" => self.goto(rest, poll),
            "back-to" => self.travel_to(rest, Direction::Backward, poll),
            "forward-to" => self.travel_to(rest, Direction::Forward, poll),
            "traps" => self.list_hits(rest, poll),
            "search" => self.search(rest, poll),
            "calls" => self.calls(rest, poll),
            "values" => self.values(rest, poll),
            "diff" => self.diff(rest, poll),
            "disk" => self.disk(rest),
            "tree" => self.tree(rest, poll),
            "profile" => self.profile(rest, poll),
            "who-set" => self.who_set(rest, poll),
            "where-to" => self.where_to(rest, poll),
            "origin" => self.origin(rest, poll),
            "object" => self.object(rest, poll),
            "mark" => self.mark(rest),
            "checkpoint" => self.add_checkpoint(),
            "console" => Ok(self.console(rest)),
            "board" => self.board(),
            "physical" => self.physical(rest),
            "ps" => self.ps(),
            "backtrace" => self.backtrace(),
            "dmesg" => self.dmesg(rest),
            "reports" => self.reports(poll),
            "threads" => self.set_threads(rest),
            "break-in" => self.break_in(rest),
            "symbols" => self.symbol_commands(rest),
            "mappings" => self.mappings(rest),
            "step-interrupts" => self.set_stepping(rest),
            "pass-calls" => {
                self.stepping.pass_calls = true;
                Ok(String::new())
            }
            "user-breakpoints" => self.set_user_breakpoints(rest),
            "back" => self.leave_fork(),
            "help" | "" => Ok(format!("{HELP}conditions: {CONDITIONS}\n")),
            _ => Err(Refusal::new(format!("there is no 'monitor {word}': try 'monitor help'"))),
        }
    }

    fn when(&self) -> String {
        let machine = self.timeline.machine();
        let now = machine.moment();
        let fork = self.timeline.forked_at();
        let fork =
            fork.map(|at| format!(", in a scratch fork begun at instruction {at}")).unwrap_or_default();
        let processor = (machine.processors() > 1).then(|| machine.cpu().seat());
        let processor = processor.map(|number| format!(", on processor {number}")).unwrap_or_default();
        format!(
            "instruction {} of {}, branch {}, {:.9} s guest time{processor}{fork}\n",
            now.count,
            self.timeline.end(),
            machine.cpu().branches(),
            now.time_ns as f64 / 1e9
        )
    }

    fn position(&self) -> String {
        let (end, fork) = (self.timeline.end(), self.timeline.forked_at());
        let several = self.timeline.machine().processors() > 1;
        let thread = several.then(|| format!(" {}", FIRST_CPU as usize + self.shown_processor));
        let thread = thread.unwrap_or_default();
        format!("{} {end} {}{thread}\n", self.timeline.position(), u8::from(fork.is_some()))
    }

    fn goto(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let left = self.timeline.leave_fork().map_err(refused)?;
        if left.is_some() {
            // gdb has not shown the message about the fork yet, and the fork no longer exists.
            self.message = None;
        }
        let target = self.place(text, poll)?;
        let spec: Option<PositionSpec> = text.parse().ok();
        let comes_ns = spec.map_or(Ok(None), |spec| self.timeline.time_at(spec)).map_err(refused)?;
        let mut stop = self.timeline.seek(target, poll).map_err(refused)?;
        if stop == TravelStop::Reached {
            stop = self.timeline.settle(poll).map_err(refused)?;
        }
        let mut answer = String::new();
        if left.is_some() {
            answer += "The scratch fork is gone.\n";
        }
        if stop == TravelStop::Interrupted {
            answer += "Interrupted on the way.\n";
        }
        answer += &self.when();
        let now_ns = self.timeline.machine().moment().time_ns;
        if let Some(ns) = comes_ns.filter(|&ns| ns > now_ns && self.timeline.position() == target) {
            let _ = writeln!(answer, "The guest idles here: {text} is at {:.9} s.", ns as f64 / 1e9);
        }
        Ok(answer)
    }

    /// Resolves a position. Besides the usual notations, the text may be a mark or the number of a listed hit of this
    /// session.
    pub(super) fn place(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<Instructions, Refusal> {
        if let Some(name) = text.strip_prefix("mark:") {
            let none = || Refusal::new(format!("there is no mark '{name}'"));
            return self.marks.get(name).copied().ok_or_else(none);
        }
        if let Some(digits) = text.strip_prefix("hit:") {
            let hit = digits.parse().ok().and_then(|number: usize| self.hits.get(number));
            let none =
                || Refusal::new(format!("the last list has no hit {digits}: it has {}", self.hits.len()));
            return hit.map(|hit| hit.before).ok_or_else(none);
        }
        let spec: PositionSpec = text.parse().map_err(Refusal::new)?;
        self.timeline.resolve(spec, poll).map_err(refused)
    }

    fn travel_to(
        &mut self,
        what: &str,
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<String, Refusal> {
        let until = match direction {
            Direction::Forward => self.timeline.end(),
            Direction::Backward => self.timeline.position(),
        };
        let stops = self.stops_of(what, until, poll)?;
        let here = self.timeline.snapshot().map_err(refused)?;
        let stop = self.run(&stops, direction, poll)?;
        let is_in_vain = matches!(stop, TravelStop::Start | TravelStop::End | TravelStop::Reached);
        if is_in_vain && self.timeline.forked_at().is_none() {
            self.timeline.return_to(&here).map_err(refused)?;
        }
        let found = match stop {
            TravelStop::Hit(cause) => format!("{}\n", self.told(cause)),
            TravelStop::Interrupted => "interrupted\n".to_string(),
            TravelStop::Start => {
                "not found between here and the start of the recording; the position is unchanged\n"
                    .to_string()
            }
            TravelStop::End | TravelStop::Reached => {
                "not found between here and the end; the position is unchanged\n".to_string()
            }
        };
        Ok(found + &self.when())
    }

    /// Runs until one of `stops` stops the machine. gdb's breakpoints and watchpoints do not stop this run.
    fn run(
        &mut self,
        stops: &Stops,
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Refusal> {
        self.timeline.set_stops(stops.clone());
        let stop = match direction {
            Direction::Forward => self.timeline.run_forward(poll),
            Direction::Backward => self.timeline.run_backward(poll),
        };
        self.points_changed();
        stop.map_err(refused)
    }

    fn list_hits(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (stops, from, to) = self.region(text, poll)?;
        self.timeline.set_stops(stops);
        let kernels = self.several_kernels().cloned();
        let look =
            |machine: &Machine<Instructions>, hit: Hit| (hit, told_at(machine, hit.cause, kernels.as_ref()));
        let hits = self.timeline.hits_seen(from, to, MAX_LISTED, &look, poll);
        self.points_changed();
        let hits = hits.map_err(refused)?;
        let told: Vec<Option<String>>;
        (self.hits, told) = hits.found.into_iter().unzip();
        let mut answer = String::new();
        let are_several = self.timeline.machine().processors() > 1;
        for (number, (Hit { before, cause, processor, .. }, told)) in self.hits.iter().zip(told).enumerate() {
            let told = told.unwrap_or_else(|| cause.told(self.timeline.last_symbols()));
            let on = if are_several { format!("  on processor {processor}") } else { String::new() };
            let _ = writeln!(answer, "hit:{number:<4} insn:{before:<14} {told}{on}");
        }
        answer += &match (hits.interrupted_at, self.hits.len()) {
            (Some(edge), _) => format!("interrupted: the places after insn:{edge} were not searched\n"),
            (None, 0) => "nowhere in that part of the recording\n".to_string(),
            (None, MAX_LISTED) => format!("these are the first {MAX_LISTED}; goto hit:N goes to one\n"),
            (None, _) => "goto hit:N goes to one\n".to_string(),
        };
        Ok(answer)
    }

    /// A condition and, if the last two words are positions, the part of the recording to search.
    fn region(
        &mut self,
        text: &str,
        poll: &mut Poll<'_>,
    ) -> Result<(Stops, Instructions, Instructions), Refusal> {
        let mut words = text.rsplitn(3, ' ');
        if let (Some(to), Some(from), Some(condition)) = (words.next(), words.next(), words.next())
            && let (Ok(from), Ok(to)) = (self.place(from, poll), self.place(to, poll))
            && let Ok(stops) = self.stops_of(condition.trim(), to, poll)
        {
            return Ok((stops, from, to));
        }
        let end = self.timeline.end();
        Ok((self.stops_of(text, end, poll)?, Instructions(0), end))
    }

    /// The stops for the condition in `text`. The condition may use the names of the guest's kernels that run
    /// before `until`. The filters after the condition choose threads and processors.
    fn stops_of(&mut self, text: &str, until: Instructions, poll: &mut Poll<'_>) -> Result<Stops, Refusal> {
        let (condition, filters) = Filters::behind(text).map_err(Refusal::new)?;
        if filters.longer_ns.is_some() {
            return Err(Refusal::new("only `ttvm search` takes the filter longer:"));
        }
        filters.check(self.timeline.machine()).map_err(refused)?;
        let stops = self.stops_without_filters(condition, until, poll)?;
        if !filters.choose_threads() && !filters.choose_processors() {
            return Ok(stops);
        }
        Ok(Stops { only: Some(self.only(filters, until, poll)?), ..stops })
    }

    /// The stop condition for filters that choose threads or processors.
    fn only(
        &mut self,
        filters: Filters,
        until: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Filter, Refusal> {
        if !filters.choose_threads() {
            return Ok(Filter::new(move |machine| filters.admit_processor(machine.cpu().seat())));
        }
        let tasks = self.tasks().map_err(|error| Refusal::new(error.to_string()))?;
        let has_one = self.timeline.names(until, poll).map_err(refused)?.all().len() <= 1;
        let kernels = (!has_one).then(|| GuestKernels::of(self.timeline, until, poll));
        let kernels = kernels.transpose().map_err(refused)?;
        Ok(Filter::new(move |machine: &Machine<Instructions>| {
            let thread = match &kernels {
                Some(kernels) => kernels.thread(machine),
                None => tasks.current(machine),
            };
            filters.admit_processor(machine.cpu().seat()) && filters.admit(thread.as_ref())
        }))
    }

    fn stops_without_filters(
        &mut self,
        text: &str,
        until: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Stops, Refusal> {
        // Most conditions have only numbers. So the function first parses without the guest's symbols, because finding
        // symbols takes time.
        stops_of(text, &NoNames).or_else(|_| {
            let kernels = self.timeline.names(until, poll).map_err(refused)?;
            kernels.stops(|names| stops_of(text, names))
        })
    }

    fn search(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let end = self.timeline.end();
        let stops = self.stops_of(text, end, poll)?;
        let here = self.timeline.snapshot().map_err(refused)?;
        let mut answer = String::new();
        for (direction, name) in [(Direction::Backward, "before"), (Direction::Forward, "after")] {
            let found = match self.run(&stops, direction, poll)? {
                TravelStop::Hit(cause) => format!("insn:{} {}", self.timeline.position(), self.told(cause)),
                TravelStop::Interrupted => "interrupted".to_string(),
                _ => "nowhere".to_string(),
            };
            let _ = writeln!(answer, "{name}: {found}");
            self.timeline.return_to(&here).map_err(refused)?;
        }
        Ok(answer)
    }

    fn mark(&mut self, name: &str) -> Result<String, Refusal> {
        if name.is_empty() {
            let lines = self.marks.iter().map(|(name, at)| format!("mark:{name:<16} insn:{at}\n"));
            return Ok(lines.collect());
        }
        if name.contains(char::is_whitespace) {
            return Err(Refusal::new("a mark's name is one word"));
        }
        if self.timeline.forked_at().is_some() {
            return Err(Refusal::new(
                "a position in a scratch fork cannot have a name: leave the fork first, with 'monitor back'",
            ));
        }
        let here = self.timeline.position();
        self.marks.insert(name.to_string(), here);
        Ok(format!("mark:{name} is instruction {here}\n"))
    }

    fn add_checkpoint(&mut self) -> Result<String, Refusal> {
        let entry = self.timeline.add_checkpoint().map_err(refused)?;
        Ok(format!("there is a checkpoint at instruction {} now\n", entry.position))
    }

    fn console(&self, lines: &str) -> String {
        let lines = console::last_lines(self.timeline.machine(), lines.parse().unwrap_or(usize::MAX));
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn board(&self) -> Result<String, Refusal> {
        Ok(format!("{}\n", Board::of(self.timeline).map_err(refused)?))
    }

    fn physical(&self, text: &str) -> Result<String, Refusal> {
        let range = text.split_once(' ').and_then(|(at, length)| Some((number(at)?, number(length.trim())?)));
        let (address, length) =
            range.filter(|&(_, length)| length <= MAX_PHYSICAL_BYTES).ok_or_else(|| {
                Refusal::new(format!("write: physical ADDR LEN, at most {MAX_PHYSICAL_BYTES} bytes"))
            })?;
        let mut bytes = vec![0; length as usize];
        let count = self.timeline.machine().read_physical(address, &mut bytes);
        let mut answer = String::new();
        for (row, at) in bytes[..count].chunks(16).zip((address..).step_by(16)) {
            let digits: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(answer, "{at:#014x}  {}", digits.join(" "));
        }
        if count < bytes.len() {
            let _ = writeln!(answer, "there is no RAM at {:#x}", address.saturating_add(count as u64));
        }
        Ok(answer)
    }

    fn set_stepping(&mut self, argument: &str) -> Result<String, Refusal> {
        match argument {
            "" => {}
            "on" => self.stepping.follow_cpu = true,
            "off" => self.stepping.follow_cpu = false,
            _ => return Err(Refusal::new("write: monitor step-interrupts [on|off]")),
        }
        let said = match self.stepping.follow_cpu {
            true => "steps follow the CPU, into interrupts, faults and other threads\n",
            false => {
                "steps follow their thread; in other code gdb stops only at breakpoints and watchpoints\n"
            }
        };
        Ok(said.to_string())
    }

    fn set_user_breakpoints(&mut self, text: &str) -> Result<String, Refusal> {
        let addresses = text.split_whitespace().map(number).collect::<Option<_>>();
        let wrong = || Refusal::new("write: monitor user-breakpoints ADDR...");
        self.temporary.of_user = Some(addresses.ok_or_else(wrong)?);
        Ok(String::new())
    }

    fn leave_fork(&mut self) -> Result<String, Refusal> {
        match self.timeline.leave_fork().map_err(refused)? {
            Some(_) => {
                // The waiting message is about a fork that no longer exists.
                self.message = None;
                Ok(format!("back in the recorded history: {}", self.when()))
            }
            None => Err(Refusal::new("this is the recorded history: there is no fork to come back from")),
        }
    }
}

/// Parses the condition at which a movement stops. `text` is a condition, such as `write ADDRESS`, or a command with
/// one, such as `last-write ADDRESS`.
fn stops_of(text: &str, names: &dyn Names) -> Result<Stops, Refusal> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let word = word.trim_start_matches("last-").trim_start_matches("next-");
    let words: Vec<_> = rest.split_whitespace().collect();
    let watched = |kind, changes_only| {
        let (address, length) = range(&words, names)?;
        address.checked_add(length.checked_sub(1)?)?;
        let point = Watchpoint { space: AddressKind::Linear, address, length, kind };
        Some(Stops { watches: vec![Watch { changes_only, ..point.into() }], ..Stops::default() })
    };
    let numbers = words.iter().map(|word| number(word)).collect::<Option<Vec<_>>>();
    let stops = match (word, numbers.as_deref()) {
        ("write", _) => watched(WatchKind::Write, false),
        ("change", _) => watched(WatchKind::Write, true),
        ("read", _) => watched(WatchKind::Read, false),
        ("access", _) => watched(WatchKind::Access, false),
        ("call", _) if words.len() == 1 => place(words[0], names)
            .map(|(address, _)| Stops { breakpoints: vec![Breakpoint::at(address)], ..Stops::default() }),
        ("syscall", Some([])) => Some(Stops::system_call(None)),
        ("syscall", Some(&[number])) => Some(Stops::system_call(Some(number))),
        ("syscall", None) if words.len() == 1 => {
            let named = Condition::parse(&format!("syscall:{}", words[0]), names);
            return named.map(|Condition(stops)| stops).map_err(Refusal::new);
        }
        // The vectors below 32 are exceptions.
        ("interrupt", Some([])) => Some(vectors(32..=255)),
        ("interrupt", Some(&[vector])) => u8::try_from(vector).ok().map(|vector| vectors(vector..=vector)),
        _ => None,
    };
    if let Some(stops) = stops {
        return Ok(stops);
    }
    let is_place = ["write", "change", "read", "access", "call"].contains(&word);
    if let Some(unknown) = words.first().filter(|word| is_place && place(word, names).is_none()) {
        let why = format!("'{unknown}' is neither a number nor a symbol of the guest's kernel");
        return Err(Refusal::new(why));
    }
    let parsed = Condition::parse(text, names);
    parsed.map(|Condition(stops)| stops).map_err(Refusal::new)
}

/// Parses a number or a symbol's name. Returns the address, and the number of bytes of a range for which the user gives
/// no length. A number stands for 1 byte, and a name for the symbol's size, at most `MAX_VARIABLE_BYTES`.
fn place(word: &str, names: &dyn Names) -> Option<(u64, u64)> {
    let named = || names.named(word).map(|(address, size)| (address, size.clamp(1, MAX_VARIABLE_BYTES)));
    number(word).map(|address| (address, 1)).or_else(named)
}

fn range(words: &[&str], names: &dyn Names) -> Option<(u64, u64)> {
    match *words {
        [word] => place(word, names),
        [word, length] => Some((place(word, names)?.0, number(length)?)),
        _ => None,
    }
}

fn vectors(vectors: std::ops::RangeInclusive<u8>) -> Stops {
    Stops { traps: Traps { vectors: vectors.collect(), ..Traps::default() }, ..Stops::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_run_to_is_understood() {
        let stops_of = |text: &str| stops_of(text, &NoNames);
        let write = stops_of("last-write 0x1000 4").unwrap().watches[0];
        assert_eq!((write.point.address, write.point.length, write.changes_only), (0x1000, 4, false));
        assert!(stops_of("change 16").unwrap().watches[0].changes_only);
        assert_eq!(stops_of("last-call 0x10").unwrap().breakpoints, [Breakpoint::at(0x10)]);
        assert_eq!(stops_of("syscall").unwrap(), Stops::system_call(None));
        assert_eq!(stops_of("next-syscall 3").unwrap(), Stops::system_call(Some(3)));
        assert_eq!(stops_of("last-interrupt").unwrap().traps.vectors.len(), 224);
        assert_eq!(stops_of("vector:14").unwrap().traps.vectors.len(), 1);
        assert_eq!(stops_of("console:login: ").unwrap().console.unwrap(), b"login: ");
        for text in ["", "write", "write x", "write 1 0", "call", "interrupt 256", "syscall x", "nonsense 1"]
        {
            assert!(stops_of(text).is_err(), "{text}");
        }
    }

    /// A small variable and a large variable.
    struct Variables;

    impl Names for Variables {
        fn named(&self, name: &str) -> Option<(u64, u64)> {
            match name {
                "flag" => Some((0x1000, 4)),
                "table" => Some((0x2000, 0x800)),
                _ => None,
            }
        }
        fn functions_like(&self, _: &str) -> std::collections::BTreeSet<u64> {
            Default::default()
        }
    }

    #[test]
    fn names_are_places() {
        let stops_of = |text: &str| stops_of(text, &Variables);
        for (text, address, length) in [
            ("last-write flag", 0x1000, 4),
            ("change table", 0x2000, 8),
            ("read table 64", 0x2000, 64),
            ("access:flag", 0x1000, 1),
            ("write:table+2", 0x2000, 2),
        ] {
            let point = stops_of(text).unwrap().watches[0].point;
            assert_eq!((point.address, point.length), (address, length), "{text}");
        }
        assert_eq!(stops_of("last-call flag").unwrap().breakpoints, [Breakpoint::at(0x1000)]);
        assert_eq!(stops_of("break:table").unwrap().breakpoints, [Breakpoint::at(0x2000)]);
        for text in ["write flags", "call flags", "break:flags"] {
            let refusal = stops_of(text).unwrap_err().to_string();
            assert!(refusal.starts_with("'flags' is neither a number nor a symbol"), "{refusal}");
        }
    }
}
