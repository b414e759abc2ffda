//! Executes one instruction on the real processor, in this process. The module loads every register and jumps to
//! the instruction. Control returns through the jump after the instruction or through a signal handler.
//!
//! All of the crate's `unsafe` is here and in [`crate::process`]. A stray store by a tested instruction can
//! in principle damage this process, so callers fork first.
#![allow(unsafe_code, reason = "running arbitrary instructions is what this module is for")]

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::io;
use std::mem::offset_of;

use crate::layout::{CODE, CODE_BYTES, DATA, DATA_BYTES, PAGE};
use crate::state::{Fault, FxImage, Outcome, Registers};

/// The data that the trampoline, the signal handler and [`Native`] share. Instruction and signal handler run on the
/// calling thread, so no two threads use this data at the same time.
#[repr(C)]
struct Context {
    input: Registers,
    output: Registers,
    host_rsp: u64,
    landed: u64,
    faulted: u64,
    vector: u64,
    error: u64,
    address: u64,
    host_mxcsr: u32,
    running: u32,
}

struct Shared(UnsafeCell<Context>);

// SAFETY: only `Native` uses this data. A process has only one `Native`, which is not `Send`, because it holds a
// raw pointer (see `Native::new`).
unsafe impl Sync for Shared {}

static CONTEXT: Shared = Shared(UnsafeCell::new(Context {
    input: Registers::ZERO,
    output: Registers::ZERO,
    host_rsp: 0,
    landed: 0,
    faulted: 0,
    vector: 0,
    error: 0,
    address: 0,
    host_mxcsr: 0x1f80,
    running: 0,
}));

global_asm!(
    ".macro silicon_load name, slot",
    "mov \\name, qword ptr [rip + {context} + {gpr_in} + 8 * \\slot]",
    ".endm",
    ".macro silicon_save name, slot",
    "mov qword ptr [rip + {context} + {gpr_out} + 8 * \\slot], \\name",
    ".endm",
    ".macro silicon_all what",
    "\\what rax, 0",
    "\\what rcx, 1",
    "\\what rdx, 2",
    "\\what rbx, 3",
    "\\what rbp, 5",
    "\\what rsi, 6",
    "\\what rdi, 7",
    "\\what r8, 8",
    "\\what r9, 9",
    "\\what r10, 10",
    "\\what r11, 11",
    "\\what r12, 12",
    "\\what r13, 13",
    "\\what r14, 14",
    "\\what r15, 15",
    "\\what rsp, 4",
    ".endm",
    ".globl silicon_enter",
    ".globl silicon_fell",
    ".globl silicon_ahead",
    ".globl silicon_back",
    ".globl silicon_leave",
    // `silicon_enter` is a function without arguments. The function preserves the registers that a function of the
    // C calling convention must preserve.
    "silicon_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov qword ptr [rip + {context} + {host_rsp}], rsp",
    "fxrstor64 [rip + {context} + {fx_in}]",
    "push qword ptr [rip + {context} + {flags_in}]",
    "popfq",
    "silicon_all silicon_load",
    "jmp qword ptr [rip + {context} + {rip_in}]",
    // Control arrives here after the instruction, through the jump after the instruction or through one of the
    // landing pads.
    "silicon_fell:",
    "mov qword ptr [rip + {context} + {landed}], 0",
    "jmp 2f",
    "silicon_ahead:",
    "mov qword ptr [rip + {context} + {landed}], 1",
    "jmp 2f",
    "silicon_back:",
    "mov qword ptr [rip + {context} + {landed}], 2",
    "2:",
    "silicon_all silicon_save",
    "mov rsp, qword ptr [rip + {context} + {host_rsp}]",
    "pushfq",
    "pop qword ptr [rip + {context} + {flags_out}]",
    "fxsave64 [rip + {context} + {fx_out}]",
    // The signal handler returns to this address. The handler has already saved the instruction's results.
    "silicon_leave:",
    "mov rsp, qword ptr [rip + {context} + {host_rsp}]",
    "push 0x202",
    "popfq",
    "fninit",
    "ldmxcsr [rip + {context} + {host_mxcsr}]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    context = sym CONTEXT,
    gpr_in = const offset_of!(Context, input) + offset_of!(Registers, gpr),
    gpr_out = const offset_of!(Context, output) + offset_of!(Registers, gpr),
    fx_in = const offset_of!(Context, input) + offset_of!(Registers, fx),
    fx_out = const offset_of!(Context, output) + offset_of!(Registers, fx),
    flags_in = const offset_of!(Context, input) + offset_of!(Registers, rflags),
    flags_out = const offset_of!(Context, output) + offset_of!(Registers, rflags),
    rip_in = const offset_of!(Context, input) + offset_of!(Registers, rip),
    host_rsp = const offset_of!(Context, host_rsp),
    host_mxcsr = const offset_of!(Context, host_mxcsr),
    landed = const offset_of!(Context, landed),
);

