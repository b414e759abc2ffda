//! A guest that looks like Linux and runs a program in ring 3. The program does what steps of a debugger must follow:
//! calls, recursion, system calls, faults, signals, `longjmp`, switches between two threads, and `exec`.
//!
//! The guest has the same processes as the guest of the parent module. The thread 5 (`alpha`) runs the program from `main` on. At its first
//! yield the thread 6 (`beta`) begins in the kernel's `ret_from_fork_asm`, and is busy for a while. At the end 5 executes a second program,
//! which spins and powers the machine off. A timer ticks all the time.

use super::*;

/// The physical and virtual address of the program.
const PROGRAM: u64 = 0x12_6000;
/// A segment's selectors: the program's data and code, and the task state.
const USER_DATA: u64 = 0x23;
const USER_CODE: u64 = 0x2b;
const TASK_STATE: u16 = 0x30;
/// Physical addresses of the task state, and of the second program's page tables.
const STATE: u64 = 0x11_6200;
/// The root of the page tables of the second program.
pub const SECOND_ROOT: u64 = 0x11_a000;
/// The address of the running thread's kernel stack.
const TOP: u64 = IMAGE + VARIABLES + 0x10;
/// The kernel's pointer to the running task.
const CURRENT: u64 = IMAGE + VARIABLES + 8;
/// The address of a word that is 1 until the thread 6 has ended.
const IS_ALIVE: u64 = IMAGE + VARIABLES + 0x18;
/// The address of a word that counts the timer's ticks.
pub const TICKS: u64 = IMAGE + VARIABLES + 0x20;
/// The program's stacks: of 5, of 6, and of the second program.
const STACKS: [u64; 3] = [0x1a_0000, 0x1b_0000, 0x1c_0000];
/// Where the program keeps a stack pointer and an address to jump to.
const SAVED: u32 = 0x15_1100;
/// Where the program keeps addresses of functions.
const POINTERS: u32 = 0x15_1400;
/// The address of a word in which a signal handler counts.
pub const SIGNALS: u64 = 0x15_1200;
/// The first address at which a fault maps a page, and the end of these addresses.
pub const MAPPED: u32 = 0x40_0000;
const MAPPED_END: u32 = 0xa0_0000;
/// An address at which a fault ends in a signal.
const BAD: u32 = UNMAPPED as u32;
/// The signals of `kill` and of a fault.
const SIGUSR1: u32 = 10;
const SIGSEGV: u32 = 11;
/// The numbers of system calls. `power_off` is this guest's own.
const WRITE: u32 = 1;
const SIGRETURN: u32 = 15;
const YIELD: u32 = 24;
const EXEC: u32 = 59;
const EXIT: u32 = 60;
const KILL: u32 = 62;
const POWER_OFF: u32 = 200;
/// A system call that does nothing.
const OTHER: u32 = 99;
/// The rounds of the slow function's loop of two instructions.
pub const SLOW_ROUNDS: u32 = 300_000;
/// The rounds of the loop before the jump out of a function.
const DEEP_ROUNDS: u32 = 3000;
/// The rounds of the loop with which the thread 6 begins.
const BETA_ROUNDS: u32 = 2_200_000;
/// The register with the base of FS, which is different in each thread: these bits of the address of its structure.
const FS_BASE: u32 = 0xc000_0100;
const TASK_BITS: u32 = 0xff_ffff;
/// At an entry into the kernel, the kernel saves the program's registers in this number of bytes.
const SAVED_BYTES: u64 = 168;
/// The offsets of RAX and other registers in the saved registers.
const RAX: i32 = 80;
const RDX: i32 = 96;
const RDI: i32 = 112;
const NUMBER: i32 = 120;
const RIP: i32 = 128;
const CS: i32 = 136;
const FLAGS: i32 = 144;
const RSP: i32 = 152;
/// Offsets of registers from the stack pointer of a signal handler: its return address lies below the context.
const CONTEXT: [(i32, i32); 5] =
    [(RDI, 8 + 104), (RDX, 8 + 136), (RAX, 8 + 144), (RSP, 8 + 160), (RIP, 8 + 168)];

