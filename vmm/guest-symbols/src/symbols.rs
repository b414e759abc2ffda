//! All symbols of a kernel at one position of its run, by address and by name.

use std::cmp::Reverse;
use std::hash::BuildHasher;
use std::sync::OnceLock;

use rustc_hash::FxBuildHasher;

use super::guest_view::{GuestView, KernelView};
use super::kallsyms::{self, RawSymbol, is_code};
use super::modules::{self, Missing, Module};
use super::sections::{self, Section};

/// A function or variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The symbol's name in the kernel.
    pub name: String,
    /// The symbol's address. For a per-CPU variable this is an offset, or from Linux 6.15 on an address in
    /// the kernel's image.
    pub address: u64,
    /// The symbol's size in bytes, if known. Otherwise the distance to the next symbol or to the end of the
    /// section.
    pub size: u64,
    /// The symbol's class, as `nm` prints it: `t` and `T` are code, upper case is global.
    pub class: u8,
    /// The symbol's section in [`Symbols::sections`]; `None` if the address is only a number.
    pub section: Option<usize>,
    /// The symbol's module in [`Symbols::modules`]; `None` for the kernel itself.
    pub module: Option<usize>,
}

impl Symbol {
    fn of(raw: RawSymbol, module: Option<usize>) -> Symbol {
        let RawSymbol { name, address, size, class } = raw;
        Symbol { name, address, size, class, section: None, module }
    }

    /// Whether the symbol is visible outside its source file.
    pub fn is_global(&self) -> bool {
        self.class.is_ascii_uppercase()
    }

    /// Whether the symbol's class means code.
    pub fn is_code(&self) -> bool {
        is_code(self.class)
    }
}

/// The symbols of a kernel, at one position of its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// The symbols, ordered by address. Among symbols with the same address, global symbols come first.
    symbols: Vec<Symbol>,
    by_name: ByName,
    sections: Vec<Section>,
    modules: Vec<String>,
    without_modules: Option<Missing>,
}

/// The hash of each symbol's name and the symbol's number, sorted by hash and name. Among symbols with the same name,
/// the kernel's global symbols come first. The list is sorted at the first lookup of a name, because some callers never
/// look up names.
#[derive(Clone, Debug, Default)]
struct ByName(OnceLock<Vec<(u64, u32)>>);

impl PartialEq for ByName {
    /// Returns true, because the list is determined by the symbols, which are compared too.
    fn eq(&self, _: &ByName) -> bool {
        true
    }
}

impl Eq for ByName {}

impl ByName {
    fn of(&self, symbols: &[Symbol]) -> &[(u64, u32)] {
        self.0.get_or_init(|| {
            let hashed = symbols.iter().zip(0..).map(|(symbol, number)| (hash(&symbol.name), number));
            let mut numbers: Vec<(u64, u32)> = hashed.collect();
            numbers.sort_unstable_by(|a, b| {
                let (first, second) = (&symbols[a.1 as usize], &symbols[b.1 as usize]);
                let rank = |symbol: &Symbol| (symbol.module, Reverse(symbol.is_global()), symbol.address);
                let same_hash = || first.name.cmp(&second.name).then_with(|| rank(first).cmp(&rank(second)));
                a.0.cmp(&b.0).then_with(same_hash).then(a.1.cmp(&b.1))
            });
            numbers
        })
    }
}

/// Hashes the name. Comparing hashes takes a fraction of the time of comparing names.
fn hash(name: &str) -> u64 {
    FxBuildHasher.hash_one(name)
}

/// The error that no kernel with symbols is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kernel with a symbol table (CONFIG_KALLSYMS) is mapped")]
pub struct NoKernel;

impl Symbols {
    /// The symbols of the kernel that a guest runs now.
    pub fn of_guest(guest: &dyn GuestView) -> Result<Symbols, NoKernel> {
        let current = Symbols::of_kernel(KernelView::current(guest));
        let is_whole = |symbols: &Symbols| symbols.without_modules.is_none();
        if current.as_ref().is_ok_and(is_whole) {
            return current;
        }
        // A program's page tables may map the kernel's symbol tables but not its variables.
        let behind_user = KernelView::behind_user(guest).map(Symbols::of_kernel);
        match behind_user {
            Some(Ok(symbols)) if current.is_err() || is_whole(&symbols) => Ok(symbols),
            _ => current,
        }
    }

    /// Searches the kernel's part of the address space. Slow: it reads the whole kernel image.
    pub fn of_kernel(memory: KernelView<'_>) -> Result<Symbols, NoKernel> {
        let kernel = kallsyms::search(memory).ok_or(NoKernel)?;
        let (loaded, without_modules) = match modules::loaded(memory, &kernel) {
            Ok(loaded) => (loaded, None),
            Err(missing) => (Vec::new(), Some(missing)),
        };
        Ok(Symbols { without_modules, ..Symbols::new(kernel, loaded) })
    }

