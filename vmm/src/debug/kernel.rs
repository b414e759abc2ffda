//! What a session knows of the guest's kernel: symbols, which names in commands are looked up in and which
//! `monitor symbols` makes files of for gdb, and where the processes are.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use gdb::Refusal;
use guest_symbols::messages;
use guest_symbols::orc::Unwinder;
use guest_symbols::tasks::{NoTasks, Tasks};
use guest_symbols::vmlinux::{Match, Placement, compare};
use guest_symbols::{NoKernel, Symbols, elf};
use tempfile::TempDir;

use super::GdbTarget;
use crate::position::Instructions;
use crate::timeline::{Cause, number};

/// A place in the run, and where the fork begins that it is in.
type Place = (Instructions, Option<Instructions>);

/// What was found out and need not be searched for again.
#[derive(Default)]
pub(super) struct Kernel {
    /// The symbols at the place where they were last asked for.
    symbols: Option<(Place, Arc<Symbols>)>,
    tasks: Option<Arc<Tasks>>,
    files: Option<TempDir>,
    /// Files that were made in this session.
    count: usize,
}

impl GdbTarget<'_> {
    /// The kernel's symbols as of now.
    pub(super) fn symbols(&mut self) -> Result<Arc<Symbols>, NoKernel> {
        let here = (self.timeline.position(), self.timeline.forked_at());
        if let Some((_, symbols)) = self.kernel.symbols.as_ref().filter(|(place, _)| *place == here) {
            return Ok(symbols.clone());
        }
        let symbols = Arc::new(Symbols::of_guest(self.timeline.machine())?);
        self.kernel.symbols = Some((here, symbols.clone()));
        Ok(symbols)
    }

    /// Where the kernel keeps its processes.
    pub(super) fn tasks(&mut self) -> Result<Arc<Tasks>, NoTasks> {
        if let Some(tasks) = &self.kernel.tasks {
            return Ok(tasks.clone());
        }
        let symbols = self.symbols()?;
        let tasks = Arc::new(Tasks::of_kernel(self.timeline.machine(), &symbols)?);
        self.kernel.tasks = Some(tasks.clone());
        Ok(tasks)
    }

    /// Who called whom in the kernel.
    pub(super) fn backtrace(&mut self) -> Result<String, Refusal> {
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let machine = self.timeline.machine();
        let unwinder =
            Unwinder::of_kernel(machine, &symbols).map_err(|missing| Refusal::new(missing.to_string()))?;
        let found = unwinder.walk(machine, machine.unwind_registers());
        let mut text = String::new();
        for (number, frame) in found.frames.iter().enumerate() {
            let name = frame.name(&symbols).unwrap_or_else(|| "?".to_string());
            let _ = writeln!(text, "#{number:<3} {:#018x} {name}", frame.address);
        }
        let _ = writeln!(text, "from {}", found.end);
        Ok(text)
    }

    /// The last messages of the kernel, or all.
    pub(super) fn dmesg(&mut self, lines: &str) -> Result<String, Refusal> {
        let count = if lines.is_empty() { Some(u64::MAX) } else { number(lines) };
        let count = count.ok_or_else(|| Refusal::new("write: monitor dmesg [LINES]"))?;
        let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
        let messages = messages::of_kernel(self.timeline.machine(), &symbols);
        let messages = messages.map_err(|missing| Refusal::new(missing.to_string()))?;
        let all: Vec<String> = messages.iter().map(|message| format!("{message}\n")).collect();
        Ok(all[all.len().saturating_sub(count as usize)..].concat())
    }

    /// An address, as a number or by the name of a kernel symbol.
    pub(super) fn address(&mut self, word: &str) -> Result<u64, Refusal> {
        let named = || self.symbols().ok()?.address_of(word);
        let unknown =
            || Refusal::new(format!("'{word}' is neither a number nor a symbol of the guest's kernel"));
        number(word).or_else(named).ok_or_else(unknown)
    }

    /// What happened, with the names of the places if they are known already.
    pub(super) fn told(&self, cause: Cause) -> String {
        let address = match cause {
            Cause::Breakpoint(address) | Cause::Watch { address, .. } => address,
            _ => return cause.to_string(),
        };
        let symbols = self.kernel.symbols.as_ref().map(|(_, symbols)| symbols);
        match symbols.and_then(|symbols| symbols.name_of(address)) {
            Some((name, 0)) => format!("{cause} <{name}>"),
            Some((name, offset)) => format!("{cause} <{name}+{offset:#x}>"),
            None => cause.to_string(),
        }
    }

    /// Makes files with symbols and gives the gdb commands that load them.
    pub(super) fn symbol_commands(&mut self, argument: &str) -> Result<String, Refusal> {
        if argument == "loaded" {
            self.kernel.files = None;
            return Ok(String::new());
        }
        let mut answer = if argument.is_empty() {
            let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
            self.symbol_file("kernel", &symbols)?
        } else {
            self.commands_for(Path::new(argument))?
        };
        if let Ok(symbols) = self.symbols() {
            let modules = symbols.modules().join(" ");
            let _ = writeln!(answer, "# modules: {}", if modules.is_empty() { "none" } else { &modules });
            if let Some(why) = symbols.without_modules() {
                let _ = writeln!(answer, "# without the symbols of modules: {why}");
            }
        }
        Ok(answer)
    }

    /// The commands for a file with the kernel's symbols, or with others.
    fn commands_for(&mut self, file: &Path) -> Result<String, Refusal> {
        let as_it_is = Placement::default().load_command(file);
        let Ok(symbols) = self.symbols() else {
            return Ok(format!("# {NoKernel} here: the file is taken as it is\n{as_it_is}\n"));
        };
        match compare(file, &symbols).map_err(|error| Refusal::new(error.to_string()))? {
            Match::NoKernel => {
                Ok(format!("# this is not the guest's kernel: it is taken as it is\n{as_it_is}\n"))
            }
            Match::Kernel(placement) => {
                let kernel = placement.load_command(file) + "\n";
                let modules = symbols.of_modules();
                Ok(if modules.all().is_empty() {
                    kernel
                } else {
                    kernel + &self.symbol_file("modules", &modules)?
                })
            }
        }
    }

    /// Writes symbols where gdb can read them, until it says that it has, or the session ends. Gives the
    /// command that does so.
    fn symbol_file(&mut self, name: &str, symbols: &Symbols) -> Result<String, Refusal> {
        let failed =
            |error: std::io::Error| Refusal::new(format!("cannot write a file with symbols: {error}"));
        let files = match self.kernel.files.take() {
            Some(files) => files,
            None => tempfile::Builder::new().prefix("ttvm-symbols-").tempdir().map_err(failed)?,
        };
        self.kernel.count += 1;
        let path = files.path().join(format!("{name}-{}", self.kernel.count));
        self.kernel.files = Some(files);
        std::fs::write(&path, elf::file(symbols)).map_err(failed)?;
        Ok(Placement::default().load_command(&path) + "\n")
    }
}
