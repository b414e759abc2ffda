//! Tests that read the debug information back with `gimli`.

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, DebugInfo as Info, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow, X86_64,
};

use super::orc::{self, ENTRIES, FIRST, FRAMED, HANDLER, IRET, LEAF, MODULE_CODE, kernel_and_symbols};
use super::{BASE, Types, found};
use crate::btf::Btf;
use crate::dwarf::{DebugInfo, frames, types};
use crate::elf;
use crate::modules::Missing;
use crate::orc::Unwinder;
use crate::symbols::Symbols;

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const CONST: u32 = 10;
const PROTOTYPE: u32 = 13;
const FLAG: u32 = 1 << 31;

/// Types of every kind. The sixth type is a structure with bit fields and an anonymous member.
fn some_of_everything() -> Types {
    let mut types = Types::new();
    types.record("unsigned int", INT << 24, 4, &[32]);
    types.record("char", INT << 24, 1, &[1 << 24 | 8]);
    types.record("", ARRAY << 24, 0, &[2, 1, 16]);
    let (a, b) = (types.string("a"), types.string("b"));
    types.record("", UNION << 24 | 2, 4, &[a, 1, 0, b, 8, 0]);
    types.record("", PROTOTYPE << 24 | 2, 1, &[0, 8, 0, 0]);
    let names = ["low", "high", "name", "call"].map(|name| types.string(name));
    let [low, high, name, call] = names;
    let members = [[low, 1, 3 << 24], [high, 1, 29 << 24 | 3], [name, 3, 32], [0, 4, 160], [call, 7, 192]];
    types.record("desk", FLAG | STRUCT << 24 | 5, 32, &members.concat());
    types.record("", POINTER << 24, 5, &[]);
    types.record("", POINTER << 24, 9, &[]);
    types.record("", CONST << 24, 6, &[]);
    types.record("desk_t", TYPEDEF << 24, 6, &[]);
    let (off, on) = (types.string("OFF"), types.string("ON"));
    types.record("state", FLAG | ENUM << 24 | 2, 4, &[off, u32::MAX, on, 1]);
    types
}

