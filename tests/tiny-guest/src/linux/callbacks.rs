//! A guest that looks like Linux and makes each kind of call that a kernel makes later. Examples are calls of timers, work
//! items, softirqs and interrupt handlers.
//!
//! All code runs in ring 0. Each stage arms a callback, does the same for callbacks that differ in one detail, and then calls
//! the callback. The functions have the names of Linux's functions, or names of their own. Instructions that a test
//! looks for are named after their function: `mod_timer.arms`.

use super::*;

/// The kernel's objects. Most objects have 0x80 bytes.
const OBJECTS: u64 = IMAGE + 0x15_1800;
/// The timer whose function queues [`WORK`].
pub const TIMER: u64 = OBJECTS;
/// The work item.
pub const WORK: u64 = OBJECTS + 0x80;
/// The high-resolution timer, whose function arms it again.
pub const CLOCK: u64 = OBJECTS + 0x100;
/// The head of an RCU callback.
pub const HEAD: u64 = OBJECTS + 0x180;
/// The first of four tasklets.
pub const TASKLETS: u64 = OBJECTS + 0x200;
/// Timers of a system call, of an interrupt, and of callbacks that are interrupted.
pub const TIMERS: [u64; 5] =
    [OBJECTS + 0x400, OBJECTS + 0x480, OBJECTS + 0x500, OBJECTS + 0x580, OBJECTS + 0x600];
/// The object whose second word is the pointer through which the kernel calls `listens`.
pub const NOTIFIER: u64 = OBJECTS + 0x680;
/// The pointer that the kernel copies to the notifier.
pub const LISTENERS: u64 = OBJECTS + 0x700;
/// The pointer to `hook_runs`, which three functions call in different ways.
pub const HOOK: u64 = OBJECTS + 0x7a0;
const CALL_TABLE: u64 = OBJECTS + 0x708;
const SOFTIRQS: u64 = OBJECTS + 0x710;
const PENDING: u64 = OBJECTS + 0x7f0;
/// The base of the processor's own variables.
const OWN_BASE: u32 = 0x40;

/// Offsets of fields, and of a timer's and a work item's function.
const EXPIRES: u32 = 0x10;
const FUNCTION: u32 = 0x18;
const CLOCK_NODE: u32 = 8;
const CLOCK_FUNCTION: u32 = 0x28;
const TASKLET_FUNCTION: u32 = 0x20;
const TASKLET_DATA: u32 = 0x28;
const HOT_PENDING: u32 = 0x20;
/// The argument of the first tasklet, of an interrupt's device, and of a thread.
pub const DATA: u64 = 0x111;
/// The rounds of the loop in which the kernel waits. A search through these rounds can be interrupted.
const WAITING_ROUNDS: u32 = 2_500_000;
/// The vector of the interrupt.
const VECTOR: u64 = 0x30;

/// The symbol that names the processor's word of pending softirqs. The kernel's releases differ in this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// A field of `pcpu_hot`. Another symbol is wrong.
    Hot,
    /// A variable of its own.
    Variable,
    /// The first field of `irq_stat`.
    Statistics,
}

/// The types with the fields that arm callbacks.
pub(super) fn write_types(types: &mut Types) {
    types.structure("timer_list", 0x28, &[("expires", 1, EXPIRES)]);
    let node = types.structure("timerqueue_node", 0x20, &[("expires", 1, 0x18)]);
    types.structure("hrtimer", 0x40, &[("node", node, CLOCK_NODE)]);
    types.structure("work_struct", 0x20, &[("data", 1, 0)]);
    types.structure("callback_head", 0x10, &[("func", 1, 8)]);
    types.structure("tasklet_struct", 0x30, &[("func", 1, TASKLET_FUNCTION), ("data", 1, TASKLET_DATA)]);
    types.structure("pcpu_hot", 0x40, &[("current_task", 1, 0), ("softirq_pending", 1, HOT_PENDING)]);
}

