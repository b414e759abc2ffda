//! Finds the first instruction that two live replays execute differently.
//!
//! The two may be replays of two recordings, or of one recording with a fault injected into one replay. The search
//! compares the two replays with each other, not with their recordings. The search assumes that two machines that
//! differ stay different. If a difference vanishes again, the search may miss an earlier difference. Even then, equal
//! machines become different at the place that the search returns.

use checkpoint::Maps;
use cpu::{CpuState, Tier};

use crate::replay::begin;
use crate::replay::registers;
use crate::replay::run::Fault;
use machine::checks::{CheckParts, CheckRecord};
use machine::error::Error;
use machine::position::Position;
use machine::unit::Unit;
use machine::{Machine, MachineState, Outcome};
use recording::Recording;
use recording::cursor::Cursor;
use recording::player::{Player, Scrutiny};

/// The distance in steps between comparisons in a first pass, which looks for any difference. At this distance,
/// comparisons take almost no time.
pub const FAR_APART: u64 = 256_000_000;
/// The largest number of differing places in RAM that are listed.
const MAX_PLACES: usize = 8;

/// One of two replays.
pub struct Side<C> {
    machine: Machine<C>,
    player: Player<C>,
    fault: Option<Fault<C>>,
}

/// A saved state of one replay at an earlier place.
struct Saved<C> {
    at: C,
    state: MachineState,
    maps: Maps,
    cursor: Cursor<C>,
}

/// The first difference between two replays.
#[derive(Clone, Debug)]
pub struct Parting {
    /// The place where both replays are still equal. The replays differ after one more step.
    pub at: Position,
    /// The CPU's state at the place `at`, where both replays are still equal.
    pub before: CpuState,
    /// The bytes at RIP at the place `at`, as far as they can be read.
    pub code: Vec<u8>,
    /// Descriptions of the differences after the next step.
    pub differences: Vec<String>,
}

impl<C: Unit> Side<C> {
    /// Makes a replay that is at its first instruction.
    pub fn new(recording: &Recording<C>, fault: Option<Fault<C>>) -> Result<Side<C>, Error> {
        let (machine, mut player) = begin::open(recording)?;
        player.set_scrutiny(Scrutiny::Nothing);
        Ok(Side { machine, player, fault })
    }

    /// Does the same as [`Side::new`], but on this tier of the software CPU.
    pub fn by(tier: Tier, recording: &Recording<C>, fault: Option<Fault<C>>) -> Result<Side<C>, Error> {
        let mut side = Side::new(recording, fault)?;
        side.machine.set_tier(tier);
        Ok(side)
    }

    fn at(&self) -> C {
        self.machine.moment().count
    }

    fn ended(&self) -> bool {
        self.machine.outcome().is_some()
    }

    fn run_to(&mut self, until: C) -> Result<(), Error> {
        if let Some(fault) = self.fault.filter(|fault| self.at() <= fault.at && fault.at < until) {
            self.run_plainly(fault.at)?;
            if !self.ended() {
                self.machine.flip_ram_bit(fault.offset, fault.bit);
            }
        }
        self.run_plainly(until)
    }