/// Records the guest. Returns the recording, the kernel and the addresses in the program. If the kernel is not known, it
/// has no list of symbols.
pub fn record(directory: &Path, name: &str, is_known: bool) -> (Recording<Instructions>, Kernel, Places) {
    let (kernel, places) = kernel(is_known).expect("the programs are constants that can be assembled");
    let path = kernel.write(directory, &format!("programs-{is_known}"));
    let (recording, _) = record_kernel(directory, name, path, DENSE, Script(Vec::new()), None);
    (recording, kernel, places)
}

fn kernel(is_known: bool) -> Result<(Kernel, Places), IcedError> {
    let (program, labels) = program()?;
    let places: Places = labels.into_iter().collect();
    let mut kernel = Kernel::of(kernel_code(&places)?, false, &[]);
    kernel.put(PROGRAM, &program);
    kernel.write_vector(0x20, "asm_sysvec_timer");
    kernel.write_vector(0x80, "asm_int80_emulation");
    // Programs may use this vector: SDM vol. 3, 7.14.1.
    let gate = INTERRUPTS + 0x80 * 16;
    kernel.put(gate + 5, &[0xee]);
    write_tables(&mut kernel);
    write_second_thread(&mut kernel, places["beta_main"]);
    if is_known {
        kernel.write_symbols();
    }
    Ok((kernel, places))
}

/// Segments of programs, the task state, and page tables that programs may use.
fn write_tables(kernel: &mut Kernel) {
    let table = |number: u64| ROOT + number * 0x1000;
    let state = IMAGE + STATE;
    let state_low = 0x67 | (state & 0xff_ffff) << 16 | 0x89 << 40 | (state >> 24 & 0xff) << 56;
    for (entry, value) in [
        (table(0), table(1) | 7),
        (table(1), table(3) | 7),
        (table(3), 0x87),
        (SECOND_ROOT, table(1) | 7),
        (SECOND_ROOT + 273 * 8, table(1) | 3),
        (SECOND_ROOT + 511 * 8, table(2) | 3),
        (SEGMENTS + 0x20, 0x00cf_f200_0000_ffff),
        (SEGMENTS + 0x28, 0x00af_fa00_0000_ffff),
        (SEGMENTS + u64::from(TASK_STATE), state_low),
        (SEGMENTS + u64::from(TASK_STATE) + 8, state >> 32),
        // The memory of the second program.
        (TASKS + 0x5000 + 0x958, DIRECT_MAP + SECOND_ROOT),
        (IS_ALIVE - IMAGE, 1),
    ] {
        kernel.put_u64(entry, value);
    }
    kernel.put(SEGMENT_REGISTER, &0x3f_u16.to_le_bytes());
}

/// The stack of the thread 6, which begins at `main`.
fn write_second_thread(kernel: &mut Kernel, main: u64) {
    let structure = TASKS + 0x6000;
    let registers = structure + 0x1000 - SAVED_BYTES;
    for (offset, value) in [(RIP, main), (CS, USER_CODE), (FLAGS, 0x202), (RSP, STACKS[1]), (160, USER_DATA)]
    {
        kernel.put_u64(registers + offset as u64, value);
    }
    let frame = registers - 56;
    kernel.put_u64(frame + 48, kernel.address_of("ret_from_fork_asm"));
    kernel.put_u64(structure + 0x88, DIRECT_MAP + frame);
}

fn kernel_code(program: &Places) -> Assembled {
    let mut code = Code::new()?;
    start(&mut code)?;
    entry(&mut code)?;
    system_calls(&mut code, program)?;
    switches(&mut code)?;
    handlers(&mut code)?;
    signals(&mut code, program)?;
    code.at("start_secondary")?.hlt()?;
    code.assemble(IMAGE + CODE)
}

