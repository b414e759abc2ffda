//! Tests types and variables from debug information with programs that gcc compiles. `pahole` is the second opinion: it
//! converts the same debug information to BTF.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::btf::{Btf, Shape};
use super::super::debug_file::DebugFile;
use super::super::typed::{Describe, NamedType, TypeBytes, Variable};

const MAIN: &str = r#"
#include <stdbool.h>
#include <stdint.h>

enum color { RED, GREEN = 200, BLUE };
enum depth { BELOW = -2, LEVEL, ABOVE = 7 };
enum wide { SMALL, LARGE = 0x123456789abcLL };
typedef unsigned long count_t;
struct elsewhere;
union word { uint32_t all; uint8_t bytes[4]; };
struct node {
    struct node *next;
    count_t count;
    char name[8];
    unsigned low : 3, middle : 7, high : 1;
    signed narrow : 5;
    union { int first; float second; };
    struct { short inner; } named;
    union word words[2][3];
    const volatile int *reading;
    int (*call)(struct node *, long, ...);
    enum color color;
    enum depth depth;
    enum wide wide;
    bool is_set;
    double ratio;
    struct elsewhere *other;
    void *nothing;
    char rest[];
};
struct node table[3] = {
    [1] = { .count = 77, .name = "second", .low = 5, .middle = 99, .narrow = -3, .first = 12, .named = { 4 },
            .words = { { { 1 }, { 2 }, { 3 } }, { { 4 }, { 5 }, { 0x01020304 } } }, .color = BLUE, .depth = BELOW,
            .is_set = true, .ratio = 0.5 },
};
static ATOMIC int hidden = 9;
__thread int own_of_thread;
extern struct elsewhere there;
int main(void) { return table[1].count + hidden + own_of_thread + (table[0].other == &there); }
"#;
const OTHER: &str =
    "struct elsewhere { long first; int second; }; struct elsewhere there = { 1, 2 }; int untyped_sum = 5;";

struct Program {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

/// Compiles the two files with these options.
fn compiled(options: &[&str]) -> Program {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("main.c"), MAIN).unwrap();
    std::fs::write(folder.path().join("other.c"), OTHER).unwrap();
    let path = folder.path().join("program");
    let gcc = Command::new("gcc")
        .current_dir(folder.path())
        .args(options)
        .args(["-o", "program", "main.c", "other.c"])
        .status();
    assert!(gcc.expect("the host has gcc").success());
    Program { _folder: folder, path }
}

/// The description of every member of a structure, by the members' names: offset, bits and type.
fn members(types: &Btf<'_>, structure: NamedType) -> Vec<String> {
    let found = types.full(structure.number).unwrap();
    let Shape::Structure { members, size, .. } = found.shape else { panic!("no structure") };
    let line = |member: &super::super::btf::Member<'_>| {
        let kind = NamedType::from(member.kind);
        format!(
            "{:?} {} {:?} {} {:?}",
            member.name,
            member.bit_offset,
            member.bit_size,
            types.spelled(kind),
            types.size_of(kind)
        )
    };
    let mut lines: Vec<String> = members.iter().map(line).collect();
    lines.push(format!("{size} bytes"));
    lines
}

fn constants(types: &Btf<'_>, name: &str) -> Vec<(String, i64)> {
    let kind = types.type_named(name).unwrap();
    let Shape::Enumeration { values, .. } = types.full(kind.number).unwrap().shape else {
        panic!("no enumeration")
    };
    values.iter().map(|(name, value)| (name.unwrap().to_string(), *value)).collect()
}

/// Types by `pahole`. Version 1.24 does not know atomic types.
fn with_pahole(program: &Path) -> Option<Vec<u8>> {
    let out = program.with_extension("btf");
    let pahole =
        Command::new("pahole").arg(format!("--btf_encode_detached={}", out.display())).arg(program).status();
    pahole.is_ok_and(|status| status.success()).then(|| std::fs::read(out).unwrap())
}

#[test]
fn types_agree_with_pahole() {
    for options in [
        &["-g", "-gdwarf-5", "-DATOMIC="][..],
        &["-g", "-gdwarf-4", "-DATOMIC="],
        &["-g", "-gz", "-static-pie", "-fPIE", "-DATOMIC="],
    ] {
        let program = compiled(options);
        let Some(expected) = with_pahole(&program.path) else {
            return skip::test("there is no pahole that writes BTF into a file of its own");
        };
        let expected = Btf::parse(&expected).unwrap();
        let file = DebugFile::open(&program.path).unwrap();
        for name in ["struct node", "union word", "struct elsewhere"] {
            let found = file.type_named(name).unwrap();
            let types = found.bytes.kernel().unwrap();
            let mut theirs = members(&expected, expected.type_named(name).unwrap());
            // pahole makes one dimension of all.
            theirs.iter_mut().for_each(|line| *line = line.replace("word[6]", "word[2][3]"));
            assert_eq!(members(&types, found.kind), theirs, "{name} {options:?}");
        }
        for name in ["enum color", "enum depth", "enum wide"] {
            let found = file.type_named(name).unwrap();
            assert_eq!(
                constants(&found.bytes.kernel().unwrap(), name),
                constants(&expected, name),
                "{name} {options:?}"
            );
        }
        for name in ["count_t", "unsigned long", "_Bool", "double", "node *"] {
            let found = file.type_named(name).unwrap();
            let size = found.bytes.kernel().unwrap().size_of(found.kind);
            assert_eq!(size, expected.size_of(expected.type_named(name).unwrap()), "{name}");
        }
        assert!(file.type_named("struct nothing").is_none());
    }
}