    fn run_plainly(&mut self, until: C) -> Result<(), Error> {
        while !self.ended() && self.at() < until {
            self.machine.run(until, &mut self.player)?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<Saved<C>, Error> {
        Ok(Saved {
            at: self.at(),
            state: self.machine.state(),
            maps: self.machine.maps()?,
            cursor: self.player.cursor(),
        })
    }

    fn restore(&mut self, saved: &Saved<C>) -> Result<(), Error> {
        self.machine.restore(&saved.state, &saved.maps)?;
        self.player.set_cursor(saved.cursor)
    }

    fn summary(&mut self) -> Result<Summary<C>, Error> {
        let check = self.machine.check(CheckParts { devices: true, ram: true })?;
        Ok((check, self.machine.outcome().cloned(), self.machine.disk_hash()))
    }
}

/// The values by which two machines are compared.
type Summary<C> = (CheckRecord<C>, Option<Outcome>, [u8; 32]);

fn equal<C: Unit>(left: &mut Side<C>, right: &mut Side<C>) -> Result<bool, Error> {
    Ok(left.summary()? == right.summary()?)
}

/// Finds the first difference between two replays after `equal_at`, up to `until`. The caller expects that the replays
/// are equal at `equal_at`, and the function checks this first. Compares the replays every `stride` instructions or
/// exits. Returns `None` if the replays are equal up to `until`. `progress` gets the position now and then.
pub fn find_parting<C: Unit>(
    left: &mut Side<C>,
    right: &mut Side<C>,
    equal_at: C,
    until: C,
    stride: u64,
    mut progress: impl FnMut(C),
) -> Result<Option<Parting>, Error> {
    let mut low = (left.save()?, right.save()?);
    if !equal(left, right)? {
        return Ok(Some(describe(left, right, C::default())?));
    }
    let mut next = equal_at;
    let mut high = loop {
        // The targets need not be multiples of the stride. A longer stride does not change the result, but makes
        // the bisection slower.
        let target = if next > low.0.at { next } else { low.0.at.saturating_add(stride) }.min(until);
        left.run_to(target)?;
        right.run_to(target)?;
        progress(target);
        if !equal(left, right)? {
            break target;
        }
        if target >= until || left.ended() {
            return Ok(None);
        }
        low = (left.save()?, right.save()?);
        next = C::default();
    };
    while high - low.0.at > 1 {
        let middle = low.0.at + (high - low.0.at) / 2;
        left.restore(&low.0)?;
        right.restore(&low.1)?;
        left.run_to(middle)?;
        right.run_to(middle)?;
        progress(middle);
        if equal(left, right)? {
            low = (left.save()?, right.save()?);
        } else {
            high = middle;
        }
    }
    left.restore(&low.0)?;
    right.restore(&low.1)?;
    let mut parting = describe(left, right, low.0.at)?;
    left.run_to(high)?;
    right.run_to(high)?;
    parting.differences = differences(left, right)?;
    Ok(Some(parting))
}

fn describe<C: Unit>(left: &mut Side<C>, right: &mut Side<C>, at: C) -> Result<Parting, Error> {
    let before = left.machine.cpu().state();
    let mut code = vec![0; 15];
    let count = left.machine.cpu().core().peek(before.rip.wrapping_add(before.segments[1].base), &mut code);
    code.truncate(count);
    Ok(Parting { at: at.position(), before, code, differences: differences(left, right)? })
}

fn differences<C: Unit>(left: &mut Side<C>, right: &mut Side<C>) -> Result<Vec<String>, Error> {
    let (one, other) = (left.machine.cpu(), right.machine.cpu());
    let mut found = registers::differences((&one.state(), one.counts()), (&other.state(), other.counts()));
    let (then, now) = (left.summary()?, right.summary()?);
    if then.0.at.time_ns != now.0.at.time_ns {
        found.push(format!("guest time {} ns {} ns", then.0.at.time_ns, now.0.at.time_ns));
    }
    if then.0.devices_hash != now.0.devices_hash {
        found.push("the devices' state differs".to_string());
    }
    if then.0.ram_digest != now.0.ram_digest {
        found.extend(ram_differences(&left.machine, &right.machine));
    }
    if then.1 != now.1 {
        let told = |outcome: &Option<Outcome>| outcome.as_ref().map_or("goes on".into(), Outcome::to_string);
        found.push(format!("the run: {}, {}", told(&then.1), told(&now.1)));
    }
    if then.2 != now.2 {
        found.push("the disk's contents differ".to_string());
    }
    Ok(found)
}

/// Descriptions of the first bytes of RAM that differ.
fn ram_differences<C: Unit>(left: &Machine<C>, right: &Machine<C>) -> Vec<String> {
    let size = left.ram().size_bytes();
    if size != right.ram().size_bytes() {
        return vec!["the machines have different amounts of RAM".to_string()];
    }
    let (mut then, mut now) = ([0; 4096], [0; 4096]);
    let mut found = Vec::new();
    for offset in (0..size).step_by(4096) {
        left.ram().read_bytes(offset, &mut then);
        right.ram().read_bytes(offset, &mut now);
        for (at, (then, now)) in then.iter().zip(&now).enumerate().filter(|(_, (then, now))| then != now) {
            if found.len() == MAX_PLACES {
                found.push("and more of RAM".to_string());
                return found;
            }
            let gpa = left.ram().layout().gpa_of(offset + at as u64);
            found.push(format!("the byte at physical address {gpa:#x}: {then:#04x} {now:#04x}"));
        }
    }
    found
}
