//! Verifies a recording. [`verify`] checks all data in the store of checkpoints. Then a replay compares all hashes in
//! the log and every checkpoint. If a hash or checkpoint differs, `verify` finds out as exactly as possible where the
//! difference began.
//!
//! The log holds hashes, not states. If every replay differs from the log in the same way, the difference began between
//! two checks. A closer place cannot be found, because the recorded machine no longer exists. If two *replays* differ,
//! both machines can be run again. Memory may have failed, or this program may have a bug that is not deterministic.
//! Two recordings of the same run also give two machines that can be run again. With two such machines,
//! [`crate::replay::bisect`] finds the first instruction that they execute differently.

use cpu::{CpuState, Parts, Tier};

use crate::replay::bisect::{FAR_APART, Parting, Side, find_parting};
use crate::replay::compare_checkpoints::{CheckpointComparison, CheckpointDifference};
use crate::replay::run::{Fault, Replay, ReplayEnd, last_place};
pub use crate::replay::stretches::Cores;
use crate::replay::stretches::{self, Equal};
use machine::checks::CheckRecord;
use machine::divergence::Divergence;
use machine::error::Error;
use machine::position::{Count, Instructions, Moment};
use machine::unit::Unit;
use recording::Recording;
use recording::log::EventRecord;
use recording::player::Scrutiny;

/// The result of verifying a recording.
#[derive(Default)]
pub struct Verification<C> {
    /// Where the replay ended.
    pub at: Moment<C>,
    /// Whether the recording has an end record, so that the end was compared.
    pub complete: bool,
    /// The difference, if there is one.
    pub difference: Option<Difference<C>>,
    /// Number of checkpoints that were compared with the replay.
    pub checkpoints: usize,
    /// The first checkpoint that differs from the replay.
    pub checkpoint_difference: Option<CheckpointDifference>,
    /// The message about a difference that the replay on several cores found, but the replay of the whole run did not
    /// find.
    pub did_not_recur: Option<String>,
}

impl<C> Verification<C> {
    /// Whether nothing differs.
    pub fn equal(&self) -> bool {
        self.difference.is_none() && self.checkpoint_difference.is_none() && self.did_not_recur.is_none()
    }
}

/// A difference between recording and replay.
pub struct Difference<C> {
    /// The divergence that the replay found.
    pub divergence: Divergence,
    /// The replayed machine's registers at the divergence.
    pub registers: CpuState,
    /// The recorded events between the last equal point and the divergence, each with its number.
    pub events: Vec<(usize, EventRecord<C>)>,
    /// Where the difference began, as far as it could be found out.
    pub origin: Origin,
}

/// Where a difference began.
pub enum Origin {
    /// A second replay differs in the same way. The difference began between the last equal point and the first
    /// different point.
    Between,
    /// A second replay is equal to the recording. The first replay differs from the second from this instruction on.
    ReplaysPart(Box<Parting>),
    /// A second replay is equal to the recording. The first replay was run again, and was equal too.
    DidNotRecur,
}

