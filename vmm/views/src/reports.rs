//! The reports of the guest's kernel, as `ttvm reports` shows them.

use std::fmt::{Display, Formatter, Result as Written};

use history::timeline::{Poll, Report, Timeline};
use machine::error::Error;
use machine::position::Count;
use schemars::JsonSchema;
use serde::Serialize;

/// One report.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ReportRow {
    /// The report's number, as in `report:N`.
    pub number: usize,
    /// The report's kind: `panic`, `oops`, `bug`, `warning`, `kasan` or `lockdep`.
    pub kind: String,
    /// Instructions executed before the first line of the report is complete.
    pub instruction: u64,
    /// The guest's time when the first line of the report is complete.
    pub guest_seconds: f64,
    /// The running thread's number, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The report's first line.
    pub line: String,
}

/// All reports of a recording.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[serde(transparent)]
pub struct ReportList {
    /// The reports, in the order of the run.
    pub reports: Vec<ReportRow>,
}

impl ReportList {
    /// Finds all reports. The timeline's position does not change.
    pub fn of(timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<ReportList, Error> {
        let reports = timeline.reports(poll)?;
        Ok(ReportList {
            reports: (1..).zip(reports.iter()).map(|(number, report)| row(number, report)).collect(),
        })
    }
}

fn row(number: usize, report: &Report) -> ReportRow {
    ReportRow {
        number,
        kind: report.kind.to_string(),
        instruction: report.at.number(),
        guest_seconds: report.time_ns as f64 / 1e9,
        pid: report.thread.as_ref().map(|thread| thread.id),
        name: report.thread.as_ref().map(|thread| thread.name.clone()),
        line: report.line.clone(),
    }
}

/// The text for people.
impl Display for ReportList {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let line = |row: &ReportRow| {
            let ReportRow { number, kind, instruction, guest_seconds, line, .. } = row;
            let thread = match (row.pid, &row.name) {
                (Some(pid), Some(name)) => format!("  {pid} ({name})"),
                _ => String::new(),
            };
            let place = format!("insn:{instruction}");
            format!("report:{number:<3} {kind:8} {place:16} {guest_seconds:.9} s{thread}  {line}")
        };
        let lines: Vec<String> = self.reports.iter().map(line).collect();
        f.write_str(&if lines.is_empty() {
            "the guest's kernel reports nothing".to_string()
        } else {
            lines.join("\n")
        })
    }
}