/// Sets up interrupts and system calls, and goes to the program.
fn start(code: &mut Code) -> Done {
    let entry = code.to("entry_SYSCALL_64");
    let a = code.at("startup_64")?;
    a.mov(rax, IMAGE + INTERRUPT_REGISTER)?;
    a.lidt(qword_ptr(rax))?;
    a.mov(eax, u32::from(TASK_STATE))?;
    a.ltr(ax)?;
    // STAR, SFMASK, the base of FS, and LSTAR.
    for (register, low, high) in [
        (0xc000_0081_u32, 0_u32, 0x18_0008_u32),
        (0xc000_0084, 0x300, 0),
        (FS_BASE, task(5) as u32 & TASK_BITS, 0),
    ] {
        a.mov(ecx, register)?;
        a.mov(eax, low)?;
        a.mov(edx, high)?;
        a.wrmsr()?;
    }
    a.mov(ecx, 0xc000_0082_u32)?;
    a.lea(rax, qword_ptr(entry))?;
    a.mov(rdx, rax)?;
    a.shr(rdx, 32)?;
    a.wrmsr()?;
    // The interrupt controllers admit the timer only.
    for (port, value) in [
        (0x20, 0x11),
        (0x21, 0x20),
        (0x21, 4),
        (0x21, 1),
        (0x21, 0xfe),
        (0xa0, 0x11),
        (0xa1, 0x28),
        (0xa1, 2),
        (0xa1, 1),
        (0xa1, 0xff),
        (0x43, 0x34),
        (0x40, super::super::TICK_PIT_COUNTS),
        (0x40, 0),
    ] {
        a.mov(al, value)?;
        a.out(port, al)?;
    }
    a.mov(rsp, task(5) + 0x1000)?;
    a.mov(rax, TOP)?;
    a.mov(qword_ptr(rax), rsp)?;
    a.mov(rax, IMAGE + STATE + 4)?;
    a.mov(qword_ptr(rax), rsp)?;
    for word in [USER_DATA, STACKS[0], 0x202, USER_CODE, PROGRAM] {
        a.push(word as i32)?;
    }
    a.iretq()
}

/// The entry of system calls, and the return to a program.
fn entry(code: &mut Code) -> Done {
    let a = code.at("entry_SYSCALL_64")?;
    a.mov(r10, rsp)?;
    a.mov(rsp, TOP)?;
    a.mov(rsp, qword_ptr(rsp))?;
    a.push(USER_DATA as i32)?;
    a.push(r10)?;
    a.push(r11)?;
    a.push(USER_CODE as i32)?;
    a.push(rcx)?;
    code.at("entry_SYSCALL_64_after_hwframe")?.push(rax)?;
    push_registers(&mut code.a)?;
    code.at("entry_SYSCALL_64_before_call")?.mov(rdi, rsp)?;
    code.call("do_syscall_64")?;
    code.at("return_to_program")?.nop()?;
    pop_registers(&mut code.a)?;
    let mut by_iret = code.a.create_label();
    let a = &mut code.a;
    a.add(rsp, 8)?;
    a.cmp(rcx, qword_ptr(rsp))?;
    a.jne(by_iret)?;
    a.mov(r11, qword_ptr(rsp + 16))?;
    a.mov(rsp, qword_ptr(rsp + 24))?;
    a.sysretq()?;
    a.set_label(&mut by_iret)?;
    a.iretq()?;
    let back = code.to("return_to_program");
    code.at("ret_from_fork_asm")?.jmp(back)
}

