//! Tests with made-up tables, in the formats of `scripts/kallsyms.c` and pahole.

use std::collections::BTreeMap;

use super::btf::{Btf, Field};
use super::kallsyms::{self, RawSymbol};
use super::modules::{self, Missing};
use super::*;

mod boot;
mod btf;
mod debug_file;
mod dwarf;
mod free_pages;
mod guest_view;
mod interrupts;
mod mappings;
mod messages;
mod module_sections;
mod orc;
mod reports;
mod switched_out;
mod tasks;
mod typed;
mod vmlinux;

pub(super) const BASE: u64 = 0xffff_ffff_9aa0_0000;
const PAGE: u64 = 4096;
/// The address of the direct map of physical memory.
pub(super) const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

/// Memory in pages.
#[derive(Default)]
pub(super) struct Pages(pub BTreeMap<u64, Vec<u8>>);

impl Pages {
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        for (at, &byte) in (address..).zip(bytes) {
            let page = self.0.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[(at % PAGE) as usize] = byte;
        }
    }

    pub fn write_u64(&mut self, address: u64, value: u64) {
        self.write(address, &value.to_le_bytes());
    }
}

impl Pages {
    pub fn view(&self) -> KernelView<'_> {
        KernelView::current(self)
    }
}

impl GuestView for Pages {
    fn cr3(&self) -> u64 {
        0
    }

    fn read(&self, _: u64, address: u64, to: &mut [u8]) -> usize {
        for (number, byte) in to.iter_mut().enumerate() {
            let at = address.wrapping_add(number as u64);
            let Some(page) = self.0.get(&(at / PAGE)) else { return number };
            *byte = page[(at % PAGE) as usize];
        }
        to.len()
    }

    /// All pages lie in the kernel's direct map of physical memory.
    fn physical(&self, _: u64, address: u64) -> Option<u64> {
        self.0.contains_key(&(address / PAGE)).then(|| address.wrapping_sub(DIRECT_MAP))
    }
}

/// The arrangement of a kernel's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Linux6_1,
    /// The offsets are after the token index, and another table is before the token table.
    Later,
    /// Like Linux 6.1, but without `CONFIG_KALLSYMS_ABSOLUTE_PERCPU`.
    AllRelative,
    /// Like `Later`, but the per-CPU variables are among all other symbols.
    Linux6_15,
    /// Each offset is relative to its own address, there is no base, and all tables are aligned to four bytes.
    Linux7_0,
}

const SHAPES: [Shape; 5] =
    [Shape::Linux6_1, Shape::Later, Shape::AllRelative, Shape::Linux6_15, Shape::Linux7_0];

impl Shape {
    fn has_absolute(self) -> bool {
        matches!(self, Shape::Linux6_1 | Shape::Later)
    }

    fn has_offsets_last(self) -> bool {
        matches!(self, Shape::Later | Shape::Linux6_15 | Shape::Linux7_0)
    }

    fn alignment(self) -> usize {
        if self == Shape::Linux7_0 { 4 } else { 8 }
    }
}

pub(super) fn found(address: u64, class: char, name: &str) -> RawSymbol {
    RawSymbol { name: name.to_string(), address, size: 0, class: class as u8 }
}

/// The symbols of a kernel: its code, its data, and per-CPU variables if their addresses are absolute in this
/// arrangement.
fn kernel(shape: Shape) -> Vec<RawSymbol> {
    let mut symbols = Vec::new();
    if shape.has_absolute() {
        symbols.extend([found(0, 'A', "fixed_percpu_data"), found(0x1_93e0, 'A', "cpu_hw_events")]);
    }
    symbols.push(found(BASE, 'T', "_text"));
    symbols.push(found(BASE, 't', "startup_64"));
    let functions = (0..700).map(|number| found(BASE + 0x100 + number * 0x40, 't', &format!("sys_{number}")));
    symbols.extend(functions);
    symbols.push(found(BASE + 0x1_0000, 'T', &"long_".repeat(60)));
    symbols.extend([found(BASE + 0x1_1000, 'T', "_etext"), found(BASE + 0x1_1200, 't', "outside")]);
    symbols.extend([found(BASE + 0x2_0000, 'D', "_sdata"), found(BASE + 0x2_0008, 'd', "modules")]);
    symbols.push(found(BASE + 0x2_0ff8, '?', "__nosave_begin"));
    symbols.extend([found(BASE + 0x2_1000, 'D', "_edata"), found(BASE + 0x3_0000, 'R', "__start_BTF")]);
    symbols
}

