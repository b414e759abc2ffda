//! Where calls of the kernel came from: a guest arms and calls a callback of each kind. Breakpoints at the guest's own
//! instructions find the expected steps.

use history::timeline::{Breakpoint, Stops, Timeline};
use machine::error::Error;
use machine::position::{Count, Instructions};
use origins::{Arming, ArmingEndKind as End, EndKind, Kind, WhoArmed};
use tiny_guest::linux::Places;
use tiny_guest::linux::callbacks::{
    CLOCK, DATA, HEAD, HOOK, LISTENERS, NOTIFIER, Pending, TASKLETS, TIMER, TIMERS, WORK, record,
};

struct Guest {
    _directory: tempfile::TempDir,
    timeline: Timeline,
    places: Places,
}

impl Guest {
    fn with(pending: Pending) -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let (recording, places) = record(directory.path(), "r.ttvm", pending);
        Guest { timeline: Timeline::open_with(&recording, 1).unwrap(), places, _directory: directory }
    }

    fn new() -> Guest {
        Guest::with(Pending::Variable)
    }

    /// The positions at which the named instruction is next.
    fn all(&mut self, place: &str) -> Vec<u64> {
        let breakpoints = vec![Breakpoint::at(self.places[place])];
        self.timeline.set_stops(Stops { breakpoints, ..Stops::default() });
        let end = self.timeline.end();
        let hits = self.timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap();
        self.timeline.set_stops(Stops::default());
        hits.found.iter().map(|hit| hit.before.number()).collect()
    }

    /// Asks at a call of a function: `call` is the number of the call, from 0.
    fn ask(&mut self, function: &str, call: usize, question: WhoArmed<'_>) -> Result<Arming, Error> {
        let at = Instructions(self.all(function)[call]);
        WhoArmed { at, ..question }.run(&mut self.timeline, &mut || false)
    }

    fn answer(&mut self, function: &str, call: usize) -> Arming {
        self.ask(function, call, ANY).unwrap()
    }

    /// Checks the only link of an answer: its kind, argument, caller, the step that armed the callback, and the function
    /// that did so.
    fn check(
        &mut self,
        call: (&str, usize),
        expected: (Kind, u64, &str),
        armed: (&str, usize),
        by: &str,
    ) -> Arming {
        let (function, number) = call;
        let (kind, argument, caller) = expected;
        let answer = self.answer(function, number);
        assert_eq!(answer.links.len(), 1, "{answer}");
        let link = &answer.links[0];
        assert_eq!((link.kind, &*link.function, &*link.caller), (kind, function, caller), "{answer}");
        assert_eq!(link.argument, format!("{argument:#x}"), "{answer}");
        assert_eq!(link.by.as_deref(), Some(by), "{answer}");
        let step = link.armed.as_ref().map(|moment| moment.instruction);
        assert_eq!(step, Some(self.all(armed.0)[armed.1]), "{answer}");
        // The question is at the first instruction of the function, just after the call.
        assert_eq!(answer.at.instruction, self.all(function)[number], "{answer}");
        let through_thunk = u64::from(kind == Kind::Work);
        assert_eq!(link.called.instruction + 1 + through_thunk, answer.at.instruction, "{answer}");
        assert_eq!((link.called.pid, link.called.name.as_deref()), (Some(5), Some("alpha")), "{answer}");
        answer
    }
}

const ANY: WhoArmed<'_> = WhoArmed { function: None, processor: None, at: Instructions(0), limit: 10 };
const BOOT: &str = "5 (alpha), at the beginning of the stack";

