//! Stops a guest that makes no exits, for a caller that must act in real time.
//!
//! A kick says that time is up. `KvmCpu` then sets breakpoints on places near the guest where it can be
//! stopped. A replay without a count of branches stops each time that the guest passes the place. So `KvmCpu`
//! does not take the first place that is passed. `KvmCpu` tries a few places, and takes a place that the
//! guest passes seldom. Such a place is after a loop rather than inside, or in a caller rather than in a
//! function that a loop calls.

use std::time::Instant;

use kvm_bindings::kvm_regs;

use super::{KvmCpu, RESUME_FLAG, Run};
use crate::error::Error;
use crate::state::nothing_under_way;
use engine_contract::End;

use candidates::{Patience, Stopping};

pub(super) mod candidates;
mod place;

/// The largest number of active functions whose return addresses become candidates for a place to stop at.
const MOST_CALLERS: usize = 12;
/// The largest number of kicks to wait for a loop that ends by itself: half a second.
const LONGEST_DELAY: u32 = 1000;

const LONG_CODE: u16 = 1 << 13;
const BIG_CODE: u16 = 1 << 14;

impl KvmCpu {
    /// Handles a kick. If time is up, directs the guest to a place where it can be stopped.
    pub(super) fn interrupted(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        let synced = self.vcpu.synced();
        let up = run.due.is_some_and(|due| Instant::now() >= due);
        if !up || !nothing_under_way(&synced.events) || synced.events.interrupt.shadow != 0 || self.halted {
            return Ok(());
        }
        match run.stopping.as_mut().map(Stopping::kicked) {
            Some(Patience::Lasts) => return Ok(()),
            Some(Patience::Decided) => {}
            Some(Patience::IsOver) | None => run.stopping = self.choose(run)?,
        }
        let places = run.stopping.as_ref().map_or(Vec::new(), Stopping::places);
        self.vcpu.set_breakpoints(&places)
    }

    /// Chooses places where the guest can be stopped: good places first, and the nearest place if the guest passed no
    /// good place in time.
    fn choose(&mut self, run: &Run<'_>) -> Result<Option<Stopping>, Error> {
        let state = self.look()?;
        let code = &state.segments[cpu::SegReg::Cs as usize];
        let flat = code.base == 0 || code.attributes & LONG_CODE != 0;
        if !flat {
            // Code in a segment whose base is not 0 is boot code, mostly in real mode. Boot code soon makes exits.
            return Ok(None);
        }
        let bits = match code.attributes & (LONG_CODE | BIG_CODE) {
            0 => 16,
            BIG_CODE => 32,
            _ => 64,
        };
        let read = |at: u64, to: &mut [u8]| self.cpu().core().peek(at, to);
        // With a count of branches, a replay finds every place equally easily.
        let any = self.counts_branches() || bits != 64;
        let delay_waited_for =
            run.stopping.as_ref().is_some_and(|stopping| stopping.patience == LONGEST_DELAY);
        if !any
            && !delay_waited_for
            && let Some(rip) = place::behind_delay(state.rip, read)
        {
            return Ok(Some(Stopping::at(place::choose(rip, bits, false, read), LONGEST_DELAY)));
        }
        if any || run.stopping.is_some() {
            return Ok(Some(Stopping::at(place::choose(state.rip, bits, false, read), 1)));
        }
        let mut places = vec![place::choose(state.rip, bits, true, read)];
        for site in place::return_sites(state.rip, state.gpr[4], read).take(MOST_CALLERS) {
            let place = place::choose(site, bits, false, read);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(Some(Stopping::at_one_of(&places, run.patience)))
    }

    /// Handles a breakpoint: at the landing place, which the run loop checks, or at a place for a forced stop.
    pub(super) fn breakpoint(&mut self, run: &mut Run<'_>) -> Result<Option<End>, Error> {
        let synced = self.vcpu.synced();
        let Some(stopping) = &mut run.stopping else {
            self.statistics.breakpoints += 1;
            run.met += 1;
            return Ok(None);
        };
        let can_stop = nothing_under_way(&synced.events) && synced.events.interrupt.shadow == 0;
        if !can_stop || !stopping.comes_to(synced.regs.rip) {
            let places = stopping.places();
            self.vcpu.change(|regs: &mut kvm_regs| regs.rflags |= RESUME_FLAG);
            self.vcpu.set_breakpoints(&places)?;
            return Ok(None);
        }
        run.stopping = None;
        self.vcpu.set_breakpoints(&[])?;
        self.clear_resume_flag();
        self.statistics.forced += 1;
        Ok(Some(End::Forced))
    }
}
