//! Turns of several processors, and the instructions that may write registers.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use tiny_guest::{DENSE, Script, several};

use super::*;
use crate::seen::tests::step;

/// The number of steps in which the test notes the processor of each step.
const STEPS: u64 = 20_000;

#[test]
fn the_turns_of_a_processor_have_all_its_steps() {
    let directory = tempfile::tempdir().unwrap();
    let guest = (20_000, several::processors(3));
    let (recording, _) = several::record(directory.path(), "r.ttvm", guest, DENSE, None, Script(Vec::new()));
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let start = Instructions(timeline.end().number() / 2);
    let interval = Interval { start, end: start + STEPS };
    timeline.seek(start, &mut || false).unwrap();
    let mut steps: Vec<(Instructions, usize)> = Vec::new();
    while timeline.position() < interval.end {
        let running = timeline.machine().running_processor().number();
        steps.push((timeline.position(), running));
        timeline.step_forward().unwrap();
    }
    let mut in_turns = 0;
    for processor in 0..3 {
        let own = |step: &&(Instructions, usize)| step.1 == processor;
        assert!(steps.iter().filter(own).count() > 1_000, "processor {processor} runs");
        let parts = turns(&mut timeline, interval, Some(processor), &mut || false).unwrap().unwrap();
        let is_in = |at: Instructions, part: &Interval| part.start <= at && at < part.end;
        for (at, running) in &steps {
            let found = parts.iter().filter(|part| is_in(*at, part)).count();
            assert!(
                found == 1 || found == 0 && *running != processor,
                "{at:?} of processor {running}: {parts:?}"
            );
        }
        for (number, part) in parts.iter().enumerate() {
            assert!(part.start < part.end && part.start >= start && part.end <= interval.end, "{parts:?}");
            // The last part may belong to another processor.
            let is_own =
                steps.iter().filter(|(at, _)| is_in(*at, part)).all(|(_, running)| *running == processor);
            assert!(is_own || number + 1 == parts.len(), "{part:?} of processor {processor}");
        }
        in_turns += parts.len();
    }
    assert!(in_turns > 6, "{in_turns} turns");
}

#[test]
fn instructions_may_write_their_operands_and_restored_vectors() {
    type Assemble = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let rows: [(Assemble, &[Reg], bool); 12] = [
        (|a| a.mov(rax, rbx), &[Reg::General(0)], true),
        (|a| a.mov(rax, rbx), &[Reg::General(3)], false),
        (|a| a.mov(rax, rbx), &[Reg::General(3), Reg::General(0)], true),
        (|a| a.mov(al, bl), &[Reg::General(0)], true),
        (|a| a.cmovb(rax, rbx), &[Reg::General(0)], true),
        (|a| a.cmp(rax, rbx), &[Reg::General(0)], false),
        (|a| a.push(rax), &[Reg::General(4)], true),
        (|a| a.movaps(xmm1, xmm2), &[Reg::Vector(1)], true),
        (|a| a.movaps(xmm1, xmm2), &[Reg::Vector(2), Reg::General(1)], false),
        (|a| a.fxrstor(ptr(rbx)), &[Reg::Vector(9)], true),
        (|a| a.fxrstor(ptr(rbx)), &[Reg::General(9)], false),
        (|a| a.fxsave(ptr(rbx)), &[Reg::Vector(9)], false),
    ];
    for (assemble, registers, expected) in rows {
        let (instruction, _) = step(assemble, Vec::new(), Vec::new()).executed.unwrap();
        assert_eq!(may_write(&instruction, registers), expected, "{instruction} {registers:?}");
    }
}

/// In a long interval, the observer sees only the instructions that may write the registers.
#[test]
fn long_intervals_are_searched_with_a_filter() {
    let cell = Cell::Register { processor: 2, register: Reg::General(3), byte: 0 };
    for (steps, sees_all) in [(1, true), (MOST_WHOLE_STEPS, true), (MOST_WHOLE_STEPS + 1, false)] {
        let writes = RegisterWrites::to(&[(cell, 0)], steps);
        assert_eq!((writes.processor, &*writes.registers), (2, &[Reg::General(3)][..]));
        let wants = writes.wants();
        assert_eq!(
            (matches!(wants.fetches, Places::All), wants.instructions.is_none()),
            (sees_all, sees_all)
        );
        assert!(matches!(wants.deliveries, Vectors::All));
    }
}
