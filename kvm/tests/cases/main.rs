//! Runs one table of small programs on both engines. A case has code bytes, a start state, and the end state that the
//! manuals specify (Intel SDM, AMD APM). The table also lists each engine's differences, with their reasons.
//!
//! The software CPU runs as each of its models. KVM runs if this host has one that executes as hardware does.
//! `CASES=word` runs the cases with that word in their name, `CASES_EVERY=4` each fourth case.

mod board;
mod case;
mod check;
mod expected;
mod fields;
mod machine;

use std::collections::BTreeSet;
use std::io::Write;

use cpu::CpuModel;

use crate::case::Case;
use crate::machine::Engine;

const TABLE: [&str; 11] = [
    include_str!("table/arithmetic.txt"),
    include_str!("table/bits.txt"),
    include_str!("table/moves.txt"),
    include_str!("table/flow.txt"),
    include_str!("table/vector.txt"),
    include_str!("table/segments.txt"),
    include_str!("table/real.txt"),
    include_str!("table/system.txt"),
    include_str!("table/registers.txt"),
    include_str!("table/access.txt"),
    include_str!("table/events.txt"),
];

/// Prints a line that is shown even if the test passes.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn table() -> Vec<Case> {
    let word = std::env::var("CASES").unwrap_or_default();
    let every = std::env::var("CASES_EVERY").map_or(1, |text| text.parse().expect("it is a number"));
    let cases = TABLE.iter().flat_map(|text| case::parse(text));
    cases.filter(|case| case.name.contains(&word)).step_by(every).collect()
}

/// KVM on this host, or why it cannot be used.
fn kvm_engine() -> Result<Engine, String> {
    let capabilities = kvm::capabilities().map_err(|error| error.to_string())?;
    if let Some(what) = capabilities.missing {
        return Err(format!("KVM lacks {what}"));
    }
    kvm::refuse_imitation().map_err(|error| error.to_string())?;
    kvm::model().map(Engine::Kvm).map_err(|error| error.to_string())
}

/// Runs every case on an engine and returns the failures.
fn run_all(cases: &[Case], engine: Engine) -> Vec<String> {
    let mut failures = Vec::new();
    let mut emulated = 0;
    for case in cases {
        let report = check::run(case, engine);
        emulated += report.emulated;
        let failed = report.mismatches.iter();
        failures.extend(
            failed.map(|what| format!("{} [{}] on {}: {what}", case.name, case.assembly, engine.name())),
        );
    }
    let by_software = if emulated == 0 {
        String::new()
    } else {
        format!(", {emulated} instructions by the software CPU in its place")
    };
    say(&format!("{}: {} cases, {} mismatches{by_software}", engine.name(), cases.len(), failures.len()));
    failures
}

fn list_differences(cases: &[Case], engines: &[Engine]) {
    say("differences that are expected of these engines:");
    for case in cases {
        for difference in &case.differences {
            if engines.iter().any(|engine| difference.on.applies_to(*engine)) {
                let (on, text, reason) = (difference.on, &difference.text, &difference.reason);
                say(&format!("  {} on {on:?}: {text}, because {reason}", case.name));
            }
        }
    }
}

/// Runs every case on these engines. All cases must end as the table says.
fn assert_all(engines: &[Engine]) {
    let cases = table();
    let failures: Vec<String> = engines.iter().flat_map(|engine| run_all(&cases, *engine)).collect();
    list_differences(&cases, engines);
    failures.iter().for_each(|failure| say(failure));
    assert!(failures.is_empty(), "{} mismatches", failures.len());
}

#[test]
fn every_case_ends_as_the_manuals_say_on_the_software_cpu() {
    assert_all(&[CpuModel::V2, CpuModel::V2_1, CpuModel::V2Kvm, CpuModel::V2KvmTcg].map(Engine::Soft));
}

#[test]
fn every_case_ends_as_the_manuals_say_on_kvm() {
    match kvm_engine() {
        Ok(kvm) => assert_all(&[kvm]),
        Err(why) => skip::test(format!("the cases on KVM: {why}")),
    }
}

#[test]
fn names_are_unique_and_a_wrong_expectation_is_seen() {
    let all: Vec<Case> = TABLE.iter().flat_map(|text| case::parse(text)).collect();
    let names: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
    for (wrong, expected) in [
        ("rax=2", "rax: expected 2, found 1"),
        ("rax=1 rbx=5", "rbx: expected 5, found 0"),
        ("rax=1 b[data]=7", "[0xb000]: expected 07, found 00"),
        ("rax=1 out:10.1=1", "accesses: expected out:10.1=1, found "),
        ("#GP(0)", "expected Vector(d, Some(0)), found Halt with rax=1 rip=4006"),
        ("rax=1 rip=code", "rip: expected 4000, found 4006"),
    ] {
        let text = format!("kernel: a wrong one\n code b8 01 00 00 00\n to {wrong}");
        let report = check::run(&case::parse(&text)[0], Engine::Soft(CpuModel::V2));
        assert_eq!(report.mismatches, [expected]);
    }
}
