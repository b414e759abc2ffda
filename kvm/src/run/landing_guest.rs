//! The vCPU in the role of a landing's guest.

use cpu::fold_registers;
use kvm_bindings::kvm_regs;

use super::{KvmCpu, RESUME_FLAG, Run};
use crate::counter::branch_counter::BranchCounter;
use crate::error::Error;
use crate::landing::{Arrival, Guest, Landing, Left, Place};
use crate::state::{gpr_of, nothing_under_way};
use crate::vcpu::Exit;
use engine_contract::{End, Leave};

/// A vCPU with a counter, and the reason why it was left.
struct Counted<'a> {
    cpu: &'a mut KvmCpu,
    left: Left,
}

impl Counted<'_> {
    fn counter(&mut self) -> &mut dyn BranchCounter {
        let counter = self.cpu.counter.as_mut();
        &mut **counter.expect("landings are begun only where there is a counter")
    }
}

impl Guest for Counted<'_> {
    fn place(&mut self) -> Result<Place, Error> {
        let synced = self.cpu.vcpu.synced();
        Ok(Place {
            branches: self.cpu.branches()?,
            rip: synced.regs.rip,
            registers: fold_registers(&gpr_of(&synced.regs)),
            interruptible: nothing_under_way(&synced.events) && synced.events.interrupt.shadow == 0,
            left: self.left,
        })
    }

    fn arm(&mut self, branches: Option<u64>) -> Result<(), Error> {
        match branches {
            Some(branches) => self.counter().arm(branches),
            None => self.counter().disarm(),
        }
    }

    fn overflowed(&mut self) -> bool {
        self.counter().overflowed()
    }

    fn set_breakpoint(&mut self, rip: Option<u64>) -> Result<(), Error> {
        self.cpu.vcpu.set_breakpoints(rip.as_slice())
    }

    fn pass_breakpoint(&mut self, pass: bool) {
        if pass {
            self.cpu.vcpu.change(|regs: &mut kvm_regs| regs.rflags |= RESUME_FLAG);
        } else {
            self.cpu.clear_resume_flag();
        }
    }
}

impl KvmCpu {
    /// The landing of a run, if its landing place has a count and branches are counted.
    pub(super) fn landing(&self, leave: Leave) -> Option<Landing> {
        let Leave::At(goal) = leave else { return None };
        let target = goal.branches.filter(|_| self.counter.is_some())?;
        Some(Landing::new(goal, target, &self.margin))
    }

    /// Prepares the next entry, or ends the run.
    pub(super) fn land(&mut self, run: &mut Run<'_>, delivered: bool) -> Result<Option<End>, Error> {
        let Some(landing) = &mut run.landing else { return Ok(None) };
        if delivered {
            // The guest runs the interrupt's handler first.
            landing.diverted();
            run.left = Left::Other;
        }
        let mut landings = self.statistics.landings;
        let arrival = landing.look(&mut Counted { cpu: self, left: run.left }, &mut landings)?;
        self.statistics.landings = landings;
        Ok(arrival.map(|arrival| match arrival {
            Arrival::Landed => End::LandingPlace,
            Arrival::Overshot => End::Overshot,
        }))
    }

    /// Whether the guest made an exit beyond its landing place. The exit is then dropped.
    pub(super) fn missed(&mut self, run: &mut Run<'_>, exit: &Exit) -> Result<bool, Error> {
        let Some(landing) = &run.landing else { return Ok(false) };
        let own = matches!(exit, Exit::Breakpoint | Exit::Interrupted | Exit::Window | Exit::Stuck(_));
        if own || !landing.missed(self.branches()?) {
            return Ok(false);
        }
        // KVM always completes the instruction of an exit. The values that the instruction reads do not
        // matter, because the caller replaces the state.
        const PARTS_OF_AN_INSTRUCTION: u32 = 4096;
        for _ in 0..PARTS_OF_AN_INSTRUCTION {
            match self.vcpu.complete_instruction(run.bus.cr8()) {
                Exit::Interrupted => return Ok(true),
                Exit::Stuck(why) => return Err(Error::Stuck { rip: self.vcpu.synced().regs.rip, why }),
                _ => {}
            }
        }
        let why = "an instruction makes exits without end".to_string();
        Err(Error::Stuck { rip: self.vcpu.synced().regs.rip, why })
    }

    /// Ends the landing after the run.
    pub(super) fn end_landing(&mut self, run: &mut Run<'_>, end: End) -> Result<(), Error> {
        let Some(landing) = run.landing.take() else { return Ok(()) };
        let arrival = match end {
            End::LandingPlace => Some(Arrival::Landed),
            End::Overshot => Some(Arrival::Overshot),
            End::Stop(_) | End::Forced => None,
        };
        let (mut margin, mut landings) = (self.margin, self.statistics.landings);
        let mut guest = Counted { cpu: self, left: run.left };
        landing.end(&mut guest, arrival, &mut margin, &mut landings)?;
        (self.margin, self.statistics.landings) = (margin, landings);
        Ok(())
    }
}
