//! Finds the instruction whose exception led to a report of the guest's kernel.
//!
//! While the kernel reports an exception, the frame that the processor saved at this exception is on the stack. So the
//! search takes the last exception before the report that has not returned and whose frame is still on the stack. Most
//! frames of exceptions that have returned are overwritten. But some stay in gaps between later frames.

use std::ops::Range;

use cpu::{AddressKind, CodeSize, Traps};
use guest_symbols::reports::Kind;
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};

use super::search::Look;
use super::stops::{Breakpoint, Cause, Hit, Stops};
use super::travel::Timeline;
use crate::workers::Poll;

/// Vectors of exceptions, without the NMI.
const EXCEPTIONS: [u8; 17] = [0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 19, 21];
/// The exceptions that push an error code.
const WITH_ERROR_CODE: [u8; 7] = [8, 10, 11, 12, 13, 14, 17];
/// The search begins with this number of steps before the report. If these steps have no exception, the search
/// covers `FACTOR` times as many steps, and so on.
const FIRST_STEPS: u64 = 1_000_000;
const FACTOR: u64 = 16;
const MOST_STEPS: u64 = 1 << 32;
/// The largest number of exceptions in one search. Only a guest that causes exceptions on purpose has more.
const MOST_EXCEPTIONS: usize = 1 << 20;
/// The largest size in bytes of a kernel stack, including the space that a sanitizer adds.
const MOST_STACK_BYTES: u64 = 1 << 17;
/// Largest number of reports that are examined, from the last report backward. A panic may have another cause than
/// an exception.
const MOST_LOOKS: usize = 8;
/// The frame that the processor pushes for an exception: RIP, CS, RFLAGS, RSP and SS.
type Frame = [u64; 5];
const RIP: usize = 0;
const RSP: usize = 3;

/// An exception in the kernel.
struct Delivered {
    before: Instructions,
    frame_at: u64,
    frame: Frame,
}

impl Timeline {
    /// The instruction whose exception led to the last oops or panic at or before a place. The machine stays at the
    /// place where the search ended.
    pub(super) fn fault_before(
        &mut self,
        place: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Instructions, Error> {
        let reports = self.reports(poll)?;
        let is_meant = |kind: Kind| matches!(kind, Kind::Oops | Kind::Panic);
        let before = reports.iter().rev().filter(|report| report.at <= place && is_meant(report.kind));
        let places: Vec<Instructions> = before.map(|report| report.at).take(MOST_LOOKS).collect();
        for report in &places {
            if let Some(fault) = self.exception_behind(*report, poll)? {
                return Ok(fault);
            }
        }
        Err(Error::Position(if places.is_empty() {
            "the guest's kernel has no oops or panic before this place".to_string()
        } else {
            "no exception in the kernel led to the panic: use the position panic, with --backtrace"
                .to_string()
        }))
    }

    fn exception_behind(
        &mut self,
        report: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        let (mut to, mut steps) = (report, FIRST_STEPS);
        let traps = Traps { vectors: EXCEPTIONS.into_iter().collect(), ..Traps::default() };
        self.seek(report, poll)?.unless_interrupted()?;
        let stack = self.machine().cpu().state().gpr[4];
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            delivered(machine, hit).filter(|found| found.frame_at.wrapping_sub(stack) < MOST_STACK_BYTES)
        };
        loop {
            let from = report.saturating_back(steps);
            let stops = Stops { traps: traps.clone(), ..Stops::default() };
            let seen = self.hits_of(stops, from..to, &look, poll)?;
            // The machine is still at the report, so its memory has the stack at that time.
            let stands =
                |exception: &Delivered| frame_at(self.machine(), exception.frame_at) == Some(exception.frame);
            let count = seen.len();
            let standing: Vec<_> = seen.into_iter().flatten().filter(stands).collect();
            if let Some(found) = self.last_that_goes_on(&standing, report, poll)? {
                return Ok(Some(found));
            }
            if from == Instructions(0) || steps >= MOST_STEPS || count >= MOST_EXCEPTIONS {
                return Ok(None);
            }
            (to, steps) = (from, steps.saturating_mul(FACTOR));
        }
    }

    /// The last of these exceptions whose handler has not returned before `report`.
    fn last_that_goes_on(
        &mut self,
        exceptions: &[Delivered],
        report: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        let Some(first) = exceptions.first() else { return Ok(None) };
        let returns = exceptions
            .iter()
            .map(|exception| Breakpoint { space: AddressKind::Linear, address: exception.frame[RIP] });
        let stops = Stops { breakpoints: returns.collect(), ..Stops::default() };
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            (hit.before, machine.cpu().core().rip, machine.cpu().state().gpr[4])
        };
        let seen = self.hits_of(stops, first.before..report, &look, poll)?;
        let goes_on = |exception: &&Delivered| {
            let (rip, rsp) = (exception.frame[RIP], exception.frame[RSP]);
            !seen.iter().any(|hit| hit.0 > exception.before && (hit.1, hit.2) == (rip, rsp))
        };
        Ok(exceptions.iter().rfind(goes_on).map(|exception| exception.before))
    }

    /// The results of `look` at the hits of `stops`. The timeline's own stops are restored afterwards.
    fn hits_of<T: Send>(
        &mut self,
        stops: Stops,
        part: Range<Instructions>,
        look: &Look<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Vec<T>, Error> {
        let own = std::mem::replace(&mut self.stops, stops);
        let seen = self.hits_seen(part.start, part.end, MOST_EXCEPTIONS, look, poll);
        self.stops = own;
        let seen = seen?;
        match seen.interrupted_at {
            None => Ok(seen.found),
            Some(_) => Err(Error::Interrupted),
        }
    }
}

/// An exception that has just been delivered, if it happened in the kernel.
fn delivered(machine: &Machine<Instructions>, hit: Hit) -> Option<Delivered> {
    let Cause::Vector(vector) = hit.cause else { return None };
    if machine.cpu().core().code_size != CodeSize::Bits64 {
        return None;
    }
    let code_bytes = if WITH_ERROR_CODE.contains(&vector) { 8 } else { 0 };
    let place = machine.cpu().state().gpr[4].wrapping_add(code_bytes);
    let frame = frame_at(machine, place)?;
    (frame[1] & 3 == 0).then_some(Delivered { before: hit.before, frame_at: place, frame })
}

fn frame_at(machine: &Machine<Instructions>, address: u64) -> Option<Frame> {
    let mut bytes = [0; 40];
    (machine.cpu().core().peek(address, &mut bytes) == bytes.len()).then_some(())?;
    let word = |number: usize| {
        let bytes = bytes[number * 8..][..8].try_into().expect("a word has eight bytes");
        u64::from_le_bytes(bytes)
    };
    Some([0, 1, 2, 3, 4].map(word))
}
