//! The processors of a machine: their description, and the state that only a machine with several processors has.

use cpu::{CpuState, CpuStateV1, SpinState, TURN_STEPS, Topology, Turn, TurnPolicy, TurnRules, TurnState};
use devices::platform::OtherLapicV1;
use serde::{Deserialize, Serialize, Serializer};

/// The largest number of processors.
pub const MAX_PROCESSORS: u8 = 64;

/// The length of a round in which each processor has one turn of the ring, in steps. A step takes a nanosecond of guest
/// time, so a round is shorter than a tick of a kernel with 250 ticks a second.
///
/// Each turn begins with the host's caches full of another processor's data, so long turns are cheap. With turns of
/// 100,000 steps, four busy processors take 12 % more CPU time than with turns of 800,000.
const ROUND_STEPS: u64 = 3_200_000;
/// The longest turn that a new machine has, in steps.
const MOST_TURN_STEPS: u64 = 1_000_000;
/// The longest turn that a manifest may have, in steps.
const MOST_STORED_TURN_STEPS: u64 = 1 << 40;

/// The number of a machine's processors, their topology and their policy of turns. The default is one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Processors {
    #[serde(rename = "processors")]
    count: u8,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "topology_in_numbers")]
    topology: Option<Topology>,
    #[serde(skip_serializing_if = "is_ring")]
    turns: TurnPolicy,
    #[serde(skip)]
    ring_steps: u64,
    #[serde(skip)]
    spins_yield: bool,
}

impl Processors {
    /// Describes `count` processors, as cores of one socket that take turns in a ring. If a processor spins, its
    /// turn ends. The more processors, the shorter the turns. `None` unless `count` is 1 to [`MAX_PROCESSORS`].
    pub fn new(count: u8) -> Option<Processors> {
        let processors = Processors::without_topology(count)?.with_topology(1, 1)?.with_spins_yield(true);
        let steps = (ROUND_STEPS / u64::from(count)).clamp(TURN_STEPS, MOST_TURN_STEPS);
        processors.with_ring_steps(steps)
    }

    /// Describes processors as in recordings of earlier versions of ttvm. CPUID has only the number of processors. A turn
    /// of the ring has [`TURN_STEPS`]. A processor that spins keeps its turn unless it executes PAUSE.
    pub fn without_topology(count: u8) -> Option<Processors> {
        let is_possible = (1..=MAX_PROCESSORS).contains(&count);
        is_possible.then_some(Processors {
            count,
            topology: None,
            turns: TurnPolicy::Ring,
            ring_steps: TURN_STEPS,
            spins_yield: false,
        })
    }

    /// The same processors, divided into `sockets` sockets, and into cores with `threads` threads each. `None` if
    /// the number of processors cannot be divided in this way. For one processor, no topology is stored.
    pub fn with_topology(self, sockets: u8, threads: u8) -> Option<Processors> {
        let topology = Topology::new(self.count, sockets, threads)?;
        Some(Processors { topology: Some(topology).filter(|_| self.count > 1), ..self })
    }

    /// The same processors with another policy of turns. `None` for one processor, which takes no turns.
    pub fn with_turns(self, turns: TurnPolicy) -> Option<Processors> {
        (self.count > 1).then_some(Processors { turns, ..self })
    }

    /// The same processors, where a turn of the ring has `steps` instructions. `None` if `steps` is 0 or more than
    /// 2^40. Has no effect for one processor, which takes no turns.
    pub fn with_ring_steps(self, steps: u64) -> Option<Processors> {
        let ring_steps = if self.count > 1 { steps } else { TURN_STEPS };
        (1..=MOST_STORED_TURN_STEPS).contains(&steps).then_some(Processors { ring_steps, ..self })
    }

    /// The same processors, where `spins_yield` says whether a turn ends if its processor spins without PAUSE. Has
    /// no effect for one processor, which takes no turns.
    #[must_use]
    pub fn with_spins_yield(self, spins_yield: bool) -> Processors {
        Processors { spins_yield: spins_yield && self.count > 1, ..self }
    }

    /// The number of processors.
    pub fn count(self) -> u8 {
        self.count
    }

    /// Sockets, cores and threads, if CPUID describes them.
    pub fn topology(self) -> Option<Topology> {
        self.topology
    }

    /// The rule that gives turns to the processors.
    pub fn turns(self) -> TurnPolicy {
        self.turns
    }

    /// The rules by which the processors take turns.
    pub fn turn_rules(self) -> TurnRules {
        TurnRules { policy: self.turns, ring_steps: self.ring_steps, spins_yield: self.spins_yield }
    }