/// The token table and the token index. Token 1 is `sys_`. The token of a visible character is this character. All
/// other tokens are empty.
fn tokens() -> (Vec<u8>, Vec<u8>) {
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for byte in 0..=255u8 {
        index.extend((table.len() as u16).to_le_bytes());
        match byte {
            1 => table.extend(b"sys_"),
            0x21..=0x7e => table.push(byte),
            _ => {}
        }
        table.push(0);
    }
    (table, index)
}

fn padded(bytes: &mut Vec<u8>, more: &[u8], alignment: usize) {
    bytes.extend(more);
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}

/// The address at which `in_memory` puts the symbol tables.
const TABLES: u64 = BASE + 0x40_0000;

/// All tables, as in the read-only data from `TABLES` on.
fn tables(symbols: &[RawSymbol], shape: Shape) -> Vec<u8> {
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (number, symbol) in symbols.iter().enumerate() {
        if number % 256 == 0 {
            markers.extend((names.len() as u32).to_le_bytes());
        }
        let text = format!("{}{}", symbol.class as char, symbol.name).replace("sys_", "\u{1}");
        match text.len() {
            short @ ..0x80 => names.push(short as u8),
            long => names.extend([long as u8 & 0x7f | 0x80, (long >> 7) as u8]),
        }
        names.extend(text.bytes());
    }
    let alignment = shape.alignment();
    let (token_table, token_index) = tokens();
    let mut bytes = vec![0xcc; 0x200];
    if !shape.has_offsets_last() {
        add_offsets(&mut bytes, symbols, shape);
    }
    // If four-byte alignment suffices, the tables begin at an offset that is not a multiple of eight.
    bytes.resize(bytes.len() + alignment % 8, 0xcc);
    padded(&mut bytes, &(symbols.len() as u32).to_le_bytes(), alignment);
    padded(&mut bytes, &names, alignment);
    padded(&mut bytes, &markers, alignment);
    if shape == Shape::Later {
        padded(&mut bytes, &[0x5a; 3 * 100], alignment);
    }
    padded(&mut bytes, &token_table, alignment);
    padded(&mut bytes, &token_index, alignment);
    if shape.has_offsets_last() {
        add_offsets(&mut bytes, symbols, shape);
    }
    bytes.extend([0xcc; 0x100]);
    bytes
}

/// The offsets, and their base if they have one.
fn add_offsets(bytes: &mut Vec<u8>, symbols: &[RawSymbol], shape: Shape) {
    let start = TABLES + bytes.len() as u64;
    let offset = |(place, symbol): (u64, &RawSymbol)| match (symbol.address.checked_sub(BASE), shape) {
        (_, Shape::Linux7_0) => symbol.address.wrapping_sub(place) as i32,
        (Some(distance), Shape::AllRelative | Shape::Linux6_15) => distance as i32,
        (Some(distance), _) => -1 - distance as i32,
        (None, _) => symbol.address as i32,
    };
    let offsets: Vec<u8> =
        (start..).step_by(4).zip(symbols).flat_map(|row| offset(row).to_le_bytes()).collect();
    padded(bytes, &offsets, shape.alignment());
    if shape != Shape::Linux7_0 {
        bytes.extend(BASE.to_le_bytes());
    }
}

#[test]
fn tables_of_each_shape_are_found_in_memory() {
    for shape in SHAPES {
        let symbols = kernel(shape);
        let mut memory = Pages::default();
        memory.write(BASE, &[0x90; 0x800]);
        memory.write(TABLES, &tables(&symbols, shape));
        assert_eq!(kallsyms::search(memory.view()).as_ref(), Some(&symbols), "{shape:?}");
    }
    assert_eq!(kallsyms::search(Pages::default().view()), None);
}

#[test]
fn tables_that_do_not_agree_are_none() {
    let symbols = kernel(Shape::Linux6_1);
    let good = tables(&symbols, Shape::Linux6_1);
    assert!(kallsyms::tables_in(&good, TABLES).is_some());
    let offsets = 0x200;
    let base = offsets + (4 * symbols.len()).next_multiple_of(8);
    let (count, names) = (base + 8, base + 16);
    let index = good.len() - 0x100 - 512;
    let damages: [(&str, usize, u8); 5] = [
        ("addresses that do not ascend", offsets + 4 * 20 + 2, 0x55),
        ("a base outside the kernel", base + 7, 0x11),
        ("a number too large", count + 1, 0xff),
        ("a name of another length", names, 3),
        ("a token index that does not ascend", index + 20, 0),
    ];
    for (what, at, value) in damages {
        let mut bytes = good.clone();
        assert_ne!(bytes[at], value, "{what}");
        bytes[at] = value;
        assert_eq!(kallsyms::tables_in(&bytes, TABLES), None, "{what}");
    }
}

