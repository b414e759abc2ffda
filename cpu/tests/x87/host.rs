//! Executes one instruction on the processor that runs the test.

use memmap2::{Mmap, MmapMut};

use crate::machine::{MEMORY_BYTES, Machine, POINTER_TO_CODE, POINTER_TO_DATA};

const FLAGS: usize = 512;
const RAX: usize = 520;
const RCX: usize = 528;

/// The state that native code loads and stores.
#[repr(C, align(64))]
struct Registers {
    /// An FXSAVE64 image.
    image: [u8; 512],
    flags: u64,
    rax: u64,
    rcx: u64,
}

/// Code and data for native execution.
pub struct Host {
    code: Mmap,
    data: MmapMut,
    at: usize,
}

impl Host {
    /// Prepares `instruction`. The instruction's memory operand, if any, must be at RCX.
    pub fn new(instruction: &[u8]) -> Host {
        let map = || MmapMut::map_anon(4096).expect("anonymous memory");
        let (mut page, data) = (map(), map());
        let mut code = prologue();
        let at = code.len();
        code.extend_from_slice(instruction);
        code.extend_from_slice(&epilogue());
        page[..code.len()].copy_from_slice(&code);
        Host { code: page.make_exec().expect("executable memory"), data, at }
    }

    /// Executes the instruction.
    ///
    /// # Safety
    ///
    /// The instruction must be an x87 instruction that accesses only the x87 state, the arithmetic flags, AX
    /// and [`MEMORY_BYTES`] at RCX. If the instruction waits, no unmasked exception may be pending.
    pub unsafe fn run(&mut self, machine: &Machine) -> Machine {
        self.data[..MEMORY_BYTES].copy_from_slice(&machine.memory);
        let mut registers = Registers {
            image: image(machine),
            flags: machine.flags,
            rax: u64::from(machine.ax),
            rcx: self.data.as_ptr() as u64,
        };
        // SAFETY: the page holds a function of this type, which saves what the calling convention preserves. The
        // caller promises that the instruction between prologue and epilogue has only the allowed effects.
        unsafe {
            let function: extern "sysv64" fn(*mut Registers) = std::mem::transmute(self.code.as_ptr());
            function(&mut registers);
        }
        self.machine(&registers)
    }

    fn machine(&self, registers: &Registers) -> Machine {
        let image = &registers.image;
        let word = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
        let quad = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
        let known = |pointer, address, name| if pointer == address { name } else { pointer };
        let data = self.data.as_ptr() as u64;
        Machine {
            control: word(0),
            status: word(2),
            valid: image[4],
            opcode: word(6),
            instruction_pointer: known(quad(8), self.code.as_ptr() as u64 + self.at as u64, POINTER_TO_CODE),
            data_pointer: known(quad(16), data, POINTER_TO_DATA),
            registers: std::array::from_fn(|st| (quad(32 + 16 * st), word(40 + 16 * st))),
            flags: registers.flags & crate::machine::ARITHMETIC,
            ax: registers.rax as u16,
            memory: self.data[..MEMORY_BYTES].try_into().expect("the memory operand"),
        }
    }
}

fn image(machine: &Machine) -> [u8; 512] {
    let mut image = [0; 512];
    image[0..2].copy_from_slice(&machine.control.to_le_bytes());
    image[2..4].copy_from_slice(&machine.status.to_le_bytes());
    image[4] = machine.valid;
    image[6..8].copy_from_slice(&machine.opcode.to_le_bytes());
    image[8..16].copy_from_slice(&machine.instruction_pointer.to_le_bytes());
    image[16..24].copy_from_slice(&machine.data_pointer.to_le_bytes());
    image[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
    for (st, (mantissa, sign_exponent)) in machine.registers.iter().enumerate() {
        image[32 + 16 * st..40 + 16 * st].copy_from_slice(&mantissa.to_le_bytes());
        image[40 + 16 * st..42 + 16 * st].copy_from_slice(&sign_exponent.to_le_bytes());
    }
    image
}

fn with_displacement(code: &mut Vec<u8>, bytes: &[u8], displacement: usize) {
    code.extend_from_slice(bytes);
    code.extend_from_slice(&(displacement as u32).to_le_bytes());
}

fn prologue() -> Vec<u8> {
    let mut code = Vec::new();
    // fxrstor64 [rdi]; push [rdi + flags]; popfq; mov rax, [rdi + rax]; mov rcx, [rdi + rcx]
    code.extend_from_slice(&[0x48, 0x0f, 0xae, 0x0f]);
    with_displacement(&mut code, &[0xff, 0xb7], FLAGS);
    code.push(0x9d);
    with_displacement(&mut code, &[0x48, 0x8b, 0x87], RAX);
    with_displacement(&mut code, &[0x48, 0x8b, 0x8f], RCX);
    code
}

fn epilogue() -> Vec<u8> {
    let mut code = Vec::new();
    // pushfq; pop [rdi + flags]; fxsave64 [rdi]; mov [rdi + rax], rax; fninit; ret
    code.push(0x9c);
    with_displacement(&mut code, &[0x8f, 0x87], FLAGS);
    code.extend_from_slice(&[0x48, 0x0f, 0xae, 0x07]);
    with_displacement(&mut code, &[0x48, 0x89, 0x87], RAX);
    code.extend_from_slice(&[0xdb, 0xe3, 0xc3]);
    code
}
