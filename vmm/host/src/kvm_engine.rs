//! KVM as an engine.
//!
//! The engine counts exits, not instructions. The engine also counts conditional branches if the processor can. KVM
//! supports only a few breakpoints of a debugger. If each instruction must be observed, the guest runs on the software
//! engine.

use ::kvm::KvmCpu;
use cpu::{AddressKind, Bus, Counts, Cpu, CpuModel, CpuState, Traps, Watchpoint};
use guest_ram::GuestRam;

use machine::engine::{End, Engine, EngineKind, Leave, Statistics};
use machine::error::Error;
use machine::position::Instructions;

/// The KVM engine. This engine counts exits.
pub const KVM: EngineKind = EngineKind {
    name: "kvm",
    counts_instructions: false,
    most_breakpoints: ::kvm::MAX_STOPS,
    build: |ram, model| Ok(Box::new(KvmEngine::new(ram, model)?)),
};

/// Converts an error of KVM.
fn failed(error: ::kvm::Error) -> Error {
    match error {
        ::kvm::Error::Device(..) | ::kvm::Error::Lacks(_) | ::kvm::Error::Imitation(_) => {
            Error::Unsupported(error.to_string())
        }
        other => Error::Engine(other.to_string()),
    }
}

/// The CPU model that this host's KVM can provide. Returns an error on hosts without KVM, and on hosts whose KVM does
/// not execute instructions as hardware does.
pub fn model() -> Result<CpuModel, Error> {
    if let Some(what) = ::kvm::capabilities().map_err(failed)?.missing {
        return Err(failed(::kvm::Error::Lacks(what)));
    }
    ::kvm::refuse_imitation().map_err(failed)?;
    ::kvm::model().map_err(failed)
}

/// A vCPU of KVM.
pub struct KvmEngine {
    cpu: KvmCpu,
    /// The error of the last attempt to set breakpoints, if KVM refused them.
    failed: Option<::kvm::Error>,
}

impl KvmEngine {
    /// Makes a vCPU in reset state.
    pub fn new(ram: GuestRam, model: CpuModel) -> Result<KvmEngine, Error> {
        let mut cpu = KvmCpu::new(ram, model).map_err(failed)?;
        let counted = ::kvm::counter_usable()
            .and_then(|()| cpu.count_branches(::kvm::Counter::Perf).map_err(|error| error.to_string()));
        if let Err(why) = counted {
            log::debug!("branches are not counted: {why}");
        }
        Ok(KvmEngine { cpu, failed: None })
    }
}

impl Engine for KvmEngine {
    fn run(
        &mut self,
        bus: &mut dyn Bus,
        _until: Instructions,
        _origin: Instructions,
        leave: Leave,
    ) -> Result<End, Error> {
        if let Some(error) = self.failed.take() {
            return Err(failed(error));
        }
        self.cpu.run(bus, leave).map_err(failed)
    }

    fn state(&self) -> CpuState {
        self.cpu.cpu().state()
    }

    fn set_state(&mut self, state: &CpuState, counts: Counts) {
        self.cpu.set_state(state);
        self.cpu.set_counts(counts);
    }

    fn cpu(&self) -> &Cpu {
        self.cpu.cpu()
    }

    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        let linear = points.iter().filter(|(space, _)| *space == AddressKind::Linear);
        let addresses: Vec<u64> = linear.map(|&(_, address)| address).collect();
        debug_assert!(addresses.len() == points.len() && points.len() <= ::kvm::MAX_STOPS);
        self.failed = self.cpu.set_stops(&addresses).err();
    }

    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        debug_assert!(points.is_empty(), "the software engine's");
    }

    fn set_traps(&mut self, _traps: Traps) {}

    fn note_written(&mut self) -> Result<(), Error> {
        self.cpu.note_written().map_err(failed)
    }

    fn counts_branches(&self) -> bool {
        self.cpu.counts_branches()
    }

    fn overshoots(&self) -> bool {
        self.cpu.counts_branches()
    }

    fn track_writes_anew(&mut self) {}

    fn statistics(&self) -> Option<Statistics> {
        Some(self.cpu.statistics())
    }
}

impl Drop for KvmEngine {
    fn drop(&mut self) {
        log::debug!("KVM: {:?}", self.cpu.statistics());
    }
}
