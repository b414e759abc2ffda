//! Debug information (DWARF) for gdb, made from the kernel's own data. Types come from the kernel's type information
//! (BTF), and unwind information from the kernel's own tables (ORC). `variables.rs` gives variables their types, if the
//! types are known.
//!
//! There are no source lines and no local variables, because the kernel's data has none. The crate `gimli` writes the
//! format.

pub(super) mod frames;
pub(super) mod types;
mod variables;
mod written;

use self::types::TypeUnit;
use self::written::Sections;
use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{self, Missing};
use super::orc::Unwinder;
use super::symbols::Symbols;

/// Sections of debug information for a file with symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugInfo {
    sections: Sections,
    missing: Vec<String>,
}

impl DebugInfo {
    /// Types, variables and frames of the kernel with these symbols, and types and frames of its modules. Stacks end at
    /// user programs.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> DebugInfo {
        let mut info = DebugInfo::beside_programs(guest, symbols);
        let frames = info.sections.iter_mut().find(|(name, _)| *name == frames::SECTION);
        frames.into_iter().for_each(|(_, bytes)| frames::add_programs(bytes));
        info
    }

    /// Returns the same as [`DebugInfo::of_kernel`], but without the entry for user programs. This result is for
    /// use beside the files of user programs. The programs' files and [`DebugInfo::end_at_programs`] describe where
    /// the programs' stacks end.
    pub fn beside_programs(guest: &dyn GuestView, symbols: &Symbols) -> DebugInfo {
        let mut info = DebugInfo::default();
        let types = types(guest, symbols, |kernel, _| {
            let mut unit = types::of(kernel)?;
            variables::add(&mut unit, kernel, symbols);
            Some(unit)
        });
        info.take(types, "types");
        let frames =
            Unwinder::of_kernel(guest, symbols).map(|unwinder| frames::of_kernel(&unwinder, symbols));
        info.take(frames, "frames");
        info
    }

    /// Only the types of the modules, for use beside a kernel's file with debug information. The kernel's
    /// frames are included, because that file has no frames for the code that enters the kernel.
    pub fn of_modules(guest: &dyn GuestView, symbols: &Symbols) -> DebugInfo {
        let mut info = DebugInfo::default();
        let types = types(guest, symbols, types::for_modules);
        info.take(types, "types");
        let frames =
            Unwinder::of_kernel(guest, symbols).map(|unwinder| frames::of_kernel(&unwinder, symbols));
        info.take(frames, "frames");
        info
    }

    /// The entry that ends the stack at user programs. Debuggers use the first file that has an entry for an address,
    /// so this file must be the last.
    pub fn end_at_programs() -> DebugInfo {
        let mut bytes = Vec::new();
        frames::add_programs(&mut bytes);
        DebugInfo { sections: vec![(frames::SECTION, bytes)], missing: Vec::new() }
    }

    /// The sections: names and bytes.
    pub fn sections(&self) -> &[(&'static str, Vec<u8>)] {
        &self.sections
    }

    /// For each part of the debug information that is missing, a sentence that says why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    fn take(&mut self, found: Result<Sections, Missing>, what: &str) {
        match found {
            Ok(sections) => self.sections.extend(sections),
            Err(why) => self.missing.push(format!("without {what}: {why}")),
        }
    }
}

/// Calls `begin` to make a unit from the kernel's types, and adds the types of the modules.
fn types(
    guest: &dyn GuestView,
    symbols: &Symbols,
    begin: impl Fn(&Btf<'_>, &[Btf<'_>]) -> Option<TypeUnit>,
) -> Result<Sections, Missing> {
    let address_of = |name: &'static str| symbols.address_of(name);
    let found = KernelView::all(guest).map(|view| Ok((view, modules::types(view, &address_of)?)));
    let found = found.reduce(|first: Result<_, Missing>, second| first.or(second));
    let (view, bytes) = found.expect("there is always the current view")?;
    let kernel = Btf::parse(&bytes).ok_or(Missing::Types)?;
    let of_modules = modules::types_of_modules(view, &address_of, &kernel);
    let of_modules = of_modules.iter().filter_map(|bytes| Btf::parse_module(bytes, &kernel));
    let of_modules: Vec<Btf<'_>> = of_modules.collect();
    let mut unit = begin(&kernel, &of_modules).ok_or(Missing::Types)?;
    for module in &of_modules {
        unit.add_module(module).ok_or(Missing::Types)?;
    }
    Ok(unit.sections())
}