fn system_calls(code: &mut Code, program: &Places) -> Done {
    code.at("do_syscall_64")?.push(rbx)?;
    let a = code.at("do_syscall_64_body")?;
    a.mov(rbx, rdi)?;
    a.mov(rax, qword_ptr(rbx + NUMBER))?;
    for (number, name) in [
        (WRITE, "sys_write"),
        (SIGRETURN, "sys_rt_sigreturn"),
        (YIELD, "sys_sched_yield"),
        (EXEC, "sys_execve"),
        (EXIT, "sys_exit"),
        (KILL, "sys_kill"),
        (POWER_OFF, "sys_power_off"),
    ] {
        let target = code.to(name);
        code.a.cmp(eax, number as i32)?;
        code.a.je(target)?;
    }
    let a = code.at("done")?;
    a.pop(rbx)?;
    a.ret()?;
    let done = code.to("done");

    // Reads the text through a page that a fault maps, and through an address that has no memory.
    let a = code.at("sys_write")?;
    a.mov(esi, MAPPED + 0x20_0000)?;
    code.at("copy")?.mov(rcx, qword_ptr(rsi))?;
    code.a.mov(edx, BAD)?;
    code.at("fault_with_repair")?.mov(rax, qword_ptr(rdx))?;
    let a = code.at("after_repair")?;
    a.mov(rax, qword_ptr(rbx + RDX))?;
    a.mov(qword_ptr(rbx + RAX), rax)?;
    a.jmp(done)?;

    let (mut alone, switch) = (code.a.create_label(), code.to("switch_threads"));
    let a = code.at("sys_sched_yield")?;
    a.mov(qword_ptr(rbx + RAX), 0)?;
    a.mov(rax, IS_ALIVE)?;
    a.cmp(qword_ptr(rax), 0)?;
    a.je(alone)?;
    a.call(switch)?;
    a.set_label(&mut alone)?;
    a.jmp(done)?;

    let a = code.at("sys_execve")?;
    a.mov(rax, CURRENT)?;
    a.mov(rax, qword_ptr(rax))?;
    a.mov(rcx, DIRECT_MAP + TASKS + 0x5000 + 0x940)?;
    a.mov(qword_ptr(rax + 0x30), rcx)?;
    a.mov(ecx, SECOND_ROOT as u32)?;
    a.mov(cr3, rcx)?;
    for (register, value) in [(RIP, program["second"]), (RSP, STACKS[2])] {
        a.mov(qword_ptr(rbx + register), value as i32)?;
    }
    a.jmp(done)?;

    let a = code.at("sys_exit")?;
    a.mov(rax, IS_ALIVE)?;
    a.mov(qword_ptr(rax), 0)?;
    a.mov(rax, CURRENT)?;
    a.mov(rax, qword_ptr(rax))?;
    a.mov(dword_ptr(rax), 0x80)?;
    a.call(switch)?;

    let deliver = code.to("deliver_signal");
    let a = code.at("sys_kill")?;
    a.mov(qword_ptr(rbx + RAX), 0)?;
    a.mov(rdi, rbx)?;
    a.mov(esi, SIGUSR1)?;
    a.call(deliver)?;
    a.jmp(done)?;

    let a = code.at("sys_rt_sigreturn")?;
    a.mov(rax, qword_ptr(rbx + RSP))?;
    for (register, context) in CONTEXT {
        // The handler's return has removed the return address.
        a.mov(rcx, qword_ptr(rax + context - 8))?;
        a.mov(qword_ptr(rbx + register), rcx)?;
    }
    a.jmp(done)?;

    let a = code.at("sys_power_off")?;
    a.mov(edx, 0x501)?;
    a.xor(eax, eax)?;
    a.out(dx, eax)?;
    a.hlt()
}

/// Switches to the other thread, as `__switch_to_asm` does.
fn switches(code: &mut Code) -> Done {
    let mut other = code.a.create_label();
    let a = code.at("switch_threads")?;
    a.mov(rax, CURRENT)?;
    a.mov(rdi, qword_ptr(rax))?;
    a.mov(rsi, task(6))?;
    a.cmp(rdi, rsi)?;
    a.jne(other)?;
    a.mov(rsi, task(5))?;
    a.set_label(&mut other)?;
    code.call("__switch_to_asm")?;
    code.at("switched_back")?.ret()?;
    let a = code.at("__switch_to_asm")?;
    for register in [rbx, rbp, r12, r13, r14, r15] {
        a.push(register)?;
    }
    a.mov(qword_ptr(rdi + 0x88), rsp)?;
    a.mov(rsp, qword_ptr(rsi + 0x88))?;
    for register in [r15, r14, r13, r12, rbp, rbx] {
        a.pop(register)?;
    }
    let a = code.at("__switch_to")?;
    a.lea(rax, qword_ptr(rsi + 0x1000))?;
    for place in [TOP, IMAGE + STATE + 4] {
        a.mov(rcx, place)?;
        a.mov(qword_ptr(rcx), rax)?;
    }
    a.mov(ecx, FS_BASE)?;
    a.mov(eax, esi)?;
    a.and(eax, TASK_BITS as i32)?;
    a.xor(edx, edx)?;
    a.wrmsr()?;
    a.mov(rax, CURRENT)?;
    code.at("switch")?.mov(qword_ptr(rax), rsi)?;
    code.a.ret()
}

