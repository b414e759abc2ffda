//! The guest kernel's symbols, taken from the guest kernel itself: a running Linux carries the names and addresses
//! of all its functions and variables (kallsyms), already moved to where this boot has put them (KASLR), and those
//! of the modules that are loaded.
//!
//! [`kallsyms`] finds the kernel's tables by their structure, [`modules`] walks the list of modules with the help
//! of the kernel's type information ([`btf`]), and [`elf`] makes a file of all that for gdb. There are no types and
//! no source lines in it, and nothing about user programs. [`vmlinux`] says how far a kernel with debug information
//! was moved, and [`tasks`] which processes there are.
//!
//! Follows Linux: `scripts/kallsyms.c`, `kernel/kallsyms.c`, `kernel/module/kallsyms.c` (6.1, and the order of
//! tables of later ones), `Documentation/bpf/btf.rst`. Guest memory is not to be trusted: every length has a limit.

pub mod btf;
pub mod elf;
pub mod kallsyms;
mod kernel_view;
pub mod modules;
mod sections;
pub mod tasks;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_tasks;
#[cfg(test)]
mod tests_of_vmlinux;
pub mod vmlinux;

use std::cmp::Reverse;

pub use self::kernel_view::{KernelView, USER_ROOT_BIT};
pub use self::sections::{Access, Section};
use crate::machine::Machine;

/// The longest name that is kept, in bytes: `KSYM_NAME_LEN` of Linux.
pub const MAX_NAME_BYTES: usize = 512;
/// No more symbols are read, of the kernel and of all modules each.
pub const MAX_SYMBOLS: usize = 1 << 20;
/// No more bytes of names are kept, of the kernel and of all modules each.
pub const MAX_NAMES_BYTES: usize = 64 << 20;

/// Where symbols are read from.
pub trait Memory {
    /// Reads at a virtual address of the kernel, without side effects. Returns how many bytes there are, from the
    /// first on.
    fn read(&self, address: u64, to: &mut [u8]) -> usize;

    /// Where in physical memory a virtual address of the kernel is.
    fn physical(&self, address: u64) -> Option<u64>;
}

/// A function or variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name, as the kernel has it.
    pub name: String,
    /// Where it is; an offset for variables of which each CPU has one.
    pub address: u64,
    /// Bytes up to its end, where known; otherwise up to what comes next.
    pub size: u64,
    /// What `nm` calls its class: `t` and `T` are code, upper case is global.
    pub class: u8,
    /// Its section in [`Symbols::sections`]; `None` when the address is only a number.
    pub section: Option<usize>,
    /// Its module in [`Symbols::modules`]; `None` for the kernel itself.
    pub module: Option<usize>,
}

impl Symbol {
    /// Whether it is known outside its source file.
    pub fn is_global(&self) -> bool {
        self.class.is_ascii_uppercase()
    }

    /// Whether it is code by its class.
    pub fn is_code(&self) -> bool {
        is_code(self.class)
    }
}

/// What a kernel has symbols for, at one position of its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// By address; of those with the same address the global ones come first.
    symbols: Vec<Symbol>,
    /// Numbers of symbols by name; of those with the same name the kernel's global ones come first.
    by_name: Vec<u32>,
    sections: Vec<Section>,
    modules: Vec<String>,
    without_modules: Option<modules::Missing>,
}

/// There is no kernel with symbols in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kernel with a symbol table (CONFIG_KALLSYMS) is mapped")]
pub struct NoKernel;

impl Symbols {
    /// Those of the kernel that a machine runs, as of now.
    pub fn of_machine(machine: &Machine<crate::position::Instructions>) -> Result<Symbols, NoKernel> {
        let current = Symbols::of_kernel(&KernelView::current(machine));
        let is_whole = |symbols: &Symbols| symbols.without_modules.is_none();
        if current.as_ref().is_ok_and(is_whole) {
            return current;
        }
        // A program's tables may have the kernel's tables of symbols and not its variables.
        let behind_user = KernelView::behind_user(machine).map(|view| Symbols::of_kernel(&view));
        match behind_user {
            Some(Ok(symbols)) if current.is_err() || is_whole(&symbols) => Ok(symbols),
            _ => current,
        }
    }

    /// Searches the kernel's part of the address space. Takes a while: reads all of the kernel's image.
    pub fn of_kernel(memory: &dyn Memory) -> Result<Symbols, NoKernel> {
        let kernel = kallsyms::search(memory).ok_or(NoKernel)?;
        let (loaded, without_modules) = match modules::loaded(memory, &kernel) {
            Ok(loaded) => (loaded, None),
            Err(missing) => (Vec::new(), Some(missing)),
        };
        Ok(Symbols { without_modules, ..Symbols::new(kernel, loaded) })
    }