#[test]
fn damaged_tables_do_no_harm() {
    for shape in [Shape::Later, Shape::Linux7_0] {
        let good = tables(&kernel(shape), shape);
        for at in (0..good.len()).step_by(97) {
            let mut bytes = good.clone();
            bytes[at] ^= 0xff;
            kallsyms::tables_in(&bytes, TABLES);
            kallsyms::tables_in(&good[..at], TABLES);
        }
    }
    // Memory that has the same number everywhere has the most candidates for all tables.
    for word in [0u64, 1, 64, 0x0101_0101_0101_0101, u64::MAX] {
        kallsyms::tables_in(&word.to_le_bytes().repeat(10_000), TABLES);
    }
}

#[test]
fn offsets_from_their_places_stay_in_the_kernel() {
    let symbols = kernel(Shape::Linux7_0);
    let mut bytes = tables(&symbols, Shape::Linux7_0);
    assert_eq!(kallsyms::tables_in(&bytes, TABLES).as_ref(), Some(&symbols));
    // At another address the same bytes mean other addresses. If the tables begin at the start of the image's range,
    // some of these addresses lie below the range.
    let further = kallsyms::tables_in(&bytes, TABLES + 0x1000).expect("they are still in the image");
    assert_eq!(further[0].address, symbols[0].address + 0x1000);
    assert_eq!(kallsyms::tables_in(&bytes, kallsyms::IMAGE.start), None);
    let offsets = bytes.len() - 0x100 - 4 * symbols.len();
    bytes[offsets + 4 * 20 + 2] ^= 0x55;
    assert_eq!(kallsyms::tables_in(&bytes, TABLES), None, "addresses that do not ascend");
}

/// Builds type information, record by record.
pub(super) struct Types {
    records: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
    /// The size of the kernel's strings, if these are types of a module.
    strings_of_kernel: u32,
}

impl Types {
    pub fn new() -> Types {
        Types { records: Vec::new(), strings: vec![0], count: 0, strings_of_kernel: 0 }
    }

    /// The types of a module, which continue the kernel's numbers and names.
    pub fn of_module(kernel: &Types) -> Types {
        let strings_of_kernel = kernel.strings.len() as u32;
        Types { records: Vec::new(), strings: Vec::new(), count: kernel.count, strings_of_kernel }
    }

    pub fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        self.strings.extend(text.bytes().chain([0]));
        self.strings_of_kernel + (self.strings.len() - text.len() - 1) as u32
    }

    pub fn record(&mut self, name: &str, info: u32, size: u32, rest: &[u32]) -> u32 {
        let name = self.string(name);
        let words = [name, info, size].into_iter().chain(rest.iter().copied());
        self.records.extend(words.flat_map(u32::to_le_bytes));
        self.count += 1;
        self.count
    }

    /// A structure with fields (name, type, offset in bytes).
    pub fn structure(&mut self, name: &str, size: u32, fields: &[(&str, u32, u32)]) -> u32 {
        let names: Vec<u32> = fields.iter().map(|(name, ..)| self.string(name)).collect();
        let field = |(name, (_, kind, offset)): (u32, &(&str, u32, u32))| [name, *kind, offset * 8];
        let rest: Vec<u32> = names.into_iter().zip(fields).flat_map(field).collect();
        self.record(name, 4 << 24 | fields.len() as u32, size, &rest)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (types, strings) = (self.records.len() as u32, self.strings.len() as u32);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend([24, 0, types, types, strings].iter().flat_map(|word: &u32| word.to_le_bytes()));
        bytes.extend(&self.records);
        bytes.extend(&self.strings);
        bytes
    }
}

const MOD_KALLSYMS: [(&str, u32, u32); 4] =
    [("symtab", 1, 0), ("num_symtab", 1, 8), ("strtab", 1, 16), ("typetab", 1, 24)];

