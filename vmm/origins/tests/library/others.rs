//! Typed keys, interrupted searches, and several processors.

use cpu::{AddressKind, WatchKind, Watchpoint};
use history::timeline::{Stops, Timeline, Watch};
use iced_x86::code_asm::*;
use machine::error::Error;
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use origins::{Answer, EndKind, Location, Onward, OnwardEnd, PassageKind, WhereTo, WhoSet};
use recording::Recording;
use tiny_guest::{DENSE, STIRRED, Script, long_mode, several};

fn ask(timeline: &mut Timeline, text: &str, processor: Option<usize>, at: Instructions) -> Answer {
    let location: Location = text.parse().unwrap();
    WhoSet { location: &location, processor, at, limit: 100 }.run(timeline, &mut || false).unwrap()
}

/// The guest waits for a key, and stores it.
fn typed(directory: &std::path::Path) -> Recording<Instructions> {
    let code = |a: &mut CodeAssembler| {
        a.mov(edx, 0x3f9)?;
        a.mov(al, 1)?;
        a.out(dx, al)?;
        let mut wait = a.create_label();
        a.set_label(&mut wait)?;
        a.mov(edx, 0x3fd)?;
        a.in_(al, dx)?;
        a.test(al, 1)?;
        a.je(wait)?;
        a.mov(edx, 0x3f8)?;
        a.in_(al, dx)?;
        a.mov(byte_ptr(STIRRED), al)?;
        a.mov(ebx, 100_000)?;
        let mut rest = a.create_label();
        a.set_label(&mut rest)?;
        a.dec(ebx)?;
        a.jne(rest)
    };
    let keys = vec![(20_000, Event::ConsoleInput(b"k".to_vec()))];
    long_mode::record(directory, "typed.ttvm", code, keys).0
}

#[test]
fn a_typed_key_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let recording = typed(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let answer = ask(&mut timeline, &format!("{STIRRED:#x}:1"), None, end);
    assert_eq!(
        (answer.end.kind, answer.end.event, answer.links.len()),
        (EndKind::Outside, Some(1), 2),
        "{answer}"
    );
    assert!(answer.end.text.contains("'k' typed"), "{answer}");
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!((&json["end"]["kind"], &json["value"]), (&"outside".into(), &"0x6b".into()));
    let limited: Location = format!("{STIRRED:#x}:1").parse().unwrap();
    let question = WhoSet { location: &limited, processor: None, at: end, limit: 1 };
    let answer = question.run(&mut timeline, &mut || false).unwrap();
    assert_eq!((answer.end.kind, answer.links.len()), (EndKind::Limit, 1), "{answer}");
}