#[test]
fn a_work_item_goes_back_to_a_timer_and_to_the_code_that_armed_the_timer() {
    let mut guest = Guest::new();
    let answer = guest.answer("work_runs", 0);
    let links: Vec<_> = answer
        .links
        .iter()
        .map(|link| (link.kind, &*link.function, &*link.caller, &*link.argument, link.by.as_deref().unwrap()))
        .collect();
    let (work, timer) = (format!("{WORK:#x}"), format!("{TIMER:#x}"));
    assert_eq!(
        links,
        [
            (Kind::Work, "work_runs", "process_one_work", &*work, "timer_ticks"),
            (Kind::Timer, "timer_ticks", "call_timer_fn", &*timer, "setup_timer"),
        ],
        "{answer}"
    );
    let steps: Vec<(u64, u64)> = answer
        .links
        .iter()
        .map(|link| (link.armed.as_ref().unwrap().instruction, link.called.instruction))
        .collect();
    let expected =
        [("insert_work.arms", "process_one_work.calls", 0), ("mod_timer.arms", "call_timer_fn.calls", 1)]
            .map(|(arms, calls, number)| (guest.all(arms)[number], guest.all(calls)[0]));
    assert_eq!(steps, expected, "{answer}");
    assert_eq!((answer.end.kind, &*answer.end.text), (End::Stack, BOOT), "{answer}");
    let functions =
        ["insert_work", "queue_work_on", "timer_ticks", "call_timer_fn", "__run_timers", "timers"];
    let frames = &answer.links[0].backtrace.as_ref().unwrap().frames;
    let names: Vec<&str> = frames.iter().map(|call| call.name().split('+').next().unwrap()).collect();
    assert_eq!(names, [&functions[..], &["start_kernel", "_stext"]].concat(), "{answer}");

    // Only the six innermost functions are shown.
    let text = answer.to_string();
    let (at, armed) = (&answer.links[0].called, answer.links[0].armed.as_ref().unwrap());
    let head = format!("at {}\nwork item work_runs({work}), called by process_one_work at {at}\n", answer.at);
    let queued = format!("  queued by timer_ticks at {armed}\n    insert_work+");
    assert!(text.starts_with(&(head + &queued)), "{text}");
    let rest = text.split("    timers+").nth(1).unwrap();
    assert!(rest.split_once('\n').unwrap().1.starts_with("    ...\ntimer timer_ticks("), "{text}");
    assert!(text.ends_with(&format!("\nfrom {BOOT}")), "{text}");
}

#[test]
fn a_chain_ends_at_the_limit() {
    let mut guest = Guest::new();
    let answer = guest.ask("work_runs", 0, WhoArmed { limit: 1, ..ANY }).unwrap();
    let armed = answer.links[0].armed.as_ref().unwrap().instruction;
    let text = format!("the chain goes on before insn:{armed}; raise --limit");
    assert_eq!((answer.links.len(), answer.end.kind, &answer.end.text), (1, End::Limit, &text), "{answer}");
    assert!(answer.to_string().ends_with(&format!("\n{text}")), "{answer}");
}

#[test]
fn a_timer_that_arms_itself_ends_the_chain() {
    let mut guest = Guest::new();
    let kind = (Kind::HighResolutionTimer, CLOCK, "hrtimer_interrupt");
    let first = guest.check(("clock_ticks", 0), kind, ("hrtimer_start_range_ns.arms", 0), "start_clock");
    assert_eq!(first.end.kind, End::Stack, "{first}");
    let second = guest.check(("clock_ticks", 1), kind, ("hrtimer_forward.arms", 0), "clock_ticks");
    let called = guest.all("hrtimer_interrupt.calls")[0];
    let text = format!("clock_ticks itself, at its call before; the chain goes on before insn:{called}");
    assert_eq!((second.end.kind, second.end.text), (End::Itself, text));
}

#[test]
fn callbacks_of_each_kind_go_back_to_the_step_that_armed_them() {
    let mut guest = Guest::new();
    let second = TASKLETS + 0x180;
    for (call, expected, armed, by) in [
        (("rcu_frees", 0), (Kind::Rcu, HEAD, "rcu_do_batch"), ("call_rcu.arms", 1), "free_object"),
        // The tasklets are scheduled in the order 3, 0, 1, 2.
        (
            ("tasklet_runs", 0),
            (Kind::Tasklet, DATA, "tasklet_action_common"),
            ("__tasklet_schedule", 1),
            "driver_0_schedules",
        ),
        (
            ("tasklet_runs", 1),
            (Kind::Tasklet, second, "tasklet_action"),
            ("__tasklet_schedule", 0),
            "driver_3_schedules",
        ),
        // The interrupt 7 has a handler that runs in a thread.
        (
            ("handles", 0),
            (Kind::InterruptHandler, 5, "__handle_irq_event_percpu"),
            ("request_threaded_irq", 1),
            "probe_first",
        ),
        (
            ("handles", 1),
            (Kind::InterruptHandler, 7, "irq_thread_fn"),
            ("request_threaded_irq", 0),
            "probe_first",
        ),
        (
            ("thread_runs", 0),
            (Kind::KernelThread, DATA, "kthread"),
            ("__kthread_create_on_node", 0),
            "creates",
        ),
    ] {
        let answer = guest.check(call, expected, armed, by);
        assert_eq!((answer.end.kind, &*answer.end.text), (End::Stack, BOOT), "{answer}");
    }
}

/// The softirq is raised once more after the kernel took over the pending softirqs. This raises the next call.
#[test]
fn a_softirq_goes_back_to_the_first_raise_since_the_last_call() {
    for pending in [Pending::Hot, Pending::Variable, Pending::Statistics] {
        let mut guest = Guest::with(pending);
        let vector = guest.answer("net_rx_action", 0).links[0].argument.clone();
        let vector = u64::from_str_radix(&vector[2..], 16).unwrap();
        let kind = (Kind::Softirq, vector, "handle_softirqs");
        guest.check(("net_rx_action", 0), kind, ("raise_softirq.raises", 0), "net_raises");
        guest.check(("net_rx_action", 1), kind, ("raise_softirq.raises", 1), "raises_at_once");
    }
}

