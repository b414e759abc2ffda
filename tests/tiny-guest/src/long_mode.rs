//! A guest that runs a test's own instructions in 64-bit mode.
//!
//! One gigabyte of physical memory is mapped at virtual address 0, and once more at [`ALIAS`].

use std::path::Path;

use iced_x86::code_asm::*;
use iced_x86::{BlockEncoder, BlockEncoderOptions, IcedError, InstructionBlock};
use machine::config::MachineOptions;
use machine::inputs::{Event, Inputs};
use machine::position::Instructions;
use recording::Recording;
use recording::log::EndRecord;

use crate::{
    DENSE, HEADER_BYTES, LOAD, STIRRED, STIRRED_BYTES, Script, dense_checkpoints, image, options,
    record_machine,
};

/// The virtual address at which all physical memory is mapped a second time.
pub const ALIAS: u64 = 1 << 30;
/// The address of the first byte above the stack.
pub const STACK: u64 = STIRRED + STIRRED_BYTES;
/// Page tables, and the table of segments.
pub(crate) const TABLES: i32 = 0x30_0000;
const SEGMENTS: i32 = TABLES + 0x3000;
/// The size of the code that switches to 64-bit mode. The test's code follows.
const SWITCH_BYTES: usize = 0x100;
/// The address of the test's code.
const CODE: u64 = LOAD as u64 + HEADER_BYTES as u64 + SWITCH_BYTES as u64;

/// Returns code that switches to 64-bit mode and jumps to [`CODE`] (SDM vol. 3, 10.8.5).
fn switch() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(32)?;
    let (mut top, pages, pointers) = (a.create_label(), TABLES + 0x2000, TABLES + 0x1000);
    // Map 512 pages of two megabytes: present, writable, large.
    a.mov(edi, pages)?;
    a.mov(eax, 0x83)?;
    a.set_label(&mut top)?;
    a.mov(dword_ptr(edi), eax)?;
    a.add(eax, 2 << 20)?;
    a.add(edi, 8)?;
    a.cmp(edi, pages + 0x1000)?;
    a.jne(top)?;
    a.mov(dword_ptr(TABLES), pointers | 3)?;
    a.mov(dword_ptr(pointers), pages | 3)?;
    a.mov(dword_ptr(pointers + 8), pages | 3)?;
    a.mov(dword_ptr(SEGMENTS + 12), 0x0020_9a00)?;
    a.mov(dword_ptr(SEGMENTS + 20), 0x0000_9200)?;
    a.mov(word_ptr(SEGMENTS + 0x100), 23)?;
    a.mov(dword_ptr(SEGMENTS + 0x102), SEGMENTS)?;
    a.lgdt(ptr(SEGMENTS + 0x100))?;
    a.mov(eax, cr4)?;
    // PAE and OSFXSR.
    a.or(eax, 1 << 5 | 1 << 9)?;
    a.mov(cr4, eax)?;
    a.mov(eax, TABLES)?;
    a.mov(cr3, eax)?;
    a.mov(ecx, 0xc000_0080_u32)?;
    a.rdmsr()?;
    a.or(eax, 1 << 8)?;
    a.wrmsr()?;
    a.mov(eax, cr0)?;
    a.and(eax, !(1 << 2))?;
    a.or(eax, 0x8000_0002_u32 as i32)?;
    a.mov(cr0, eax)?;
    a.push(8)?;
    a.push(CODE as i32)?;
    a.retf()?;
    let mut code = a.assemble((LOAD + HEADER_BYTES).into())?;
    // First set the stack pointer, because two later instructions push to the stack.
    code.splice(0..0, [0xbc_u8].into_iter().chain((STACK as u32).to_le_bytes()));
    code.resize(SWITCH_BYTES, 0x90);
    Ok(code)
}

/// Records a run of the given instructions in 64-bit mode, and ends the run after them. At the beginning, the stack
/// pointer is [`STACK`]. Returns the recording, its last record, and the address of each instruction. The last
/// address is the address after the last instruction.
pub fn record(
    directory: &Path,
    name: &str,
    code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    script: Vec<(u64, Event)>,
) -> (Recording<Instructions>, EndRecord<Instructions>, Vec<u64>) {
    record_on(directory, name, |options| options, code, script)
}

/// Does the same as [`record`], in a machine with other options.
pub(crate) fn record_on(
    directory: &Path,
    name: &str,
    change: impl FnOnce(MachineOptions) -> MachineOptions,
    code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    script: Vec<(u64, Event)>,
) -> (Recording<Instructions>, EndRecord<Instructions>, Vec<u64>) {
    let assemble = || -> Result<(Vec<u8>, Vec<u64>), IcedError> {
        let mut a = CodeAssembler::new(64)?;
        a.nop()?;
        code(&mut a)?;
        let count = a.instructions().len();
        a.mov(edx, 0x501)?;
        a.xor(eax, eax)?;
        a.out(dx, eax)?;
        a.hlt()?;
        let block = InstructionBlock::new(a.instructions(), CODE);
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let encoded = BlockEncoder::encode(64, block, options)?;
        let offsets = &encoded.new_instruction_offsets[1..=count];
        let addresses = offsets.iter().map(|offset| CODE + u64::from(*offset)).collect();
        Ok((encoded.code_buffer, addresses))
    };
    let assembled = (|| Ok::<_, IcedError>((switch()?, assemble()?)))();
    let (mut program, (body, addresses)) = assembled.expect("the test's program can be assembled");
    program.extend(body);
    let kernel = directory.join(format!("{name}-kernel"));
    std::fs::write(&kernel, image(&program)).unwrap();
    let inputs: &mut dyn Inputs<Instructions> = &mut Script(script);
    let (options, checkpoints) = (change(options(kernel)), Some(dense_checkpoints()));
    let (recording, end) = record_machine(directory, name, &options, DENSE, inputs, checkpoints);
    (recording, end, addresses)
}
