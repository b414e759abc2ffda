//! The addresses of a loaded module's sections, by their names in its file. The addresses are the
//! contents of `/sys/module/NAME/sections`, read from `struct module_sect_attrs`.
//!
//! Follows Linux 5.10 to 7.2: `kernel/module/sysfs.c`. The group of attributes is an array of pointers that ends with a
//! null pointer. Before Linux 6.14, a section's address is stored beside its attribute. From 6.14 on, it is in
//! `bin_attribute::private`.

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{MAX_MODULE_NAME_BYTES, Missing, addresses, types};
use super::symbols::Symbols;
use super::tasks::field;

/// Limit on the sections of a module.
const MAX_SECTIONS: u64 = 4096;
/// The longest section name.
const MAX_NAME_BYTES: usize = 256;

/// The sections of a loaded module, with their addresses. Freed sections (`.init.text`) are left out. The list is empty
/// if the module is not loaded, or if the kernel has no such data.
pub fn of_module(guest: &dyn GuestView, symbols: &Symbols, name: &str) -> Vec<(String, u64)> {
    let found = KernelView::all(guest).filter_map(|view| find(view, symbols, name).ok());
    found.reduce(|first, second| if first.is_empty() { second } else { first }).unwrap_or_default()
}

pub(super) fn find(
    memory: KernelView<'_>,
    symbols: &Symbols,
    name: &str,
) -> Result<Vec<(String, u64)>, Missing> {
    let bytes = types(memory, &|name| symbols.address_of(name))?;
    let layout = Layout::of(&Btf::parse(&bytes).ok_or(Missing::Types)?)?;
    let head = symbols.address_of("modules").ok_or(Missing::Symbol("modules"))?;
    let has_name = |module: &u64| {
        let text = memory.text(module.wrapping_add(layout.name), MAX_MODULE_NAME_BYTES);
        text.is_some_and(|text| text == name)
    };
    let module = addresses(memory, head, layout.list).into_iter().find(has_name).ok_or(Missing::List)?;
    let ending = format!(".{name}");
    let is_there = |address: u64| {
        let of_module = symbols.sections().iter().filter(|section| section.name.ends_with(&ending));
        of_module.into_iter().any(|section| (section.start..section.end()).contains(&address))
    };
    let mut sections = layout.listed(memory, module);
    sections.retain(|&(_, address)| is_there(address));
    sections.extend(layout.of_each_cpu(memory, module));
    Ok(sections)
}

/// The offsets of the fields, in bytes.
struct Layout {
    list: u64,
    name: u64,
    sect_attrs: u64,
    /// Offset of the pointer to the array of pointers, in `struct module_sect_attrs`.
    attributes: u64,
    /// Offset of the attribute's name in `struct bin_attribute`.
    attribute_name: u64,
    /// Offset of the address, from the start of `struct bin_attribute`.
    address: u64,
    /// Offsets of the address and size of the per-CPU variables in `struct module`. `None` in a kernel for one CPU.
    percpu: Option<(u64, u64)>,
}

impl Layout {
    fn of(btf: &Btf<'_>) -> Result<Layout, Missing> {
        let beside = || {
            let attribute = field(btf, "module_sect_attr", "battr").ok()?;
            Some(field(btf, "module_sect_attr", "address").ok()?.wrapping_sub(attribute))
        };
        Ok(Layout {
            list: field(btf, "module", "list")?,
            name: field(btf, "module", "name")?,
            sect_attrs: field(btf, "module", "sect_attrs")?,
            attributes: field(btf, "module_sect_attrs", "grp")? + field(btf, "attribute_group", "bin_attrs")?,
            attribute_name: field(btf, "bin_attribute", "attr")? + field(btf, "attribute", "name")?,
            address: beside().map_or_else(|| field(btf, "bin_attribute", "private"), Ok)?,
            percpu: field(btf, "module", "percpu").ok().zip(field(btf, "module", "percpu_size").ok()),
        })
    }

    /// The sections in the kernel's attributes.
    fn listed(&self, memory: KernelView<'_>, module: u64) -> Vec<(String, u64)> {
        let pointer = |at: u64| memory.number::<8>(at).filter(|&to| to != 0);
        let attributes = pointer(module.wrapping_add(self.sect_attrs))
            .and_then(|attributes| pointer(attributes.wrapping_add(self.attributes)));
        let Some(attributes) = attributes else { return Vec::new() };
        let each =
            (0..MAX_SECTIONS).map_while(|number| pointer(attributes.wrapping_add(number.wrapping_mul(8))));
        let section = |at: u64| {
            let name = memory.text(pointer(at.wrapping_add(self.attribute_name))?, MAX_NAME_BYTES)?;
            Some((name, memory.number::<8>(at.wrapping_add(self.address))?))
        };
        each.filter_map(section).collect()
    }

    /// The section of per-CPU variables. The section's address is an offset, like the addresses of the
    /// kernel's own per-CPU variables.
    fn of_each_cpu(&self, memory: KernelView<'_>, module: u64) -> Option<(String, u64)> {
        let (place, size) = self.percpu?;
        let is_there = memory.number::<4>(module.wrapping_add(size))? != 0;
        let address = memory.number::<8>(module.wrapping_add(place))?;
        is_there.then(|| (".data..percpu".to_string(), address))
    }
}
