//! Memory as hex text, and disassembled code.

use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use machine::position::Instructions;
use machine::{Machine, Processor, hex};
use schemars::JsonSchema;
use serde::Serialize;

/// The largest number of disassembled instructions.
const MOST_INSTRUCTIONS: usize = 10_000;
/// The largest size of an instruction in bytes.
const MOST_INSTRUCTION_BYTES: usize = 15;

/// An address and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte's address.
    pub address: u64,
    /// The number of bytes.
    pub length: u64,
}

/// Bytes of memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Bytes {
    /// The first byte's address, in hex.
    pub address: String,
    /// The readable bytes, in hex.
    pub bytes: String,
    /// Why fewer bytes than requested are readable. `None` if all are readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<String>,
}

impl Bytes {
    /// Reads at a virtual address, through a processor's page tables.
    pub fn at(processor: &Processor<'_, Instructions>, range: Range) -> Bytes {
        let read = |to: &mut [u8]| processor.peek(range.address, to);
        Bytes::read(range, read, |at| match processor.peek_address(at) {
            Some(gpa) => format!("{at:#x} is mapped to {gpa:#x}, where there is no RAM"),
            None => format!("nothing is mapped at {at:#x}"),
        })
    }

    /// Reads at a physical address.
    pub fn at_physical(machine: &Machine<Instructions>, range: Range) -> Bytes {
        let read = |to: &mut [u8]| machine.read_physical(range.address, to);
        Bytes::read(range, read, |at| format!("there is no RAM at {at:#x}"))
    }

    fn read(range: Range, read: impl Fn(&mut [u8]) -> usize, why: impl Fn(u64) -> String) -> Bytes {
        let mut bytes = vec![0; range.length as usize];
        let count = read(&mut bytes);
        let ends = (count < bytes.len()).then(|| why(range.address.wrapping_add(count as u64)));
        Bytes { address: format!("{:#x}", range.address), bytes: hex(&bytes[..count]), ends }
    }
}

/// A disassembled instruction.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Line {
    /// The instruction's address, in hex.
    pub address: String,
    /// The instruction's bytes, in hex.
    pub bytes: String,
    /// The instruction in Intel's notation.
    pub text: String,
}

/// The instructions from a processor's RIP on, up to the first unreadable byte.
pub fn disassemble(processor: &Processor<'_, Instructions>, count: usize) -> Vec<Line> {
    let mut bytes = vec![0; count.min(MOST_INSTRUCTIONS) * MOST_INSTRUCTION_BYTES];
    let readable = processor.peek(processor.linear_rip(), &mut bytes);
    let bits = match processor.code_size() {
        cpu::CodeSize::Bits16 => 16,
        cpu::CodeSize::Bits32 => 32,
        cpu::CodeSize::Bits64 => 64,
    };
    let mut decoder = Decoder::with_ip(bits, &bytes[..readable], processor.state().rip, DecoderOptions::NONE);
    let (mut formatter, mut instruction) = (IntelFormatter::new(), Instruction::default());
    let mut lines = Vec::new();
    while lines.len() < count && decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let code = &bytes[at..decoder.position()];
        lines.push(Line { address: format!("{:#x}", instruction.ip()), bytes: hex(code), text });
    }
    lines
}