fn handlers(code: &mut Code) -> Done {
    code.at("asm_exc_int3")?.iretq()?;
    code.at("asm_int80_emulation")?.inc(r9)?;
    code.a.iretq()?;
    let a = code.at("asm_sysvec_timer")?;
    a.push(rax)?;
    a.mov(rax, TICKS)?;
    a.inc(qword_ptr(rax))?;
    a.mov(al, 0x20)?;
    a.out(0x20, al)?;
    a.pop(rax)?;
    a.iretq()?;

    let deliver = code.to("deliver_signal");
    // A breakpoint exception inside the handler.
    code.at("asm_exc_page_fault")?.int3()?;
    let a = &mut code.a;
    let (mut bad, mut of_program, mut out) = (a.create_label(), a.create_label(), a.create_label());
    push_registers(a)?;
    a.mov(rbx, rsp)?;
    a.mov(rax, cr2)?;
    a.cmp(rax, MAPPED as i32)?;
    a.jb(bad)?;
    a.cmp(rax, MAPPED_END as i32)?;
    a.jae(bad)?;
    a.shr(rax, 21)?;
    a.mov(rcx, IMAGE + ROOT + 0x3000)?;
    a.mov(dword_ptr(rcx + rax * 8), 0x20_0087)?;
    a.jmp(out)?;
    a.set_label(&mut bad)?;
    a.test(byte_ptr(rbx + CS), 3)?;
    a.jne(of_program)?;
    // Skips the kernel's instruction.
    a.add(qword_ptr(rbx + RIP), 3)?;
    a.jmp(out)?;
    a.set_label(&mut of_program)?;
    a.mov(rdi, rbx)?;
    a.mov(esi, SIGSEGV)?;
    a.call(deliver)?;
    a.set_label(&mut out)?;
    a.nop()?;
    pop_registers(a)?;
    a.add(rsp, 8)?;
    a.iretq()
}

/// Makes a program go to its signal handler. RDI has the address of its registers, and ESI the signal's number.
fn signals(code: &mut Code, program: &Places) -> Done {
    let a = code.at("deliver_signal")?;
    a.mov(rax, qword_ptr(rdi + RSP))?;
    a.sub(rax, 0x400)?;
    a.and(rax, -16)?;
    for (register, context) in CONTEXT {
        a.mov(rcx, qword_ptr(rdi + register))?;
        a.mov(qword_ptr(rax + context), rcx)?;
    }
    // A fault has set RF, which would hide a breakpoint at the handler.
    a.and(dword_ptr(rdi + FLAGS), !0x1_0000)?;
    a.mov(qword_ptr(rax), program["restorer"] as i32)?;
    a.mov(qword_ptr(rdi + RSP), rax)?;
    a.mov(qword_ptr(rdi + RIP), program["handler"] as i32)?;
    a.mov(qword_ptr(rdi + RDI), rsi)?;
    a.add(rax, 8)?;
    a.mov(qword_ptr(rdi + RDX), rax)?;
    a.ret()
}

/// The program.
fn program() -> Assembled {
    let mut code = Code::new()?;
    main(&mut code)?;
    functions(&mut code)?;
    jumps(&mut code)?;
    catchers(&mut code)?;
    second_thread(&mut code)?;
    code.assemble(PROGRAM)
}

fn main(code: &mut Code) -> Done {
    code.at("main")?.xor(ebx, ebx)?;
    code.at("call_outer")?.nop()?;
    code.call("outer")?;
    code.at("after_outer")?.mov(edi, 3)?;
    code.call("recurse")?;
    code.at("after_recurse")?.mov(edi, 3)?;
    code.call("plain")?;
    pivots(code)?;
    same_frame(code)?;
    for (register, value) in [(r12d, 12_u32), (r13d, 13), (r14d, 14), (r15d, 15)] {
        code.a.mov(register, value)?;
    }
    code.a.mov(edi, 1)?;
    code.a.mov(esi, TEXT as u32)?;
    code.a.mov(edx, WRITTEN.len() as u32)?;
    code.system_call("write", WRITE)?;
    code.at("after_write")?.mov(ecx, MAPPED)?;
    code.at("touch")?.mov(rdx, qword_ptr(rcx))?;
    code.at("after_touch")?.nop()?;
    code.at("int80")?.int(0x80)?;
    code.at("after_int80")?.nop()?;
    code.system_call("kill", KILL)?;
    code.at("after_kill")?.nop()?;
    save(code, "landing_of_signal")?;
    code.call("bad")?;
    code.at("after_bad")?.nop()?;
    code.at("landing_of_signal")?.nop()?;
    code.a.mov(edi, 2)?;
    code.call("dive")?;
    calls_of_all_kinds(code)?;
    save(code, "landing")?;
    code.call("thrower")?;
    code.at("after_thrower")?.nop()?;
    code.at("landing")?.nop()?;
    code.call("inner")?;
    code.system_call("yield", YIELD)?;
    code.at("after_yield")?.nop()?;
    code.call("yielding")?;
    code.at("after_yielding")?.nop()?;
    save(code, "landing_of_slow")?;
    code.call("slow")?;
    code.at("after_slow")?.nop()?;
    code.at("landing_of_slow")?.nop()?;
    code.system_call("call_after_slow", OTHER)?;
    code.call("execs")?;
    code.at("after_execs")?.nop()
}

