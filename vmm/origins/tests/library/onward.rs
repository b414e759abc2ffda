//! The way forward of a value: repeated and hidden uses, copies in parts, and ways through the kernel.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use history::timeline::{Breakpoint, Stops, Timeline};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::error::Error;
use machine::position::Instructions;
use origins::{Answer, EndKind, Location, Onward, OnwardEnd, PassageKind, WhereTo, WhoSet};
use tiny_guest::linux::programs;
use tiny_guest::long_mode::{self, STACK};
use tiny_guest::{STIRRED, linux};
use views::debug_files::DebugFiles;

use PassageKind::{Compared, Copied, Jumped};

const SOURCE: u64 = STIRRED + 0x1008;
const COPY: u64 = STIRRED + 0x2000;
/// The rounds of a loop that compares the value.
const ROUNDS: u32 = 5;

struct Guest {
    _directory: tempfile::TempDir,
    timeline: Timeline,
    places: BTreeMap<String, u64>,
}

impl Guest {
    /// A guest of the given instructions. The function gets the names of instructions with their numbers.
    fn new(
        code: impl FnOnce(&mut CodeAssembler, &mut BTreeMap<String, usize>) -> Result<(), IcedError>,
    ) -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let mut marks = BTreeMap::new();
        let code = |a: &mut CodeAssembler| code(a, &mut marks);
        let (recording, _, addresses) = long_mode::record(directory.path(), "r.ttvm", code, Vec::new());
        // The recorder does not count its own first instruction.
        let places = marks.into_iter().map(|(name, number)| (name, addresses[number - 1])).collect();
        Guest { timeline: Timeline::open_with(&recording, 1).unwrap(), places, _directory: directory }
    }

    /// A guest that looks like Linux and runs a program.
    fn linux() -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let (recording, kernel, mut places) = programs::record(directory.path(), "r.ttvm", true);
        for name in ["asm_exc_page_fault", "after_repair", "entry_SYSCALL_64", "copy"] {
            places.insert(name.to_string(), kernel.address_of(name));
        }
        Guest { timeline: Timeline::open_with(&recording, 1).unwrap(), places, _directory: directory }
    }

    /// The first position from another position on at which the named instruction is next.
    fn after(&mut self, from: Instructions, name: &str) -> Instructions {
        let breakpoints = vec![Breakpoint::at(self.places[name])];
        self.timeline.set_stops(Stops { breakpoints, ..Stops::default() });
        let end = self.timeline.end();
        let hits = self.timeline.hits(from, end, 1, &mut || false).unwrap();
        self.timeline.set_stops(Stops::default());
        hits.found[0].before
    }

    fn at(&mut self, name: &str) -> Instructions {
        self.after(Instructions(0), name)
    }

    fn follow(
        &mut self,
        location: &str,
        (at, until): (Instructions, Instructions),
        with_registers: bool,
    ) -> Onward {
        let location: Location = location.parse().unwrap();
        let question = WhereTo { with_registers, ..crate::onward_from(&location, at, until) };
        question.run(&mut self.timeline, &mut || false).unwrap()
    }

    fn origin(&mut self, location: &str, at: Instructions) -> Answer {
        let location: Location = location.parse().unwrap();
        let question = WhoSet { location: &location, processor: None, at, limit: 100 };
        question.run(&mut self.timeline, &mut || false).unwrap()
    }
}

/// The kinds of the passages, and how often each was repeated.
fn kinds(answer: &Onward) -> Vec<(PassageKind, u64)> {
    answer.passages.iter().map(|passage| (passage.kind, passage.times)).collect()
}

fn codes(answer: &Onward) -> Vec<&str> {
    answer.passages.iter().map(|passage| &*passage.code).collect()
}