#[test]
fn a_chain_ends_at_a_program_or_an_interrupt() {
    let mut guest = Guest::new();
    let [call, interrupt, busy, faulty, unarmed] = TIMERS;
    let timer = |timer| (Kind::Timer, timer, "call_timer_fn");
    let arms = |guest: &mut Guest, function: &str, call: usize| {
        let begin = guest.all(function)[call];
        let all = guest.all("mod_timer.arms");
        all.iter().position(|step| *step > begin).unwrap()
    };
    let armed = ("mod_timer.arms", arms(&mut guest, "__x64_sys_ping", 0));
    let answer = guest.check(("call_ticks", 0), timer(call), armed, "__x64_sys_ping");
    let program = (End::Program, "the program 5 (alpha), in the system call ping");
    assert_eq!((answer.end.kind, &*answer.end.text), program);
    // The function of a system call is no callback.
    let answer = guest.answer("__x64_sys_ping", 0);
    assert_eq!((answer.links.len(), answer.end.kind, &*answer.end.text), (0, program.0, program.1));
    let answer = guest.answer("do_syscall_64", 0);
    let begin = "the program 5 (alpha), which entered the kernel by entry_SYSCALL_64_after_hwframe+";
    assert!(answer.end.kind == End::Program && answer.end.text.starts_with(begin), "{answer}");

    let armed = ("mod_timer.arms", arms(&mut guest, "sysvec_test", 0));
    let answer = guest.check(("interrupt_ticks", 0), timer(interrupt), armed, "sysvec_test");
    let interrupted = |answer: &Arming, function: &str| {
        let (handler, behind) = answer.end.text.split_once(", which interrupted ").unwrap();
        assert_eq!(answer.end.kind, End::Interrupt, "{answer}");
        assert!(handler.starts_with("an interrupt: asm_sysvec_test+"), "{answer}");
        assert!(behind.starts_with(&format!("{function}+")) && behind.ends_with(" of 5 (alpha)"), "{answer}");
    };
    interrupted(&answer, "busy");
    // An interrupt comes during a timer's function. The interrupt does not come from the timer.
    let answer = guest.answer("sysvec_test", 1);
    assert!(answer.links.is_empty(), "{answer}");
    interrupted(&answer, "busy_ticks");
    let armed = ("mod_timer.arms", arms(&mut guest, "sysvec_test", 1));
    let answer = guest.check(("interrupt_ticks", 1), timer(interrupt), armed, "sysvec_test");
    interrupted(&answer, "busy_ticks");
    // The interrupted timer can be named.
    let named = WhoArmed { function: Some("busy_ticks"), ..ANY };
    let answer = guest.ask("sysvec_test", 1, named).unwrap();
    assert_eq!(
        (&*answer.links[0].argument, answer.links[0].by.as_deref()),
        (&*format!("{busy:#x}"), Some("boot_busy_timer"))
    );

    // An exception belongs to the function that caused it.
    let answer = guest.answer("exc_int3", 0);
    let link = &answer.links[0];
    assert_eq!((&*link.function, &*link.argument), ("faulty_ticks", &*format!("{faulty:#x}")), "{answer}");
    assert_eq!((link.by.as_deref(), answer.end.kind), (Some("boot_faulty_timer"), End::Stack), "{answer}");

    let answer = guest.answer("unarmed_ticks", 0);
    let link = &answer.links[0];
    assert_eq!(
        (&*link.argument, &link.armed, &link.by),
        (&*format!("{unarmed:#x}"), &None, &None),
        "{answer}"
    );
    let text = "no step of the recording armed the timer";
    assert_eq!((answer.end.kind, &*answer.end.text), (End::Unknown, text));
    assert!(answer.to_string().ends_with(&format!("\n{text}")), "{answer}");
}

