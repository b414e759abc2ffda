//! The software CPU as an engine. This engine counts instructions, and can also run to a landing place as the KVM
//! engine does. A landing place is a described place between two exits.

use std::sync::OnceLock;

use cpu::{
    AddressKind, Bus, Counts, Cpu, CpuModel, CpuState, Met, Observer, Stop, Tier, Traps, Turn, TurnPolicy,
    TurnState, Watchpoint, fold_registers,
};
use guest_ram::GuestRam;

use crate::engine::{End, Engine, EngineKind, LandingPlace, Leave};
use crate::error::Error;
use crate::position::{Count, Instructions};
use crate::processors::Processors;

/// The environment variable that chooses the tier of a process's software CPUs, unless the program chooses one. The
/// value `translator` is the default, and `interpreter` is the other tier. `plain` is the translator without its
/// optional parts. `translator,-groups` leaves out one optional part, and `plain,+links` adds one. [`cpu::Part`] lists
/// the parts.
pub const TIER_VARIABLE: &str = "TTVM_TIER";

static TIER: OnceLock<Option<Tier>> = OnceLock::new();

/// Chooses the tier of all software CPUs made from now on, for hunting bugs. The choice changes nothing that the
/// guest can see. Must be called before the first CPU is made.
pub fn choose_tier(tier: Tier) {
    // Only the first choice has an effect. A later choice would not change existing CPUs.
    let _ = TIER.set(Some(tier));
}

fn chosen_tier() -> Option<Tier> {
    *TIER.get_or_init(|| {
        let name = std::env::var(TIER_VARIABLE).ok()?;
        match name.parse::<Tier>() {
            Ok(tier) => Some(tier),
            Err(why) => {
                log::warn!("{TIER_VARIABLE} is ignored: {why}");
                None
            }
        }
    })
}

impl EngineKind {
    /// The software CPU.
    pub const SOFT: EngineKind = EngineKind {
        name: "soft",
        counts_instructions: true,
        most_breakpoints: usize::MAX,
        build: |ram, model| Ok(Box::new(SoftEngine::new(ram, model))),
    };
}

/// The software CPU.
pub struct SoftEngine {
    cpu: Cpu,
    breakpoints: Vec<(AddressKind, u64)>,
}

impl SoftEngine {
    /// A CPU in reset state.
    pub fn new(ram: GuestRam, model: CpuModel) -> SoftEngine {
        let mut cpu = Cpu::new(ram);
        cpu.set_model(model);
        if let Some(tier) = chosen_tier() {
            cpu.set_tier(tier);
        }
        SoftEngine { cpu, breakpoints: Vec::new() }
    }

    /// Runs for `steps` steps, one for each nanosecond of [`Leave::After`], and stops between two instructions. So
    /// tests without KVM can see a guest that is stopped without an exit, as the KVM engine stops it.
    fn run_for(&mut self, bus: &mut dyn Bus, until: u64, origin: u64, steps: u64) -> End {
        let limit = until.min(self.cpu.steps().saturating_add(steps.max(1)));
        let stop = self.cpu.run(bus, limit, origin);
        if stop != Stop::Budget || limit == until {
            return End::Stop(stop);
        }
        if self.cpu.core().state.interrupt_shadow {
            return self.run_for(bus, until, origin, 1);
        }
        End::Forced
    }

    /// Runs until the guest's registers are equal to the landing place's registers.
    fn run_to_goal(&mut self, bus: &mut dyn Bus, until: u64, goal: LandingPlace) -> End {
        let mut not_here = goal.not_here.then(|| self.cpu.steps());
        let mut origin = u64::MAX;
        let points = self.breakpoints.iter().copied();
        self.cpu.set_breakpoints(points.chain([(AddressKind::Linear, goal.rip)]));
        let end = loop {
            match self.cpu.run(bus, until, origin) {
                Stop::Met(Met::Breakpoint)
                    if self.breakpoints.contains(&(AddressKind::Linear, self.cpu.rip())) =>
                {
                    break End::Stop(Stop::Met(Met::Breakpoint));
                }
                Stop::Met(Met::Breakpoint) => {
                    origin = self.cpu.steps();
                    let rejected = not_here.take() == Some(origin);
                    if !rejected && fold_registers(self.cpu.gpr()) == goal.registers {
                        break End::LandingPlace;
                    }
                }
                stop => break End::Stop(stop),
            }
        };
        self.cpu.set_breakpoints(self.breakpoints.iter().copied());
        end
    }
}

impl Engine for SoftEngine {
    fn run(
        &mut self,
        bus: &mut dyn Bus,
        until: Instructions,
        origin: Instructions,
        leave: Leave,
    ) -> Result<End, Error> {
        let (until, origin) = (until.number(), origin.number());
        Ok(match leave {
            Leave::AtExits => End::Stop(self.cpu.run(bus, until, origin)),
            Leave::At(goal) => self.run_to_goal(bus, until, goal),
            Leave::After { force, .. } => self.run_for(bus, until, origin, force.as_nanos() as u64),
        })
    }

    fn state(&self) -> CpuState {
        self.cpu.state()
    }

    fn set_state(&mut self, state: &CpuState, counts: Counts) {
        self.cpu.restore_state(state);
        self.cpu.set_counts(counts);
    }

    fn set_parked(&mut self, seat: usize, states: &[CpuState]) {
        self.cpu.set_parked(seat, states);
    }

    fn lend_seat(&mut self, processor: usize) -> usize {
        self.cpu.lend_seat(processor)
    }

    fn set_turn_state(&mut self, state: Option<&TurnState>) {
        self.cpu.set_turn_state(state);
    }

    fn give_turns(&mut self, bus: &mut dyn Bus, turns: &[Turn]) {
        self.cpu.give_turns(bus, turns);
    }

    fn change_turn_policy(&mut self, policy: TurnPolicy) {
        self.cpu.change_turn_policy(policy);
    }

    fn set_processors(&mut self, processors: Processors) {
        self.cpu.set_processors(processors.count().into());
        self.cpu.set_topology(processors.topology());
        self.cpu.set_turn_rules(processors.turn_rules());
    }

    fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.breakpoints = points.to_vec();
        self.cpu.set_breakpoints(points.iter().copied());
    }

    fn set_tier(&mut self, tier: Tier) {
        self.cpu.set_tier(tier);
    }

    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.cpu.set_watchpoints(points.iter().copied());
    }

    fn set_traps(&mut self, traps: Traps) {
        self.cpu.set_traps(traps);
    }

    fn set_observer(
        &mut self,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Option<Box<dyn Observer>>, Error> {
        Ok(self.cpu.set_observer(observer))
    }

    fn note_written(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn counts_branches(&self) -> bool {
        true
    }

    fn track_writes_anew(&mut self) {
        self.cpu.track_writes_anew();
    }
}
