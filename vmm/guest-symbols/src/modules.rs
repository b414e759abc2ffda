//! The loaded modules, and their symbols.
//!
//! The modules are in a list whose head is the kernel's variable `modules`. The offsets of the fields of `struct
//! module` depend on the kernel's configuration. So the offsets come from the kernel's type information, between
//! `__start_BTF` and `__stop_BTF`. Supported are the fields of Linux 6.1 (`core_layout` and `init_layout`) and the
//! array `mem` of Linux 6.4 and later.

use object::LittleEndian;
use object::elf::{SHN_UNDEF, Sym64};
use object::pod::bytes_of_slice_mut;

use super::btf::Btf;
use super::guest_view::KernelView;
use super::kallsyms::{MAX_NAME_BYTES, MAX_NAMES_BYTES, MAX_SYMBOLS, RawSymbol};
use super::sections::{Access, Section};

/// Limit on modules.
const MAX_MODULES: usize = 4096;
/// Limit on the bytes of type information.
const MAX_BTF_BYTES: u64 = 64 << 20;
/// The longest module name, `MODULE_NAME_LEN`.
pub(super) const MAX_MODULE_NAME_BYTES: usize = 64;
/// `MODULE_STATE_UNFORMED`: the structure is not valid yet.
const UNFORMED: u64 = 3;

/// A loaded module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The module's name.
    pub name: String,
    /// The module's sections.
    pub sections: Vec<Section>,
    /// The module's symbols.
    pub symbols: Vec<RawSymbol>,
}

/// Why the modules or other parts of the kernel could not be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The kernel lacks the symbol. Either the kernel lacks the feature (such as loading modules), or its
    /// tables have no variables (no `CONFIG_KALLSYMS_ALL`).
    #[error("the kernel's symbols do not include '{0}'")]
    Symbol(&'static str),
    /// There is no type information where the kernel should have it.
    #[error("the kernel's type information (CONFIG_DEBUG_INFO_BTF) cannot be read")]
    Types,
    /// The head of the list is not in memory.
    #[error("the kernel's list of modules cannot be read")]
    List,
    /// A structure of the kernel has an unknown layout.
    #[error("'struct {structure}' of this kernel has no '{field}'")]
    Field {
        /// The structure's name.
        structure: &'static str,
        /// The name of the field that the structure lacks.
        field: &'static str,
    },
}