/// The entries of the only unit, a line each: depth, tag, name and numbers.
fn lines(sections: &[(&'static str, Vec<u8>)]) -> Vec<String> {
    let section = |name: &str| {
        let found = sections.iter().find(|(known, _)| *known == name);
        found.map(|(_, bytes)| bytes.as_slice()).expect("it is there")
    };
    let abbreviations = gimli::DebugAbbrev::new(section(".debug_abbrev"), LittleEndian);
    let strings = gimli::DebugStr::new(section(".debug_str"), LittleEndian);
    let unit = Info::new(section(".debug_info"), LittleEndian).units().next().unwrap().expect("a unit");
    let abbreviations = unit.abbreviations(&abbreviations).unwrap();
    let (mut entries, mut lines) = (unit.entries(&abbreviations), Vec::new());
    while let Some(entry) = entries.next_dfs().unwrap() {
        let mut line = format!("{}{}", "  ".repeat(entry.depth() as usize), entry.tag());
        for attribute in entry.attrs() {
            match attribute.raw_value() {
                gimli::AttributeValue::DebugStrRef(at) => {
                    line += &format!(" {}", strings.get_str(at).unwrap().to_string().unwrap());
                }
                gimli::AttributeValue::UnitRef(at) => {
                    let of = unit.entry(&abbreviations, at).unwrap();
                    line += &format!(" of {}", of.tag());
                }
                value => {
                    let number = value.sdata_value().map(|number| format!("={number}"));
                    line += &format!(" {}{}", attribute.name(), number.unwrap_or_default());
                }
            }
        }
        lines.push(line.replace("DW_TAG_", "").replace("DW_AT_", ""));
    }
    lines
}

fn lines_of(types: &Types) -> Vec<String> {
    let bytes = types.bytes();
    lines(&types::within(&Btf::parse(&bytes).unwrap(), 1000, 1000).unwrap().sections())
}

#[test]
fn all_kinds_of_types_are_written() {
    let expected = "\
compile_unit language=29 vmlinux ttvm
  base_type unsigned int encoding=7 byte_size=4
  base_type char encoding=6 byte_size=1
  array_type of base_type
    subrange_type count=16
  union_type byte_size=4
    member a of base_type
    member b of pointer_type
  subroutine_type prototyped of base_type
    formal_parameter of pointer_type
    unspecified_parameters
  structure_type desk byte_size=32
    member low of base_type bit_size=3 data_bit_offset=0
    member high of base_type bit_size=29 data_bit_offset=3
    member name of array_type data_member_location=4
    member of union_type data_member_location=20
    member call of pointer_type data_member_location=24
  pointer_type byte_size=8 of subroutine_type
  pointer_type byte_size=8 of const_type
  const_type of structure_type
  typedef desk_t of structure_type
  enumeration_type state byte_size=4
    enumerator OFF const_value=-1
    enumerator ON const_value=1";
    assert_eq!(lines_of(&some_of_everything()).join("\n"), expected);
}

/// Two modules of the kernel with [`some_of_everything`]. Each module has a type of its own with the same number. The
/// first module's type also uses a name of the kernel.
fn two_modules(kernel: &Types) -> [Types; 2] {
    let mut first = Types::of_module(kernel);
    let drawer = first.structure("drawer", 40, &[("desk", 6, 0), ("state", 11, 32), ("next", 13, 36)]);
    first.record("", POINTER << 24, drawer, &[]);
    let mut second = Types::of_module(kernel);
    second.structure("lamp", 8, &[("place", 8, 0)]);
    [first, second]
}

#[test]
fn types_of_modules_refer_to_those_of_the_kernel() {
    let kernel = some_of_everything();
    let modules = two_modules(&kernel).map(|types| types.bytes());
    let bytes = kernel.bytes();
    let kernel = Btf::parse(&bytes).unwrap();
    let modules = modules.each_ref().map(|bytes| Btf::parse_module(bytes, &kernel).unwrap());
    assert_eq!(modules[0].numbers(), 12..=13);
    assert_eq!(modules[0].structure("desk"), None, "it is the kernel's");
    let [next] = ["next"].map(|name| modules[0].field(12, name).unwrap());
    assert_eq!((next.offset, next.kind, modules[0].size(6)), (36, 13, Some(32)));

    let expected = "  structure_type drawer byte_size=40
    member desk of structure_type data_member_location=0
    member state of enumeration_type data_member_location=32
    member next of pointer_type data_member_location=36
  pointer_type byte_size=8 of structure_type
  structure_type lamp byte_size=8
    member place of pointer_type data_member_location=0";
    let mut unit = types::within(&kernel, 1000, 1000).unwrap();
    let of_kernel = lines(&types::within(&kernel, 1000, 1000).unwrap().sections());
    modules.iter().for_each(|module| unit.add_module(module).unwrap());
    assert_eq!(lines(&unit.sections())[of_kernel.len()..].join("\n"), expected);

    let mut unit = types::for_modules(&kernel, &modules).unwrap();
    modules.iter().for_each(|module| unit.add_module(module).unwrap());
    let of_kernel = "\
compile_unit language=29 modules ttvm
  structure_type desk declaration
  pointer_type byte_size=8 of const_type
  const_type of structure_type
  enumeration_type state byte_size=4
    enumerator OFF const_value=-1
    enumerator ON const_value=1
";
    assert_eq!(lines(&unit.sections()).join("\n"), format!("{of_kernel}{expected}"));
}

#[test]
fn circles_and_long_chains_are_void() {
    let mut types = Types::new();
    // A type that refers to itself, two types that refer to each other, and a chain of a thousand pointers.
    types.record("me", TYPEDEF << 24, 1, &[]);
    types.record("", CONST << 24, 3, &[]);
    types.record("", POINTER << 24, 2, &[]);
    for number in 4..1004 {
        types.record("", POINTER << 24, number + 1, &[]);
    }
    types.structure("holds", 24, &[("one", 1, 0), ("two", 2, 8), ("long", 4, 16), ("short", 1000, 16)]);
    let lines = lines_of(&types);
    let holds = lines.iter().position(|line| line.starts_with("  structure_type")).unwrap();
    let members: Vec<_> = lines[holds + 1..].iter().map(|line| line.trim()).collect();
    let expected =
        ["one data_member_location=0", "two data_member_location=8", "long data_member_location=16"];
    assert_eq!(members[..3], expected.map(|member| format!("member {member}")));
    assert_eq!(members[3], "member short of pointer_type data_member_location=16");
    assert!(lines.len() < 80, "{} entries", lines.len());
}

#[test]
fn damaged_types_do_no_harm_and_have_limits() {
    let good = some_of_everything().bytes();
    for at in 0..good.len() {
        for damage in [1, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= damage;
            if let Some(unit) = Btf::parse(&bytes).and_then(|btf| types::within(&btf, 1000, 1000)) {
                unit.sections();
            }
        }
        Btf::parse(&good[..at]).and_then(|btf| types::within(&btf, 1000, 1000));
    }
    let btf = Btf::parse(&good).unwrap();
    let size = |entries, names| types::within(&btf, entries, names).map(|unit| unit.sections().len());
    assert_eq!([size(23, 1000), size(22, 1000)].map(|found| found.is_some()), [true, false]);
    assert_eq!([size(1000, 60), size(1000, 59)].map(|found| found.is_some()), [true, false]);
}

#[test]
fn known_variables_have_types() {
    let mut types = Types::new();
    types.record("long unsigned int", INT << 24, 8, &[64]);
    types.record("char", INT << 24, 1, &[8]);
    types.structure("task_struct", 16, &[("flags", 1, 0)]);
    types.record("each_cpu", 14 << 24, 1, &[1]);
    types.record("atomic_long_t", 8 << 24, 1, &[]);
    let bytes = types.bytes();
    let mut memory = super::Pages::default();
    let start = BASE + 0x10_0000;
    memory.write(start, &bytes);
    let symbols = vec![
        found(0x40, 'A', "each_cpu"),
        found(BASE, 'T', "_text"),
        found(BASE + 0x1000, 'D', "_sdata"),
        // Linux 7 gives this variable the class of code.
        found(BASE + 0x1000, 'T', "init_task"),
        found(BASE + 0x1100, 'd', "jiffies"),
        found(BASE + 0x1200, 'D', "saved_command_line"),
        found(BASE + 0x1280, 'D', "vm_node_stat"),
        found(BASE + 0x1300, 'D', "_edata"),
        found(start, 'R', "__start_BTF"),
        found(start + bytes.len() as u64, 'R', "__stop_BTF"),
    ];
    let info = DebugInfo::of_kernel(&memory, &Symbols::new(symbols, Vec::new()));
    let variables: Vec<_> =
        lines(info.sections()).into_iter().filter(|line| line.contains("variable")).collect();
    let expected = [
        "each_cpu of base_type location external",
        "init_task of structure_type location external",
        "jiffies of base_type location",
        "saved_command_line of pointer_type location external",
        "vm_node_stat of array_type location external",
    ];
    assert_eq!(variables, expected.map(|variable| format!("  variable {variable}")));
    assert_eq!(
        info.missing(),
        [format!("without frames: {}", Missing::Field { structure: "orc_entry", field: "type" })]
    );
}

#[test]
fn variables_with_room_for_many_elements_are_arrays() {
    let mut types = Types::new();
    types.record("long unsigned int", INT << 24, 8, &[64]);
    types.record("char", INT << 24, 1, &[8]);
    types.structure("pglist_data", 16, &[("id", 1, 0)]);
    types.structure("mem_section", 8, &[("map", 1, 0)]);
    let enumerators = types.string("BOOTING");
    types.record("system_states", ENUM << 24 | 1, 4, &[enumerators, 0]);
    let bytes = types.bytes();
    let mut memory = super::Pages::default();
    let start = BASE + 0x10_0000;
    memory.write(start, &bytes);
    let symbols = vec![
        found(BASE, 'T', "_text"),
        found(BASE + 0x1000, 'T', "_etext"),
        found(BASE + 0x1000, 'D', "_sdata"),
        found(BASE + 0x1000, 'D', "linux_banner"),
        found(BASE + 0x1010, 'D', "node_data"),
        found(BASE + 0x1028, 'D', "mem_section"),
        found(BASE + 0x1030, 'D', "high_memory"),
        found(BASE + 0x1038, 'D', "system_state"),
        found(BASE + 0x1040, 'D', "avenrun"),
        // Two variables with the same name, and a variable whose type the kernel lacks.
        found(BASE + 0x3_0000, 'D', "jiffies"),
        found(BASE + 0x3_0008, 'd', "jiffies"),
        found(BASE + 0x3_0010, 'D', "init_mm"),
        found(BASE + 0x4_0000, 'D', "_edata"),
        found(start, 'R', "__start_BTF"),
        found(start + bytes.len() as u64, 'R', "__stop_BTF"),
    ];
    let info = DebugInfo::of_kernel(&memory, &Symbols::new(symbols, Vec::new()));
    let all = lines(info.sections());
    let variables: Vec<_> =
        all.iter().filter(|line| line.contains("  variable")).map(|line| line.trim()).collect();
    let expected = [
        "variable avenrun of array_type location external",
        "variable high_memory of pointer_type location external",
        "variable linux_banner of array_type location external",
        "variable mem_section of pointer_type location external",
        "variable node_data of array_type location external",
        "variable system_state of enumeration_type location external",
    ];
    assert_eq!(variables, expected);
    let counts: Vec<_> =
        all.iter().filter(|line| line.contains("subrange")).map(|line| line.trim()).collect();
    // The first array is cut to 64 KiB, with elements of eight bytes. The others have 16 bytes of text, and three
    // pointers.
    assert_eq!(counts, ["subrange_type count=8192", "subrange_type count=16", "subrange_type count=3"]);
}

/// The row of the unwind information for an address.
fn row(section: &[u8], address: u64) -> Option<(UnwindTableRow<usize>, bool)> {
    let mut frames = DebugFrame::new(section, LittleEndian);
    frames.set_address_size(8);
    let bases = BaseAddresses::default();
    let entry = frames.fde_for_address(&bases, address, DebugFrame::cie_from_offset).ok()?;
    let row =
        entry.unwind_info_for_address(&frames, &bases, &mut UnwindContext::new(), address).unwrap().clone();
    Some((row, entry.is_signal_trampoline()))
}

#[test]
fn frames_are_those_of_the_tables() {
    for is_old in [true, false] {
        let (_, unwinder, symbols) = kernel_and_symbols(is_old);
        let mut section = frames::of_kernel(&unwinder, &symbols)[0].1.clone();
        // Without the entry for programs, the section has no row for a program's address.
        assert!(row(&section, 0x40_1000).is_none());
        frames::add_programs(&mut section);
        let section = &section;
        let cfa = |register, offset| CfaRule::RegisterAndOffset { register, offset };
        for (address, expected, base) in [
            (LEAF, cfa(X86_64::RSP, 8), None),
            (LEAF + 0xfff, cfa(X86_64::RSP, 8), None),
            (FRAMED + 5, cfa(X86_64::RBP, 16), Some(-16)),
            (MODULE_CODE + 0xff, cfa(X86_64::RSP, 24), None),
            // The handler's frame is a `struct pt_regs`, in which RBP is 96 bytes below the part that the processor
            // saves.
            (HANDLER, cfa(X86_64::RSP, 128), Some(-96)),
        ] {
            let (row, is_signal) = row(section, address).expect("there is a row");
            assert_eq!((row.cfa(), is_signal), (&expected, false), "{address:#x}");
            assert_eq!(row.register(X86_64::RBP), base.map(RegisterRule::Offset), "{address:#x}");
        }
        assert_eq!(row(section, LEAF).unwrap().0.register(X86_64::RA), Some(RegisterRule::Offset(-8)));
        assert!(matches!(
            row(section, HANDLER).unwrap().0.register(X86_64::RA),
            Some(RegisterRule::ValExpression(_))
        ));
        for iret in [IRET - 1, IRET, IRET + 1] {
            let (row, is_signal) = row(section, iret).expect("there is a row");
            assert_eq!((row.register(X86_64::RA), is_signal), (Some(RegisterRule::Offset(0)), true));
            assert_eq!(row.register(X86_64::RSP), Some(RegisterRule::Offset(24)));
        }
        assert!(!row(section, IRET + 2).unwrap().1 && !row(section, IRET - 2).unwrap().1);
        for first in [FIRST, 0x40_1000, 0x7fff_0000_0000] {
            let (row, _) = row(section, first).expect("there is a row");
            assert_eq!(row.register(X86_64::RA), Some(RegisterRule::Undefined), "{first:#x}");
        }
        assert!(row(section, MODULE_CODE + 0x100).is_none());
        assert!(row(section, 0x7fff_ffff_f000).is_none(), "no program has code there");
    }
}

#[test]
fn a_frame_pointer_among_saved_registers_counts_from_their_beginning() {
    for is_old in [true, false] {
        let (mut memory, _, symbols) = kernel_and_symbols(is_old);
        // Register 1 is the caller's stack pointer. In other frames, offsets are relative to it. In a frame of
        // saved registers, they are relative to the start of the frame.
        memory.write(ENTRIES, &orc::entry(is_old, (5, 8), (1, 40), orc::Kind::Registers));
        let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
        let section = &frames::of_kernel(&unwinder, &symbols)[0].1;
        let (leaf, _) = row(section, LEAF).expect("there is a row");
        assert_eq!(leaf.register(X86_64::RBP), Some(RegisterRule::Offset(40 - 128)), "{is_old}");
    }
}

#[test]
fn a_frame_pointer_may_be_saved_relative_to_itself() {
    for is_old in [true, false] {
        let (mut memory, _, symbols) = kernel_and_symbols(is_old);
        // RBP is register 4, and is saved at an address relative to RBP.
        memory.write(ENTRIES, &orc::entry(is_old, (5, 8), (4, -24), orc::Kind::Call));
        let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
        let section = &frames::of_kernel(&unwinder, &symbols)[0].1;
        let (leaf, _) = row(section, LEAF).expect("there is a row");
        assert!(matches!(leaf.register(X86_64::RBP), Some(RegisterRule::Expression(_))), "{is_old}");
    }
}

#[test]
fn tables_that_say_anything_do_no_harm() {
    for is_old in [true, false] {
        let (mut memory, _, symbols) = kernel_and_symbols(is_old);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..500 {
            let bytes: [u8; 30] = std::array::from_fn(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as u8
            });
            memory.write(ENTRIES, &bytes);
            let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
            let section = &frames::of_kernel(&unwinder, &symbols)[0].1;
            // `gimli` can read the section, whatever bytes the tables have.
            for address in [LEAF, FRAMED, HANDLER, FIRST] {
                assert!(row(section, address).is_some(), "{bytes:x?}");
            }
        }
    }
}

#[test]
fn the_file_has_all_sections() {
    let (memory, _, symbols) = kernel_and_symbols(false);
    let info = DebugInfo::of_kernel(&memory, &symbols);
    assert_eq!(info.missing(), [] as [String; 0]);
    let parts = [DebugInfo::beside_programs(&memory, &symbols), DebugInfo::end_at_programs()];
    let frames = |info: &DebugInfo| info.sections().last().cloned().expect("frames come last").1;
    assert!(frames(&info).len() > frames(&parts[0]).len() && row(&frames(&parts[0]), 0x40_1000).is_none());
    assert!([&info, &parts[1]].iter().all(|info| row(&frames(info), 0x40_1000).is_some()));
    let bytes = elf::with_debug_info(&symbols, &info);
    for (name, section) in info.sections() {
        assert!(bytes.windows(section.len()).any(|window| window == section), "{name}");
        assert!(bytes.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}
