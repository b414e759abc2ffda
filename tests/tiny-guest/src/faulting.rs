//! A guest that takes an exception and returns from its handler, and then announces a kernel panic. The exception's
//! frame stays on the stack, in a gap that the guest never writes.
//!
//! A second guest takes a fault and interrupts in 32-bit protected mode.

use std::path::Path;

use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, IcedError};
use machine::position::Instructions;
use recording::Recording;

use crate::{
    DENSE, HEADER_BYTES, LOAD, STIRRED, STIRRED_BYTES, Script, TICK_PIT_COUNTS, end_the_run, image,
    image_of_64_bits, record_kernel,
};

/// The last line that the guest prints.
pub const REPORT: &str = "Kernel panic - not syncing: at the end\r\n";
/// The size in bytes of the gap on the stack that the guest leaves unwritten.
const GAP_BYTES: i32 = 0x100;
/// The addresses of the guest's interrupt table, and of LIDT's operand.
const INTERRUPTS: i32 = STIRRED as i32;
const INTERRUPT_REGISTER: i32 = INTERRUPTS + 0x1000;
const STACK: i32 = (STIRRED + STIRRED_BYTES) as i32;

/// The cause of the panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The guest announces the panic without an exception.
    Own,
    /// An invalid instruction, whose handler announces the panic.
    InvalidInstruction,
}

/// The rounds of the loop during which the guest in 32-bit mode takes interrupts.
const BUSY_ROUNDS: u32 = 60_000;

/// Records the guest in 32-bit mode. Returns the recording and the address of the instruction that faults once. The
/// timer's interrupts follow.
pub fn record_32_bits(directory: &Path, name: &str) -> (Recording<Instructions>, u64) {
    let program =
        |addresses| program_of_32_bits(addresses).expect("the program is a constant that can be assembled");
    let (_, addresses) = program([0; 4]);
    // The code does not get longer with the right addresses.
    let (code, [fault, ..]) = program(addresses);
    let kernel = directory.join(format!("{name}-kernel"));
    std::fs::write(&kernel, image(&code)).unwrap();
    (record_kernel(directory, name, kernel, DENSE, Script(Vec::new()), None).0, fault)
}