#[test]
fn the_writes_of_a_function_pointer_are_listed() {
    let mut guest = Guest::new();
    let answer = guest.answer("listens", 0);
    assert_eq!((answer.links.len(), answer.end.kind), (1, End::Pointer), "{answer}");
    let link = &answer.links[0];
    assert_eq!((link.kind, &*link.caller, &*link.argument), (Kind::Pointer, "notifier_call_chain", "0x3"));
    let pointer = link.pointer.as_ref().unwrap();
    assert_eq!((&*pointer.location, pointer.bytes), (&*format!("{:#x}:8", NOTIFIER + 8), 8), "{answer}");
    let steps: Vec<u64> = pointer.links.iter().map(|link| link.instruction).collect();
    let (reads, writes) = (guest.all("register_listener.reads")[0], guest.all("register_listener.writes")[0]);
    let begin = guest.all("startup_64.writes")[0];
    // MOV RCX is between LEA and the write to the pointer that is copied.
    assert_eq!(steps, [writes, reads, begin, begin - 2], "{answer}");
    let addresses: Vec<_> = pointer.links.iter().filter_map(|link| link.to.address.clone()).collect();
    assert_eq!(addresses, [NOTIFIER + 8, LISTENERS].map(|address| format!("{address:#x}")), "{answer}");
    assert_eq!(pointer.end.kind, EndKind::Constant, "{answer}");
    assert_eq!(pointer.value, format!("{:#x}", guest.places["listens"]));
    let text = answer.to_string();
    assert!(text.contains(&format!("\n  {:#x}:8 at insn:", NOTIFIER + 8)), "{text}");
    assert!(text.ends_with("\nfrom a function pointer, whose writes are listed above"), "{text}");
}

#[test]
fn a_pointer_is_followed_from_a_register_and_from_the_processors_own_variables() {
    let mut guest = Guest::new();
    let hook = format!("{HOOK:#x}:8");
    for (call, caller, location, reads) in
        [(0, "runs_hook", "rax", true), (1, "runs_thunked", "rax", true), (2, "runs_own", &*hook, false)]
    {
        let answer = guest.answer("hook_runs", call);
        assert_eq!((answer.links.len(), answer.end.kind), (1, End::Pointer), "{answer}");
        let link = &answer.links[0];
        assert_eq!(
            (link.kind, &*link.function, &*link.caller),
            (Kind::Pointer, "hook_runs", caller),
            "{answer}"
        );
        let pointer = link.pointer.as_ref().unwrap();
        assert_eq!(pointer.location, location, "{answer}");
        assert_eq!(pointer.value, format!("{:#x}", guest.places["hook_runs"]), "{answer}");
        // The caller reads the pointer just before the call.
        let first = &pointer.links[0];
        let is_read = first.instruction == link.called.instruction - 1;
        assert_eq!((pointer.links.len(), is_read), (if reads { 3 } else { 2 }, reads), "{answer}");
        let written = &pointer.links[pointer.links.len() - 2];
        assert_eq!(written.to.address, Some(format!("{HOOK:#x}")), "{answer}");
        assert_eq!(pointer.end.kind, EndKind::Constant, "{answer}");
    }
}

#[test]
fn functions_that_no_pointer_called_are_refused() {
    let mut guest = Guest::new();
    let error = |found: Result<Arming, Error>| found.unwrap_err().to_string();
    let named = WhoArmed { function: Some("timers"), ..ANY };
    let text = error(guest.ask("insert_work", 0, named));
    let expected = "'timers' is not among the functions here that were called through a pointer: timer_ticks";
    assert!(text.contains(expected), "{text}");
    let text = error(guest.ask("setup_timer", 0, named));
    let expected = "'timers' was not called through a pointer here, and no other function was";
    assert!(text.contains(expected), "{text}");
    let answer = guest.answer("setup_timer", 0);
    assert_eq!((answer.links.len(), answer.end.kind, &*answer.end.text), (0, End::Stack, BOOT), "{answer}");
    let text = error(guest.ask("setup_timer", 0, WhoArmed { processor: Some(3), ..ANY }));
    assert!(text.contains("processor"), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = tiny_guest::record(directory.path(), "r.ttvm", 1_000, Vec::new());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let question = WhoArmed { at: Instructions(500), ..ANY };
    let text = error(question.run(&mut timeline, &mut || false));
    assert!(text.contains("the guest has no Linux kernel whose symbols can be read here"), "{text}");
}

#[test]
fn an_interrupted_question_has_the_first_links_only() {
    let mut guest = Guest::new();
    let at = Instructions(guest.all("work_runs")[0]);
    let question = WhoArmed { at, ..ANY };
    let functions =
        |answer: &Arming| -> Vec<String> { answer.links.iter().map(|link| link.function.clone()).collect() };
    let whole = question.run(&mut guest.timeline, &mut || false).unwrap();
    let (mut interrupted, mut total) = (0, 0);
    for polls in 0.. {
        total = polls;
        let mut poll = tiny_guest::interrupt_after(polls);
        match question.run(&mut guest.timeline, &mut poll) {
            Err(Error::Interrupted) => {}
            Ok(answer) if answer.end.kind == End::Interrupted => {
                assert!(functions(&whole).starts_with(&functions(&answer)), "{polls} polls:\n{answer}");
                assert!(
                    answer.links.len() < 2
                        && answer.to_string().ends_with("the chain goes on before this place")
                );
                interrupted += 1;
            }
            Ok(answer) => {
                assert_eq!((functions(&answer), answer.end), (functions(&whole), whole.end));
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(interrupted > 0, "{total}");
}