/// Checks the store of checkpoints, then replays the whole recording and compares all checks and checkpoints. `fault`
/// changes a bit of memory during the replay, for tests. `progress` gets the name of the current activity and a
/// position. While the store of checkpoints is checked, the position grows from zero to the last checkpoint's position.
///
/// Long recordings that count instructions and have checkpoints are replayed on all cores. Each core needs as much
/// memory as the guest's RAM.
pub fn verify<C: Unit>(
    recording: &Recording<C>,
    fault: Option<Fault<C>>,
    progress: impl FnMut(&'static str, C),
) -> Result<Verification<C>, Error> {
    verify_on(Cores::all(), recording, fault, progress)
}

/// Does the same as [`verify`], but on this many cores.
pub fn verify_on<C: Unit>(
    cores: Cores,
    recording: &Recording<C>,
    fault: Option<Fault<C>>,
    mut progress: impl FnMut(&'static str, C),
) -> Result<Verification<C>, Error> {
    let complete = recording.log.end.is_some();
    let mut replay = Replay::new(recording, Scrutiny::Everything, |_| Ok(()))?;
    let last = last_place(recording);
    let mut comparison = CheckpointComparison::new(recording, &mut replay.machine, |done, all| {
        let share = u128::from(last.number()) * u128::from(done) / u128::from(all.max(1));
        progress("checking checkpoints", C::new(share as u64));
    })?;
    let mut did_not_recur = None;
    // If each core replays its own part, an injected fault does not affect the later parts. So a run with a fault
    // is replayed on one core.
    if let Some(comparison) = comparison.as_ref().filter(|_| fault.is_none()) {
        match stretches::verify(recording, comparison, cores, last, |at| progress("replaying", at)) {
            Ok(Some(Equal { at, checkpoints })) => {
                return Ok(Verification { at, complete, checkpoints, ..Verification::default() });
            }
            Ok(None) => {}
            Err(error) => did_not_recur = Some(error.to_string()),
        }
    }
    replay.inject(fault);
    let result = run_and_compare(&mut replay, comparison.as_mut(), |steps| progress("replaying", steps));
    let mut found = Verification {
        at: replay.machine.moment(),
        complete,
        difference: None,
        checkpoints: comparison.as_ref().map_or(0, |comparison| comparison.compared),
        checkpoint_difference: comparison.and_then(|comparison| comparison.difference),
        did_not_recur: None,
    };
    let error = match result {
        Ok(ReplayEnd::Verified | ReplayEnd::Stopped) => {
            found.did_not_recur = did_not_recur.filter(|_| found.checkpoint_difference.is_none());
            return Ok(found);
        }
        Err(error) => error,
    };
    let Error::Divergence(divergence) = error else { return Err(error) };
    let registers = replay.machine.cpu().state();
    drop(replay);
    let at = Moment { count: divergence.at.counted(), time_ns: divergence.time_ns };
    let last_good = Moment { count: divergence.last_good.counted(), time_ns: divergence.last_good_ns };
    let origin = find_origin(recording, at.count, last_good, fault, &mut progress)?;
    let between = |event: &EventRecord<C>| event.at >= last_good && event.at <= at;
    let events = recording.log.events().collect::<Result<Vec<_>, _>>()?;
    let events = events.into_iter().enumerate().filter(|(_, event)| between(event)).collect();
    found.at = at;
    found.difference = Some(Difference { divergence: *divergence.clone(), registers, events, origin });
    Ok(found)
}

/// Replays to the end, and compares each checkpoint when the replay reaches its position.
fn run_and_compare<C: Unit>(
    replay: &mut Replay<'_, C>,
    comparison: Option<&mut CheckpointComparison<C>>,
    mut progress: impl FnMut(C),
) -> Result<ReplayEnd, Error> {
    if let Some(comparison) = comparison {
        for at in comparison.positions() {
            let until = (!comparison.is_after_the_end(at)?).then_some(at);
            replay.run(until, &mut progress)?;
            comparison.compare(at, &mut replay.machine, &replay.player)?;
        }
    }
    replay.run(None, progress)
}

fn find_origin<C: Unit>(
    recording: &Recording<C>,
    first: C,
    last_good: Moment<C>,
    fault: Option<Fault<C>>,
    progress: &mut impl FnMut(&'static str, C),
) -> Result<Origin, Error> {
    let mut second = Replay::new(recording, Scrutiny::Everything, |_| Ok(()))?;
    let whole = first >= last_place(recording);
    let until = if whole { None } else { Some(first + 1) };
    match second.run(until, |steps| progress("replaying a second time", steps)) {
        Err(Error::Divergence(_)) => return Ok(Origin::Between),
        other => drop(other?),
    }
    drop(second);
    let (mut good, mut bad) = (Side::new(recording, None)?, Side::new(recording, fault)?);
    let known = equal_everywhere(recording, last_good)?;
    let parting = find_parting(&mut good, &mut bad, known, first, FAR_APART, |steps| {
        progress("comparing two replays", steps);
    })?;
    Ok(parting.map_or(Origin::DidNotRecur, |parting| Origin::ReplaysPart(Box::new(parting))))
}

/// The position of the last check with all parts, at or before `last_good`.
fn equal_everywhere<C: Unit>(recording: &Recording<C>, last_good: Moment<C>) -> Result<C, Error> {
    let is_whole = |check: &CheckRecord<C>| check.ram_digest.is_some() && check.at <= last_good;
    let whole = recording.log.last_check_before(recording.log.entry_count(), is_whole)?;
    Ok(whole.map_or(C::default(), |check| check.at.count))
}

/// Finds the first difference between the replays of two recordings; `None` if there is none.
pub fn compare<C: Unit>(
    left: &Recording<C>,
    right: &Recording<C>,
    progress: impl FnMut(C),
) -> Result<Option<Parting>, Error> {
    let until = last_place(left).max(last_place(right)).saturating_add(1);
    let (mut left, mut right) = (Side::new(left, None)?, Side::new(right, None)?);
    find_parting(&mut left, &mut right, C::default(), until, FAR_APART, progress)
}

/// Finds the first difference between the software CPU's interpreter and its translator in the replay of a recording.
/// Compares the whole machines every `stride` instructions. Returns `None` if there is no difference. A test can give
/// the translator's replay a fault.
pub fn compare_tiers(
    recording: &Recording<Instructions>,
    fault: Option<Fault<Instructions>>,
    stride: u64,
    progress: impl FnMut(Instructions),
) -> Result<Option<Parting>, Error> {
    let until = last_place(recording).saturating_add(1);
    let mut interpreted = Side::by(Tier::Interpreter, recording, None)?;
    let mut translated = Side::by(Tier::Translator { after: 0, parts: Parts::ALL }, recording, fault)?;
    find_parting(&mut interpreted, &mut translated, Instructions(0), until, stride, progress)
}