/// The types of Linux 6.1, but with other offsets of fields.
fn types_6_1() -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let fields = [("base", 1, 0), ("size", 1, 8), ("text_size", 1, 12), ("ro_size", 1, 16)];
    let layout = types.structure("module_layout", 24, &fields);
    types.structure("mod_kallsyms", 32, &MOD_KALLSYMS);
    let hidden = types.structure("", 16, &[("kallsyms", 1, 8)]);
    let (core, init) = (("core_layout", layout, 0x50), ("init_layout", layout, 0x70));
    let fields = [("state", 1, 0), ("list", 1, 8), ("name", 1, 0x18), core, init, ("", hidden, 0x90)];
    types.structure("module", 0x100, &fields);
    types
}

/// The same types as [`types_6_1`], but with the array `mem` of Linux 6.4.
fn types_6_4() -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let memory = types.structure("module_memory", 16, &[("base", 1, 0), ("size", 1, 8)]);
    types.structure("mod_kallsyms", 32, &MOD_KALLSYMS);
    let array = types.record("", 3 << 24, 0, &[memory, 1, 7]);
    let fields =
        [("state", 1, 0), ("list", 1, 8), ("name", 1, 0x18), ("mem", array, 0x50), ("kallsyms", 1, 0xd0)];
    types.structure("module", 0x100, &fields);
    types
}

const HEAD: u64 = BASE + 0x2_0008;
const TYPES: u64 = BASE + 0x10_0000;
const CODE: u64 = 0xffff_ffff_c020_0000;

/// Writes a module's structure, its list entry and its symbols (name, class, address, section).
fn write_module(memory: &mut Pages, at: u64, kallsyms: u64, symbols: &[(&str, char, u64, u16)]) {
    let (tables, strings) = (at + 0x200, at + 0x800);
    memory.write(at + 0x18, b"tokens\0");
    memory.write_u64(at + kallsyms, tables);
    memory.write_u64(tables, at + 0x300);
    memory.write(tables + 8, &(symbols.len() as u32).to_le_bytes());
    memory.write_u64(tables + 16, strings);
    memory.write_u64(tables + 24, at + 0x700);
    let mut string = 0;
    for (number, (name, class, address, section)) in (0..).zip(symbols) {
        let entry = at + 0x300 + number * 24;
        memory.write(entry, &(string as u32).to_le_bytes());
        memory.write(entry + 6, &section.to_le_bytes());
        memory.write_u64(entry + 8, *address);
        memory.write_u64(entry + 16, 0x20);
        memory.write(at + 0x700 + number, &[*class as u8]);
        memory.write(strings + string, name.as_bytes());
        string += name.len() as u64 + 1;
    }
}

/// A list with a module, a module that is not ready, and a link back to the head.
fn memory_with_modules(types: &Types, kallsyms: u64) -> (Pages, Vec<RawSymbol>) {
    let mut memory = Pages::default();
    let bytes = types.bytes();
    memory.write(TYPES, &bytes);
    let (first, second) = (0xffff_8880_0100_0000, 0xffff_8880_0200_0000);
    memory.write_u64(HEAD, first + 8);
    memory.write_u64(first + 8, second + 8);
    memory.write_u64(second + 8, HEAD);
    let symbols = [
        ("", '?', 0, 0),
        ("take", 't', CODE + 0x10, 1),
        ("printk", 'U', 0, 0),
        ("count", 'B', CODE + 0x2010, 3),
        (".LC0", 'r', CODE + 0x1010, 2),
    ];
    write_module(&mut memory, first, kallsyms, &symbols);
    write_module(&mut memory, second, kallsyms, &symbols);
    memory.write(second, &[3]);
    let kernel = vec![
        found(HEAD, 'D', "modules"),
        found(TYPES, 'R', "__start_BTF"),
        found(TYPES + bytes.len() as u64, 'R', "__stop_BTF"),
    ];
    (memory, kernel)
}

fn sections(module: &modules::Module) -> Vec<(&str, u64, u64, Access)> {
    let view = |section: &Section| (section.start, section.size, section.access);
    let rows = module.sections.iter().map(|section| (section.name.as_str(), view(section)));
    rows.map(|(name, (start, size, access))| (name, start, size, access)).collect()
}

fn assert_symbols(module: &modules::Module) {
    assert_eq!(module.name, "tokens");
    let expected = [found(CODE + 0x10, 't', "take"), found(CODE + 0x2010, 'B', "count")];
    let expected = expected.map(|symbol| RawSymbol { size: 0x20, ..symbol });
    assert_eq!(module.symbols, expected);
}