/// Saves the stack pointer and an address, as `setjmp` does.
fn save(code: &mut Code, landing: &str) -> Done {
    let landing = code.to(landing);
    code.a.mov(edx, SAVED)?;
    code.a.mov(qword_ptr(rdx), rsp)?;
    code.a.lea(rax, qword_ptr(landing))?;
    code.a.mov(qword_ptr(rdx + 8), rax)
}

/// Calls of one function by instructions of all lengths. The function is left by a jump into itself.
fn calls_of_all_kinds(code: &mut Code) -> Done {
    let catches = code.to("catches");
    let a = &mut code.a;
    a.mov(ebx, POINTERS)?;
    a.lea(rax, qword_ptr(catches))?;
    for offset in [0, 8, 0x100] {
        a.mov(qword_ptr(rbx + offset), rax)?;
    }
    code.at("call_2")?.call(rax)?;
    code.a.nop()?;
    code.at("later_2")?.mov(esi, 0)?;
    code.at("call_3")?.call(qword_ptr(rbx + 8))?;
    code.a.nop()?;
    code.at("later_3")?.mov(esi, 0)?;
    code.at("call_4")?.call(qword_ptr(rbx + rsi + 8))?;
    code.a.nop()?;
    code.at("later_4")?.mov(esi, 0)?;
    code.at("call_5")?.call(catches)?;
    code.a.nop()?;
    code.at("later_5")?.mov(esi, 0)?;
    code.at("call_6")?.call(qword_ptr(rbx + 0x100))?;
    code.a.nop()?;
    code.at("later_6")?.mov(esi, 0)?;
    code.at("call_7")?.call(qword_ptr(rbx + rsi + 0x100))?;
    code.a.nop()?;
    code.at("later_7")?.nop()
}

/// Functions that are left by a jump to one of their callers.
fn catchers(code: &mut Code) -> Done {
    let jump = code.to("jump");
    // The function has many words of its own on the stack.
    code.at("catches")?.sub(rsp, 0x60)?;
    save(code, "caught")?;
    code.call("throws")?;
    code.at("after_throws")?.nop()?;
    code.at("caught")?.add(rsp, 0x60)?;
    code.a.ret()?;
    code.at("throws")?.nop()?;
    code.a.jmp(jump)?;

    // The function calls itself. The first inner call catches what the second throws.
    let mut end = code.a.create_label();
    let a = code.at("dive")?;
    a.test(edi, edi)?;
    a.je(jump)?;
    a.push(rdi)?;
    save(code, "caught_in_dive")?;
    code.a.dec(edi)?;
    code.at("call_dive")?.nop()?;
    code.call("dive")?;
    code.at("after_dive")?.jmp(end)?;
    code.at("caught_in_dive")?.nop()?;
    code.a.set_label(&mut end)?;
    code.a.pop(rdi)?;
    code.a.ret()
}