/// The text of a part of a variable. The program's own data section is the memory.
fn shown(program: &Program, text: &str) -> String {
    let file = DebugFile::open(&program.path).unwrap();
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let declared = file.variable(&text[..end]).unwrap();
    let found = file.type_of(&declared).unwrap();
    let types = found.bytes.kernel().unwrap();
    let memory = Memory::of(&program.path);
    let read = |address: u64, to: &mut [u8]| memory.read(address, to);
    let size = types.size_of(found.kind).unwrap();
    let whole = Variable { address: declared.address, size, kind: found.kind, bits: None };
    let part = types.follow(whole, &text[end..], &read).unwrap();
    let mut bytes = vec![0; part.size as usize];
    assert_eq!(memory.read(part.address, &mut bytes), bytes.len());
    types.shown(&part, &bytes, &Describe { read: &read, symbol: &|_| None })
}

/// The data section of a program: its address, and its bytes.
struct Memory(u64, Vec<u8>);

impl Memory {
    fn of(path: &Path) -> Memory {
        use object::{Object, ObjectSection};
        let bytes = std::fs::read(path).unwrap();
        let elf = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*bytes).unwrap();
        let data = elf.section_by_name(".data").unwrap();
        Memory(data.address(), data.data().unwrap().to_vec())
    }

    fn read(&self, address: u64, to: &mut [u8]) -> usize {
        let at = address.checked_sub(self.0).map(|at| at as usize).filter(|&at| at < self.1.len());
        let from = &self.1[at.unwrap_or(self.1.len())..];
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
        count
    }
}

#[test]
fn variables_have_the_values_that_the_program_gave_them() {
    for options in [
        &["-g", "-no-pie", "-DATOMIC=_Atomic"][..],
        &["-g", "-gdwarf-4", "-static", "-DATOMIC=_Atomic"],
        &["-g", "-gz", "-DATOMIC=_Atomic"],
    ] {
        let program = compiled(options);
        let expected = [
            ("table[1].count", "77"),
            ("table[1].name", "\"second\""),
            ("table[1].low", "5"),
            ("table[1].middle", "99"),
            ("table[1].narrow", "-3"),
            ("table[1].first", "12"),
            ("table[1].named.inner", "4"),
            ("table[1].words[1][2].all", "16909060"),
            ("table[1].color", "BLUE"),
            ("table[1].depth", "BELOW"),
            ("table[1].is_set", "true"),
            ("hidden", "9"),
            ("there.second", "2"),
        ];
        for (text, value) in expected {
            assert_eq!(shown(&program, text), value, "{text} {options:?}");
        }
        let file = DebugFile::open(&program.path).unwrap();
        assert_eq!(file.is_movable(), options == ["-g", "-gz", "-DATOMIC=_Atomic"], "{options:?}");
        assert!(
            file.variable("own_of_thread").is_none_or(|found| file.type_of(&found).is_none()),
            "it has no fixed address"
        );
    }
}

#[test]
fn a_program_without_debug_information_has_its_symbols() {
    let program = compiled(&["-no-pie", "-DATOMIC=_Atomic"]);
    let file = DebugFile::open(&program.path).unwrap();
    let found = file.variable("untyped_sum").unwrap();
    assert_eq!(found.size, Some(4));
    assert!(file.type_of(&found).is_none());
    let stripped = Command::new("strip").arg(&program.path).status().unwrap();
    assert!(stripped.success());
    let error = DebugFile::open(&program.path).unwrap_err().to_string();
    assert!(error.ends_with("it has neither debug information nor symbols (stripped?)"), "{error}");
}

#[test]
fn the_distance_follows_from_any_mapping() {
    let program = compiled(&["-g", "-DATOMIC=_Atomic"]);
    let file = DebugFile::open(&program.path).unwrap();
    assert_eq!(file.distance(0x5555_5555_4000, 0), 0x5555_5555_4000);
    assert_eq!(file.distance(0x5555_5555_6000, 0x2000), 0x5555_5555_4000);
}

#[test]
fn damaged_files_are_refused_or_read_but_never_end_the_program() {
    let program = compiled(&["-g", "-no-pie", "-DATOMIC=_Atomic"]);
    let bytes = std::fs::read(&program.path).unwrap();
    let damaged = program.path.with_extension("damaged");
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..300 {
        let mut changed = bytes.clone();
        if round % 10 == 0 {
            changed.truncate(random(bytes.len()));
        }
        for _ in 0..1 + random(40) {
            let at = random(changed.len().max(1));
            if let Some(byte) = changed.get_mut(at) {
                *byte = random(256) as u8;
            }
        }
        std::fs::write(&damaged, &changed).unwrap();
        let Ok(file) = DebugFile::open(&damaged) else { continue };
        for name in ["struct node", "count_t", "enum wide"] {
            let found = file.type_named(name);
            found.iter().for_each(|found| assert!(found.bytes.kernel().is_ok()));
        }
        file.variable("table").and_then(|table| file.type_of(&table)).iter().for_each(|found| {
            let types = TypeBytes::kernel(&found.bytes).unwrap();
            let _ = types.spelled(found.kind);
        });
    }
    let error = DebugFile::open(Path::new("/dev/null")).unwrap_err().to_string();
    assert!(error.starts_with("cannot use the debug information of /dev/null: "), "{error}");
}