/// The guest compares an address in a loop, copies it byte by byte and whole, and jumps to it.
fn repeated(a: &mut CodeAssembler, marks: &mut BTreeMap<String, usize>) -> Result<(), IcedError> {
    let mut mark = |name: &str, a: &CodeAssembler| _ = marks.insert(name.to_string(), a.instructions().len());
    let (mut top, mut bytes, mut target) = (a.create_label(), a.create_label(), a.create_label());
    a.lea(rax, ptr(target))?;
    a.mov(qword_ptr(SOURCE), rax)?;
    mark("set", a);
    a.xor(eax, eax)?;
    a.mov(ecx, ROUNDS)?;
    a.set_label(&mut top)?;
    a.mov(rdx, qword_ptr(SOURCE))?;
    mark("compare", a);
    a.cmp(rdx, 1)?;
    a.dec(ecx)?;
    a.jne(top)?;
    a.mov(rsi, SOURCE)?;
    a.mov(rdi, COPY)?;
    a.mov(ecx, 8)?;
    a.set_label(&mut bytes)?;
    mark("bytes", a);
    a.movsb()?;
    a.dec(ecx)?;
    a.jne(bytes)?;
    a.mov(rsi, SOURCE)?;
    a.mov(rdi, COPY + 0x40)?;
    a.mov(ecx, 8)?;
    mark("whole", a);
    a.rep().movsb()?;
    a.push(qword_ptr(SOURCE))?;
    a.pop(rbx)?;
    a.mov(qword_ptr(rsp - 16), rbx)?;
    mark("jump", a);
    a.jmp(rbx)?;
    a.ud2()?;
    a.set_label(&mut target)?;
    mark("target", a);
    a.nop()
}

#[test]
fn repeated_uses_are_one_passage_and_so_are_the_bytes_that_a_loop_copies() {
    let mut guest = Guest::new(repeated);
    let part = (guest.at("set"), guest.at("target"));
    let source = format!("{SOURCE:#x}:8");
    let answer = guest.follow(&source, part, false);
    let rounds = u64::from(ROUNDS);
    assert_eq!(kinds(&answer), [(Compared, rounds), (Copied, 1), (Copied, 1), (Jumped, 1)], "{answer}");
    let value = format!("{:#x}", guest.places["target"]);
    for (passage, name) in answer.passages.iter().zip(["compare", "bytes", "whole", "jump"]) {
        let first = guest.at(name);
        assert_eq!((passage.moment.instruction, &passage.value), (first.0, &value), "{name}: {answer}");
    }
    for (passage, to) in answer.passages[1..3].iter().zip([COPY, COPY + 0x40]) {
        let (from, to) = (format!("{SOURCE:#x}"), format!("{to:#x}"));
        let copied = passage.to.as_ref().unwrap();
        assert_eq!((passage.from.bytes, copied.bytes), (8, 8), "{answer}");
        assert_eq!(
            (passage.from.address.as_ref(), passage.from.physical.as_ref()),
            (Some(&from), Some(&from))
        );
        assert_eq!((copied.address.as_ref(), copied.physical.as_ref()), (Some(&to), Some(&to)), "{answer}");
    }
    assert_eq!((answer.end, answer.end_instruction), (OnwardEnd::Searched, part.1.0), "{answer}");
    let text = answer.to_string();
    let compared = format!("  cmp rdx,1\n    compared: rdx  {value}  {ROUNDS} times\n");
    let copied =
        format!("\n    copied: [{SOURCE:#x}] (physical {SOURCE:#x}) -> [{COPY:#x}] (physical {COPY:#x})");
    assert!(text.contains(&compared) && text.contains(&copied), "{text}");
    // The value is in two registers, and below the stack pointer twice.
    let places = [SOURCE, COPY, COPY + 0x40, STACK - 16].map(|place| format!("\n    physical {place:#x}"));
    let left = format!("\nat insn:{} the value is in:\n    rdx\n    rbx{}", part.1.0, places.concat());
    assert!(text.ends_with(&left), "{text}");
    assert!(text.starts_with(&format!("{source} at insn:{} is {value} (8 bytes)\n", part.0.0)), "{text}");

    let answer = guest.follow(&source, part, true);
    let expected = [
        "mov rdx,[201008h]",
        "cmp rdx,1",
        "movsb [rdi],[rsi]",
        "rep movsb [rdi],[rsi]",
        "push qword ptr [201008h]",
        "pop rbx",
        "mov [rsp-10h],rbx",
        "jmp rbx",
    ];
    assert_eq!(codes(&answer), expected, "{answer}");
    assert_eq!(answer.passages[0].times, rounds);
}