/// The instructions of [`pivots`] before a jump and the jump, in bytes. Before these instructions, RBP, RCX, R8, R12 and
/// R13 have the new stack pointer, and so have the words at RDI and RBP + 8. RAX and R9 have the jump's target. The last
/// column says whether the instructions set the stack pointer from elsewhere than a frame pointer.
pub const PIVOTS: [(&[u8], &[u8], bool); 18] = [
    // MOV RSP, RCX; MOV RSP, R8; MOV RSP, R12; MOV RSP, R13.
    (&[0x48, 0x89, 0xcc], &JMP_RAX, true),
    (&[0x4c, 0x89, 0xc4], &JMP_RAX, true),
    (&[0x4c, 0x89, 0xe4], &JMP_RAX, true),
    (&[0x4c, 0x89, 0xec], &JMP_RAX, true),
    // The other encoding: MOV RSP, RCX; MOV RSP, R13. Then MOV RSP, [RDI]; MOV RSP, [RBP+8].
    (&[0x48, 0x8b, 0xe1], &JMP_RAX, true),
    (&[0x49, 0x8b, 0xe5], &JMP_RAX, true),
    (&[0x48, 0x8b, 0x27], &JMP_RAX, true),
    (&[0x48, 0x8b, 0x65, 8], &JMP_RAX, true),
    // MOV RSP, RBP in both encodings.
    (&[0x48, 0x89, 0xec], &JMP_RAX, false),
    (&[0x48, 0x8b, 0xe5], &JMP_RAX, false),
    // MOV [RSP], RSP; MOV R12, RSP; MOV R12, [RDI]; MOV RDX, RCX; MOV RDX, R8D; NOP and MOV ESP, ECX.
    (&[0x48, 0x89, 0x24, 0x24], &JMP_RAX, false),
    (&[0x49, 0x89, 0xe4], &JMP_RAX, false),
    (&[0x4c, 0x8b, 0x27], &JMP_RAX, false),
    (&[0x48, 0x89, 0xca], &JMP_RAX, false),
    (&[0x44, 0x89, 0xc4], &JMP_RAX, false),
    // JMP R9, with prefixes, and JMP [RDI+8].
    (&[0x4c, 0x89, 0xc4], &[0x41, 0xff, 0xe1], true),
    (&[0x4c, 0x89, 0xc4], &[0x3e, 0x41, 0xff, 0xe1], true),
    (&[0x4c, 0x89, 0xc4], &[0xf2, 0xff, 0x67, 8], true),
];
const JMP_RAX: [u8; 2] = [0xff, 0xe0];

/// Calls a function, sets the stack pointer to its value, and jumps, as [`PIVOTS`] says. Each jump has the name
/// `pivot_N`, its target the name `after_pivot_N`, and the call before it `call_before_pivot_N`.
fn pivots(code: &mut Code) -> Done {
    for (number, (moves, jump, _)) in PIVOTS.iter().enumerate() {
        let inner = code.to("inner");
        let target = code.to(&format!("after_pivot_{number}"));
        code.at(&format!("call_before_pivot_{number}"))?.call(inner)?;
        let a = &mut code.a;
        a.mov(rbp, rsp)?;
        a.mov(edi, POINTERS)?;
        a.lea(rax, qword_ptr(target))?;
        a.mov(r9, rax)?;
        for place in [qword_ptr(rdi), qword_ptr(rbp + 8)] {
            a.mov(place, rsp)?;
        }
        a.mov(qword_ptr(rdi + 8), rax)?;
        // These copies of the stack pointer must not look like moves to it.
        a.lea(rcx, qword_ptr(rsp))?;
        for register in [r8, r12, r13] {
            a.lea(register, qword_ptr(rsp))?;
        }
        a.db(moves)?;
        let a = code.at(&format!("pivot_{number}"))?;
        a.db(jump)?;
        a.db(&[0xcc; 16])?;
        code.at(&format!("after_pivot_{number}"))?.nop()?;
    }
    Ok(())
}

/// Jumps that change the stack pointer in ways that are no `longjmp`: from a frame pointer, or long before the jump.
fn same_frame(code: &mut Code) -> Done {
    let (after_frame, after_pivot, pivot) =
        (code.to("after_frame"), code.to("after_pivot"), code.to("pivot_jumps"));
    let a = &mut code.a;
    a.lea(rax, qword_ptr(after_frame))?;
    a.mov(rbp, rsp)?;
    a.mov(rsp, rbp)?;
    code.at("frame_jumps")?.jmp(rax)?;
    code.at("after_frame")?.mov(rcx, rsp)?;
    code.a.lea(rax, qword_ptr(after_pivot))?;
    code.a.mov(rsp, rcx)?;
    // The stack pointer was set before another jump.
    code.a.jmp(pivot)?;
    code.a.db(&[0xcc; 32])?;
    code.at("pivot_jumps")?.jmp(rax)?;
    code.at("after_pivot")?.nop()
}

