//! Finds the first instruction after which a guest differs from the interpreter's guest.

use cpu::Cpu;
use guest_ram::GuestRam;
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use std::fmt::Write;

use crate::campaign::{Difference, Kind};
use crate::layout::RAM_BYTES;
use crate::program::{Program, stream};
use crate::tier::{Interpreted, Tier};
use crate::ways::{self, Snapshot};

/// Number of instructions that the description shows. The guests differ after the last shown instruction.
const SHOWN: u64 = 8;
/// The largest number of run lengths that `difference` tries one after the other. If more lengths are possible,
/// `difference` bisects.
const ONE_BY_ONE: u64 = 2000;
/// The largest number of lines of differences that are shown.
const LINES: usize = 24;

/// Describes a difference between a guest and the interpreter's guest.
pub fn difference<T: Tier>(kind: Kind, seed: u64, found: &Difference) -> String {
    let program = kind.program(seed, found.program);
    let seen = program.cuts[found.cut];
    let mut text = format!(
        "program {} ({:?}, paging {:?}): {:?} differs from the interpreter at step {seen} of {}\n",
        found.program,
        program.mode,
        program.paging,
        found.way,
        program.length(),
    );
    // Run the program for `length` steps. The shortest run with a difference shows the step that makes the
    // difference.
    let ended_at = |length| {
        let shortened = program.shortened(length);
        let expected = kind.reference(&shortened);
        let mut rng = stream(seed ^ 1, found.program);
        let (cut, other) = ways::compare::<T>(&shortened, &expected, found.way, &mut rng)?;
        Some((expected[cut].clone(), other))
    };
    let (mut from, mut until) = (found.cut.checked_sub(1).map_or(0, |before| program.cuts[before]), seen);
    while until - from > ONE_BY_ONE {
        let middle = from + (until - from) / 2;
        if ended_at(middle).is_some() {
            until = middle;
        } else {
            from = middle;
        }
    }
    let Some((length, (expected, other))) =
        (from + 1..=until).find_map(|length| Some((length, ended_at(length)?)))
    else {
        text.push_str("  shorter runs of it are equal\n");
        return text;
    };
    for step in length.saturating_sub(SHOWN)..length {
        let _ = writeln!(text, "  step {step}: {}", instruction(&at(kind, &program, step)));
    }
    let _ = writeln!(text, "after step {length} (interpreter | {:?}):", found.way);
    text.push_str(&changes(&expected, &other));
    text
}

/// Returns the guest after `step` steps of the interpreter.
fn at(kind: Kind, program: &Program, step: u64) -> Snapshot {
    if step == 0 {
        return ways::Guest::<Interpreted>::start(program).snapshot();
    }
    kind.reference(&program.shortened(step)).pop().expect("every program has an end")
}

/// The next instruction of the snapshot's guest, disassembled.
fn instruction(snapshot: &Snapshot) -> String {
    let state = &snapshot.state;
    let code = state.segments[1];
    let bits = match state.msrs.efer & 0x400 != 0 && code.long() {
        true => 64,
        false if code.big() => 32,
        false => 16,
    };
    let address = if bits == 64 { state.rip } else { code.base.wrapping_add(state.rip) & 0xffff_ffff };
    #[allow(clippy::arc_with_non_send_sync, reason = "a look at RAM by one thread")]
    let ram = GuestRam::new(RAM_BYTES).expect("128 KiB can be mapped");
    ram.write_bytes(0, &snapshot.ram);
    let mut cpu = Cpu::new(ram);
    cpu.set_state(state);
    let mut bytes = [0; 15];
    let read = cpu.core().peek(address, &mut bytes);
    let decoded = Decoder::with_ip(bits, &bytes[..read], state.rip, DecoderOptions::NONE).decode();
    let mut text = String::new();
    IntelFormatter::new().format(&decoded, &mut text);
    let asleep = if state.halted { " (halted)" } else { "" };
    format!("{bits} bits, level {}, {:#x}: {text}{asleep}", state.segments[2].dpl(), state.rip)
}

/// The differences between two snapshots, side by side.
fn changes(left: &Snapshot, right: &Snapshot) -> String {
    let lines = |snapshot: &Snapshot| {
        format!(
            "{:#x?}\n{:#x?}\n{:#x?}\n{:#x?}\n{:#x?}",
            snapshot.state, snapshot.counts, snapshot.lines, snapshot.turns, snapshot.parked
        )
    };
    let (left_lines, right_lines) = (lines(left), lines(right));
    let registers = left_lines
        .lines()
        .zip(right_lines.lines())
        .filter(|(left, right)| left != right)
        .map(|(left, right)| format!("  {} | {}\n", left.trim(), right.trim()));
    let memory = left
        .ram
        .chunks(8)
        .zip(right.ram.chunks(8))
        .enumerate()
        .filter(|(_, (left, right))| left != right)
        .map(|(at, (left, right))| format!("  RAM {:#x}: {left:02x?} | {right:02x?}\n", at * 8));
    let mut all = registers.chain(memory);
    let mut text = all.by_ref().take(LINES).collect::<String>();
    let rest = all.count();
    if rest > 0 {
        let _ = writeln!(text, "  and {rest} lines more");
    }
    text
}
