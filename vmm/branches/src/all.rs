//! Runs a number of branches, several of them at the same time.

use std::num::NonZeroU32;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, poll};

use crate::error::Error;
use crate::one_thread::OneThread;
use crate::{Branch, Ending};

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

/// Runs the branches 1 to `count`. `body` runs in each branch, with the branch's number and the time of the fork.
/// `ended` runs in this process when a branch has ended. Returns the number of branches that began.
///
/// # Errors
///
/// If a branch cannot begin. The function then begins no more branches, and waits until the running branches have
/// ended.
pub fn run_all(
    one_thread: &OneThread,
    plan: &Plan<'_>,
    body: &mut dyn FnMut(u32, Instant) -> Vec<u8>,
    ended: &mut dyn FnMut(u32, Ending),
) -> Result<u32, Error> {
    let mut running: Vec<(u32, Branch)> = Vec::new();
    let mut begun = 0;
    let mut failure = None;
    let mut was_asked = false;
    loop {
        let is_over = (plan.is_over)();
        let may_begin = !is_over && failure.is_none() && begun < plan.count;
        if may_begin && running.len() < plan.at_once.get() as usize {
            match Branch::begin(one_thread, |forked| body(begun + 1, forked)) {
                Ok(branch) => {
                    begun += 1;
                    running.push((begun, branch));
                }
                Err(error) => failure = Some(error),
            }
            continue;
        }
        if running.is_empty() {
            return failure.map_or(Ok(begun), Err);
        }
        if is_over && !std::mem::replace(&mut was_asked, true) {
            running.iter().for_each(|(_, branch)| branch.ask_to_end());
        }
        for at in ready(&running).into_iter().rev() {
            let (number, branch) = running.swap_remove(at);
            ended(number, branch.wait());
        }
    }
}

/// Waits for at most [`LOOK_MS`] until a branch ends or reports. Returns the indices in `running` of such branches.
fn ready(running: &[(u32, Branch)]) -> Vec<usize> {
    let wakes = running.iter().map(|(_, branch)| branch.wakes());
    let mut looks: Vec<PollFd<'_>> = wakes.map(|wake| PollFd::new(wake, PollFlags::POLLIN)).collect();
    match poll(&mut looks, LOOK_MS) {
        Ok(_) => (0..looks.len()).filter(|&at| looks[at].any().unwrap_or(true)).collect(),
        // A signal came in. The caller then calls `is_over`.
        Err(_) => Vec::new(),
    }
}