fn functions(code: &mut Code) -> Done {
    let a = code.at("outer")?;
    a.push(rbp)?;
    a.mov(rbp, rsp)?;
    code.call("inner")?;
    let a = code.at("after_inner")?;
    a.pop(rbp)?;
    code.at("outer_returns")?.ret()?;
    code.at("inner")?.inc(ebx)?;
    code.at("inner_returns")?.ret()?;

    let mut end = code.a.create_label();
    let a = code.at("recurse")?;
    a.test(edi, edi)?;
    a.je(end)?;
    a.push(rdi)?;
    a.dec(edi)?;
    code.call("recurse")?;
    code.at("after_inner_recurse")?.pop(rdi)?;
    code.a.set_label(&mut end)?;
    code.a.ret()?;

    let mut end = code.a.create_label();
    let a = code.at("plain")?;
    a.dec(edi)?;
    a.js(end)?;
    code.call("plain")?;
    code.at("after_inner_plain")?.nop()?;
    code.a.set_label(&mut end)?;
    code.a.ret()?;

    code.at("yielding")?.nop()?;
    code.system_call("yield_inside", YIELD)?;
    code.at("after_yield_inside")?.ret()?;
    code.at("execs")?.nop()?;
    code.system_call("exec", EXEC)?;
    code.at("after_exec")?.ret()
}

/// The signal handler, and functions that are left without their return.
fn jumps(code: &mut Code) -> Done {
    let jump = code.to("jump");
    let a = code.at("handler")?;
    a.cmp(edi, SIGSEGV as i32)?;
    a.je(jump)?;
    a.mov(ecx, SIGNALS as u32)?;
    a.inc(qword_ptr(rcx))?;
    code.system_call("call_in_handler", OTHER)?;
    code.at("handler_returns")?.ret()?;
    code.at("restorer")?.nop()?;
    code.system_call("sigreturn", SIGRETURN)?;

    code.at("bad")?.mov(ecx, BAD)?;
    code.at("bad_touch")?.mov(rdx, qword_ptr(rcx))?;
    code.a.ret()?;

    code.at("thrower")?.push(rbp)?;
    code.call("deep")?;
    code.at("after_deep")?.pop(rbp)?;
    code.a.ret()?;
    let mut busy = code.a.create_label();
    code.at("deep")?.mov(ecx, DEEP_ROUNDS)?;
    let a = &mut code.a;
    a.set_label(&mut busy)?;
    a.dec(ecx)?;
    a.jne(busy)?;
    a.mov(edx, SAVED)?;
    a.mov(r8, qword_ptr(rdx))?;
    a.mov(rdx, qword_ptr(rdx + 8))?;
    code.at("deep_sets_stack")?.mov(rsp, r8)?;
    // INC EAX and MOV EAX, ESP. Parts of their encodings look like a jump.
    code.a.inc(eax)?;
    code.a.db(&[0x89, 0xe0])?;
    code.at("deep_jumps")?.jmp(rdx)?;

    code.at("slow")?.mov(ecx, SLOW_ROUNDS)?;
    let mut busy = code.a.create_label();
    code.a.set_label(&mut busy)?;
    code.a.dec(ecx)?;
    code.a.jne(busy)?;
    code.system_call("call_of_slow", OTHER)?;
    code.at("jump")?.mov(edx, SAVED)?;
    code.at("jump_sets_stack")?.mov(rsp, qword_ptr(rdx))?;
    code.at("jumps")?.jmp(qword_ptr(rdx + 8))
}

/// The thread 6, and the second program.
fn second_thread(code: &mut Code) -> Done {
    let mut busy = code.a.create_label();
    code.at("beta_main")?.mov(ecx, BETA_ROUNDS)?;
    code.a.set_label(&mut busy)?;
    code.a.dec(ecx)?;
    code.a.jne(busy)?;
    code.call("outer")?;
    code.at("beta_yields")?.nop()?;
    code.call("yielding")?;
    code.at("beta_goes_on")?.nop()?;
    code.call("ending")?;
    code.at("after_ending")?.nop()?;
    code.at("ending")?.nop()?;
    code.system_call("exit", EXIT)?;

    let mut busy = code.a.create_label();
    code.at("second")?.mov(ecx, 60_000)?;
    code.a.set_label(&mut busy)?;
    code.a.dec(ecx)?;
    code.a.jne(busy)?;
    code.system_call("power_off", POWER_OFF)?;
    code.a.nop()
}
