//! Tests with made-up threads from which the kernel has switched away.

use super::{BASE, DIRECT_MAP, Pages, Types, found};
use crate::Symbols;
use crate::kallsyms::RawSymbol;
use crate::modules::Missing;
use crate::switched_out::{SavedRegisters, SwitchFrame};

const TYPES: u64 = BASE + 0x10_0000;
const TASK: u64 = DIRECT_MAP + 0x10_0000;
const STACK: u64 = DIRECT_MAP + 0x20_0f00;

/// Fields in the order of Linux, except that two are swapped and an extra word is between them.
fn types(with_frame: bool) -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let thread = types.structure("thread_struct", 0x40, &[("tls", 1, 0), ("sp", 1, 0x18)]);
    types.structure("task_struct", 0x200, &[("pid", 1, 0), ("thread", thread, 0x180)]);
    if with_frame {
        let fields = [
            ("r15", 1, 0),
            ("r14", 1, 8),
            ("r13", 1, 16),
            ("r12", 1, 24),
            ("bp", 1, 40),
            ("bx", 1, 48),
            ("ret_addr", 1, 56),
        ];
        types.structure("inactive_task_frame", 64, &fields);
    }
    types
}

fn kernel(with_frame: bool) -> (Pages, Vec<RawSymbol>) {
    let mut memory = Pages::default();
    let bytes = types(with_frame).bytes();
    memory.write(TYPES, &bytes);
    memory.write_u64(TASK + 0x198, STACK);
    for word in 0..8 {
        memory.write_u64(STACK + 8 * word, 0x1000 + word);
    }
    let end = TYPES + bytes.len() as u64;
    (memory, vec![found(TYPES, 'R', "__start_BTF"), found(end, 'R', "__stop_BTF")])
}

fn find(memory: &Pages, symbols: &[RawSymbol]) -> Result<SwitchFrame, Missing> {
    SwitchFrame::find(memory.view(), &Symbols::new(symbols.to_vec(), Vec::new()))
}

#[test]
fn registers_are_those_on_the_stack() {
    let (memory, symbols) = kernel(true);
    let frame = find(&memory, &symbols).expect("all is there");
    let expected = SavedRegisters {
        r15: 0x1000,
        r14: 0x1001,
        r13: 0x1002,
        r12: 0x1003,
        rbp: 0x1005,
        rbx: 0x1006,
        rip: 0x1007,
        rsp: STACK + 64,
    };
    assert_eq!(frame.registers_in(memory.view(), TASK), Some(expected));
}

#[test]
fn a_stack_that_is_not_there_has_none() {
    let (mut memory, symbols) = kernel(true);
    let frame = find(&memory, &symbols).expect("all is there");
    for stack in [0, 0x1000, u64::MAX, u64::MAX - 60] {
        memory.write_u64(TASK + 0x198, stack);
        assert_eq!(frame.registers_in(memory.view(), TASK), None, "{stack:#x}");
    }
    assert_eq!(frame.registers_in(memory.view(), u64::MAX - 0x100), None);
}

#[test]
fn what_is_missing_is_said() {
    let (memory, symbols) = kernel(false);
    let missing = Missing::Field { structure: "inactive_task_frame", field: "ret_addr" };
    assert_eq!(find(&memory, &symbols), Err(missing));
    assert_eq!(find(&memory, &[]), Err(Missing::Symbol("__start_BTF")));
}