    /// Combines the symbols of the kernel and its modules.
    pub(crate) fn new(kernel: Vec<RawSymbol>, loaded: Vec<Module>) -> Symbols {
        let mut sections = sections::of_kernel(&kernel);
        let mut names = Vec::new();
        let mut symbols: Vec<Symbol> = kernel.into_iter().map(|raw| Symbol::of(raw, None)).collect();
        for (number, module) in loaded.into_iter().enumerate() {
            sections.extend(module.sections);
            names.push(module.name);
            symbols.extend(module.symbols.into_iter().map(|raw| Symbol::of(raw, Some(number))));
        }
        sections = sections::without_overlaps(sections);
        for symbol in &mut symbols {
            symbol.section = sections::at(&sections, symbol.address).filter(|_| !is_number(symbol.class));
        }
        // Several symbols may have one address. The kernel's table lists the best name first, and the kernel prints this
        // name. The sort keeps the order of the kernel's table.
        symbols.sort_by(|a, b| {
            let in_module =
                |symbol: &Symbol| symbol.module.map(|_| (!symbol.is_global(), symbol.name.clone()));
            a.address.cmp(&b.address).then_with(|| in_module(a).cmp(&in_module(b)))
        });
        fill_sizes(&mut symbols, &sections);
        Symbols { symbols, by_name: ByName::default(), sections, modules: names, without_modules: None }
    }

    /// A symbol by its name. If several symbols have the name, prefers a symbol of the kernel to a symbol of a module.
    /// Among these, prefers a global symbol, and then the symbol with the lowest address.
    pub fn named(&self, name: &str) -> Option<&Symbol> {
        self.all_named(name).next()
    }

    /// All symbols with a name. The result of [`Symbols::named`] comes first.
    pub fn all_named(&self, name: &str) -> impl Iterator<Item = &Symbol> {
        let by_name = self.by_name.of(&self.symbols);
        let wanted = hash(name);
        let first = by_name.partition_point(|&(hash, number)| (hash, self.name(number)) < (wanted, name));
        let symbols = by_name[first..].iter().map(|&(_, number)| &self.symbols[number as usize]);
        symbols.take_while(move |symbol| symbol.name == name)
    }

    /// The address of the symbol that [`Symbols::named`] finds.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        self.named(name).map(|symbol| symbol.address)
    }

    /// The symbols of the modules, without the kernel itself.
    pub fn of_modules(&self) -> Symbols {
        let raw = |symbol: &Symbol| RawSymbol {
            name: symbol.name.clone(),
            address: symbol.address,
            size: symbol.size,
            class: symbol.class,
        };
        let in_module = |number: usize, symbol: &&Symbol| symbol.module == Some(number);
        let module = |(number, name): (usize, &String)| Module {
            name: name.clone(),
            sections: Vec::new(),
            symbols: self.symbols.iter().filter(|symbol| in_module(number, symbol)).map(raw).collect(),
        };
        let mut loaded: Vec<_> = self.modules.iter().enumerate().map(module).collect();
        if let Some(first) = loaded.first_mut() {
            // The code after this line does not use the module of a section, so one module gets all sections.
            let of_kernel = |section: &&Section| kallsyms::IMAGE.contains(&section.start);
            first.sections = self.sections.iter().filter(|section| !of_kernel(section)).cloned().collect();
        }
        Symbols { without_modules: self.without_modules.clone(), ..Symbols::new(Vec::new(), loaded) }
    }

    /// The name of the symbol at an address, and the offset of the address in it. `None` outside the kernel and its
    /// modules.
    pub fn name_of(&self, address: u64) -> Option<(&str, u64)> {
        self.at(address).map(|(symbol, offset)| (symbol.name.as_str(), offset))
    }

    /// The place of an address in the code, such as `vfs_read+0x1c`. `None` outside the kernel and its modules.
    pub fn place_of(&self, address: u64) -> Option<String> {
        self.name_of(address).map(|(name, offset)| format!("{name}+{offset:#x}"))
    }

    /// The symbol at an address, and the offset of the address in it. `None` outside the kernel and its modules.
    pub fn at(&self, address: u64) -> Option<(&Symbol, u64)> {
        let section = sections::at(&self.sections, address)?;
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let nearest = self.symbols[..after].last()?.address;
        let first = self.symbols.partition_point(|symbol| symbol.address < nearest);
        let here = self.symbols[first..after].iter().find(|symbol| symbol.section == Some(section))?;
        (address - nearest < here.size.max(1)).then_some((here, address - nearest))
    }

    /// All symbols, by address.
    pub fn all(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The sections of the kernel and its modules, by address.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The name of a symbol's module.
    pub fn module_of(&self, symbol: &Symbol) -> Option<&str> {
        symbol.module.map(|number| self.modules[number].as_str())
    }

    /// The names of the loaded modules.
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Why the modules' symbols are missing, if they could not be found.
    pub fn without_modules(&self) -> Option<&Missing> {
        self.without_modules.as_ref()
    }

    fn name(&self, number: u32) -> &str {
        &self.symbols[number as usize].name
    }
}

/// Whether a class means that the address is only a number.
fn is_number(class: u8) -> bool {
    matches!(class, b'a' | b'A')
}

/// Sets unknown sizes to the distance to the next symbol, but not beyond the section.
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
