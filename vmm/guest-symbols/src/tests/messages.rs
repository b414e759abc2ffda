//! Tests with a made-up ring of messages.

use super::{BASE, Pages, Types, found};
use crate::messages::{self, KernelLog, Message, State};
use crate::modules::Missing;
use crate::symbols::Symbols;

const TYPES: u64 = BASE + 0x10_0000;
const POINTER: u64 = BASE + 0x2_0000;
const RING: u64 = BASE + 0x3_0000;
const DESCRIPTORS: u64 = BASE + 0x4_0000;
const INFOS: u64 = BASE + 0x5_0000;
const TEXTS: u64 = BASE + 0x6_0000;
/// The ring has four descriptors and 128 bytes of texts. These constants are the base-2 logarithms.
const COUNT_BITS: u32 = 2;
const SIZE_BITS: u32 = 7;

const RESERVED: u64 = 0;
const COMMITTED: u64 = 1;
const FINALIZED: u64 = 2;

fn types() -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let fields =
        [("count_bits", 1, 0), ("descs", 1, 8), ("infos", 1, 16), ("head_id", 1, 24), ("tail_id", 1, 32)];
    let descriptors = types.structure("prb_desc_ring", 48, &fields);
    let texts = types.structure("prb_data_ring", 32, &[("size_bits", 1, 0), ("data", 1, 8)]);
    let fields = [("desc_ring", descriptors, 0), ("text_data_ring", texts, 48)];
    types.structure("printk_ringbuffer", 88, &fields);
    let place = types.structure("prb_data_blk_lpos", 16, &[("begin", 1, 0), ("next", 1, 8)]);
    types.structure("prb_desc", 24, &[("state_var", 1, 0), ("text_blk_lpos", place, 8)]);
    let fields = [("seq", 1, 0), ("ts_nsec", 1, 8), ("text_len", 1, 16), ("facility", 1, 18)];
    types.structure("printk_info", 32, &fields);
    types
}

/// A ring with messages 2 to 5, and the positions of their texts.
fn ring(rows: [(u64, u64, u64, &[u8]); 4]) -> (Pages, Symbols) {
    let mut memory = Pages::default();
    let bytes = types().bytes();
    memory.write(TYPES, &bytes);
    memory.write_u64(POINTER, RING);
    memory.write(RING, &COUNT_BITS.to_le_bytes());
    memory.write(RING + 48, &SIZE_BITS.to_le_bytes());
    for (offset, value) in [(8, DESCRIPTORS), (16, INFOS), (24, 5), (32, 2), (56, TEXTS)] {
        memory.write_u64(RING + offset, value);
    }
    for (number, (state, begin, next, text)) in (2..).zip(rows) {
        let (descriptor, info) = (DESCRIPTORS + number % 4 * 24, INFOS + number % 4 * 32);
        for (offset, value) in [(0, state << 62 | number), (8, begin), (16, next)] {
            memory.write_u64(descriptor + offset, value);
        }
        memory.write_u64(info, number + 100);
        memory.write_u64(info + 8, number * 1_000_500_000);
        memory.write(info + 16, &(text.len() as u16).to_le_bytes());
        memory.write(info + 19, &[(number as u8) << 5 | 0x1f]);
        let (at, end) = (begin % 128, next % 128);
        let at = if at > end { 0 } else { at };
        memory.write(TEXTS + at + 8, text);
    }
    let symbols = vec![
        found(POINTER, 'D', "prb"),
        found(TYPES, 'R', "__start_BTF"),
        found(TYPES + bytes.len() as u64, 'R', "__stop_BTF"),
    ];
    (memory, Symbols::new(symbols, Vec::new()))
}

fn message(number: u64, text: &str) -> Message {
    Message { time_ns: number * 1_000_500_000, level: number as u8, text: text.to_string() }
}

#[test]
fn whole_messages_are_read_also_where_the_rings_begin_again() {
    let (memory, symbols) = ring([
        (FINALIZED, 64, 80, b"first"),
        (RESERVED, 80, 96, b"half"),
        (COMMITTED, 96, 120, b"two\nlines\x1b"),
        // This block would extend beyond the end of the ring, so it begins at the ring's beginning.
        (FINALIZED, 120, 152, b"at the beginning"),
    ]);
    let found = messages::of_kernel(&memory, &symbols).unwrap();
    assert_eq!(found, [message(2, "first"), message(4, "two\nlines?"), message(5, "at the beginning")]);
    assert_eq!(found[1].to_string(), "[    4.002000] two\n[    4.002000] lines?");
}

#[test]
fn a_message_says_where_its_state_is_and_what_the_state_means() {
    let (memory, symbols) = ring([
        (FINALIZED, 48, 64, b"first"),
        (RESERVED, 64, 80, b"half"),
        (RESERVED, 80, 96, b"half"),
        (COMMITTED, 96, 112, b"last"),
    ]);
    let log = KernelLog::of_kernel(&memory, &symbols).unwrap();
    assert_eq!(log.length(&memory), Some(105));
    let kept = log.kept(&memory).unwrap();
    let places: Vec<_> = kept.iter().map(|kept| (kept.sequence, kept.id, kept.state_at)).collect();
    assert_eq!(places, [(102, 2, DESCRIPTORS + 48), (105, 5, DESCRIPTORS + 24)]);
    let words = [(COMMITTED, 5), (FINALIZED, 5), (RESERVED, 5), (3, 5), (FINALIZED, 9)];
    let states = words.map(|(state, number)| kept[1].state_of(state << 62 | number));
    let expected = [State::Committed, State::Finalized, State::Unwritten, State::Unwritten].map(Some);
    assert_eq!((&states[..4], states[4]), (&expected[..], None));
}

#[test]
fn what_cannot_be_a_message_is_left_out() {
    let (mut memory, symbols) = ring([
        (FINALIZED, 1, 1, b"no text"),
        (FINALIZED, 64, 68, b"no room for a number"),
        (FINALIZED, 64, 80, b"longer than its block"),
        (FINALIZED, 80, 96, b"good"),
    ]);
    let found = messages::of_kernel(&memory, &symbols).unwrap();
    assert_eq!(found, [message(4, "longer t"), message(5, "good")]);
    memory.write(RING, &40_u32.to_le_bytes());
    assert_eq!(messages::of_kernel(&memory, &symbols), Err(Missing::Symbol("prb")), "too many bits");
}