/// The register was written 200,000 steps before the end, so the search has many polls.
#[test]
fn an_interrupted_search_says_so_and_the_next_search_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let recording = typed(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    for text in [format!("{STIRRED:#x}:1"), "rcx".to_string(), "rsp".to_string()] {
        let whole = ask(&mut timeline, &text, None, end);
        let location: Location = text.parse().unwrap();
        let mut polls = 0;
        loop {
            let mut poll = tiny_guest::interrupt_after(polls);
            let question = WhoSet { location: &location, processor: None, at: end, limit: 100 };
            match question.run(&mut timeline, &mut poll) {
                Err(Error::Interrupted) => {}
                Ok(answer) if answer.end.kind == EndKind::Interrupted => {
                    assert!(whole.links.starts_with(&answer.links), "{text}, {polls} polls:\n{answer}");
                }
                Ok(answer) => {
                    assert_eq!((answer.links, answer.end), (whole.links, whole.end), "{text}, {polls} polls");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            polls += 1;
        }
        assert!(polls > 0, "{text}");
    }
}

#[test]
fn locations_that_do_not_exist_are_refused_with_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let recording = typed(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    for (text, processor, part) in [
        ("0x7fff12345678", None, "not mapped"),
        ("phys:0xfee00000", None, "not in the guest's memory"),
        ("jiffies", None, "no symbol jiffies"),
        ("rax", Some(7), "processor"),
    ] {
        let location: Location = text.parse().unwrap();
        let question = WhoSet { location: &location, processor, at: end, limit: 100 };
        let error = question.run(&mut timeline, &mut || false).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

fn record_several(directory: &std::path::Path) -> Recording<Instructions> {
    let guest = (20_000, several::processors(3));
    several::record(directory, "several.ttvm", guest, DENSE, None, Script(Vec::new())).0
}

/// All processors write one word. The last write of the word is the last hit of a watchpoint.
#[test]
fn the_writers_of_a_word_are_found_on_all_processors() {
    let directory = tempfile::tempdir().unwrap();
    let recording = record_several(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let point = Watchpoint {
        space: AddressKind::Physical,
        address: several::SHARED,
        length: 2,
        kind: WatchKind::Write,
    };
    timeline.set_stops(Stops { watches: vec![Watch::from(point)], ..Stops::default() });
    let hits = timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap().found;
    timeline.set_stops(Stops::default());
    let mut on = std::collections::BTreeSet::new();
    for place in 1..40 {
        let at = Instructions(end.number() * place / 40);
        let Some(last) = hits.iter().rfind(|hit| hit.before < at) else { continue };
        let answer = ask(&mut timeline, &format!("phys:{:#x}:2", several::SHARED), None, at);
        let link = &answer.links[0];
        assert_eq!(
            (link.instruction, link.processor),
            (last.before.number(), Some(last.processor)),
            "{answer}"
        );
        on.insert(last.processor);
    }
    assert!(on.len() > 1, "{on:?}");
}

/// All processors read and write one word. The first access after a position is the first use of the word's value, or the
/// value's end.
#[test]
fn a_value_is_followed_on_the_processor_that_uses_it() {
    let directory = tempfile::tempdir().unwrap();
    let recording = record_several(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let location: Location = format!("phys:{:#x}:2", several::SHARED).parse().unwrap();
    let (mut used, mut on) = (0, std::collections::BTreeSet::new());
    for place in 1..20 {
        let at = Instructions(end.number() * place / 20);
        let point =
            |kind| Watchpoint { space: AddressKind::Physical, address: several::SHARED, length: 2, kind };
        let mut first = |kind| {
            timeline.set_stops(Stops { watches: vec![Watch::from(point(kind))], ..Stops::default() });
            let found = timeline.hits(at, end, 1, &mut || false).unwrap().found;
            timeline.set_stops(Stops::default());
            found.first().map(|hit| (hit.before.number(), hit.processor))
        };
        let (access, write) = (first(WatchKind::Access).unwrap(), first(WatchKind::Write).unwrap());
        let question = WhereTo { with_registers: true, limit: 1, ..crate::onward_from(&location, at, end) };
        let answer = question.run(&mut timeline, &mut || false).unwrap();
        if access == write {
            assert!(answer.passages.is_empty() && answer.end == OnwardEnd::Gone, "{answer}");
            continue;
        }
        let passage = &answer.passages[0];
        assert_eq!((passage.moment.instruction, passage.moment.processor), (access.0, Some(access.1)));
        assert_eq!((passage.kind, passage.from.bytes), (PassageKind::Copied, 2), "{answer}");
        used += 1;
        on.insert(access.1);
    }
    assert!(used > 3 && on.len() > 1, "{used} {on:?}");
}

/// The number of steps before a place in which the test notes changes of registers.
const STEPS: u64 = 3_000;

/// A register's last write is the step that last changed its value, or a later step.
#[test]
fn registers_are_followed_on_their_processor() {
    let directory = tempfile::tempdir().unwrap();
    let recording = record_several(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    for place in [3, 5, 7, 9] {
        let at = Instructions(end.number() * place / 10);
        for (number, name) in [(0, "rax"), (1, "rcx"), (3, "rbx"), (6, "rsi")] {
            for processor in 0..timeline.machine().processors() {
                timeline.seek(at - STEPS, &mut || false).unwrap();
                let value = |timeline: &Timeline| timeline.machine().cpu().state_of(processor).gpr[number];
                let (mut before, mut changed) = (value(&timeline), None);
                while timeline.position() < at {
                    let step = timeline.position();
                    timeline.step_forward().unwrap();
                    let after = value(&timeline);
                    if std::mem::replace(&mut before, after) != after {
                        changed = Some(step);
                    }
                }
                let answer = ask(&mut timeline, name, Some(processor), at);
                let what = format!("{name} of processor {processor}: {changed:?}\n{answer}");
                assert_ne!(answer.end.kind, EndKind::Unexplained, "{what}");
                let (Some(changed), Some(link)) = (changed, answer.links.first()) else { continue };
                assert!(link.instruction >= changed.number(), "{what}");
                assert_eq!(link.processor, Some(processor), "{what}");
            }
        }
    }
}

fn kinds(answer: &Onward) -> Vec<PassageKind> {
    answer.passages.iter().map(|passage| passage.kind).collect()
}

/// The guest writes a value, and then uses it in each way.
fn used(directory: &std::path::Path) -> Recording<Instructions> {
    let code = |a: &mut CodeAssembler| {
        a.mov(rax, STIRRED + 0x40)?;
        a.mov(qword_ptr(STIRRED), rax)?;
        a.mov(ebx, 50_000)?;
        let mut pause = a.create_label();
        a.set_label(&mut pause)?;
        a.dec(ebx)?;
        a.jne(pause)?;
        a.mov(rcx, qword_ptr(STIRRED))?;
        a.cmp(rcx, 7)?;
        a.mov(qword_ptr(STIRRED + 8), rcx)?;
        a.mov(rdx, qword_ptr(rcx))?;
        a.lea(rsi, rcx + 8)?;
        a.mov(qword_ptr(STIRRED + 16), rsi)?;
        a.mov(rax, rcx)?;
        a.mov(edx, 0x3f8)?;
        a.out(dx, al)?;
        a.xor(eax, eax)?;
        a.xor(ecx, ecx)?;
        a.mov(qword_ptr(STIRRED), rax)?;
        a.mov(qword_ptr(STIRRED + 8), rax)
    };
    long_mode::record(directory, "used.ttvm", code, Vec::new()).0
}

#[test]
fn a_value_is_followed_to_its_copies_and_uses() {
    let directory = tempfile::tempdir().unwrap();
    let recording = used(directory.path());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let watch =
        Watchpoint { kind: WatchKind::Write, space: AddressKind::Linear, address: STIRRED, length: 8 };
    timeline.set_stops(Stops { watches: vec![Watch::from(watch)], ..Stops::default() });
    timeline.seek(Instructions(0), &mut || false).unwrap();
    timeline.run_forward(&mut || false).unwrap();
    timeline.set_stops(Stops::default());
    let at = timeline.position();

    let location: Location = format!("{STIRRED:#x}:8").parse().unwrap();
    let question = crate::onward_from(&location, at, end);
    let answer = question.run(&mut timeline, &mut || false).unwrap();
    use PassageKind::{Address, Compared, Computed, Copied, Sent};
    assert_eq!(kinds(&answer), [Compared, Copied, Address, Computed, Sent], "{answer}");
    assert_eq!(answer.end, OnwardEnd::Gone, "{answer}");
    assert!(answer.end_instruction < end.number() && answer.replayed < 3 * end.number(), "{answer}");
    assert_eq!(answer.value, format!("{:#x}", STIRRED + 0x40));
    let copy = &answer.passages[1];
    let address = |at: u64| Some(format!("{at:#x}"));
    assert_eq!(copy.to.as_ref().map(|to| to.address.clone()), Some(address(STIRRED + 8)), "{answer}");
    assert_eq!(answer.passages[4].from.text, "al", "{answer}");
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!((&json["passages"][0]["kind"], &json["end"]), (&"compared".into(), &"gone".into()));

    // The result of LEA is followed to memory, where it stays.
    let through = WhereTo { through_computations: true, ..question };
    let answer = through.run(&mut timeline, &mut || false).unwrap();
    assert_eq!(kinds(&answer), [Compared, Copied, Address, Computed, Copied, Sent], "{answer}");
    assert_eq!(answer.end, OnwardEnd::Searched, "{answer}");
    assert!(answer.left.iter().any(|span| span.physical == address(STIRRED + 16)), "{answer}");

    let beyond = WhereTo { until: end + 1_000, ..through }.run(&mut timeline, &mut || false).unwrap();
    assert_eq!((beyond.end, beyond.end_instruction), (OnwardEnd::Searched, end.number()), "{beyond}");

    let limited = WhereTo { limit: 2, ..question }.run(&mut timeline, &mut || false).unwrap();
    assert_eq!((kinds(&limited), limited.end), (vec![Compared, Copied], OnwardEnd::Limit), "{limited}");
}