/// Records the guest. Returns the recording, and the addresses of functions and instructions.
pub fn record(directory: &Path, name: &str, pending: Pending) -> (Recording<Instructions>, Places) {
    let (code, labels) = kernel_code().expect("the program is a constant that can be assembled");
    let places: Places = labels.iter().cloned().collect();
    // After these entries, all functions have only the return address on the stack.
    let rows = [
        ("asm_sysvec_test", NOTHING),
        ("asm_sysvec_test_before_call", REGISTERS),
        ("asm_exc_int3_before_call", REGISTERS),
        ("start_kernel", super::call(8)),
    ];
    let mut kernel = Kernel::of((code, labels), false, &rows);
    kernel.write_vector(VECTOR, "asm_sysvec_test");
    let address = PENDING.wrapping_sub(OWN_BASE.into());
    match pending {
        Pending::Hot => {
            let hot = address - u64::from(HOT_PENDING);
            kernel.put_u64(hot - IMAGE, task(5));
            kernel.symbol("pcpu_hot", 'D', hot);
            kernel.symbol("__softirq_pending", 'D', address + 8);
        }
        Pending::Variable => kernel.symbol("__softirq_pending", 'D', address),
        Pending::Statistics => kernel.symbol("irq_stat", 'D', address),
    }
    kernel.symbol("softirq_vec", 'D', SOFTIRQS);
    kernel.write_symbols();
    let path = kernel.write(directory, &format!("{name}-kernel"));
    let (recording, _) = record_kernel(directory, name, path, DENSE, Script(Vec::new()), None);
    (recording, places)
}

/// The stages, each the name of a function and the functions that it calls.
const STAGES: [(&str, &[&str]); 14] = [
    (
        "timers",
        &["boot_timer", "setup_timer", "waits", "__run_timers", "waits", "process_one_work", "boot_timer"],
    ),
    ("clocks", &["start_clock", "hrtimer_interrupt", "hrtimer_interrupt"]),
    ("frees", &["free_first", "free_object", "rcu_do_batch"]),
    (
        "softirqs",
        &["net_raises", "handle_softirqs", "net_raises", "other_raises", "late_raises", "handle_softirqs"],
    ),
    ("tasklets", &["drivers_schedule", "tasklet_action_common", "tasklet_action"]),
    ("interrupts", &["probe_first", "probe_others", "__handle_irq_event_percpu", "irq_thread_fn"]),
    ("threads", &["creates", "creates_other", "kthread"]),
    ("notifiers", &["register_listener", "notifier_call_chain"]),
    ("hooks", &["runs_hook", "runs_thunked", "runs_own"]),
    ("calls", &["makes_call", "run_call_timer"]),
    ("interrupted", &["busy", "run_interrupt_timer"]),
    ("busy_timers", &["boot_busy_timer", "run_busy_timer", "run_interrupt_timer"]),
    ("faulty_timers", &["boot_faulty_timer", "run_faulty_timer"]),
    ("unarmed_timers", &["run_unarmed_timer"]),
];

