//! The guest's kernel in a session: its symbols, its processes, its backtrace and its messages.
//!
//! Commands look up names in the symbols. `monitor symbols` writes the symbols to files for gdb, with types and frames.

use std::fmt::Write;
use std::sync::Arc;

use gdb::{Poll, Refusal};
use guest_symbols::dwarf::DebugInfo;
use guest_symbols::messages;
use guest_symbols::module_sections;
use guest_symbols::tasks::{NoTasks, Tasks};
use guest_symbols::{NoKernel, Symbols};
use views::guest_kernel::Backtrace;
use views::reports::ReportList;

use super::known_tasks::KnownTasks;
use super::{GdbTarget, refused};
use history::timeline::{Cause, Kernels, number};
use machine::Machine;
use machine::position::Instructions;

/// After a failed search, the session does not search for the kernel again within this number of steps.
const LOOKED_FOR_STEPS: u64 = 50_000_000;

/// A description of the event at a machine's present place. If there are several kernels, the description names the
/// kernel.
pub(super) fn told_at(
    machine: &Machine<Instructions>,
    cause: Cause,
    kernels: Option<&Kernels>,
) -> Option<String> {
    let kernels = kernels?;
    let here = kernels.at(machine)?;
    let told = cause.told(Some(&kernels.all()[here].symbols));
    Some(format!("{told} in the {}", kernels.name(here)?))
}