#[test]
fn modules_of_linux_6_1() {
    let (mut memory, kernel) = memory_with_modules(&types_6_1(), 0x98);
    let core = 0xffff_8880_0100_0000 + 0x50;
    memory.write_u64(core, CODE);
    for (offset, end) in [(8, 0x3000u32), (12, 0x1000), (16, 0x2000)] {
        memory.write(core + offset, &end.to_le_bytes());
    }
    let loaded = modules::loaded(memory.view(), &kernel).expect("the types are there");
    assert_eq!(loaded.len(), 1);
    assert_symbols(&loaded[0]);
    let expected = [
        (".text.tokens", CODE, 0x1000, Access::Code),
        (".rodata.tokens", CODE + 0x1000, 0x1000, Access::Constants),
        (".data.tokens", CODE + 0x2000, 0x1000, Access::Data),
    ];
    assert_eq!(sections(&loaded[0]), expected);
}

#[test]
fn modules_of_linux_6_4() {
    let (mut memory, kernel) = memory_with_modules(&types_6_4(), 0xd0);
    let regions = 0xffff_8880_0100_0000 + 0x50;
    for (number, start, size) in [(0, CODE, 0x1000u32), (1, CODE + 0x2000, 0x800)] {
        memory.write_u64(regions + number * 16, start);
        memory.write(regions + number * 16 + 8, &size.to_le_bytes());
    }
    let loaded = modules::loaded(memory.view(), &kernel).expect("the types are there");
    assert_eq!(loaded.len(), 1);
    assert_symbols(&loaded[0]);
    let expected =
        [(".text.tokens", CODE, 0x1000, Access::Code), (".data.tokens", CODE + 0x2000, 0x800, Access::Data)];
    assert_eq!(sections(&loaded[0]), expected);
}

#[test]
fn what_is_missing_for_modules_is_said() {
    let (memory, kernel) = memory_with_modules(&types_6_1(), 0x98);
    assert_eq!(modules::loaded(memory.view(), &kernel[1..]), Err(Missing::Symbol("modules")));
    assert_eq!(modules::loaded(memory.view(), &kernel[..2]), Err(Missing::Symbol("__stop_BTF")));
    assert_eq!(modules::loaded(Pages::default().view(), &kernel), Err(Missing::Types));
    let mut nowhere = kernel.clone();
    nowhere[0].address += 0x1000_0000;
    assert_eq!(modules::loaded(memory.view(), &nowhere), Err(Missing::List));
    let (memory, kernel) = memory_with_modules(&Types::new(), 0x98);
    let missing = modules::loaded(memory.view(), &kernel).expect_err("there are no types");
    assert_eq!(missing.to_string(), "'struct module' of this kernel has no 'list'");
}

#[test]
fn a_list_in_circles_ends() {
    let (mut memory, kernel) = memory_with_modules(&types_6_1(), 0x98);
    let second = 0xffff_8880_0200_0000;
    memory.write_u64(second + 8, second + 8);
    assert_eq!(modules::loaded(memory.view(), &kernel).expect("the types are there").len(), 1);
    memory.write(second, &[0]);
    let loaded = modules::loaded(memory.view(), &kernel).expect("the types are there");
    assert!((2..5000).contains(&loaded.len()), "{}", loaded.len());
}

#[test]
fn fields_are_found_by_name() {
    let bytes = types_6_1().bytes();
    let btf = Btf::parse(&bytes).expect("it is whole");
    let module = btf.structure("module").expect("it is there");
    let expected: [(&str, Option<Field>); 5] = [
        ("state", Some(Field { offset: 0, kind: 1 })),
        ("core_layout", Some(Field { offset: 0x50, kind: 2 })),
        ("kallsyms", Some(Field { offset: 0x98, kind: 1 })),
        ("core", None),
        ("mem", None),
    ];
    for (name, field) in expected {
        assert_eq!(btf.field(module, name), field, "{name}");
    }
    assert_eq!((btf.structure("int"), btf.structure("modul")), (None, None));
    assert_eq!(btf.size(module), Some(0x100));
}

#[test]
fn bit_fields_and_structures_inside_themselves() {
    let mut types = Types::new();
    let name = types.string("narrow");
    types.record("flags", 1 << 31 | 4 << 24 | 1, 8, &[name, 0, 3 << 24 | 32]);
    types.structure("loop", 8, &[("", 2, 4)]);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).expect("it is whole");
    assert_eq!(btf.field(1, "narrow"), Some(Field { offset: 4, kind: 0 }));
    assert_eq!(btf.field(2, "anything"), None);
}