/// The program, and its addresses of the instruction that faults, of the code after a jump, and of two handlers.
fn program_of_32_bits(
    [_, flat_at, repairs_at, ticks_at]: [u64; 4],
) -> Result<(Vec<u8>, [u64; 4]), IcedError> {
    const SEGMENTS: i32 = INTERRUPTS + 0x2000;
    let mut a = CodeAssembler::new(32)?;
    let mut new = || a.create_label();
    let (mut flat, mut fault, mut busy, mut repairs, mut ticks) = (new(), new(), new(), new(), new());
    a.mov(esp, STACK)?;
    for (at, value) in [
        (SEGMENTS + 8, 0xffff),
        (SEGMENTS + 12, 0x00cf_9a00),
        (SEGMENTS + 16, 0xffff),
        (SEGMENTS + 20, 0x00cf_9200),
        (SEGMENTS + 0x100, SEGMENTS << 16 | 23),
        (SEGMENTS + 0x104, SEGMENTS >> 16),
        (INTERRUPT_REGISTER, INTERRUPTS << 16 | 0x7ff),
        (INTERRUPT_REGISTER + 4, INTERRUPTS >> 16),
    ] {
        a.mov(dword_ptr(at), value)?;
    }
    a.lgdt(ptr(SEGMENTS + 0x100))?;
    a.push(8)?;
    a.mov(eax, flat_at as i32)?;
    a.push(eax)?;
    a.retf()?;
    a.set_label(&mut flat)?;
    a.mov(eax, 16)?;
    for segment in [ds, es, ss] {
        a.mov(segment, eax)?;
    }
    for (vector, handler) in [(13, repairs_at), (32, ticks_at)] {
        let gate = INTERRUPTS + 8 * vector;
        a.mov(eax, handler as i32)?;
        // The handlers lie in the code segment 8: SDM vol. 3, 7.11.
        a.mov(dword_ptr(gate), 8 << 16)?;
        a.mov(word_ptr(gate), ax)?;
        a.mov(dword_ptr(gate + 4), eax)?;
        a.mov(word_ptr(gate + 4), 0x8e00)?;
    }
    a.lidt(ptr(INTERRUPT_REGISTER))?;
    // The interrupt controllers admit the timer only.
    for (port, value) in [(0x20, 0x11), (0x21, 0x20), (0x21, 4), (0x21, 1), (0x21, 0xfe)] {
        a.mov(al, value)?;
        a.out(port, al)?;
    }
    for (port, value) in [(0x43, 0x34), (0x40, TICK_PIT_COUNTS), (0x40, 0)] {
        a.mov(al, value)?;
        a.out(port, al)?;
    }
    // There is no such segment.
    a.mov(eax, 0x1230)?;
    a.set_label(&mut fault)?;
    a.mov(fs, eax)?;
    a.sti()?;
    a.mov(ecx, BUSY_ROUNDS)?;
    a.set_label(&mut busy)?;
    a.dec(ecx)?;
    a.jne(busy)?;
    end_the_run(&mut a)?;
    a.set_label(&mut repairs)?;
    a.xor(eax, eax)?;
    a.add(esp, 4)?;
    a.iretd()?;
    a.set_label(&mut ticks)?;
    a.push(eax)?;
    a.mov(al, 0x20)?;
    a.out(0x20, al)?;
    a.pop(eax)?;
    a.iretd()?;
    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let assembled = a.assemble_options((LOAD + HEADER_BYTES).into(), options)?;
    let mut addresses = [0; 4];
    for (address, label) in addresses.iter_mut().zip([&fault, &flat, &repairs, &ticks]) {
        *address = assembled.label_ip(label)?;
    }
    Ok((assembled.inner.code_buffer.clone(), addresses))
}

/// Records the guest.
pub fn record(directory: &Path, name: &str, cause: Cause) -> Recording<Instructions> {
    let kernel = directory.join(format!("{name}-kernel"));
    std::fs::write(&kernel, image_of_64_bits(|address| program(address, cause))).unwrap();
    record_kernel(directory, name, kernel, DENSE, Script(Vec::new()), None).0
}

fn program(address: u32, cause: Cause) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let (mut returns, mut panics) = (a.create_label(), a.create_label());
    a.xor(eax, eax)?;
    a.mov(ss, eax)?;
    a.mov(esp, STACK)?;
    for (vector, handler) in [(3, returns), (6, panics)] {
        let gate = INTERRUPTS + 16 * vector;
        a.lea(rax, qword_ptr(handler))?;
        // Write a gate. The handlers are below 4 GiB, in the code segment with selector 8 (SDM vol. 3, 7.14.1).
        a.mov(dword_ptr(gate), 8 << 16)?;
        a.mov(word_ptr(gate), ax)?;
        a.mov(dword_ptr(gate + 4), eax)?;
        a.mov(word_ptr(gate + 4), 0x8e00)?;
    }
    a.mov(word_ptr(INTERRUPT_REGISTER), 0xfff)?;
    a.mov(dword_ptr(INTERRUPT_REGISTER + 2), INTERRUPTS)?;
    a.lidt(ptr(INTERRUPT_REGISTER))?;
    a.int3()?;
    a.sub(rsp, GAP_BYTES)?;
    if cause == Cause::InvalidInstruction {
        a.ud2()?;
    }
    a.set_label(&mut panics)?;
    a.mov(edx, 0x3f8)?;
    for byte in REPORT.bytes() {
        a.mov(al, i32::from(byte))?;
        a.out(dx, al)?;
    }
    end_the_run(&mut a)?;
    a.set_label(&mut returns)?;
    a.iretq()?;
    a.assemble(address.into())
}
