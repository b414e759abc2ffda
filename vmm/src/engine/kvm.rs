//! KVM as an engine.
//!
//! It counts exits, not instructions (and conditional branches where the processor can). Of a debugger's
//! stops it can do a few breakpoints only. All that must be seen instruction by instruction, the software
//! engine does.

use std::sync::Arc;

use ::kvm::KvmCpu;
use cpu::{AddressKind, Bus, Cpu, CpuModel, CpuState, Traps, Watchpoint};
use guest_ram::GuestRam;

use crate::engine::contract::{End, Engine, Leave, Statistics};
use crate::error::Error;
use crate::position::Instructions;

/// What processor this host's KVM can be. Refuses hosts without KVM, and with one that does not execute as
/// hardware does.
pub fn model() -> Result<CpuModel, Error> {
    if let Some(what) = ::kvm::capabilities()?.missing {
        return Err(::kvm::Error::Lacks(what).into());
    }
    ::kvm::refuse_imitation()?;
    Ok(::kvm::model()?)
}

/// A vCPU of KVM.
pub struct KvmEngine(KvmCpu);

impl KvmEngine {
    /// A vCPU in reset state.
    pub fn new(ram: Arc<GuestRam>, model: CpuModel) -> Result<KvmEngine, Error> {
        let mut cpu = KvmCpu::new(ram, model)?;
        let counted = ::kvm::counter_usable()
            .and_then(|()| cpu.count_branches(::kvm::Counter::Perf).map_err(|error| error.to_string()));
        if let Err(why) = counted {
            log::debug!("branches are not counted: {why}");
        }
        Ok(KvmEngine(cpu))
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
        Ok(self.0.run(bus, leave)?)
    }

    fn state(&self) -> CpuState {
        self.0.cpu().state()
    }

    fn set_state(&mut self, state: &CpuState) {
        self.0.set_state(state);
    }

    fn cpu(&self) -> &Cpu {
        self.0.cpu()
    }

    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        let linear = points.iter().filter(|(space, _)| *space == AddressKind::Linear);
        let addresses: Vec<u64> = linear.map(|&(_, address)| address).collect();
        debug_assert!(addresses.len() == points.len() && points.len() <= ::kvm::MAX_STOPS);
        self.0.set_stops(&addresses).expect("KVM has taken breakpoints before");
    }

    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        debug_assert!(points.is_empty(), "the software engine's");
    }

    fn set_traps(&mut self, _traps: Traps) {}

    fn note_written(&mut self) {
        self.0.note_written().expect("KVM keeps a log of writes for memory that it has taken");
    }

    fn counts_branches(&self) -> bool {
        self.0.counts_branches()
    }

    fn overshoots(&self) -> bool {
        self.0.counts_branches()
    }

    fn track_writes_anew(&mut self) {}

    fn statistics(&self) -> Option<Statistics> {
        Some(self.0.statistics())
    }
}

impl Drop for KvmEngine {
    fn drop(&mut self) {
        log::debug!("KVM: {:?}", self.0.statistics());
    }
}