/// Reads the kernel's type information; `address_of` looks up the kernel's symbols.
pub(super) fn types(
    memory: KernelView<'_>,
    address_of: &dyn Fn(&'static str) -> Option<u64>,
) -> Result<Vec<u8>, Missing> {
    let address = |name: &'static str| address_of(name).ok_or(Missing::Symbol(name));
    let (start, stop) = (address("__start_BTF")?, address("__stop_BTF")?);
    let size = stop.checked_sub(start).filter(|&size| size <= MAX_BTF_BYTES).ok_or(Missing::Types)?;
    let mut bytes = vec![0; size as usize];
    if memory.read(start, &mut bytes) != bytes.len() {
        return Err(Missing::Types);
    }
    Ok(bytes)
}

/// Reads the type information of all modules, which the kernel keeps beside its own type information (`kernel`).
/// Returns an empty list if the kernel does not keep the modules' type information, or keeps it in an unknown way.
/// `address_of` looks up the kernel's symbols.
///
/// Follows Linux 6.1 to 7.2: `kernel/bpf/btf.c`, `btf_modules`.
pub(super) fn types_of_modules(
    memory: KernelView<'_>,
    address_of: &dyn Fn(&'static str) -> Option<u64>,
    kernel: &Btf<'_>,
) -> Vec<Vec<u8>> {
    let field = |structure, name| Some(kernel.field(kernel.structure(structure)?, name)?.offset);
    let places = || {
        let entry = |name| field("btf_module", name);
        let types = |name| field("btf", name);
        Some((entry("list")?, entry("btf")?, types("data")?, types("data_size")?))
    };
    let (Some(head), Some((list, btf, data, size))) = (address_of("btf_modules"), places()) else {
        return Vec::new();
    };
    let mut room = MAX_BTF_BYTES;
    let read = |entry: u64| {
        let types = memory.number::<8>(entry.wrapping_add(btf))?;
        let start = memory.number::<8>(types.wrapping_add(data))?;
        let size = memory.number::<4>(types.wrapping_add(size))?;
        room = room.checked_sub(size)?;
        let mut bytes = vec![0; size as usize];
        (memory.read(start, &mut bytes) == bytes.len()).then_some(bytes)
    };
    addresses(memory, head, list).into_iter().filter_map(read).collect()
}

/// Reads all modules. If the list is broken, returns the modules before the break.
pub fn loaded(memory: KernelView<'_>, kernel: &[RawSymbol]) -> Result<Vec<Module>, Missing> {
    let address_of =
        |name: &'static str| kernel.iter().find(|symbol| symbol.name == name).map(|found| found.address);
    let head = address_of("modules").ok_or(Missing::Symbol("modules"))?;
    let bytes = types(memory, &address_of)?;
    let layout = Layout::of(&Btf::parse(&bytes).ok_or(Missing::Types)?)?;
    memory.number::<8>(head).ok_or(Missing::List)?;
    Ok(layout.walk(memory, head))
}

/// The addresses of the structures in the list at `head`, linked by the field at `list`. If the list is broken, returns
/// the structures before the break.
pub(super) fn addresses(memory: KernelView<'_>, head: u64, list: u64) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), head);
    for _ in 0..MAX_MODULES {
        match memory.number::<8>(at) {
            Some(next) if next != head => at = next,
            _ => break,
        }
        found.push(at.wrapping_sub(list));
    }
    found
}

/// The offsets of the fields, in bytes.
struct Layout {
    list: u64,
    state: u64,
    name: u64,
    kallsyms: u64,
    regions: Vec<Region>,
    symtab: u64,
    num_symtab: u64,
    strtab: u64,
    /// Offset of the table of symbol classes. Older kernels have no such table, and store the class in the symbol.
    typetab: Option<u64>,
}

/// The offsets that describe a memory region of a module.
struct Region {
    base: u64,
    size: u64,
    /// The region's parts, in the order of their addresses: name, access, and the offset of the field with the part's
    /// end (relative to the base).
    parts: Vec<(&'static str, Access, u64)>,
}

impl Layout {
    fn of(btf: &Btf<'_>) -> Result<Layout, Missing> {
        let field = |structure: &'static str, field: &'static str| {
            let found = btf.structure(structure).and_then(|number| btf.field(number, field));
            found.ok_or(Missing::Field { structure, field })
        };
        let module = |name| field("module", name).map(|field| field.offset);
        let tables = |name| field("mod_kallsyms", name).map(|field| field.offset);
        Ok(Layout {
            list: module("list")?,
            state: module("state")?,
            name: module("name")?,
            kallsyms: module("kallsyms")?,
            regions: regions_6_4(btf)
                .or_else(|| regions_6_1(btf))
                .ok_or(Missing::Field { structure: "module", field: "core_layout" })?,
            symtab: tables("symtab")?,
            num_symtab: tables("num_symtab")?,
            strtab: tables("strtab")?,
            typetab: tables("typetab").ok(),
        })
    }

    fn walk(&self, memory: KernelView<'_>, head: u64) -> Vec<Module> {
        let mut budget = ReadBudget::default();
        let modules = addresses(memory, head, self.list);
        modules.into_iter().filter_map(|at| self.module(memory, at, &mut budget)).collect()
    }

    fn module(&self, memory: KernelView<'_>, at: u64, budget: &mut ReadBudget) -> Option<Module> {
        let field = |offset: u64| at.wrapping_add(offset);
        let name = memory.text(field(self.name), MAX_MODULE_NAME_BYTES).filter(|name| !name.is_empty())?;
        if memory.number::<4>(field(self.state))? == UNFORMED {
            return None;
        }
        let sections = self.regions.iter().flat_map(|region| region.sections(memory, at, &name)).collect();
        let tables = memory.number::<8>(field(self.kallsyms))?;
        let symbols = self.symbols(memory, tables, budget).unwrap_or_default();
        Some(Module { name, sections, symbols })
    }

    /// Reads the symbols of the `struct mod_kallsyms` at an address.
    fn symbols(&self, memory: KernelView<'_>, at: u64, budget: &mut ReadBudget) -> Option<Vec<RawSymbol>> {
        let field = |offset: u64| memory.number::<8>(at.wrapping_add(offset));
        let (symtab, strtab) = (field(self.symtab)?, field(self.strtab)?);
        let count = memory.number::<4>(at.wrapping_add(self.num_symtab))? as usize;
        budget.symbols = budget.symbols.checked_sub(count)?;
        let mut entries = vec![Sym64::default(); count];
        let readable =
            memory.read(symtab, bytes_of_slice_mut(&mut entries)) / size_of::<Sym64<LittleEndian>>();
        let mut classes = vec![0; count];
        if let Some(typetab) = self.typetab {
            memory.read(field(typetab)?, &mut classes);
        }
        let symbol = |(entry, &class): (&Sym64<LittleEndian>, &u8)| {
            let class = if self.typetab.is_some() { class } else { entry.st_info.0 };
            symbol(memory, entry, class, strtab, budget)
        };
        Some(entries[..readable].iter().zip(&classes).filter_map(symbol).collect())
    }
}

/// The number of symbols, and of bytes of their names, that may still be read for all modules.
struct ReadBudget {
    symbols: usize,
    name_bytes: usize,
}

impl Default for ReadBudget {
    fn default() -> ReadBudget {
        ReadBudget { symbols: MAX_SYMBOLS, name_bytes: MAX_NAMES_BYTES }
    }
}

/// Reads an entry of a symbol table. Returns `None` for undefined symbols and for symbols that only the linker uses.
fn symbol(
    memory: KernelView<'_>,
    entry: &Sym64<LittleEndian>,
    class: u8,
    strtab: u64,
    budget: &mut ReadBudget,
) -> Option<RawSymbol> {
    let undefined = entry.st_shndx.get(LittleEndian) == SHN_UNDEF;
    if undefined || !class.is_ascii_alphabetic() {
        return None;
    }
    let name = u64::from(entry.st_name.get(LittleEndian));
    let name = memory.text(strtab.wrapping_add(name), MAX_NAME_BYTES)?;
    budget.name_bytes = budget.name_bytes.checked_sub(name.len())?;
    let for_the_linker = name.is_empty() || name.starts_with('$') || name.starts_with(".L");
    let (address, size) = (entry.st_value.get(LittleEndian), entry.st_size.get(LittleEndian));
    (!for_the_linker).then_some(RawSymbol { name, address, size, class })
}

/// The regions in `struct module_layout core_layout, init_layout`. Each region has code, constants, data that becomes
/// constant, and data, in this order.
fn regions_6_1(btf: &Btf<'_>) -> Option<Vec<Region>> {
    let (module, inner) = (btf.structure("module")?, btf.structure("module_layout")?);
    let region = |field: &str, names: [&'static str; 3]| {
        let at = btf.field(module, field)?.offset;
        let within = |name: &str| Some(at + btf.field(inner, name)?.offset);
        Some(Region {
            base: within("base")?,
            size: within("size")?,
            parts: vec![
                (names[0], Access::Code, within("text_size")?),
                (names[1], Access::Constants, within("ro_size")?),
                (names[2], Access::Data, within("size")?),
            ],
        })
    };
    let core = region("core_layout", [".text", ".rodata", ".data"])?;
    Some(vec![core, region("init_layout", [".init.text", ".init.rodata", ".init.data"])?])
}

/// The regions in `struct module_memory mem[]`, indexed by `enum mod_mem_type`.
fn regions_6_4(btf: &Btf<'_>) -> Option<Vec<Region>> {
    const KINDS: [(&str, Access); 7] = [
        (".text", Access::Code),
        (".data", Access::Data),
        (".rodata", Access::Constants),
        (".data..ro_after_init", Access::Data),
        (".init.text", Access::Code),
        (".init.data", Access::Data),
        (".init.rodata", Access::Constants),
    ];
    let field = btf.field(btf.structure("module")?, "mem")?;
    let (memory, count) = btf.array(field.kind)?;
    let (each, base, size) = (btf.size(memory)?, btf.field(memory, "base")?, btf.field(memory, "size")?);
    let region = |(number, (name, access)): (u64, (&'static str, Access))| {
        let at = field.offset + number * each;
        let (base, size) = (at + base.offset, at + size.offset);
        Region { base, size, parts: vec![(name, access, size)] }
    };
    Some((0..u64::from(count)).zip(KINDS).map(region).collect())
}

impl Region {
    /// The sections of the module with its structure at an address.
    fn sections(&self, memory: KernelView<'_>, module: u64, name: &str) -> Vec<Section> {
        let base = memory.number::<8>(module.wrapping_add(self.base)).unwrap_or(0);
        let size = |offset: u64| memory.number::<4>(module.wrapping_add(offset)).unwrap_or(0);
        let mut start = 0;
        let section = |&(part, access, end): &(&str, Access, u64)| {
            let end = size(end).clamp(start, size(self.size).max(start));
            let section = Section::new(
                format!("{part}.{name}"),
                base.checked_add(start).filter(|_| base != 0)?,
                end - start,
                access,
            );
            start = end;
            section
        };
        self.parts.iter().filter_map(section).collect()
    }
}
