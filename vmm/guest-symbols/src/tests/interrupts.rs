//! Tests with made-up tables of interrupts.

use super::{BASE, DIRECT_MAP, Pages, Types, found};
use crate::Symbols;
use crate::interrupts::{Handler, Interrupt, Interrupts};
use crate::kallsyms::RawSymbol;
use crate::modules::Missing;

const TYPES: u64 = BASE + 0x10_0000;
const OFFSETS: u64 = BASE + 0x20_0000;
/// The table's address without the offset of a processor.
const TABLE: u64 = 0x1_2000;
const SECOND: u64 = DIRECT_MAP + 0x80_0000;
const INTERRUPT: u64 = DIRECT_MAP + 0x10_0000;
const ACTION: u64 = DIRECT_MAP + 0x11_0000;
const NAME: u64 = DIRECT_MAP + 0x12_0000;

fn kernel() -> (Pages, Vec<RawSymbol>) {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let data = types.structure("irq_data", 0x40, &[("mask", 1, 0), ("irq", 1, 4)]);
    types.structure("irq_desc", 0x200, &[("irq_data", data, 0x28), ("action", 1, 0x70)]);
    types.structure("irqaction", 0x80, &[("handler", 1, 0), ("next", 1, 0x18), ("name", 1, 0x40)]);
    let bytes = types.bytes();
    let mut memory = Pages::default();
    memory.write(TYPES, &bytes);
    memory.write_u64(OFFSETS, 0);
    memory.write_u64(OFFSETS + 8, SECOND);
    memory.write_u64(SECOND + TABLE + 8 * 35, INTERRUPT);
    memory.write(INTERRUPT + 0x28 + 4, &24_u32.to_le_bytes());
    memory.write_u64(INTERRUPT + 0x70, ACTION);
    memory.write_u64(ACTION, BASE + 0x500);
    memory.write_u64(ACTION + 0x40, NAME);
    memory.write(NAME, b"virtio0-config\0");
    let symbols = [
        (TYPES, "__start_BTF"),
        (TYPES + bytes.len() as u64, "__stop_BTF"),
        (OFFSETS, "__per_cpu_offset"),
        (TABLE, "vector_irq"),
    ];
    (memory, symbols.into_iter().map(|(address, name)| found(address, 'R', name)).collect())
}

fn find(memory: &Pages, symbols: &[RawSymbol]) -> Result<Interrupts, Missing> {
    Interrupts::find(memory.view(), &Symbols::new(symbols.to_vec(), Vec::new()))
}

#[test]
fn a_vector_has_the_interrupt_of_its_processor() {
    let (memory, symbols) = kernel();
    let interrupts = find(&memory, &symbols).expect("all is there");
    let handler = Handler { name: Some("virtio0-config".to_string()), address: BASE + 0x500 };
    let expected = Interrupt { number: 24, handlers: vec![handler] };
    assert_eq!(interrupts.of_vector_in(memory.view(), 1, 35), Some(expected));
    for (processor, vector) in [(1, 36), (0, 35), (2, 35), (usize::MAX, 35)] {
        assert_eq!(interrupts.of_vector_in(memory.view(), processor, vector), None, "{processor} {vector}");
    }
}

#[test]
fn marks_and_bad_pointers_are_no_interrupts_and_lists_end() {
    let (mut memory, symbols) = kernel();
    let interrupts = find(&memory, &symbols).expect("all is there");
    for mark in [0, u64::MAX, u64::MAX - 1, 0x1000] {
        memory.write_u64(SECOND + TABLE + 8 * 35, mark);
        assert_eq!(interrupts.of_vector_in(memory.view(), 1, 35), None, "{mark:#x}");
    }
    memory.write_u64(SECOND + TABLE + 8 * 35, INTERRUPT);
    // A list that is a ring, and a name that is nowhere.
    memory.write_u64(ACTION + 0x18, ACTION);
    memory.write_u64(ACTION + 0x40, 0x1000);
    let found = interrupts.of_vector_in(memory.view(), 1, 35).expect("the interrupt is there");
    assert!(found.handlers.len() > 1 && found.handlers.iter().all(|handler| handler.name.is_none()));
}

#[test]
fn what_is_missing_is_said() {
    let (memory, symbols) = kernel();
    assert_eq!(find(&memory, &symbols[..3]), Err(Missing::Symbol("vector_irq")));
    assert_eq!(find(&memory, &[]), Err(Missing::Symbol("__start_BTF")));
}