/// The guest copies a value to 25 places that do not touch.
#[test]
fn of_many_places_with_the_value_an_answer_names_the_first() {
    let mut guest = Guest::new(|a, marks| {
        a.mov(rax, 0x1122_3344_5566_7788_u64)?;
        marks.insert("set".to_string(), a.instructions().len());
        for number in 0..25 {
            a.mov(qword_ptr(COPY + 16 * number), rax)?;
        }
        a.xor(eax, eax)?;
        marks.insert("end".to_string(), a.instructions().len());
        a.nop()
    });
    let part = (guest.at("set"), guest.at("end"));
    let answer = guest.follow("rax", part, false);
    assert_eq!(answer.passages.len(), 25, "{answer}");
    let left: Vec<String> = answer.left.iter().filter_map(|span| span.physical.clone()).collect();
    let expected: Vec<String> = (0..20).map(|number| format!("{:#x}", COPY + 16 * number)).collect();
    assert!(left == expected && answer.has_more_left, "{answer}");
    let last = format!("\n    physical {:#x}\n    and in more places", COPY + 16 * 19);
    assert!(answer.to_string().ends_with(&last), "{answer}");
    // Twenty places are not too many.
    let until = part.0 + 20;
    let answer = guest.follow(&format!("{COPY:#x}"), (part.0 + 1, until), false);
    assert!(answer.left.len() == 1 && !answer.has_more_left, "{answer}");
    let answer = guest.follow("rax", (part.0, part.0 + 19), false);
    assert!(answer.left.len() == 20 && !answer.has_more_left, "{answer}");
}

