//! `ttvm doctor`: tests whether this host supports each engine, `--net`, `--passthrough` and the sandbox, and gives
//! advice on missing parts.

mod finding;
mod network;
mod passthrough;
mod sandbox;

use kvm::Probe;
use machine::error::{Error, exit_code};
use serde::Serialize;

use finding::{Finding, finding};

/// Show what this host offers, and how to get what is missing
///
/// Looks at the engines, --net, --passthrough and the sandbox.
///
/// Examples:
///   ttvm doctor
///   ttvm doctor --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// Whether KVM works, with hardware virtualisation.
    kvm: bool,
    /// Whether the processor can count conditional branches. With KVM, ttvm finds positions by this count.
    counter: bool,
    /// The engine that `--engine auto` chooses for a new run.
    auto: &'static str,
    why: &'static str,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let report = examine();
    if args.json {
        crate::output::print(&serde_json::to_string_pretty(&report).expect("plain data always serializes"))?;
        return Ok(exit_code::DONE);
    }
    let mut lines = Vec::new();
    for Finding { name, ok, detail, advice } in &report.findings {
        lines.push(format!("{} {name}: {detail}", if *ok { "ok  " } else { "--  " }));
        if !advice.is_empty() {
            lines.push(format!("      {advice}"));
        }
    }
    lines.push(format!("--engine auto takes {}: {}", report.auto, report.why));
    crate::output::print(&lines.join("\n"))?;
    Ok(exit_code::DONE)
}

fn examine() -> Report {
    let mut findings = vec![memory(), finding("software engine", true, "runs on every x86-64 Linux", "")];
    let kvm = examine_kvm(&mut findings);
    let counter = examine_counter(&mut findings);
    findings.extend(network::examine());
    findings.extend(passthrough::Host::this().examine());
    findings.extend(sandbox::examine());
    let why = match (kvm, counter) {
        (false, _) => "KVM does not work here",
        (true, false) => "KVM works, but without a counter each asynchronous position needs a search",
        (true, true) => "KVM and a counter work, but ttvm has not been tested on such a machine",
    };
    Report { findings, kvm, counter, auto: "soft", why }
}

/// Memory that is free for guests.
fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = available.and_then(|text| text.trim().split(' ').next()?.parse().ok()).unwrap_or(0);
    let enough = kib >= 512 << 10;
    finding(
        "memory",
        enough,
        format!("{} MiB are free", kib >> 10),
        if enough {
            ""
        } else {
            "a guest with the default 256M needs about 512 MiB: end other programs, or use a smaller --memory"
        },
    )
}

/// Whether KVM works.
fn examine_kvm(findings: &mut Vec<Finding>) -> bool {
    let capabilities = match kvm::capabilities() {
        Ok(capabilities) => capabilities,
        Err(error) => {
            findings.push(finding("/dev/kvm", false, error.to_string(), ""));
            return false;
        }
    };
    let missing = capabilities.missing;
    findings.push(finding(
        "/dev/kvm",
        missing.is_none(),
        missing.map_or("has what the engine needs".to_string(), |what| format!("lacks {what}")),
        if missing.is_some() { "use Linux 5.10 or newer, or --engine soft" } else { "" },
    ));
    let ring = if capabilities.dirty_ring { "ring and log" } else { "log" };
    findings.push(finding("written pages", true, format!("{ring}; the log is used"), ""));
    if missing.is_some() {
        return false;
    }
    let mut works = true;
    for (name, result) in kvm::probe() {
        let (ok, detail) = match result {
            Probe::Works => (true, "as hardware does it".to_string()),
            Probe::Fails(why) => (false, why),
        };
        works &= ok;
        findings.push(finding(name, ok, detail, ""));
    }
    if !works {
        let detail =
            "this is not the processor's own virtualisation (VMX or SVM) but an imitation in software";
        let advice = "use --engine soft (the default), or a host with hardware virtualisation";
        findings.push(finding("kind of KVM", false, detail, advice));
    }
    works
}

/// Whether conditional branches can be counted.
fn examine_counter(findings: &mut Vec<Finding>) -> bool {
    let report = kvm::test_counter();
    let event = report.event.map_or("no event".to_string(), |event| format!("event {event:#x}"));
    let detail = match &report.usable {
        Ok(()) => format!("{event}, exact over a known loop"),
        Err(why) => format!("{event}: {why}"),
    };
    findings.push(finding("branch counter", report.usable.is_ok(), detail, report.advice));
    findings.extend(report.tests.into_iter().map(|test| {
        let (ok, detail) = match test.found {
            Ok(detail) => (true, detail),
            Err(why) => (false, why),
        };
        finding(test.name, ok, detail, if ok { "" } else { test.advice })
    }));
    report.usable.is_ok()
}