/// The function of each object: the object's field, and the function's name.
fn functions() -> [(u64, &'static str); 16] {
    let of_timer = |timer: u64| timer + u64::from(FUNCTION);
    let of_tasklet = |number: u64| TASKLETS + number * 0x80 + u64::from(TASKLET_FUNCTION);
    let [call, interrupt, busy, faulty, unarmed] = TIMERS.map(of_timer);
    [
        (of_timer(TIMER), "timer_ticks"),
        (of_timer(WORK), "work_runs"),
        (CLOCK + u64::from(CLOCK_FUNCTION), "clock_ticks"),
        (SOFTIRQS + 8 * 3, "net_rx_action"),
        (of_tasklet(0), "tasklet_runs"),
        (of_tasklet(1), "tasklet_runs"),
        (of_tasklet(2), "other_tasklet_runs"),
        (of_tasklet(3), "tasklet_runs"),
        (call, "call_ticks"),
        (interrupt, "interrupt_ticks"),
        (busy, "busy_ticks"),
        (faulty, "faulty_ticks"),
        (unarmed, "unarmed_ticks"),
        (CALL_TABLE, "__x64_sys_ping"),
        (LISTENERS, "listens"),
        (HOOK, "hook_runs"),
    ]
}

fn kernel_code() -> Assembled {
    let mut code = Code::new()?;
    start(&mut code)?;
    entries(&mut code)?;
    code.at("start_kernel")?.nop()?;
    for (stage, _) in STAGES {
        code.call(stage)?;
    }
    code.a.ret()?;
    for (stage, calls) in STAGES {
        sequence(&mut code, stage, calls)?;
    }
    timers(&mut code)?;
    clocks_and_frees(&mut code)?;
    softirqs(&mut code)?;
    tasklets(&mut code)?;
    interrupts_and_threads(&mut code)?;
    notifiers(&mut code)?;
    for name in [
        "work_runs",
        "rcu_frees",
        "rcu_frees_other",
        "net_rx_action",
        "tasklet_runs",
        "other_tasklet_runs",
        "handles",
        "handles_other",
        "thread_runs",
        "listens",
        "hook_runs",
        "call_ticks",
        "interrupt_ticks",
        "exc_int3",
        "unarmed_ticks",
    ] {
        code.at(name)?.nop()?;
        code.a.ret()?;
    }
    code.assemble(IMAGE + CODE)
}

/// A function that calls other functions.
fn sequence(code: &mut Code, name: &str, calls: &[&str]) -> Done {
    code.at(name)?.nop()?;
    calls.iter().try_for_each(|function| code.call(function))?;
    code.a.ret()
}

/// A function that gives an object to another function.
fn gives(code: &mut Code, name: &str, object: u64, to: &str) -> Done {
    code.at(name)?.mov(rdi, object)?;
    code.call(to)?;
    code.a.ret()
}

fn start(code: &mut Code) -> Done {
    let (entry, kernel) = (code.to("entry_SYSCALL_64"), code.to("start_kernel"));
    let a = code.at("startup_64")?;
    a.mov(rsp, IMAGE + STACK)?;
    a.mov(rax, IMAGE + INTERRUPT_REGISTER)?;
    a.lidt(qword_ptr(rax))?;
    a.lea(rbx, qword_ptr(entry))?;
    // The MSRs STAR, SFMASK and the base of GS.
    for (register, low, high) in
        [(0xc000_0081_u32, 0, 8_u32), (0xc000_0084, 0, 0), (0xc000_0101, OWN_BASE, 0)]
    {
        a.mov(ecx, register)?;
        a.mov(eax, low)?;
        a.mov(edx, high)?;
        a.wrmsr()?;
    }
    a.mov(ecx, 0xc000_0082_u32)?;
    a.mov(rax, rbx)?;
    a.mov(rdx, rbx)?;
    a.shr(rdx, 32)?;
    a.wrmsr()?;
    for (field, function) in functions() {
        let function = code.to(function);
        code.a.lea(rax, qword_ptr(function))?;
        code.a.mov(rcx, field)?;
        // Only the function pointer of the notifiers is looked for.
        let a = if field == LISTENERS { code.at("startup_64.writes")? } else { &mut code.a };
        a.mov(qword_ptr(rcx), rax)?;
    }
    let a = &mut code.a;
    for (number, data) in [(0, DATA), (1, 0x222), (2, DATA), (3, 0)] {
        a.mov(rcx, TASKLETS + number * 0x80)?;
        a.mov(dword_ptr(rcx + TASKLET_DATA), data as i32)?;
    }
    a.call(kernel)?;
    crate::end_the_run(a)
}

/// The entries of system calls, of an interrupt and of an exception.
fn entries(code: &mut Code) -> Done {
    let a = code.at("entry_SYSCALL_64")?;
    push_frame(a)?;
    code.at("entry_SYSCALL_64_after_hwframe")?.push(rax)?;
    push_registers(&mut code.a)?;
    code.at("entry_SYSCALL_64_before_call")?.mov(rdi, rsp)?;
    code.call("do_syscall_64")?;
    pop_registers(&mut code.a)?;
    code.a.add(rsp, 32)?;
    code.a.pop(rsp)?;
    code.a.jmp(rcx)?;

    code.at("do_syscall_64")?.push(rbx)?;
    let a = code.at("do_syscall_64_body")?;
    a.mov(rax, CALL_TABLE)?;
    a.call(qword_ptr(rax))?;
    a.pop(rbx)?;
    a.ret()?;
    code.at("__switch_to")?.ret()?;

    for (entry, function) in [("asm_exc_int3", "exc_int3"), ("asm_sysvec_test", "sysvec_test")] {
        code.at(entry)?.push(0)?;
        push_registers(&mut code.a)?;
        code.at(&format!("{entry}_before_call"))?.mov(rdi, rsp)?;
        code.call(function)?;
        pop_registers(&mut code.a)?;
        code.a.add(rsp, 8)?;
        code.a.iretq()?;
    }
    code.at("asm_exc_page_fault")?.hlt()?;
    code.at("start_secondary")?.hlt()
}

fn timers(code: &mut Code) -> Done {
    code.at("mod_timer")?.mov(rsi, 100_u64)?;
    code.at("mod_timer.arms")?.mov(qword_ptr(rdi + EXPIRES), rsi)?;
    code.a.ret()?;
    let [call, interrupt, busy, faulty, unarmed] = TIMERS;
    for (function, timer) in [
        ("boot_timer", TIMER),
        ("setup_timer", TIMER),
        ("__x64_sys_ping", call),
        ("sysvec_test", interrupt),
        ("boot_busy_timer", busy),
        ("boot_faulty_timer", faulty),
    ] {
        gives(code, function, timer, "mod_timer")?;
    }
    for (function, timer) in [
        ("__run_timers", TIMER),
        ("run_call_timer", call),
        ("run_interrupt_timer", interrupt),
        ("run_busy_timer", busy),
        ("run_faulty_timer", faulty),
        ("run_unarmed_timer", unarmed),
    ] {
        gives(code, function, timer, "call_timer_fn")?;
    }
    code.at("call_timer_fn")?.nop()?;
    code.at("call_timer_fn.calls")?.call(qword_ptr(rdi + FUNCTION))?;
    code.a.ret()?;

    code.at("waits")?.mov(ecx, WAITING_ROUNDS)?;
    let mut busy = code.a.create_label();
    code.a.set_label(&mut busy)?;
    code.a.dec(ecx)?;
    code.a.jne(busy)?;
    code.a.ret()?;

    // The function of the timer queues a work item.
    gives(code, "timer_ticks", WORK, "queue_work_on")?;
    sequence(code, "queue_work_on", &["insert_work"])?;
    code.at("insert_work")?.nop()?;
    code.at("insert_work.arms")?.mov(qword_ptr(rdi), 1)?;
    code.a.ret()?;
    let thunk = code.to("__x86_indirect_thunk_rax");
    let a = code.at("process_one_work")?;
    a.mov(rdi, WORK)?;
    a.mov(qword_ptr(rdi), 0)?;
    a.mov(rax, qword_ptr(rdi + FUNCTION))?;
    code.at("process_one_work.calls")?.call(thunk)?;
    code.a.ret()?;
    code.at("__x86_indirect_thunk_rax")?.jmp(rax)?;

    code.at("makes_call")?.mov(eax, 1)?;
    code.a.syscall()?;
    code.a.ret()?;
    for (function, vector) in [("busy", VECTOR as i32), ("busy_ticks", VECTOR as i32)] {
        code.at(function)?.nop()?;
        code.a.int(vector)?;
        code.a.ret()?;
    }
    code.at("faulty_ticks")?.int3()?;
    code.a.ret()
}

fn clocks_and_frees(code: &mut Code) -> Done {
    gives(code, "start_clock", CLOCK, "hrtimer_start_range_ns")?;
    code.at("hrtimer_start_range_ns")?.mov(esi, 7)?;
    code.at("hrtimer_start_range_ns.arms")?.mov(qword_ptr(rdi + (CLOCK_NODE + 0x18)), rsi)?;
    code.a.ret()?;
    let a = code.at("hrtimer_interrupt")?;
    a.mov(rdi, CLOCK)?;
    a.mov(r14, qword_ptr(rdi + CLOCK_FUNCTION))?;
    code.at("hrtimer_interrupt.calls")?.call(r14)?;
    code.a.ret()?;
    sequence(code, "clock_ticks", &["hrtimer_forward"])?;
    code.at("hrtimer_forward")?.nop()?;
    code.at("hrtimer_forward.arms")?.add(qword_ptr(rdi + (CLOCK_NODE + 0x18)), 5)?;
    code.a.ret()?;

    for (name, function) in [("free_first", "rcu_frees_other"), ("free_object", "rcu_frees")] {
        let function = code.to(function);
        code.at(name)?.mov(rdi, HEAD)?;
        code.a.lea(rsi, qword_ptr(function))?;
        code.call("call_rcu")?;
        code.a.ret()?;
    }
    code.at("call_rcu")?.nop()?;
    code.at("call_rcu.arms")?.mov(qword_ptr(rdi + 8), rsi)?;
    code.a.ret()?;
    let a = code.at("rcu_do_batch")?;
    a.mov(rdi, HEAD)?;
    a.mov(rbx, qword_ptr(rdi + 8))?;
    a.mov(qword_ptr(rdi + 8), 0)?;
    code.at("rcu_do_batch.calls")?.call(rbx)?;
    code.a.ret()
}

/// Raises the softirq 3 and others.
fn softirqs(code: &mut Code) -> Done {
    for (name, bits) in [("raise_softirq", 8), ("raise_softirq_irqoff", 4)] {
        code.at(name)?.mov(rcx, PENDING)?;
        code.at(&format!("{name}.raises"))?.or(word_ptr(rcx), bits)?;
        code.a.ret()?;
    }
    for (name, function) in [
        ("net_raises", "raise_softirq"),
        ("other_raises", "raise_softirq_irqoff"),
        ("late_raises", "raise_softirq"),
        ("raises_at_once", "raise_softirq"),
    ] {
        sequence(code, name, &[function])?;
    }
    let a = code.at("handle_softirqs")?;
    a.mov(rcx, PENDING)?;
    a.mov(word_ptr(rcx), 0)?;
    code.call("raises_at_once")?;
    code.a.mov(rcx, PENDING)?;
    code.a.mov(rdi, SOFTIRQS + 8 * 3)?;
    code.at("handle_softirqs.calls")?.call(qword_ptr(rdi))?;
    code.a.ret()
}

fn tasklets(code: &mut Code) -> Done {
    code.at("__tasklet_schedule")?.nop()?;
    code.a.ret()?;
    code.at("drivers_schedule")?.nop()?;
    for number in [3, 0, 1, 2] {
        code.call(&format!("driver_{number}_schedules"))?;
    }
    code.a.ret()?;
    for number in 0..4 {
        gives(code, &format!("driver_{number}_schedules"), TASKLETS + number * 0x80, "__tasklet_schedule")?;
    }
    // One tasklet gets its data, and another itself.
    for (name, tasklet, gets_data) in
        [("tasklet_action_common", TASKLETS, true), ("tasklet_action", TASKLETS + 0x180, false)]
    {
        let a = code.at(name)?;
        a.mov(rdi, tasklet)?;
        a.mov(rax, qword_ptr(rdi + TASKLET_FUNCTION))?;
        if gets_data {
            a.mov(rdi, qword_ptr(rdi + TASKLET_DATA))?;
        }
        code.at(&format!("{name}.calls"))?.call(rax)?;
        code.a.ret()?;
    }
    Ok(())
}

/// A request for an interrupt: its number, its handler, the handler that runs in a thread, and its device.
type Request = (u32, Option<&'static str>, Option<&'static str>, u64);

fn interrupts_and_threads(code: &mut Code) -> Done {
    code.at("request_threaded_irq")?.nop()?;
    code.a.ret()?;
    let handlers: [(&str, &[Request]); 2] = [
        ("probe_first", &[(7, None, Some("handles"), DATA), (5, Some("handles"), None, DATA)]),
        (
            "probe_others",
            &[
                (6, Some("handles"), None, DATA),
                (5, Some("handles"), None, 0x222),
                (5, Some("handles_other"), None, DATA),
            ],
        ),
    ];
    for (name, requests) in handlers {
        code.at(name)?.nop()?;
        for (interrupt, handler, threaded, device) in requests {
            code.a.mov(edi, *interrupt)?;
            for (register, function) in [(rsi, handler), (rdx, threaded)] {
                code.a.mov(register, 0_u64)?;
                if let Some(function) = function {
                    let function = code.to(function);
                    code.a.lea(register, qword_ptr(function))?;
                }
            }
            code.a.mov(r9, *device)?;
            code.call("request_threaded_irq")?;
        }
        code.a.ret()?;
    }
    for (name, interrupt) in [("__handle_irq_event_percpu", 5), ("irq_thread_fn", 7)] {
        let handles = code.to("handles");
        let a = code.at(name)?;
        a.mov(edi, interrupt)?;
        a.mov(rsi, DATA)?;
        a.lea(rax, qword_ptr(handles))?;
        code.at(&format!("{name}.calls"))?.call(rax)?;
        code.a.ret()?;
    }

    code.at("__kthread_create_on_node")?.nop()?;
    code.a.ret()?;
    let runs = code.to("thread_runs");
    for (name, function, data) in [("creates", "thread_runs", DATA), ("creates_other", "handles", DATA)] {
        let function = code.to(function);
        code.at(name)?.lea(rdi, qword_ptr(function))?;
        code.a.mov(rsi, data)?;
        code.call("__kthread_create_on_node")?;
        code.a.lea(rdi, qword_ptr(runs))?;
        code.a.mov(rsi, 0x222_u64)?;
        code.call("__kthread_create_on_node")?;
        code.a.ret()?;
    }
    let a = code.at("kthread")?;
    a.mov(rdi, DATA)?;
    a.lea(r12, qword_ptr(runs))?;
    code.at("kthread.calls")?.call(r12)?;
    code.a.ret()
}

/// Copies the pointer to a function, and calls the function.
fn notifiers(code: &mut Code) -> Done {
    code.at("register_listener")?.mov(rdi, NOTIFIER)?;
    code.a.mov(rax, LISTENERS)?;
    code.at("register_listener.reads")?.mov(rax, qword_ptr(rax))?;
    code.at("register_listener.writes")?.mov(qword_ptr(rdi + 8), rax)?;
    code.a.ret()?;
    code.at("notifier_call_chain")?.mov(rbx, NOTIFIER)?;
    code.a.mov(edi, 3)?;
    code.at("notifier_call_chain.calls")?.call(qword_ptr(rbx + 8))?;
    code.a.ret()?;

    // The same pointer is called through a register, through a thunk, and as one of the processor's own variables.
    let thunk = code.to("__x86_indirect_thunk_rax");
    for name in ["runs_hook", "runs_thunked"] {
        let a = code.at(name)?;
        a.mov(rbx, HOOK)?;
        a.mov(rax, qword_ptr(rbx))?;
        if name == "runs_hook" {
            a.call(rax)?
        } else {
            a.call(thunk)?
        }
        a.ret()?;
    }
    let a = code.at("runs_own")?;
    a.mov(r8, HOOK - u64::from(OWN_BASE) - 0x10)?;
    a.mov(r9d, 2)?;
    a.call(qword_ptr(r8 + r9 * 8).gs())?;
    a.ret()
}
