//! Describes cases as text for reports.

use iced_x86::{Formatter, Instruction, IntelFormatter};

use crate::case::Case;

/// Hexadecimal bytes.
pub fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

/// Disassembly.
pub fn instruction(instruction: &Instruction) -> String {
    let mut text = String::new();
    IntelFormatter::new().format(instruction, &mut text);
    text
}

/// Returns indented lines with the contents of registers and memory before the instruction.
pub fn inputs(case: &Case) -> String {
    let registers = &case.registers;
    let mut text = format!("  input: rip {:x} rflags {:x}\n ", registers.rip, registers.rflags);
    for (n, value) in registers.gpr.iter().enumerate() {
        text += &format!(" r{n}={value:x}");
    }
    let fx = &registers.fx;
    text += &format!(
        "\n  mxcsr {:x} x87 control {:x} status {:x} tags {:x}\n ",
        fx.mxcsr(),
        fx.control(),
        fx.status(),
        fx.tags()
    );
    for n in used_vectors(&case.instruction) {
        text += &format!(" xmm{n}={:032x}", fx.xmm(n));
    }
    for n in 0..8 {
        text += &format!(" st{n}={:04x}:{:016x}", fx.sign_exponent(n), fx.mantissa(n));
    }
    text += "\n";
    for write in &case.writes {
        text += &format!("  [{:x}] = {}\n", write.address, bytes(&write.bytes[..write.length.min(32)]));
    }
    text
}

fn used_vectors(instruction: &Instruction) -> impl Iterator<Item = usize> {
    let registers = (0..instruction.op_count())
        .map(|n| instruction.op_register(n))
        .filter(|r| r.is_xmm())
        .collect::<Vec<_>>();
    registers.into_iter().map(|r| r.number())
}
