//! Tests names of types, fields of variables, and values as text.

use super::Types;
use crate::btf::Btf;
use crate::typed::{Describe, NamedType, TypeBytes, Variable};

const INT: u32 = 1 << 24;
const SIGNED: u32 = 1 << 24;
const BOOL: u32 = 4 << 24;

/// The numbers of some types.
struct Numbers {
    int: u32,
    char: u32,
    text: u32,
    list: u32,
    task: u32,
    state: u32,
    bits: u32,
    looped: u32,
}

fn types() -> (Vec<u8>, Numbers) {
    let mut types = Types::new();
    let int = types.record("int", INT, 4, &[SIGNED | 32]);
    let char = types.record("char", INT, 1, &[SIGNED | 8]);
    let long = types.record("long unsigned int", INT, 8, &[64]);
    let bool = types.record("_Bool", INT, 1, &[BOOL | 8]);
    let text = types.record("", 2 << 24, char, &[]);
    let u64 = types.record("u64", 8 << 24, long, &[]);
    let name = types.record("", 3 << 24, 0, &[char, int, 16]);
    let numbers = types.record("", 3 << 24, 0, &[int, int, 3]);
    // struct list_head { struct list_head *next, *prev; }: the pointer's record follows the structure's.
    let list = types.structure("list_head", 16, &[("next", 10, 0), ("prev", 10, 8)]);
    assert_eq!(types.record("", 2 << 24, list, &[]), 10);
    let (running, stopped) = (types.string("RUNNING"), types.string("STOPPED"));
    let state = types.record("state", 1 << 31 | 6 << 24 | 2, 4, &[running, 0, stopped, u32::MAX]);
    let hidden = types.structure("", 8, &[("pid", int, 0), ("on", bool, 4)]);
    let parts =
        [("comm", name, 0), ("tasks", list, 16), ("", hidden, 32), ("state", state, 40), ("when", u64, 48)];
    let task = types.structure("task_struct", 68, &[&parts[..], &[("counts", numbers, 56)]].concat());
    // Bit fields: 3 bits from bit 5 on, and 4 signed bits from bit 32 on.
    let (low, high) = (types.string("low"), types.string("high"));
    let fields = [low, long, 3 << 24 | 5, high, int, 4 << 24 | 32];
    let bits = types.record("bits", 1 << 31 | 4 << 24 | 2, 8, &fields);
    let (first, second) = (types.string("path"), types.string("task"));
    let task_pointer = types.record("", 2 << 24, task, &[]);
    let prototype = types.record("", 13 << 24 | 3, int, &[first, text, second, task_pointer, 0, 0]);
    types.record("open_task", 12 << 24, prototype, &[]);
    // A typedef of itself, which no compiler writes.
    let looped = types.count + 1;
    types.record("looped", 8 << 24, looped, &[]);
    types.record("", 3 << 24, 0, &[looped + 1, int, 2]);
    types.record("file", 7 << 24, 0, &[]);
    (types.bytes(), Numbers { int, char, text, list, task, state, bits, looped })
}

