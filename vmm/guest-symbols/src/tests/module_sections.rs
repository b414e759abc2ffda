//! Tests with a made-up module whose sections the kernel shows in sysfs.

use super::{BASE, CODE, DIRECT_MAP, Pages, Types, found};
use crate::Symbols;
use crate::module_sections;
use crate::modules::Module;
use crate::sections::{Access, Section};

const TYPES: u64 = BASE + 0x10_0000;
const HEAD: u64 = BASE + 0x2_0008;
const MODULE: u64 = DIRECT_MAP + 0x10_0000;
const SHOWN: u64 = DIRECT_MAP + 0x11_0000;

/// If `beside` is true, a section's address is stored beside its attribute, otherwise inside the attribute.
fn types(beside: bool) -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let attribute = types.structure("attribute", 16, &[("name", 1, 0)]);
    let binary = types.structure("bin_attribute", 0x40, &[("attr", attribute, 0x10), ("private", 1, 0x28)]);
    let group = types.structure("attribute_group", 0x20, &[("attrs", 1, 8), ("bin_attrs", 1, 0x10)]);
    types.structure("module_sect_attrs", 0x20, &[("grp", group, 8)]);
    if beside {
        types.structure("module_sect_attr", 0x50, &[("battr", binary, 8), ("address", 1, 0x48)]);
    }
    let fields = [("list", 1, 8), ("name", 1, 0x18), ("sect_attrs", 1, 0x60), ("percpu", 1, 0x68)];
    types.structure("module", 0x100, &[fields.as_slice(), &[("percpu_size", 1, 0x70)]].concat());
    types
}

fn kernel(beside: bool) -> (Pages, Symbols) {
    let mut memory = Pages::default();
    let bytes = types(beside).bytes();
    memory.write(TYPES, &bytes);
    memory.write_u64(HEAD, MODULE + 8);
    memory.write_u64(MODULE + 8, HEAD);
    memory.write(MODULE + 0x18, b"tokens\0");
    memory.write_u64(MODULE + 0x60, SHOWN);
    memory.write_u64(MODULE + 0x68, 0x3_0000);
    memory.write(MODULE + 0x70, &16_u32.to_le_bytes());
    memory.write_u64(SHOWN + 8 + 0x10, SHOWN + 0x100);
    // The kernel has freed the third section.
    let shown = [(".text", CODE), (".data", CODE + 0x800), (".init.text", CODE + 0x9000)];
    for (number, (name, address)) in (0..).zip(shown) {
        let (at, text) = (SHOWN + 0x200 + 0x100 * number, SHOWN + 0x800 + 0x40 * number);
        memory.write_u64(SHOWN + 0x100 + 8 * number, at);
        memory.write_u64(at + 0x10, text);
        memory.write(text, name.as_bytes());
        memory.write_u64(at + if beside { 0x40 } else { 0x28 }, address);
    }
    let end = TYPES + bytes.len() as u64;
    let symbols =
        vec![found(HEAD, 'd', "modules"), found(TYPES, 'R', "__start_BTF"), found(end, 'R', "__stop_BTF")];
    let section = Section::new(".text.tokens", CODE, 0x1000, Access::Code).expect("it is not empty");
    let module = Module { name: "tokens".to_string(), sections: vec![section], symbols: Vec::new() };
    (memory, Symbols::new(symbols, vec![module]))
}

#[test]
fn sections_are_those_that_are_shown_and_still_there() {
    for beside in [true, false] {
        let (memory, symbols) = kernel(beside);
        let sections = module_sections::of_module(&memory, &symbols, "tokens");
        let expected = [(".text", CODE), (".data", CODE + 0x800), (".data..percpu", 0x3_0000)];
        let expected = expected.map(|(name, address)| (name.to_string(), address));
        assert_eq!(sections, expected, "{beside}");
        assert_eq!(module_sections::of_module(&memory, &symbols, "other"), []);
    }
}

#[test]
fn lists_without_an_end_have_one() {
    let (mut memory, symbols) = kernel(true);
    // Every pointer in the array, as far as there is memory, points to the first attribute.
    for number in 0..0x2000 {
        memory.write_u64(SHOWN + 0x1_0000 + 8 * number, SHOWN + 0x200);
    }
    memory.write_u64(SHOWN + 8 + 0x10, SHOWN + 0x1_0000);
    memory.write_u64(MODULE + 8, MODULE + 8);
    assert_eq!(module_sections::of_module(&memory, &symbols, "tokens").len(), 4097);
    memory.write_u64(MODULE + 0x60, 8);
    memory.write(MODULE + 0x70, &[0; 4]);
    assert_eq!(module_sections::of_module(&memory, &symbols, "tokens"), []);
}
