//! Executes one instruction on the processor that runs the test.

use memmap2::{Mmap, MmapMut};

use crate::state::State;

/// Size of the data area with the memory operands: two pages, so that operands can cross a page boundary.
pub const DATA_BYTES: usize = 8192;
const GPR: usize = 512;
const FLAGS: usize = 640;
const CALLER_MXCSR: usize = 648;

/// Code and data for native execution.
pub struct Host {
    code: Option<Mmap>,
    data: MmapMut,
    /// Offset of the instruction under test in the code page.
    at: usize,
}

impl Host {
    pub fn new() -> Host {
        let map = |length| MmapMut::map_anon(length).expect("anonymous memory");
        Host { code: Some(map(4096).make_exec().expect("executable memory")), data: map(DATA_BYTES), at: 0 }
    }

    /// Address of the data area.
    pub fn data_address(&self) -> u64 {
        self.data.as_ptr() as u64
    }

    /// Address of the code page.
    pub fn code_address(&self) -> u64 {
        self.code.as_ref().map_or(0, |code| code.as_ptr() as u64)
    }

    /// The data area.
    pub fn data(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Loads the instruction that [`Host::run`] will execute.
    pub fn load(&mut self, instruction: &[u8]) {
        let mut page = self.code.take().and_then(|code| code.make_mut().ok()).expect("a writable code page");
        let mut code = prologue();
        self.at = code.len();
        code.extend_from_slice(instruction);
        code.extend_from_slice(&epilogue());
        page[..code.len()].copy_from_slice(&code);
        self.code = Some(page.make_exec().expect("executable memory"));
    }

    /// Executes the loaded instruction from a state and replaces the state by the result.
    ///
    /// # Safety
    ///
    /// The instruction must not fault, and may access only the data area and the state's registers other than
    /// RSP and R15.
    pub unsafe fn run(&mut self, state: &mut State) {
        let code = self.code.as_ref().expect("code was loaded").as_ptr();
        // SAFETY: the page holds a function of this type. The function's prologue saves the registers that the
        // calling convention preserves; its epilogue restores them and returns. The caller promises that the
        // instruction between them has only the allowed effects.
        unsafe {
            let function: extern "sysv64" fn(*mut State) = std::mem::transmute(code);
            function(state);
        }
    }
}

/// `mov reg, [r15 + displacement]` or its reverse, for one general register.
fn move_gpr(code: &mut Vec<u8>, opcode: u8, register: usize) {
    code.extend_from_slice(&[0x49 | (register as u8 >> 3) << 2, opcode, 0x87 | (register as u8 & 7) << 3]);
    code.extend_from_slice(&((GPR + 8 * register) as u32).to_le_bytes());
}

fn general_registers() -> impl Iterator<Item = usize> {
    (0..15).filter(|&register| register != 4)
}

fn with_displacement(code: &mut Vec<u8>, bytes: &[u8], displacement: usize) {
    code.extend_from_slice(bytes);
    code.extend_from_slice(&(displacement as u32).to_le_bytes());
}

fn prologue() -> Vec<u8> {
    let mut code = Vec::new();
    // push rbx, rbp, r12, r13, r14, r15; pushfq; mov r15, rdi; fxrstor64 [r15]
    code.extend_from_slice(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x9c]);
    code.extend_from_slice(&[0x49, 0x89, 0xff, 0x49, 0x0f, 0xae, 0x0f]);
    // push [r15 + flags]; popfq
    with_displacement(&mut code, &[0x41, 0xff, 0xb7], FLAGS);
    code.push(0x9d);
    for register in general_registers() {
        move_gpr(&mut code, 0x8b, register);
    }
    code
}

fn epilogue() -> Vec<u8> {
    let mut code = Vec::new();
    for register in general_registers() {
        move_gpr(&mut code, 0x89, register);
    }
    // pushfq; pop [r15 + flags]; fxsave64 [r15]; fninit; ldmxcsr [r15 + caller's]
    code.push(0x9c);
    with_displacement(&mut code, &[0x41, 0x8f, 0x87], FLAGS);
    code.extend_from_slice(&[0x49, 0x0f, 0xae, 0x07, 0xdb, 0xe3]);
    with_displacement(&mut code, &[0x41, 0x0f, 0xae, 0x97], CALLER_MXCSR);
    // popfq; pop r15, r14, r13, r12, rbp, rbx; ret
    code.extend_from_slice(&[0x9d, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    code
}

impl Host {
    /// Address of the instruction under test.
    pub fn instruction_address(&self) -> u64 {
        self.code_address() + self.at as u64
    }
}