/// Memory at 0x1000: a task, whose list points to itself, and a text after the task.
fn memory() -> Vec<u8> {
    let mut memory = vec![0; 0x100];
    memory[..6].copy_from_slice(b"it's\n\0");
    memory[16..24].copy_from_slice(&0x1010_u64.to_le_bytes());
    memory[24..32].copy_from_slice(&0_u64.to_le_bytes());
    memory[32..36].copy_from_slice(&(-7_i32).to_le_bytes());
    memory[36] = 1;
    memory[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    memory[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
    for (number, byte) in [1_u8, 2, 3].into_iter().enumerate() {
        memory[56 + 4 * number] = byte;
    }
    memory[0x80..0x86].copy_from_slice(b"/init\0");
    memory
}

fn read(address: u64, to: &mut [u8]) -> usize {
    let memory = memory();
    let from = (address.wrapping_sub(0x1000) as usize).min(memory.len());
    let count = to.len().min(memory.len() - from);
    to[..count].copy_from_slice(&memory[from..from + count]);
    count
}

fn symbol(address: u64) -> Option<String> {
    (address == 0x1010).then(|| "here".to_string())
}

fn describe() -> Describe<'static> {
    Describe { read: &read, symbol: &symbol }
}

fn task(numbers: &Numbers) -> Variable {
    Variable { address: 0x1000, size: 68, kind: numbers.task.into(), bits: None }
}

fn value(types: &Btf<'_>, variable: &Variable) -> String {
    let mut bytes = vec![0; variable.size as usize];
    assert_eq!(read(variable.address, &mut bytes), bytes.len());
    types.shown(variable, &bytes, &describe())
}

#[test]
fn types_are_found_by_the_names_that_people_write() {
    let (bytes, numbers) = types();
    let types = Btf::parse(&bytes).unwrap();
    for (name, number, pointers) in [
        ("int", numbers.int, 0),
        ("signed", numbers.int, 0),
        ("unsigned long", 3, 0),
        ("long unsigned int *", 3, 1),
        ("const char *", numbers.char, 1),
        ("struct task_struct", numbers.task, 0),
        ("struct task_struct**", numbers.task, 2),
        ("enum state", numbers.state, 0),
        ("task_struct", numbers.task, 0),
        ("u64", 6, 0),
        ("void *", 0, 1),
    ] {
        assert_eq!(types.type_named(name), Some(NamedType { number, pointers }), "{name}");
    }
    for name in ["", "struct", "union task_struct", "enum task_struct", "struct state", "open_task", "short"]
    {
        assert_eq!(types.type_named(name), None, "{name}");
    }
    let spelled = |number, pointers| types.spelled(NamedType { number, pointers });
    assert_eq!(spelled(numbers.text, 0), "char *");
    assert_eq!(spelled(numbers.text, 1), "char **");
    assert_eq!(spelled(numbers.list, 1), "struct list_head *");
    assert_eq!(spelled(0, 1), "void *");
    let size = |number, pointers| types.size_of(NamedType { number, pointers });
    assert_eq!([size(numbers.task, 0), size(numbers.task, 1), size(6, 0)], [Some(68), Some(8), Some(8)]);
    assert_eq!(
        [size(0, 0), size(numbers.looped, 0), size(numbers.looped + 1, 0), size(numbers.looped + 2, 0)],
        [None; 4]
    );
}

#[test]
fn fields_elements_and_pointers_are_followed() {
    let (bytes, numbers) = types();
    let types = Btf::parse(&bytes).unwrap();
    let follow = |path: &str| types.follow(task(&numbers), path, &read);
    for (path, expected) in [
        (".comm", "\"it's\\n\""),
        (".comm[1]", "116"),
        (".pid", "-7"),
        (".on", "true"),
        (".state", "STOPPED"),
        (".when", "18446744073709551615"),
        (".counts", "{1, 2, 3}"),
        (".counts[2]", "3"),
        (".tasks", "{next = 0x1010 <here>, prev = NULL}"),
        (".tasks.next->next->next", "0x1010 <here>"),
        (".tasks.next[0].prev", "NULL"),
    ] {
        let found = follow(path).unwrap_or_else(|why| panic!("{path}: {why}"));
        assert_eq!(value(&types, &found), expected, "{path}");
    }
    for (path, why) in [
        (".nothing", "'struct task_struct' has no field 'nothing'"),
        ("->comm", "'struct task_struct' is no pointer"),
        (".tasks.next.prev", "is a pointer: write -> in place of ."),
        (".tasks.prev->next", "the pointer at 0x1018 is NULL"),
        (".counts[3]", "'int[3]' has no element 3"),
        (".counts[x]", "'x' is no array index"),
        (".counts[1", "a '[' has no ']'"),
        ("comm", "'comm' is no field"),
        (".pid[0]", "'int' is no pointer"),
    ] {
        assert!(follow(path).unwrap_err().contains(why), "{path}: {:?}", follow(path));
    }
    let pointer = Variable {
        address: 0x1010,
        size: 8,
        kind: NamedType { number: numbers.list, pointers: 1 },
        bits: None,
    };
    assert_eq!(types.follow(pointer, "->next", &read).unwrap().address, 0x1010);
    assert!(
        types
            .follow(Variable { address: 0x9000, ..pointer }, "->next", &read)
            .unwrap_err()
            .contains("not mapped")
    );
    assert!(types.follow(pointer, ".next", &read).unwrap_err().contains("write ->"));
}

#[test]
fn values_are_told_by_their_types() {
    let (bytes, numbers) = types();
    let types = Btf::parse(&bytes).unwrap();
    let whole = value(&types, &task(&numbers));
    let expected = "{comm = \"it's\\n\", tasks = {next = 0x1010 <here>, prev = NULL}, {pid = -7, on = true}, state = STOPPED, \
        when = 18446744073709551615, counts = {1, 2, 3}}";
    assert_eq!(whole, expected);
    let bits = Variable { address: 0, size: 8, kind: numbers.bits.into(), bits: None };
    let bytes: Vec<u8> = (0b101 << 5 | 0b1110_u64 << 32).to_le_bytes().to_vec();
    assert_eq!(types.shown(&bits, &bytes, &describe()), "{low = 5, high = -2}");
    let low = types.follow(bits, ".high", &read).unwrap();
    assert_eq!((low.address, low.size, low.bits), (4, 4, Some((0, 4))));
    let text = Variable { address: 0, size: 8, kind: numbers.text.into(), bits: None };
    let shown = |address: u64| types.shown(&text, &address.to_le_bytes(), &describe());
    assert_eq!([shown(0), shown(0x1080), shown(0x9000)], ["NULL", "0x1080 \"/init\"", "0x9000"]);
    let state = Variable { address: 0, size: 4, kind: numbers.state.into(), bits: None };
    assert_eq!(types.shown(&state, &[5, 0, 0, 0], &describe()), "5");
    // Fewer bytes than the type has: the guest's memory ends, or the types are damaged.
    assert_eq!(types.shown(&task(&numbers), b"x", &describe()).matches("when = 0").count(), 1);
    let looped = Variable { address: 0, size: 4, kind: numbers.looped.into(), bits: None };
    assert_eq!(types.shown(&looped, &[1, 2], &describe()), "0x201");
}

#[test]
fn a_function_has_its_signature() {
    let (bytes, numbers) = types();
    let bytes = TypeBytes::of_bytes(bytes);
    let types = bytes.kernel().unwrap();
    assert!(bytes.modules(&types).is_empty());
    let found = types.signatures(&|name| name == "open_task");
    let [(name, signature)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((name.as_str(), signature.result), ("open_task", numbers.int));
    let parameters: Vec<_> =
        signature.parameters.iter().map(|(name, kind)| (name.as_deref(), *kind)).collect();
    assert_eq!(parameters[0], (Some("path"), numbers.text));
    assert_eq!((parameters[1].0, parameters[2]), (Some("task"), (None, 0)));
    assert!(types.signatures(&|name| name == "int").is_empty());
}
