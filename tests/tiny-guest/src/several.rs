//! A guest with several processors, which all change one word of memory, in a race.
//!
//! The first processor starts the others with INIT and a start-up message. Then the first processor stirs memory
//! (writes pseudo-random words), echoes typed text, and sometimes sends an NMI to the other processors. The other
//! processors run in real mode: they change the same word, execute PAUSE, and sleep until the next NMI. The word's
//! value depends on the order of all earlier turns.

use std::path::{Path, PathBuf};

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::checks::Intervals;
use machine::config::{MachineOptions, Processors};
use machine::inputs::Inputs;
use machine::position::Instructions;
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;
use recording::{Recordable, Recording};

use crate::{HEADER_BYTES, LOAD, POWER_ON, STIRRED, end_the_run, image, open, options};

/// Describes processors with short turns, as in recordings of earlier versions. The guests of this package end before a
/// usual turn would.
pub fn processors(count: u8) -> Processors {
    let processors =
        Processors::new(count).and_then(|processors| processors.with_ring_steps(cpu::TURN_STEPS));
    processors.expect("a machine can have so many")
}

/// The size of the memory that the first processor stirs. The size is small, so that recordings are small.
const STIRRED_BYTES: i32 = 0x1000;
/// The address of the word that all processors change.
pub const SHARED: u64 = 0x5000;
/// The address of the number of processors that were started.
const STARTED: u64 = 0x5004;
/// The address of the number of NMIs that the other processors have taken.
pub const NMIS: u64 = 0x5008;
/// The address of the first stack of the other processors.
const STACKS: i32 = 0x6100;
/// The address and the page number of the code of the other processors.
const OTHERS: u64 = 0x8000;
const OTHERS_PAGE: i32 = 8;
/// The offset of the NMI handler in the code of the other processors.
const HANDLER: usize = 0x80;
/// The address of the local APIC's interrupt command register, and messages to all processors except the sender.
const COMMAND: u64 = 0xfee0_0300;
const INIT: i32 = 0xc4500;
const START: i32 = 0xc4600;
const NMI: i32 = 0xc4400;

fn others() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(16)?;
    let (mut again, mut on) = (a.create_label(), a.create_label());
    a.xor(ax, ax)?;
    a.mov(ds, ax)?;
    a.mov(ss, ax)?;
    a.mov(ax, 1)?;
    a.lock().xadd(word_ptr(STARTED), ax)?;
    a.shl(ax, 8)?;
    a.add(ax, STACKS)?;
    a.mov(sp, ax)?;
    a.xor(bx, bx)?;
    a.set_label(&mut again)?;
    a.mov(ax, word_ptr(SHARED))?;
    a.imul_3(ax, ax, 0x6d)?;
    a.add(ax, bx)?;
    a.mov(word_ptr(SHARED), ax)?;
    a.inc(bx)?;
    a.test(bx, 0x1ff)?;
    a.jne(on)?;
    a.pause()?;
    a.set_label(&mut on)?;
    a.test(bx, 0xfff)?;
    a.jne(again)?;
    a.hlt()?;
    a.jmp(again)?;
    let mut code = a.assemble(0)?;
    code.resize(HANDLER, 0x90);
    let mut a = CodeAssembler::new(16)?;
    a.inc(word_ptr(NMIS))?;
    a.iret()?;
    code.extend(a.assemble(HANDLER as u64)?);
    code.resize(code.len().next_multiple_of(4), 0x90);
    Ok(code)
}

fn first(rounds: u32, others: &[u8]) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(32)?;
    let (mut top, mut quiet, mut on) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(edx, 0x3f9)?;
    a.mov(eax, 1)?;
    a.out(dx, al)?;
    for (number, word) in others.chunks(4).enumerate() {
        let word = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        a.mov(dword_ptr(OTHERS + 4 * number as u64), word)?;
    }
    // Write the real-mode interrupt vector for NMIs.
    a.mov(dword_ptr(4 * 2), OTHERS_PAGE << 24 | HANDLER as i32)?;
    a.mov(dword_ptr(COMMAND), INIT)?;
    a.mov(dword_ptr(COMMAND), START | OTHERS_PAGE)?;
    a.xor(ebx, ebx)?;
    a.mov(esi, rounds)?;
    a.set_label(&mut top)?;
    a.mov(eax, dword_ptr(SHARED))?;
    a.imul_3(eax, eax, 1_664_525)?;
    a.add(eax, 1_013_904_223)?;
    a.mov(dword_ptr(SHARED), eax)?;
    a.add(ebx, eax)?;
    a.mov(eax, ebx)?;
    a.shr(eax, 10)?;
    a.and(eax, STIRRED_BYTES - 4)?;
    a.add(dword_ptr(eax + STIRRED as i32), ebx)?;
    a.test(esi, 0xff)?;
    a.jne(quiet)?;
    a.pause()?;
    a.mov(edx, 0x3fd)?;
    a.in_(al, dx)?;
    a.test(al, 1)?;
    a.je(quiet)?;
    a.mov(edx, 0x3f8)?;
    a.in_(al, dx)?;
    a.out(dx, al)?;
    a.set_label(&mut quiet)?;
    a.test(esi, 0x3ff)?;
    a.jne(on)?;
    a.mov(dword_ptr(COMMAND), NMI)?;
    a.set_label(&mut on)?;
    a.dec(esi)?;
    a.jne(top)?;
    end_the_run(&mut a)?;
    a.assemble((LOAD + HEADER_BYTES).into())
}

/// Writes the guest's kernel to a file.
pub fn write_kernel(directory: &Path, rounds: u32) -> PathBuf {
    let code = others().and_then(|others| first(rounds, &others));
    let path = directory.join(format!("several-{rounds}"));
    std::fs::write(&path, image(&code.expect("the program is a constant that can be assembled"))).unwrap();
    path
}

/// Returns the options of a machine with these processors.
pub fn machine(directory: &Path, rounds: u32, processors: Processors) -> MachineOptions {
    MachineOptions { processors, ..options(write_kernel(directory, rounds)) }
}

/// Records the guest.
pub fn record(
    directory: &Path,
    name: &str,
    (rounds, processors): (u32, Processors),
    checks: Intervals,
    checkpoints: Option<CheckpointOptions>,
    inputs: impl Inputs<Instructions>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    let path = directory.join(name);
    let mut guest = Recordable::new(&machine(directory, rounds, processors), POWER_ON).unwrap();
    let recording = guest.record_in(&path).unwrap().checks(checks).checkpoints(checkpoints);
    let end = recording.run(inputs).unwrap();
    (open(&path), end)
}
