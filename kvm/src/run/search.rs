//! Searches for a landing place without a count of branches. KVM goes from hit to hit of a breakpoint on the place's
//! RIP. The software CPU searches instead if there are too many hits.

use cpu::{AddressKind, Met, Stop, fold_registers};
use kvm_bindings::kvm_regs;

use super::{BREAKPOINTS_AT_FIRST, KvmCpu, RESUME_FLAG, Run};
use crate::error::Error;
use crate::state::{gpr_of, nothing_under_way};
use engine_contract::LandingPlace;
use engine_contract::{End, Leave};

/// The limit for breakpoints once the software CPU has found that the loop is long.
const BREAKPOINTS_IN_LONG_LOOPS: u32 = 1 << 18;
/// Number of rounds after which the software CPU decides whether the loop is long.
const ROUNDS: u64 = 64;
/// Number of steps of the software CPU that cost as much as a breakpoint.
const STEPS_PER_BREAKPOINT: u64 = 200;
/// Number of steps after which the software CPU gives up: a landing place that has not come by then will not come.
const STEPS_PER_LANDING: u64 = 1 << 33;

impl KvmCpu {
    /// Checks whether the guest is at the landing place. Otherwise sets a breakpoint at the place.
    pub(super) fn look_for(&mut self, run: &mut Run<'_>, goal: LandingPlace) -> Result<Option<End>, Error> {
        let synced = self.vcpu.synced();
        if synced.regs.rip == goal.rip && nothing_under_way(&synced.events) {
            let seen = std::mem::replace(&mut run.leave, Leave::At(LandingPlace { not_here: false, ..goal }));
            let rejected = seen == Leave::At(LandingPlace { not_here: true, ..goal });
            if !rejected && fold_registers(&gpr_of(&synced.regs)) == goal.registers {
                self.clear_resume_flag();
                return Ok(Some(End::LandingPlace));
            }
            if run.met >= run.most_breakpoints {
                return self.land_by_software(run, goal);
            }
            // Let the guest pass the breakpoint at its present RIP once.
            self.vcpu.change(|regs: &mut kvm_regs| regs.rflags |= RESUME_FLAG);
        }
        self.vcpu.set_breakpoints(&[goal.rip])?;
        Ok(None)
    }

    /// Continues with the software CPU until the registers match the landing place. `None` means that KVM is faster.
    fn land_by_software(&mut self, run: &mut Run<'_>, goal: LandingPlace) -> Result<Option<End>, Error> {
        self.vcpu.set_breakpoints(&[])?;
        self.take_state()?;
        let state = self.soft.state();
        self.soft.set_state(&state);
        self.ahead = true;
        let begin = self.soft.steps();
        let limit = begin + STEPS_PER_LANDING;
        let mut origin = begin;
        let mut rounds = 0;
        let stops = self.vcpu.stops().to_vec();
        let points = stops.iter().chain([&goal.rip]).map(|&rip| (AddressKind::Linear, rip));
        self.soft.set_breakpoints(points);
        let end = loop {
            match self.soft.run(run.bus, limit, origin) {
                Stop::Met(Met::Breakpoint) if stops.contains(&self.soft.rip()) => {
                    break Ok(Some(End::Stop(Stop::Met(Met::Breakpoint))));
                }
                Stop::Met(Met::Breakpoint) if fold_registers(self.soft.gpr()) == goal.registers => {
                    break Ok(Some(End::LandingPlace));
                }
                Stop::Met(Met::Breakpoint) => {
                    origin = self.soft.steps();
                    rounds += 1;
                    let long = origin - begin > ROUNDS * STEPS_PER_BREAKPOINT;
                    if rounds == ROUNDS && long && run.most_breakpoints == BREAKPOINTS_AT_FIRST {
                        break Ok(None);
                    }
                }
                Stop::Budget => {
                    break Err(Error::Stuck {
                        rip: self.soft.rip(),
                        why: "it does not reach the interrupted instruction again".to_string(),
                    });
                }
                stop => break Ok(Some(End::Stop(stop))),
            }
        };
        self.soft.set_breakpoints([]);
        let steps = self.soft.steps() - begin;
        log::debug!("the software CPU went {steps} steps in {rounds} rounds to {:#x} or an exit", goal.rip);
        if matches!(end, Ok(None)) {
            run.most_breakpoints = BREAKPOINTS_IN_LONG_LOOPS;
            self.load(run.bus)?;
        } else {
            self.statistics.landed_by_software += 1;
        }
        end
    }
}