unsafe extern "C" {
    fn silicon_enter();
    fn silicon_fell();
    fn silicon_ahead();
    fn silicon_back();
    fn silicon_leave();
}

/// The address of the jump stubs, which come after the cases' slots. Code in a slot reaches the stubs with a 5-byte
/// jump. The stubs jump to the trampoline, which may be anywhere.
const STUBS: u64 = CODE + CODE_BYTES;
const STUB_BYTES: u64 = 16;

/// The way in which control left the instruction's slot.
#[derive(Clone, Copy)]
pub enum Exit {
    /// The instruction reached the jump after it.
    Fell = 0,
    /// The instruction branched to the landing pad of forward branches.
    Ahead = 1,
    /// The instruction branched to the landing pad of backward branches.
    Back = 2,
}

/// The execution of cases on the processor: the mapped code and data areas, and the installed signal handlers.
pub struct Native {
    code: *mut u8,
    data: *mut u8,
    /// The base address of FS of the thread that executes the cases.
    pub fs_base: u64,
}

impl Native {
    /// Maps the areas for code and data, and installs handlers for the signals of this process. Must be called only
    /// once in a process.
    pub fn new() -> io::Result<Native> {
        let code = map(CODE, CODE_BYTES + PAGE, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
        let data = map(DATA, DATA_BYTES + PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
        let mut native = Native { code, data, fs_base: fs_base()? };
        let targets: [unsafe extern "C" fn(); 3] = [silicon_fell, silicon_ahead, silicon_back];
        for (n, target) in targets.into_iter().enumerate() {
            let mut stub = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            stub[6..].copy_from_slice(&(target as usize as u64).to_le_bytes());
            native.write_code(STUBS + STUB_BYTES * n as u64, &stub);
        }
        take_signals()?;
        Ok(native)
    }

    /// Fills the read-only page and protects it.
    pub fn seal_read_only(&mut self, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(bytes.len() as u64, PAGE);
        // SAFETY: the page is part of the data mapping of `new`.
        unsafe {
            let page = self.data.add(DATA_BYTES as usize);
            check(libc::mprotect(page.cast(), PAGE as usize, libc::PROT_READ | libc::PROT_WRITE))?;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), page, bytes.len());
            check(libc::mprotect(page.cast(), PAGE as usize, libc::PROT_READ))
        }
    }

    /// Writes code at an address in the code area.
    pub fn write_code(&mut self, address: u64, bytes: &[u8]) {
        let offset = address - CODE;
        assert!(offset + bytes.len() as u64 <= CODE_BYTES + PAGE);
        // SAFETY: the bytes are inside the code mapping, as checked above, and no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.code.add(offset as usize), bytes.len()) }
    }

    /// Writes the jump out of a slot at `address`.
    pub fn write_exit(&mut self, address: u64, exit: Exit) {
        let target = STUBS + STUB_BYTES * exit as u64;
        let distance = target.wrapping_sub(address + 5) as u32;
        let mut jump = [0xe9, 0, 0, 0, 0];
        jump[1..].copy_from_slice(&distance.to_le_bytes());
        self.write_code(address, &jump);
    }

    /// Writes bytes into the writable data.
    pub fn write_data(&mut self, address: u64, bytes: &[u8]) {
        let offset = address - DATA;
        assert!(offset + bytes.len() as u64 <= DATA_BYTES);
        // SAFETY: the bytes are inside the data mapping, as checked above, and no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(offset as usize), bytes.len()) }
    }

    /// Copies all writable data.
    pub fn read_data(&self, to: &mut [u8]) {
        assert_eq!(to.len() as u64, DATA_BYTES);
        // SAFETY: the mapping has that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.data, to.as_mut_ptr(), to.len()) }
    }

