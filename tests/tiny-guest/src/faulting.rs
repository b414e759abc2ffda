//! A guest that takes an exception and returns from its handler, and then announces a kernel panic. The exception's
//! frame stays on the stack, in a gap that the guest never writes.

use std::path::Path;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::position::Instructions;
use recording::Recording;

use crate::{DENSE, STIRRED, STIRRED_BYTES, Script, end_the_run, image_of_64_bits, record_kernel};

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
