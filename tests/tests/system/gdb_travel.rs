//! Runs a long session of an unmodified gdb with the tt commands: steps, breakpoints and searches in both
//! directions, mixed with `tt goto` and scratch forks. The test compares each position with a replay in single
//! steps without time travel.

use history::replay;
use machine::position::{Count, Instructions};
use tests::gdb::session::GdbScript;
use tests::random::Random;
use tests::record::open;
use tests::traveller::Traveller;

/// RIP and the guest's counter at every step count.
struct Trace(Vec<(u64, u32)>);

impl Trace {
    fn new(traveller: &Traveller) -> Trace {
        let recording = open(&traveller.path);
        let (mut machine, mut player) = replay::open(&recording).unwrap_or_else(|error| panic!("{error}"));
        let mut trace = Vec::new();
        for step in 0..=traveller.end.at.count.number() {
            machine.run(Instructions(step), &mut player).unwrap_or_else(|error| panic!("{error}"));
            let mut counter = [0; 4];
            assert_eq!(machine.cpu().core().peek(traveller.counter, &mut counter), 4);
            trace.push((machine.cpu().rip(), u32::from_le_bytes(counter)));
        }
        Trace(trace)
    }

    fn end(&self) -> usize {
        self.0.len() - 1
    }

    /// Returns the target of a backward run from `from` to a breakpoint at `rip`.
    fn breakpoint_before(&self, from: usize, rip: u64) -> usize {
        (0..from).rev().find(|&at| self.0[at].0 == rip).unwrap_or(0)
    }

    fn breakpoint_after(&self, from: usize, rip: u64) -> usize {
        (from + 1..=self.end()).find(|&at| self.0[at].0 == rip).unwrap_or(self.end())
    }

    /// Returns the step count directly before the last change of the counter before `from`.
    fn change_before(&self, from: usize) -> usize {
        (0..from).rev().find(|&at| self.0[at].1 != self.0[at + 1].1).unwrap_or(0)
    }
}

/// gdb's script, and the expected output.
struct Session<'a> {
    trace: &'a Trace,
    traveller: &'a Traveller,
    script: GdbScript,
    at: usize,
}

impl Session<'_> {
    fn command(&mut self, command: &str) {
        self.script.command(command);
    }

    fn show(&mut self) {
        let counter = self.traveller.counter;
        let (rip, value) = self.trace.0[self.at];
        self.script.ask(
            format!("printf \"at %lu %lx %u\\n\", $_tt_position(), $rip, *(unsigned int *) {counter:#x}"),
            format!("at {} {rip:x} {value}\n", self.at),
        );
    }

    /// Makes one movement or one fork. The kinds follow one another in turn.
    fn act(&mut self, number: usize, random: &mut Random) {
        let Traveller { hook, counter, .. } = *self.traveller;
        let place = random.below(self.trace.end() as u64 - 2000) as usize + 1000;
        match number % 8 {
            0 => {
                self.command(&format!("tt goto insn:{place}"));
                self.at = place;
            }
            1 => {
                self.command("reverse-stepi 40");
                self.at -= 40;
            }
            2 => {
                self.command("stepi 25");
                self.at += 25;
            }
            3 => {
                self.command(&format!("tbreak *{hook:#x}"));
                self.command("reverse-continue");
                self.command("delete");
                self.at = self.trace.breakpoint_before(self.at, hook);
            }
            4 => {
                self.command(&format!("tt back-to last-change *(unsigned int *) {counter:#x}"));
                self.at = self.trace.change_before(self.at);
            }
            5 => {
                self.command(&format!("tbreak *{hook:#x}"));
                self.command("continue");
                self.command("delete");
                self.at = self.trace.breakpoint_after(self.at, hook);
            }
            6 => {
                // Change the counter in the fork. This change must disappear when the session leaves the fork.
                self.command(&format!("set var *(unsigned int *) {counter:#x} = 4711"));
                self.command("set var $ebx = 1");
                self.command("stepi 30");
                self.command("tt back");
            }
            _ => {
                let remainder = random.below(8);
                self.command(&format!(
                    "break *{hook:#x} if (*(unsigned int *) {counter:#x} >> 16) % 8 == {remainder}"
                ));
                self.command("reverse-continue");
                self.command("delete");
                let holds = |&at: &usize| {
                    let (rip, counter) = self.trace.0[at];
                    rip == hook && u64::from((counter >> 16) % 8) == remainder
                };
                self.at = (0..self.at).rev().find(holds).unwrap_or(0);
            }
        }
        self.show();
    }
}

#[test]
fn a_long_session_agrees_with_single_stepping() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let traveller = Traveller::record_with_checkpoints(directory.path(), 300_000);
    let trace = Trace::new(&traveller);
    let mut session = Session { trace: &trace, traveller: &traveller, script: GdbScript::default(), at: 0 };
    let mut random = Random::new(5);
    (0..64).for_each(|number| session.act(number, &mut random));
    for (place, at) in [("start", 0), ("end", trace.end())] {
        session.command(&format!("tt goto {place}"));
        session.at = at;
        session.show();
    }
    assert!(session.script.len() >= 150, "{}", session.script.len());
    let transcript = session.script.run(&open(&traveller.path), directory.path(), &[]);
    session.script.check(&transcript);
}