#[test]
fn records_with_many_parts() {
    let mut types = Types::new();
    let values = vec![0; 3 << 16];
    types.record("many", 4 << 24 | 1 << 16, 8, &values);
    let last = types.structure("last", 8, &[("field", 1, 4)]);
    let mut bytes = types.bytes();
    let btf = Btf::parse(&bytes).expect("it is whole");
    assert_eq!((btf.structure("many"), btf.structure("last")), (Some(1), Some(last)));
    // An unknown kind of record, with a bit that kernels before Linux 7 do not use.
    bytes[24 + 7] = 0x44;
    assert!(Btf::parse(&bytes).is_none());
}

#[test]
fn damaged_types_do_no_harm() {
    let good = types_6_4().bytes();
    for at in 0..good.len() {
        assert!(Btf::parse(&good[..at]).is_none(), "cut at {at}");
        let mut bytes = good.clone();
        bytes[at] ^= 0xff;
        let Some(btf) = Btf::parse(&bytes) else { continue };
        for kind in 0..10 {
            btf.field(kind, "mem").and_then(|field| btf.array(field.kind));
        }
    }
}

pub(super) fn symbols() -> Symbols {
    let symbols = vec![found(CODE + 0x10, 't', "take"), found(CODE + 0x40, 'T', "sys_5")];
    let section = Section::new(".text.tokens", CODE, 0x1000, Access::Code).expect("it is not empty");
    let module = modules::Module { name: "tokens".to_string(), sections: vec![section], symbols };
    Symbols::new(kernel(Shape::Linux6_1), vec![module])
}

#[test]
fn names_and_addresses() {
    let symbols = symbols();
    assert_eq!(symbols.address_of("_text"), Some(BASE));
    assert_eq!(symbols.address_of("sys_5"), Some(BASE + 0x100 + 5 * 0x40), "the kernel's comes first");
    assert_eq!(symbols.address_of("take"), Some(CODE + 0x10));
    assert_eq!(symbols.address_of("cpu_hw_events"), Some(0x1_93e0));
    assert_eq!(symbols.address_of("sys_"), None);
    let names = [
        (BASE, Some(("_text", 0))),
        (BASE + 0xff, Some(("_text", 0xff))),
        (BASE + 0x100 + 0x7f, Some(("sys_1", 0x3f))),
        (BASE + 0x1_1010, Some(("_etext", 0x10))),
        (BASE + 0x2_0010, Some(("modules", 8))),
        (BASE - 1, None),
        (CODE, None),
        (CODE + 0x10, Some(("take", 0))),
        (CODE + 0xfff, Some(("sys_5", 0xfbf))),
        (CODE + 0x1000, None),
        (0x1_93e0, None),
    ];
    for (address, name) in names {
        assert_eq!(symbols.name_of(address), name, "{address:#x}");
    }
}

#[test]
fn a_size_that_is_known_and_possible_stays() {
    let size_of = |size: u64| {
        let symbols =
            vec![RawSymbol { size, ..found(CODE + 0x10, 't', "take") }, found(CODE + 0x40, 'T', "put")];
        let section = Section::new(".text.tokens", CODE, 0x1000, Access::Code).expect("it is not empty");
        let module = modules::Module { name: "tokens".to_string(), sections: vec![section], symbols };
        let symbols = Symbols::new(kernel(Shape::Linux6_1), vec![module]);
        symbols.named("take").expect("it is there").size
    };
    // A size is accepted up to the section's end, even if another symbol is before this end.
    assert_eq!([0x20, 0xff0].map(size_of), [0x20, 0xff0]);
    // If the size is unknown, or the symbol would end beyond the section, the size is the distance to the next symbol.
    assert_eq!([0, 0xff1].map(size_of), [0x30, 0x30]);
}

#[test]
fn the_kernel_is_cut_into_sections() {
    let symbols = symbols();
    let rows: Vec<_> = symbols.sections().iter().map(|section| (section.start, section.access)).collect();
    let expected = [
        (BASE, Access::Code),
        (BASE + 0x1_1000, Access::Code),
        (BASE + 0x2_0000, Access::Data),
        (BASE + 0x2_1000, Access::Data),
        (CODE, Access::Code),
    ];
    assert_eq!(rows, expected);
    for pair in symbols.sections().windows(2) {
        assert!(pair[0].end() <= pair[1].start, "{pair:?}");
    }
}