impl GdbTarget<'_> {
    /// The symbols of the kernel that the guest runs now.
    pub(super) fn symbols(&mut self) -> Result<Arc<Symbols>, NoKernel> {
        self.timeline.symbols()
    }

    /// The first instruction of the kernel's new threads.
    pub(super) fn begin_of_threads(&mut self) -> Option<u64> {
        self.known_tasks()?;
        self.tasks.as_ref()?.begin_of_threads
    }

    /// The location of the kernel's processes.
    pub(super) fn tasks(&mut self) -> Result<Arc<Tasks>, NoTasks> {
        if let Some(known) = &self.tasks
            && (known.is_here(self.timeline.machine()) || self.has_looked_near())
        {
            return Ok(known.tasks.clone());
        }
        match self.tasks_here() {
            Ok(found) => {
                let tasks = found.tasks.clone();
                self.tasks = Some(found);
                Ok(tasks)
            }
            Err(none) => {
                self.stepping.no_kernel_at = Some(self.timeline.position());
                self.tasks.as_ref().map(|known| known.tasks.clone()).ok_or(none)
            }
        }
    }

    fn tasks_here(&mut self) -> Result<KnownTasks, NoTasks> {
        let symbols = self.symbols()?;
        KnownTasks::of_kernel(self.timeline.machine(), &symbols)
    }

    /// Does the same as [`Self::tasks`], but may be called at each step. After a failed search, this function
    /// searches again only at a distance of [`LOOKED_FOR_STEPS`].
    pub(super) fn known_tasks(&mut self) -> Option<Arc<Tasks>> {
        if self.tasks.is_none() && self.has_looked_near() { None } else { self.tasks().ok() }
    }

    /// Whether the last failed search for a kernel was less than [`LOOKED_FOR_STEPS`] steps away from this place.
    fn has_looked_near(&self) -> bool {
        let here = self.timeline.position();
        self.stepping.no_kernel_at.is_some_and(|at| at.0.abs_diff(here.0) < LOOKED_FOR_STEPS)
    }

    /// The kernel's backtrace.
    pub(super) fn backtrace(&mut self) -> Result<String, Refusal> {
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let told = Backtrace::of(self.timeline.machine(), &symbols);
        let told = told.map_err(|missing| Refusal::new(missing.to_string()))?;
        let mut text = String::new();
        for (number, call) in told.frames.iter().enumerate() {
            let _ = writeln!(text, "#{number:<3} {:#018x} {}", call.address, call.name());
        }
        let _ = writeln!(text, "from {}", told.end);
        Ok(text)
    }

    /// The last messages of the kernel, or all messages.
    pub(super) fn dmesg(&mut self, lines: &str) -> Result<String, Refusal> {
        let count = if lines.is_empty() { Some(u64::MAX) } else { number(lines) };
        let count = count.ok_or_else(|| Refusal::new("write: monitor dmesg [LINES]"))?;
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let messages = messages::of_kernel(self.timeline.machine(), &symbols);
        let messages = messages.map_err(|missing| Refusal::new(missing.to_string()))?;
        let all: Vec<String> = messages.iter().map(|message| format!("{message}\n")).collect();
        Ok(all[all.len().saturating_sub(count as usize)..].concat())
    }

    /// The kernel's reports in the whole recording.
    pub(super) fn reports(&mut self, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let list = ReportList::of(self.timeline, poll).map_err(refused)?;
        Ok(format!("{list}\n"))
    }

    /// The address that a word gives, as a number or by the name of a kernel symbol.
    pub(super) fn address(&mut self, word: &str) -> Result<u64, Refusal> {
        let named = || self.symbols().ok()?.address_of(word);
        let unknown =
            || Refusal::new(format!("'{word}' is neither a number nor a symbol of the guest's kernel"));
        number(word).or_else(named).ok_or_else(unknown)
    }

    /// A description of the event at the machine's present place. Addresses get names if the symbols have been read
    /// already.
    pub(super) fn told(&self, cause: Cause) -> String {
        told_at(self.timeline.machine(), cause, self.several_kernels())
            .unwrap_or_else(|| cause.told(self.timeline.last_symbols()))
    }

    /// The kernels of the run, if several are known.
    pub(super) fn several_kernels(&self) -> Option<&Kernels> {
        self.timeline.known_kernels().filter(|kernels| kernels.all().len() > 1)
    }

    /// Writes files with symbols, types and frames, and returns the gdb commands that load them. The files are for the
    /// kernel and its modules, or only for the modules. The argument `loaded` writes no files. This argument says that
    /// gdb has loaded the newest files and no longer needs the earlier files. The argument `module NAME` lists the
    /// addresses of a module's sections. The command never reads a file that a client names.
    pub(super) fn symbol_commands(&mut self, argument: &str) -> Result<String, Refusal> {
        if argument == "loaded" {
            self.symbol_files.keep_loaded();
            return Ok(String::new());
        }
        if let Some(name) = argument.strip_prefix("module ") {
            return self.sections_of(name.trim());
        }
        if !["", "modules"].contains(&argument) {
            let why = "write symbols, or symbols modules; 'tt symbols FILE' loads a file";
            return Err(Refusal::new(why));
        }
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let machine = self.timeline.machine();
        let (symbols, debug) = match argument {
            "modules" => (Arc::new(symbols.of_modules()), DebugInfo::of_modules(machine, &symbols)),
            _ => (symbols.clone(), DebugInfo::beside_programs(machine, &symbols)),
        };
        let mut answer = match argument {
            "modules" => self.symbol_files.write("modules", &symbols, &debug)?,
            _ => self.symbol_files.write("kernel", &symbols, &debug)?,
        };
        if debug.sections().iter().any(|(name, _)| *name == ".debug_frame") {
            // This file comes last, because gdb takes unwind information from the first file that covers the address.
            answer +=
                &self.symbol_files.write("programs", &Symbols::default(), &DebugInfo::end_at_programs())?;
        }
        let modules = symbols.modules().join(" ");
        let _ = writeln!(answer, "# modules: {}", if modules.is_empty() { "none" } else { &modules });
        if let Some(why) = symbols.without_modules() {
            let _ = writeln!(answer, "# the symbols of modules are missing: {why}");
        }
        for why in debug.missing() {
            let _ = writeln!(answer, "# {why}");
        }
        Ok(answer)
    }

    /// The addresses of a module's sections, a line for each. Empty if only the module's symbols are known.
    fn sections_of(&mut self, name: &str) -> Result<String, Refusal> {
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        if let Some(why) = symbols.without_modules() {
            return Err(Refusal::new(format!("the guest's modules are not known: {why}")));
        }
        if !symbols.modules().iter().any(|module| module == name) {
            return Err(Refusal::new(format!("the guest has no module '{name}' here")));
        }
        let sections = module_sections::of_module(self.timeline.machine(), &symbols, name);
        Ok(sections.iter().map(|(name, address)| format!("section {name} {address:#x}\n")).collect())
    }
}