    /// Puts together what was found.
    fn new(kernel: Vec<kallsyms::Found>, loaded: Vec<modules::Module>) -> Symbols {
        let mut sections = sections::of_kernel(&kernel);
        let mut names = Vec::new();
        let mut symbols: Vec<Symbol> = kernel.into_iter().map(|found| found.symbol(None)).collect();
        for (number, module) in loaded.into_iter().enumerate() {
            sections.extend(module.sections);
            names.push(module.name);
            symbols.extend(module.symbols.into_iter().map(|found| found.symbol(Some(number))));
        }
        sections = sections::without_overlaps(sections);
        for symbol in &mut symbols {
            symbol.section = sections::at(&sections, symbol.address).filter(|_| !is_number(symbol.class));
        }
        symbols.sort_by(|a, b| {
            let key = |symbol: &Symbol| (symbol.address, !symbol.is_global());
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        fill_sizes(&mut symbols, &sections);
        let mut by_name: Vec<u32> = (0..symbols.len() as u32).collect();
        by_name.sort_by(|&a, &b| {
            let (a, b) = (&symbols[a as usize], &symbols[b as usize]);
            let rank = |symbol: &Symbol| (symbol.module, Reverse(symbol.is_global()), symbol.address);
            a.name.cmp(&b.name).then_with(|| rank(a).cmp(&rank(b)))
        });
        Symbols { symbols, by_name, sections, modules: names, without_modules: None }
    }

    /// A symbol by its name. Of several with this name: the kernel's before a module's, a global one before others,
    /// the lowest.
    pub fn named(&self, name: &str) -> Option<&Symbol> {
        self.all_named(name).next()
    }

    /// All symbols with a name, the one that [`Symbols::named`] gives first.
    pub fn all_named(&self, name: &str) -> impl Iterator<Item = &Symbol> {
        let first = self.by_name.partition_point(|&number| self.name(number) < name);
        let symbols = self.by_name[first..].iter().map(|&number| &self.symbols[number as usize]);
        symbols.take_while(move |symbol| symbol.name == name)
    }

    /// The address of a symbol, of several that of [`Symbols::named`].
    pub fn address_of(&self, name: &str) -> Option<u64> {
        self.named(name).map(|symbol| symbol.address)
    }

    /// What the modules define, without the kernel itself.
    pub fn of_modules(&self) -> Symbols {
        let found = |symbol: &Symbol| kallsyms::Found {
            name: symbol.name.clone(),
            address: symbol.address,
            size: symbol.size,
            class: symbol.class,
        };
        let in_module = |number: usize, symbol: &&Symbol| symbol.module == Some(number);
        let module = |(number, name): (usize, &String)| modules::Module {
            name: name.clone(),
            sections: Vec::new(),
            symbols: self.symbols.iter().filter(|symbol| in_module(number, symbol)).map(found).collect(),
        };
        let mut loaded: Vec<_> = self.modules.iter().enumerate().map(module).collect();
        if let Some(first) = loaded.first_mut() {
            // Which of them a section belongs to does not matter any more.
            let of_kernel = |section: &&Section| kallsyms::IMAGE.contains(&section.start);
            first.sections = self.sections.iter().filter(|section| !of_kernel(section)).cloned().collect();
        }
        Symbols { without_modules: self.without_modules.clone(), ..Symbols::new(Vec::new(), loaded) }
    }

    /// The name of what lies at an address, and how many bytes after its beginning. `None` outside the kernel and
    /// its modules.
    pub fn name_of(&self, address: u64) -> Option<(&str, u64)> {
        let section = sections::at(&self.sections, address)?;
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let nearest = self.symbols[..after].last()?.address;
        let first = self.symbols.partition_point(|symbol| symbol.address < nearest);
        let here = self.symbols[first..after].iter().find(|symbol| symbol.section == Some(section))?;
        (address - nearest < here.size.max(1)).then_some((&here.name, address - nearest))
    }

    /// All symbols, by address.
    pub fn all(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The parts of the kernel and its modules, by address.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The names of the modules that are loaded.
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Why there are no modules' symbols, if they could not be found.
    pub fn without_modules(&self) -> Option<&modules::Missing> {
        self.without_modules.as_ref()
    }

    fn name(&self, number: u32) -> &str {
        &self.symbols[number as usize].name
    }
}

/// Whether a class is one of code.
fn is_code(class: u8) -> bool {
    matches!(class, b't' | b'T')
}

/// Whether a class says that the address is only a number.
fn is_number(class: u8) -> bool {
    matches!(class, b'a' | b'A')
}

/// Where no size is known it is all up to the next symbol, but not beyond the section.
fn fill_sizes(symbols: &mut [Symbol], sections: &[Section]) {
    let mut next = None;
    for number in (0..symbols.len()).rev() {
        let Some(section) = symbols[number].section else { continue };
        let address = symbols[number].address;
        let after = match next {
            Some((at, end)) if at == address => end,
            Some((at, _)) => at,
            None => u64::MAX,
        };
        next = Some((address, after));
        let symbol = &mut symbols[number];
        let room = after.min(sections[section].end()) - address;
        if symbol.size == 0 || symbol.size > sections[section].end() - address {
            symbol.size = room;
        }
    }
}

/// Reads a little-endian number of `N` bytes, at most eight.
fn number<const N: usize>(memory: &dyn Memory, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (memory.read(address, &mut bytes[..N]) == N).then(|| u64::from_le_bytes(bytes))
}

/// Reads a text that ends with a NUL within `limit` bytes.
fn text(memory: &dyn Memory, address: u64, limit: usize) -> Option<String> {
    let mut bytes = vec![0; limit];
    let count = memory.read(address, &mut bytes);
    let end = bytes[..count].iter().position(|&byte| byte == 0)?;
    is_text(&bytes[..end]).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Whether these bytes can be a name: visible ASCII characters, and those that Rust's symbols may have.
fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}