#[test]
fn an_interrupted_search_forward_has_the_first_passages_only() {
    let mut guest = Guest::new(repeated);
    let (at, until) = (guest.at("set"), guest.at("target"));
    let location: Location = format!("{SOURCE:#x}:8").parse().unwrap();
    let question = WhereTo { with_registers: true, ..crate::onward_from(&location, at, until) };
    let whole = question.run(&mut guest.timeline, &mut || false).unwrap();
    let mut interrupted = 0;
    for polls in 0.. {
        let mut poll = tiny_guest::interrupt_after(polls);
        match question.run(&mut guest.timeline, &mut poll) {
            Err(Error::Interrupted) => {}
            Ok(answer) if answer.end == OnwardEnd::Interrupted => {
                assert!(codes(&whole).starts_with(&codes(&answer)), "{polls} polls: {answer}");
                let line = format!("\ninterrupted at insn:{}; the value is in:", answer.end_instruction);
                assert!(answer.to_string().contains(&line), "{answer}");
                interrupted += 1;
            }
            Ok(answer) => {
                assert_eq!((&answer.passages, answer.end), (&whole.passages, whole.end));
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{interrupted} interrupted");
}

/// The program's third argument of `write` is 5. The kernel returns this number as the call's result.
#[test]
fn a_value_is_followed_through_a_system_call_both_ways() {
    let mut guest = Guest::linux();
    let (write, after) = (guest.at("write"), guest.at("after_write"));
    // The handler of the first page fault saves and restores the register.
    let fault = ["push rdx", "pop rdx"];
    let way =
        ["push rdx", fault[0], fault[1], "mov rax,[rbx+60h]", "mov [rbx+50h],rax", "pop rax", "pop rdx"];
    let answer = guest.follow("rdx", (write, after), true);
    assert_eq!(codes(&answer), way, "{answer}");
    assert!(answer.passages.iter().all(|passage| passage.value == "0x5"), "{answer}");
    let stored = guest.follow("rdx", (write, after), false);
    assert_eq!(codes(&stored), ["mov [rbx+50h],rax"], "{stored}");
    let passage = &stored.passages[0];
    assert!(passage.function.as_ref().unwrap().starts_with("after_repair+"), "{stored}");
    assert_eq!((passage.moment.pid, passage.moment.name.as_deref()), (Some(5), Some("alpha")), "{stored}");

    let back = guest.origin("rax", after);
    let codes: Vec<&str> = back.links.iter().map(|link| &*link.code).collect();
    assert_eq!(
        codes,
        ["pop rax", "mov [rbx+50h],rax", "mov rax,[rbx+60h]", "push rdx", "mov edx,5"],
        "{back}"
    );
    assert_eq!((back.end.kind, &*back.value), (EndKind::Constant, "0x5"), "{back}");
    let functions: Vec<Option<&str>> = back
        .links
        .iter()
        .map(|link| link.function.as_ref().map(|name| name.split('+').next().unwrap()))
        .collect();
    // The program's function has no name.
    assert_eq!(
        functions[1..],
        [Some("after_repair"), Some("after_repair"), Some("entry_SYSCALL_64_after_hwframe"), None]
    );
    assert!(back.links.iter().all(|link| (link.pid, link.name.as_deref()) == (Some(5), Some("alpha"))));
    // The move to EDX and the move to EAX precede the call.
    assert_eq!(back.links[4].instruction, write.0 - 2, "{back}");
}

#[test]
fn the_frame_of_an_exception_has_the_interrupted_stack_pointer() {
    let mut guest = Guest::linux();
    let touch = guest.at("touch");
    let entry = guest.after(touch, "asm_exc_page_fault");
    guest.timeline.seek(entry, &mut || false).unwrap();
    let frame = guest.timeline.registers().gpr[4];
    let mut origin = |slot: u64| guest.origin(&format!("{:#x}:8", frame + 8 * slot), entry);
    for (slot, kind, text) in [
        (0, EndKind::Constant, "constant: the error code of the exception, written"),
        (1, EndKind::Constant, "constant: the address at which the guest was interrupted, written"),
        (2, EndKind::Unfollowed, "from cs, which is not followed, written"),
        (3, EndKind::Unfollowed, "from rflags, which is not followed, written"),
        (5, EndKind::Unfollowed, "from ss, which is not followed, written"),
    ] {
        let answer = origin(slot);
        let text = format!("{text} by insn:{}  delivery of vector 14", entry.0 - 1);
        assert_eq!((answer.end.kind, &answer.end.text, answer.links.len()), (kind, &text, 1), "{answer}");
    }
    // The program's stack pointer was last set by the return from the system call.
    let answer = origin(4);
    assert_eq!((answer.links[0].instruction, &*answer.links[0].code), (entry.0 - 1, "delivery of vector 14"));
    assert_eq!(answer.links[0].from.as_ref().map(|span| &*span.text), Some("rsp"), "{answer}");
    assert!(answer.links[1].code.starts_with("mov rsp,[rsp+18h]"), "{answer}");

    let after = guest.after(touch, "after_touch");
    let forward = guest.follow("rsp", (touch, after), true);
    assert_eq!(codes(&forward), ["delivery of vector 14", "iretq"], "{forward}");
    assert_eq!(forward.passages[0].to.as_ref().unwrap().address, Some(format!("{:#x}", frame + 32)));
    let shown = guest.follow("rsp", (touch, after), false);
    assert_eq!(codes(&shown), ["delivery of vector 14"], "{shown}");
}

/// A location may be a symbol of the kernel, and a symbol's size limits the value.
#[test]
fn values_of_the_kernels_variables_are_followed_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _, kernel) = linux::record(directory.path(), "r.ttvm", 5, None);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let mut origin = |text: &str| {
        let location: Location = text.parse().unwrap();
        let question = WhoSet { location: &location, processor: None, at: end, limit: 100 };
        question.run(&mut timeline, &mut || false)
    };
    let calls = origin("calls").unwrap();
    assert_eq!((&*calls.value, calls.bytes, calls.end.kind), ("0x5", 8, EndKind::Computed), "{calls}");
    assert!(calls.links[0].function.as_ref().unwrap().starts_with("do_syscall_64+"), "{calls}");
    let last = origin("calls+7").unwrap();
    assert_eq!((&*last.value, last.bytes), ("0x0", 1), "{last}");
    // At the end, the task 5 runs again. The call of the switch has the task as a constant.
    let current = origin("current_task").unwrap();
    let codes: Vec<&str> = current.links.iter().map(|link| &*link.code).collect();
    assert_eq!(codes, ["mov [rax],rsi", "mov rsi,0FFFF888000145000h"], "{current}");
    assert_eq!((current.end.kind, current.value), (EndKind::Constant, format!("{:#x}", linux::task(5))));
    let part = origin(&format!("{:#x}:3", kernel.address_of("current_task"))).unwrap();
    assert_eq!((part.bytes, &*part.value), (3, "0x145000"), "{part}");
}

/// A program's variables are where the linker places them: here at the kernel's number of system calls.
#[test]
fn variables_of_files_are_followed_with_their_types() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, ..) = linux::record(directory.path(), "r.ttvm", 5, None);
    let (source, program) = (directory.path().join("tallies.c"), directory.path().join("tallies"));
    let text = "struct tally { unsigned short low; unsigned char rest[6]; };
        __attribute__((section(\".tallies\"))) struct tally tallies[2] = { { 1 } };
        __attribute__((section(\".more\"))) unsigned char made = 1;
        void _start(void) {}";
    std::fs::write(&source, text).unwrap();
    let options = ["-nostdlib", "-g", "-static", "-no-pie", "-fno-pie", "-mcmodel=kernel"];
    let places = [(".tallies", linux::CALLS), (".more", linux::CALLS + 0x10)];
    let places = places.map(|(section, address)| format!("-Wl,--section-start={section}={address:#x}"));
    let gcc = Command::new("gcc").args(options).args(places).arg("-o").args([&program, &source]).status();
    assert!(gcc.expect("the host has gcc").success());
    let files = Arc::new(DebugFiles::open(&[program]).unwrap());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let mut origin = |text: &str| {
        let location = text.parse::<Location>().unwrap().with_files(files.clone());
        let question = WhoSet { location: &location, processor: None, at: end, limit: 100 };
        question.run(&mut timeline, &mut || false)
    };
    let low = origin("tallies[0].low").unwrap();
    assert_eq!((&*low.value, low.bytes, low.end.kind), ("0x5", 2, EndKind::Computed), "{low}");
    assert!(low.links[0].function.as_ref().unwrap().starts_with("do_syscall_64+"), "{low}");
    // A location with a pointer or an index has a type, and a plain name may be a symbol of the kernel.
    for (text, value, bytes) in [
        ("tallies->rest[0]", "0x0", 1),
        ("made", "0x0", 1),
        ("(struct tally)calls.low", "0x5", 2),
        ("calls", "0x5", 8),
        (&*format!("(task_struct){:#x}.pid", linux::task(5)), "0x5", 4),
    ] {
        let answer = origin(text).unwrap();
        assert_eq!((&*answer.value, answer.bytes), (value, bytes), "{text}: {answer}");
    }
    for (text, why) in [
        ("(struct tally)tallies.nosuch", "nosuch"),
        ("tallies->nosuch", "nosuch"),
        ("(struct tally)nosuch.low", "'nosuch' is neither an address nor a symbol of the guest's kernel"),
        ("(task_struct)init_task", "'(task_struct)init_task' has 256 bytes: name a part with 1 to 8 bytes"),
        ("(struct tally)0x7fff12345678.low", "0x7fff12345678 is not mapped at this position"),
    ] {
        let error = origin(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// The guest copies eight bytes downward, fills eight bytes, repeats a byte, and writes four bytes of a value.
fn strings(a: &mut CodeAssembler, marks: &mut BTreeMap<String, usize>) -> Result<(), IcedError> {
    let mut mark = |name: &str, a: &CodeAssembler| _ = marks.insert(name.to_string(), a.instructions().len());
    let copy = |a: &mut CodeAssembler, from: u64, to: u64| {
        a.mov(rsi, from)?;
        a.mov(rdi, to)?;
        a.mov(ecx, 8)
    };
    a.mov(rax, 0x1122_3344_5566_7788_u64)?;
    a.mov(qword_ptr(SOURCE), rax)?;
    copy(a, SOURCE + 7, COPY + 7)?;
    a.std()?;
    a.rep().movsb()?;
    a.cld()?;
    copy(a, SOURCE, COPY + 0x20)?;
    a.mov(al, 0x66)?;
    a.rep().stosb()?;
    a.mov(byte_ptr(COPY + 0x40), 0x55)?;
    copy(a, COPY + 0x40, COPY + 0x41)?;
    mark("pattern", a);
    a.rep().movsb()?;
    mark("upper", a);
    a.mov(dword_ptr(SOURCE + 4), 0x0a0b_0c0d)?;
    mark("end", a);
    a.nop()
}

#[test]
fn a_repeated_instruction_is_one_link_in_both_directions() {
    let mut guest = Guest::new(strings);
    let end = guest.at("end");
    let way = |answer: &Answer| answer.links.iter().map(|link| link.code.clone()).collect::<Vec<_>>();
    let down = guest.origin(&format!("{COPY:#x}:8"), end);
    assert_eq!(
        way(&down),
        ["rep movsb [rdi],[rsi]", "mov [201008h],rax", "mov rax,1122334455667788h"],
        "{down}"
    );
    assert_eq!((down.end.kind, &*down.value), (EndKind::Constant, "0x1122334455667788"), "{down}");
    let filled = guest.origin(&format!("{:#x}:8", COPY + 0x20), end);
    assert_eq!(way(&filled), ["rep stosb [rdi]", "mov al,66h"], "{filled}");
    assert_eq!((filled.end.kind, &*filled.value), (EndKind::Constant, "0x6666666666666666"), "{filled}");
    // Each byte is a copy of the byte before it.
    let pattern = guest.origin(&format!("{:#x}:3", COPY + 0x41), end);
    let first = guest.at("pattern").0;
    let parts: Vec<_> = pattern.end.parts.iter().map(|part| (part.bytes, part.instruction)).collect();
    assert_eq!(parts, [(1, Some(first)), (1, Some(first + 1)), (1, Some(first + 2))], "{pattern}");
}

#[test]
fn the_parts_of_a_value_are_listed() {
    let mut guest = Guest::new(strings);
    let (upper, end) = (guest.at("upper"), guest.at("end"));
    let start = guest.origin(&format!("{:#x}:8", SOURCE + 4), end);
    let lower = format!("physical {:#x}", SOURCE + 4);
    let rest = format!("physical {:#x}", SOURCE + 8);
    let text = format!(
        "put together from parts that different steps wrote:\n    bytes 0-3  {lower}  0xa0b0c0d  written by \
         insn:{upper}\n    bytes 4-7  {rest}  0x0  unchanged since the start"
    );
    assert_eq!((start.end.kind, start.end.to_string()), (EndKind::Parts, text), "{start}");
    let none = guest.origin(&format!("{rest}:8").replace("physical ", "phys:"), end);
    assert_eq!((none.end.kind, none.links.len()), (EndKind::Start, 0), "{none}");
    let one = guest.origin(&format!("{:#x}:2", SOURCE + 3), end);
    assert!(one.to_string().contains("\n    byte 0  physical 0x20100b  0x55  written by insn:"), "{one}");
    assert!(one.to_string().contains("\n    byte 1  physical 0x20100c  0xd  written by insn:"), "{one}");
}
