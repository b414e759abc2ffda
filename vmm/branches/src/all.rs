//! Runs a number of branches, several of them at the same time.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use crate::error::Error;
use crate::one_thread::OneThread;
use crate::{Branch, Ending, Start};

/// Milliseconds between two calls of [`Plan::is_over`].
const LOOK_MS: u16 = 100;

/// The number of branches to run, and the condition for ending them early.
pub struct Plan<'a> {
    /// The number of branches.
    pub count: u32,
    /// The largest number of branches that run at once.
    pub at_once: NonZeroU32,
    /// Once this function returns true, no more branches begin, and the running branches are asked to end.
    pub is_over: &'a dyn Fn() -> bool,
}

/// Runs the branches 1 to `count`. `body` runs in each branch, with the branch's number. `ended` runs in this process
/// when a branch has ended. Returns the number of branches that began.
///
/// A branch begins when the branch before it stands or has ended, and after a rest. The rest is as long as the branch
/// before it needed to stand. In the rest, the running branches get the cores for their first work: they copy many pages.
/// Without rests this work would pile up, and the last of many branches would wait long for a core.
///
/// # Errors
///
/// If a branch cannot begin. The function then begins no more branches, and waits until the running branches have
/// ended.
pub fn run_all(
    one_thread: &OneThread,
    plan: &Plan<'_>,
    body: &mut dyn FnMut(u32, &mut Start) -> Vec<u8>,
    ended: &mut dyn FnMut(u32, Ending),
) -> Result<u32, Error> {
    let mut running: Vec<(u32, Branch)> = Vec::new();
    let mut begun = 0;
    let mut begun_at = Instant::now();
    let mut rests_until = begun_at;
    let mut failure = None;
    let mut was_asked = false;
    loop {
        let is_over = (plan.is_over)();
        let wants_more = !is_over && failure.is_none() && begun < plan.count;
        if running.is_empty() && !wants_more {
            return failure.map_or(Ok(begun), Err);
        }
        let rest = rests_until.saturating_duration_since(Instant::now());
        let has_room = running.len() < plan.at_once.get() as usize;
        if wants_more && has_room && rest.is_zero() && running.iter().all(|(_, branch)| branch.stands) {
            begun_at = Instant::now();
            match Branch::begin(one_thread, |start| body(begun + 1, start)) {
                Ok(branch) => {
                    begun += 1;
                    running.push((begun, branch));
                }
                Err(error) => failure = Some(error),
            }
            continue;
        }
        if is_over && !std::mem::replace(&mut was_asked, true) {
            running.iter().for_each(|(_, branch)| branch.ask_to_end());
        }
        for at in ready(&running, rest).into_iter().rev() {
            let branch = &mut running[at].1;
            if !branch.stands && branch.read_that_it_stands() {
                rests_until = Instant::now() + begun_at.elapsed();
                continue;
            }
            let (number, branch) = running.swap_remove(at);
            ended(number, branch.wait());
        }
    }
}

/// Waits until a branch stands, ends or reports, until the rest is over, or for [`LOOK_MS`]. Returns the indices in
/// `running` of such branches.
fn ready(running: &[(u32, Branch)], rest: Duration) -> Vec<usize> {
    let rest_ms = u16::try_from(rest.as_micros().div_ceil(1000)).unwrap_or(LOOK_MS);
    let wait_ms = if rest_ms == 0 { LOOK_MS } else { rest_ms.min(LOOK_MS) };
    let wakes = running.iter().map(|(_, branch)| branch.wakes());
    let mut looks: Vec<PollFd<'_>> = wakes.map(|wake| PollFd::new(wake, PollFlags::POLLIN)).collect();
    match poll(&mut looks, wait_ms) {
        Ok(_) => (0..looks.len()).filter(|&at| looks[at].any().unwrap_or(true)).collect(),
        // A signal came in. The caller then calls `is_over`.
        Err(_) => Vec::new(),
    }
}
