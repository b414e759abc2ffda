//! Runs a machine to its end, and compares the results.

use machine::inputs::Inputs;
use machine::position::{Instructions, Moment};
use machine::{Hashes, Machine, Outcome, RunStop};

use machine::script::Script;

/// The largest number of steps of a run. If a guest executes more steps, the test assumes that the guest hangs.
pub const STEP_LIMIT: Instructions = Instructions(60_000_000_000);

/// Counts and hashes at one point of a run. Equal runs have equal fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Instructions and virtual time.
    pub at: Moment<Instructions>,
    /// Retired conditional branches.
    pub branches: u64,
    /// The hash of every part of the machine.
    pub hashes: Hashes,
}

/// The machine's fingerprint at its present position.
pub fn fingerprint(machine: &mut Machine<Instructions>) -> Fingerprint {
    Fingerprint { at: machine.moment(), branches: machine.cpu().branches(), hashes: machine.hashes() }
}

/// Runs to an instruction count. Returns `None` if the run reached the count, otherwise the outcome with which the
/// run ended earlier.
pub fn run_until(
    machine: &mut Machine<Instructions>,
    until: Instructions,
    inputs: &mut dyn Inputs<Instructions>,
) -> Option<Outcome> {
    match machine.run(until, inputs).unwrap_or_else(|error| panic!("{error}")) {
        RunStop::Reached => None,
        RunStop::Ended(outcome) => Some(outcome),
        other => panic!("stopped without break- or watchpoints: {other:?}"),
    }
}

/// Runs to the end. Fails with the console's last lines if the guest does not end.
pub fn run_to_end(machine: &mut Machine<Instructions>, script: &mut Script) -> Outcome {
    let outcome = run_until(machine, STEP_LIMIT, script);
    let now = machine.moment();
    let rip = machine.cpu().rip();
    outcome.unwrap_or_else(|| panic!("still running at {now:?}, RIP {rip:#x}:\n{}", last_lines(script)))
}

/// Runs to a power-off, and returns the console's text.
pub fn run_to_power_off(machine: &mut Machine<Instructions>, script: &mut Script) -> String {
    let outcome = run_to_end(machine, script);
    assert_eq!(outcome, Outcome::PowerOff, "the console's last lines:\n{}", last_lines(script));
    script.text()
}

/// Prints the console and fails, unless the console shows `text`.
pub fn assert_shows(script: &Script, text: &str) {
    assert!(script.text().contains(text), "no '{text}' on the console:\n{}", last_lines(script));
}

/// The end of the console's output.
pub fn last_lines(script: &Script) -> String {
    let text = script.text();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