/// The sections outside of the marked sections, as (start, size, access).
fn other_sections(symbols: &[RawSymbol]) -> Vec<(u64, u64, Access)> {
    let symbols = Symbols::new(symbols.to_vec(), Vec::new());
    let others = symbols.sections().iter().filter(|section| section.name.starts_with(".other"));
    others.map(|section| (section.start, section.size, section.access)).collect()
}

#[test]
fn what_lies_between_marked_sections_is_cut_where_code_and_data_meet() {
    let marked = [found(BASE + 0x4000, 'D', "_sdata"), found(BASE + 0x5000, 'D', "_edata")];
    let symbols = [
        found(BASE, 't', "one"),
        found(BASE + 0x100, 't', "two"),
        found(BASE + 0x200, 'd', "three"),
        // Data at the same address as code belongs to the part with the code.
        found(BASE + 0x300, 't', "four"),
        found(BASE + 0x300, 'd', "five"),
        found(BASE + 0x400, 'd', "six"),
    ];
    let behind = [found(BASE + 0x5000, 'd', "seven"), found(BASE + 0x5800, 'b', "eight")];
    let all: Vec<_> = symbols.iter().chain(&marked).chain(&behind).cloned().collect();
    let expected = [
        (BASE, 0x200, Access::Code),
        (BASE + 0x200, 0x100, Access::Data),
        (BASE + 0x300, 0x100, Access::Code),
        (BASE + 0x400, 0x3c00, Access::Data),
        // The last part ends at the end of its last symbol's page.
        (BASE + 0x5000, 0x1000, Access::Data),
    ];
    assert_eq!(other_sections(&all), expected);
    // Data on both sides of a marked section are two parts.
    let apart = [found(BASE, 'd', "one"), marked[0].clone(), marked[1].clone(), behind[1].clone()];
    let expected = [(BASE, 0x4000, Access::Data), (BASE + 0x5000, 0x1000, Access::Data)];
    assert_eq!(other_sections(&apart)[..1], expected[..1]);
    assert_eq!(other_sections(&[found(0x40, 'A', "number")]), []);
    let many: Vec<_> = (0..600)
        .map(|number| found(BASE + number * 16, if number % 2 == 0 { 't' } else { 'd' }, "it"))
        .collect();
    assert_eq!(other_sections(&many).len(), 256);
}

#[test]
fn marked_sections_that_cannot_be_are_left_out() {
    let names = |symbols: &[RawSymbol]| -> Vec<String> {
        let symbols = Symbols::new(symbols.to_vec(), Vec::new());
        symbols.sections().iter().map(|section| section.name.clone()).collect()
    };
    let pair = |start: u64, end: u64| [found(start, 'T', "_text"), found(end, 'T', "_etext")];
    assert_eq!(names(&pair(BASE, BASE + 0x1000))[0], ".text");
    assert!(!names(&pair(BASE + 0x1000, BASE)).contains(&".text".to_string()), "it ends before it begins");
    assert!(!names(&pair(BASE, BASE)).contains(&".text".to_string()), "it is empty");
    assert!(!names(&pair(0x1000, 0x2000)).contains(&".text".to_string()), "it is not in the image");
    let end = kallsyms::IMAGE.end;
    assert_eq!(names(&pair(end - 0x1000, end))[0], ".text");
    assert!(!names(&pair(end - 0x1000, end + 1)).contains(&".text".to_string()));
    // Of two sections that overlap, the first in the list stays.
    let data = [found(BASE + 0xfff, 'D', "_sdata"), found(BASE + 0x2000, 'D', "_edata")];
    let overlapping: Vec<_> = pair(BASE, BASE + 0x1000).iter().chain(&data).cloned().collect();
    assert!(!names(&overlapping).contains(&".data".to_string()));
    let early = [
        found(BASE, 'D', "_sdata"),
        found(BASE + 0x800, 'T', "_text"),
        found(BASE + 0x900, 'D', "_edata"),
        found(BASE + 0x1800, 'T', "_etext"),
    ];
    let early = names(&early);
    assert!(early.contains(&".text".to_string()) && !early.contains(&".data".to_string()), "{early:?}");
    let beside = [found(BASE + 0x1000, 'D', "_sdata"), found(BASE + 0x2000, 'D', "_edata")];
    let beside: Vec<_> = pair(BASE, BASE + 0x1000).iter().chain(&beside).cloned().collect();
    assert_eq!(names(&beside)[..2], [".text", ".data"]);
}