    /// The processors' APIC ids, in ascending order.
    pub fn apic_ids(self) -> Vec<u8> {
        let id = |number| self.topology.map_or(number, |topology| topology.apic_id(number));
        (0..self.count).map(id).collect()
    }
}

impl Default for Processors {
    fn default() -> Processors {
        Processors {
            count: 1,
            topology: None,
            turns: TurnPolicy::Ring,
            ring_steps: TURN_STEPS,
            spins_yield: false,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_ring(turns: &TurnPolicy) -> bool {
    *turns == TurnPolicy::Ring
}

#[allow(clippy::ref_option, reason = "serde calls it with a reference")]
fn topology_in_numbers<S: Serializer>(topology: &Option<Topology>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Numbers {
        sockets: u8,
        cores_per_socket: u8,
        threads_per_core: u8,
    }
    let numbers = topology.map(|topology| Numbers {
        sockets: topology.sockets(),
        cores_per_socket: topology.cores(),
        threads_per_core: topology.threads(),
    });
    numbers.serialize(to)
}

/// The state that a machine with several processors has in addition to the state of a machine with one processor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherProcessors {
    /// The number of the processor in the seat: the processor whose turn it is.
    pub seat: u8,
    /// The processors that are not in the seat, by number.
    pub cpus: Vec<CpuState>,
    /// The local APICs of all processors but the first, by number.
    pub lapics: Vec<OtherLapicV1>,
    /// The state of the turns. `None` if the counts alone determine whose turn it is.
    pub turns: Option<TurnState>,
}

/// The stored form of [`OtherProcessors`] without the turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherProcessorsV1 {
    seat: u8,
    cpus: Vec<CpuStateV1>,
    lapics: Vec<OtherLapicV1>,
}

impl From<&OtherProcessors> for OtherProcessorsV1 {
    fn from(others: &OtherProcessors) -> OtherProcessorsV1 {
        let OtherProcessors { seat, cpus, lapics, turns: _ } = others;
        OtherProcessorsV1 { seat: *seat, cpus: stored(cpus), lapics: lapics.clone() }
    }
}

impl From<OtherProcessorsV1> for OtherProcessors {
    fn from(stored: OtherProcessorsV1) -> OtherProcessors {
        let OtherProcessorsV1 { seat, cpus, lapics } = stored;
        let cpus = cpus.into_iter().map(|cpu| <(CpuState, cpu::Counts)>::from(cpu).0).collect();
        OtherProcessors { seat, cpus, lapics, turns: None }
    }
}

/// The stored form of a [`TurnState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnStateV1 {
    generator: u64,
    phase: u64,
    left: u64,
    is_given: bool,
    waiting: Vec<TurnV1>,
}

/// The stored form of a [`Turn`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnV1 {
    processor: u8,
    steps: u32,
}

impl From<&TurnState> for TurnStateV1 {
    fn from(state: &TurnState) -> TurnStateV1 {
        let TurnState { generator, phase, left, is_given, waiting, spins: _ } = state;
        let waiting = waiting.iter().copied().map(Into::into).collect();
        TurnStateV1 { generator: *generator, phase: *phase, left: *left, is_given: *is_given, waiting }
    }
}

impl From<TurnStateV1> for TurnState {
    fn from(stored: TurnStateV1) -> TurnState {
        let TurnStateV1 { generator, phase, left, is_given, waiting } = stored;
        let waiting = waiting.into_iter().map(Into::into).collect();
        TurnState { generator, phase, left, is_given, waiting, spins: None }
    }
}

/// The stored form of a [`SpinState`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpinStateV1 {
    next_look: Option<u64>,
    registers: Option<u64>,
}

impl From<SpinState> for SpinStateV1 {
    fn from(SpinState { next_look, registers }: SpinState) -> SpinStateV1 {
        SpinStateV1 { next_look, registers }
    }
}

impl From<SpinStateV1> for SpinState {
    fn from(SpinStateV1 { next_look, registers }: SpinStateV1) -> SpinState {
        SpinState { next_look, registers }
    }
}

impl From<Turn> for TurnV1 {
    fn from(turn: Turn) -> TurnV1 {
        let Turn { processor, steps } = turn;
        TurnV1 { processor, steps }
    }
}

impl From<TurnV1> for Turn {
    fn from(stored: TurnV1) -> Turn {
        let TurnV1 { processor, steps } = stored;
        Turn { processor, steps }
    }
}

/// The stored form of processors that are not in the seat. The machine's counts are stored with the processor in the
/// seat.
pub(crate) fn stored(cpus: &[CpuState]) -> Vec<CpuStateV1> {
    cpus.iter().map(|cpu| CpuStateV1::new(cpu, cpu::Counts::default())).collect()
}
