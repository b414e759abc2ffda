//! The local APICs.

use std::fmt::{Display, Formatter, Result as Written};

use devices::interrupt_message::DeliveryMode;
use devices::lapic::{LapicSummary, LocalEntry, Mode, StartupV1, TimerMode, TimerSummary};
use schemars::JsonSchema;
use serde::Serialize;

use super::vectors::{Names, VectorUse, delivery};
use super::words::{listed, seconds};
use crate::processors::Activity;

/// The local APIC of a processor.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct LocalApic {
    /// The number of the processor.
    pub processor: usize,
    /// The APIC's id.
    pub id: u8,
    /// The processor's activity.
    pub activity: Activity,
    /// The page number of a start-up message (SIPI) that has come, if the processor has not started yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_page: Option<u8>,
    /// The mode: `disabled`, `xAPIC` or `x2APIC`.
    pub mode: &'static str,
    /// Whether software enables the APIC.
    pub is_software_enabled: bool,
    /// The id for logical destinations.
    pub logical_id: u32,
    /// The task priority (TPR).
    pub task_priority: u8,
    /// The processor priority (PPR).
    pub processor_priority: u8,
    /// The vectors in service (ISR).
    pub in_service: Vec<VectorUse>,
    /// The vectors that wait (IRR).
    pub requested: Vec<VectorUse>,
    /// Whether a non-maskable interrupt waits.
    pub is_nmi_pending: bool,
    /// The errors since the guest last wrote the error register, a bit each.
    pub errors: u32,
    /// The local vector table.
    pub local_sources: Vec<LocalSource>,
    /// The timer.
    pub timer: LocalTimer,
}

/// An entry of the local vector table.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LocalSource {
    /// The interrupt's source.
    pub source: &'static str,
    /// Whether the source is masked.
    pub is_masked: bool,
    /// The delivery mode.
    pub delivery: &'static str,
    /// The vector.
    #[serde(flatten)]
    pub vector: VectorUse,
}

/// The timer of a local APIC.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct LocalTimer {
    /// The mode: `one-shot`, `periodic` or `TSC-deadline`.
    pub mode: &'static str,
    /// The count from which the timer counts down.
    pub initial_count: u32,
    /// The divider of the timer's clock of 1 GHz.
    pub divider: u32,
    /// The guest time at which the timer expires, if it runs.
    pub expires_seconds: Option<f64>,
    /// The same in nanoseconds.
    #[serde(skip)]
    pub expires_ns: Option<u64>,
}

impl LocalApic {
    pub(super) fn all(names: &Names<'_>) -> Vec<LocalApic> {
        names
            .machine
            .all_processors()
            .zip(names.board().lapics())
            .map(|(processor, lapic)| {
                let number = processor.number();
                let LapicSummary {
                    id,
                    mode,
                    is_software_enabled,
                    logical_id,
                    task_priority,
                    processor_priority,
                    in_service,
                    requested,
                    errors,
                    entries,
                    timer,
                } = lapic.summary();
                let vectors = |vectors: Vec<u8>| {
                    vectors.into_iter().map(|vector| names.vector(number, vector)).collect()
                };
                LocalApic {
                    processor: number,
                    id,
                    activity: Activity::of(&processor),
                    startup_page: match lapic.startup() {
                        StartupV1::Due(page) => Some(page),
                        StartupV1::Done | StartupV1::Awaited => None,
                    },
                    mode: match mode {
                        Mode::Disabled => "disabled",
                        Mode::XApic => "xAPIC",
                        Mode::X2Apic => "x2APIC",
                    },
                    is_software_enabled,
                    logical_id,
                    task_priority,
                    processor_priority,
                    in_service: vectors(in_service),
                    requested: vectors(requested),
                    is_nmi_pending: lapic.nmi_pending(),
                    errors,
                    local_sources: entries
                        .into_iter()
                        .map(|entry| LocalSource::of(entry, number, names))
                        .collect(),
                    timer: timer.into(),
                }
            })
            .collect()
    }

    /// The local source with this name.
    pub(super) fn source(&self, name: &str) -> Option<&LocalSource> {
        self.local_sources.iter().find(|source| source.source == name)
    }
}

impl LocalSource {
    fn of(entry: LocalEntry, processor: usize, names: &Names<'_>) -> LocalSource {
        let LocalEntry { source, vector, mode, is_masked } = entry;
        let is_named = mode == DeliveryMode::Fixed && !is_masked;
        let unnamed = VectorUse { vector, irq: None, handlers: Vec::new() };
        let vector = if is_named { names.vector(processor, vector) } else { unnamed };
        LocalSource { source, is_masked, delivery: delivery(mode), vector }
    }
}

impl From<TimerSummary> for LocalTimer {
    fn from(timer: TimerSummary) -> LocalTimer {
        let TimerSummary { mode, initial_count, divider, expires_ns } = timer;
        let mode = match mode {
            TimerMode::OneShot => "one-shot",
            TimerMode::Periodic => "periodic",
            TimerMode::TscDeadline => "TSC-deadline",
        };
        let expires_seconds = expires_ns.map(seconds);
        LocalTimer { mode, initial_count, divider, expires_seconds, expires_ns }
    }
}

impl Display for LocalApic {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let enabled = if self.is_software_enabled { "" } else { ", disabled by software" };
        write!(
            f,
            "processor {}, {}: local APIC {}, {}{enabled}",
            self.processor,
            self.activity.words(),
            self.id,
            self.mode
        )?;
        if let Some(page) = self.startup_page {
            write!(f, "\n  a start-up message for page {page:#x} has come")?;
        }
        write!(
            f,
            "\n  task priority {:#x}, processor priority {:#x}, logical id {:#x}",
            self.task_priority, self.processor_priority, self.logical_id
        )?;
        write!(f, "\n  in service: {}", listed(&self.in_service))?;
        write!(f, "\n  waiting: {}", listed(&self.requested))?;
        if self.is_nmi_pending {
            write!(f, "\n  an NMI waits")?;
        }
        if self.errors != 0 {
            write!(f, "\n  errors {:#x}", self.errors)?;
        }
        self.local_sources.iter().try_for_each(|source| write!(f, "\n  {source}"))?;
        write!(f, "\n  {}", self.timer)
    }
}

impl Display for LocalSource {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let LocalSource { source, is_masked, delivery, vector } = self;
        match (is_masked, *delivery) {
            (true, _) => write!(f, "{source:11}  masked"),
            (false, "fixed") => write!(f, "{source:11}  {vector}"),
            (false, other) => write!(f, "{source:11}  {other}"),
        }
    }
}

impl Display for LocalTimer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "the timer is {}", self.mode)?;
        match self.expires_seconds {
            Some(at) => write!(f, ", and expires at {at:.9} s"),
            None => write!(f, ", and does not run"),
        }
    }
}