    /// Executes the instruction at `input.rip`, `length` bytes long, in the slot at `slot`.
    pub fn run(&mut self, input: &Registers, length: u64, slot: u64, outcome: &mut Outcome) {
        let context = CONTEXT.0.get();
        // SAFETY: only `Native` uses the context. The trampoline preserves the registers that the calling
        // convention preserves, and always comes back through `silicon_leave`. Only an instruction that damages
        // this process could prevent the return, so callers fork.
        let context = unsafe {
            (*context).input.clone_from(input);
            (*context).faulted = 0;
            (*context).running = 1;
            silicon_enter();
            (*context).running = 0;
            &*context
        };
        outcome.registers.clone_from(&context.output);
        if context.faulted != 0 {
            let (vector, page_fault) = (context.vector as u8, context.vector == 14);
            let has_code = matches!(vector, 8 | 10..=14 | 17);
            outcome.fault = Some(Fault {
                vector,
                code: if has_code { context.error as u32 } else { 0 },
                address: if page_fault { context.address } else { 0 },
            });
            return;
        }
        outcome.fault = None;
        outcome.registers.rip = match context.landed {
            0 => input.rip + length,
            1 => slot + crate::layout::PAD_AHEAD,
            _ => slot + crate::layout::PAD_BACK,
        };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map(address: u64, bytes: u64, protection: libc::c_int) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: this is a new mapping, which replaces no other mapping.
    let at = unsafe { libc::mmap(address as *mut _, bytes as usize, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(at as u64, address, "the kernel must honour MAP_FIXED_NOREPLACE");
    Ok(at.cast())
}

fn fs_base() -> io::Result<u64> {
    const ARCH_GET_FS: libc::c_int = 0x1003;
    let mut base = 0_u64;
    // SAFETY: ARCH_GET_FS writes one u64 at the given address.
    check(unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut base) } as libc::c_int)?;
    Ok(base)
}

fn take_signals() -> io::Result<()> {
    const STACK_BYTES: usize = 1 << 18;
    // SAFETY: the alternate stack is leaked, so it lives as long as the process. The handler has the signature that
    // SA_SIGINFO demands, and only copies memory.
    unsafe {
        let stack = libc::stack_t {
            ss_sp: Box::leak(vec![0_u8; STACK_BYTES].into_boxed_slice()).as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: STACK_BYTES,
        };
        check(libc::sigaltstack(&stack, std::ptr::null_mut()))?;
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            check(libc::sigaction(signal, &action, std::ptr::null_mut()))?;
        }
    }
    Ok(())
}

/// The indexes of RAX, RCX, RDX, RBX, RSP, RBP, RSI and RDI in `gregs`. The indexes of R8 to R15 are 0 to 7.
const GREGS: [usize; 8] = [13, 14, 12, 11, 15, 10, 9, 8];

/// Saves the instruction's results, and makes the interrupted thread continue at `silicon_leave`.
extern "C" fn on_signal(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `ucontext_t`, whose `fpregs` points to an XSAVE image that begins
    // with an FXSAVE image. The interrupted code is the tested instruction, so no other code uses `CONTEXT`
    // now.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let shared = CONTEXT.0.get();
        if (*shared).running == 0 {
            // The signal does not come from a tested instruction, so this package has a bug. After the handler, the
            // faulting instruction runs again, and the signal then kills the process.
            libc::signal(signal, libc::SIG_DFL);
            return;
        }
        let output = &mut (*shared).output;
        for (n, &from) in GREGS.iter().enumerate() {
            output.gpr[n] = machine.gregs[from] as u64;
        }
        for n in 0..8 {
            output.gpr[8 + n] = machine.gregs[n] as u64;
        }
        output.rip = machine.gregs[libc::REG_RIP as usize] as u64;
        output.rflags = machine.gregs[libc::REG_EFL as usize] as u64;
        let image = machine.fpregs.cast::<u8>();
        std::ptr::copy_nonoverlapping(image, output.fx.0.as_mut_ptr(), size_of::<FxImage>());
        (*shared).faulted = 1;
        (*shared).vector = machine.gregs[libc::REG_TRAPNO as usize] as u64;
        (*shared).error = machine.gregs[libc::REG_ERR as usize] as u64;
        (*shared).address = machine.gregs[libc::REG_CR2 as usize] as u64;
        machine.gregs[libc::REG_RIP as usize] = silicon_leave as *const () as usize as i64;
        machine.gregs[libc::REG_EFL as usize] = 0x202;
    }
}