#[test]
fn names_may_be_as_short_as_two_bytes() {
    // Each of the hundred names has one token, so it takes two bytes with its length. So no padding remains before
    // the markers.
    let symbols: Vec<_> = (0..100).map(|number| found(BASE + number, 'T', "a")).collect();
    for shape in SHAPES.into_iter().filter(|shape| !shape.has_absolute()) {
        let bytes = tables(&symbols, shape);
        assert_eq!(kallsyms::tables_in(&bytes, TABLES).as_ref(), Some(&symbols), "{shape:?}");
    }
    // Tables with fewer symbols than any kernel has are not accepted.
    for (count, is_kernel) in [(64, true), (63, false)] {
        let bytes = tables(&symbols[..count], Shape::Linux6_15);
        assert_eq!(kallsyms::tables_in(&bytes, TABLES).is_some(), is_kernel, "{count}");
    }
}

#[test]
fn sections_and_debug_information_have_their_headers_in_the_file() {
    use object::{Object, ObjectSection, SectionFlags};
    let symbols = symbols();
    let (memory, _, of_orc) = orc::kernel_and_symbols(false);
    let info = crate::dwarf::DebugInfo::of_kernel(&memory, &of_orc);
    let bytes = elf::with_debug_info(&of_orc, &info);
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    for (name, contents) in info.sections() {
        let section = file.section_by_name(name).expect("it has a header");
        assert_eq!(section.data().expect("it is in the file"), contents, "{name}");
        assert_eq!(section.address(), 0, "{name} is not in memory");
    }
    let bytes = elf::file(&symbols);
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    for section in symbols.sections() {
        let header = file.section_by_name(&section.name).expect("it has a header");
        assert_eq!((header.address(), header.size()), (section.start, section.size), "{}", section.name);
        assert!(header.data().expect("it has none").is_empty(), "{}", section.name);
        let SectionFlags::Elf { sh_flags, .. } = header.flags() else { panic!("it is an ELF file") };
        // SHF_ALLOC is 2, SHF_WRITE 1, SHF_EXECINSTR 4.
        let expected = match section.access {
            Access::Code => 6,
            Access::Constants => 2,
            Access::Data => 3,
        };
        assert_eq!(sh_flags.0, expected, "{}", section.name);
    }
}

#[test]
fn the_file_has_locals_first_and_every_symbol_in_its_section() {
    let symbols = symbols();
    let file = elf::file(&symbols);
    let u16_at = |at: usize| u16::from_le_bytes([file[at], file[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().expect("inside"));
    let u64_at = |at: usize| u64::from_le_bytes(*file[at..].first_chunk().expect("inside"));
    let (headers, count) = (u64_at(40) as usize, usize::from(u16_at(60)));
    assert_eq!(file.len(), headers + 64 * count);
    assert_eq!(count, symbols.sections().len() + 4);
    let header = |number: usize| headers + 64 * number;
    let part = |number: usize| (u64_at(header(number) + 24) as usize, u64_at(header(number) + 32) as usize);
    let ((table, bytes), (names, _)) = (part(count - 3), part(count - 2));
    let locals = u32_at(header(count - 3) + 44) as usize;
    let mut seen = 0;
    for number in 1..bytes / 24 {
        let entry = table + 24 * number;
        assert_eq!(file[entry + 4] >> 4 == 0, number < locals, "entry {number}");
        if file[entry + 4] & 0xf == 4 {
            continue;
        }
        let name = &file[names + u32_at(entry) as usize..];
        let name = String::from_utf8_lossy(name.split(|&byte| byte == 0).next().expect("there is one"));
        let (section, value, size) = (u16_at(entry + 6), u64_at(entry + 8), u64_at(entry + 16));
        assert!(symbols.all().iter().any(|symbol| symbol.name == name && symbol.address == value), "{name}");
        if section == 0xfff1 {
            assert!(value < 0x1_0000_0000, "{name}");
        } else {
            let (start, room) = (u64_at(header(section.into()) + 16), u64_at(header(section.into()) + 32));
            assert!(value >= start && value + size <= start + room, "{name}");
        }
        seen += 1;
    }
    assert_eq!(seen, symbols.all().len());
}
