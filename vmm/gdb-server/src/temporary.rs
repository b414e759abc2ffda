//! Temporary breakpoints. gdb sets temporary breakpoints for a step over a call, `finish` or `until`. Each
//! temporary breakpoint stops only the thread that was stepped. At a return address it stops only after
//! the function has returned.
//!
//! gdb does not tell which breakpoints are its own. With `gdb/commands/tt.py` the user's addresses are known, and all
//! other breakpoints are temporary. Without these commands, one of two signs must do. In the first, gdb sets the
//! breakpoint between two movements, and does not show the place between them. In the second, the breakpoint is at a
//! return address on the stack, and gdb sets it before a movement forward.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::frames::{Frames, StackWords};
use super::level::Level;
use history::timeline::{Direction, Filter};
use machine::Machine;
use machine::position::Instructions;

const RSP: u8 = 4;

/// gdb's own breakpoints, and their restrictions.
#[derive(Default)]
pub(super) struct Temporary {
    /// The addresses of the user's breakpoints, if gdb has sent them.
    pub of_user: Option<BTreeSet<u64>>,
    /// Breakpoints set since the last movement.
    pub fresh: BTreeSet<u64>,
    /// Whether gdb has shown this place to its user.
    pub is_shown: bool,
    /// The restriction of each temporary breakpoint, by address.
    bound: BTreeMap<u64, Bound>,
}

/// The restriction of a temporary breakpoint.
struct Bound {
    thread: Level,
    filter: Filter,
    /// The functions that a program returns from before it reaches the breakpoint.
    frames: Option<Frames>,
}

impl Temporary {
    /// Begins a movement from `here` with these breakpoints.
    pub fn begin(
        &mut self,
        breakpoints: &[u64],
        here: &dyn Fn() -> Level,
        direction: Direction,
        machine: &Machine<Instructions>,
    ) {
        let fresh = std::mem::take(&mut self.fresh);
        let is_shown = std::mem::take(&mut self.is_shown);
        let mut bound = std::mem::take(&mut self.bound);
        let stack = OnceCell::new();
        for &address in breakpoints {
            let was_bound = bound.remove(&address);
            let is_fresh = fresh.contains(&address);
            let returns = || {
                let words = || stack.get_or_init(|| StackWords::of(&here(), machine));
                direction == Direction::Forward && words().contain(address)
            };
            let is_temporary = match &self.of_user {
                Some(of_user) => !of_user.contains(&address),
                None => was_bound.is_some() || is_fresh && (!is_shown || returns()),
            };
            if !is_temporary {
                continue;
            }
            let now = was_bound.filter(|_| !is_fresh && !is_shown).unwrap_or_else(|| {
                let (thread, is_entry) = (here(), !is_shown && direction == Direction::Backward);
                let returns = returns();
                let frames = stack.get().filter(|_| returns);
                let frames =
                    frames.and_then(|words| Frames::of(&thread, words, (address, !is_shown), machine));
                Bound { filter: in_thread(thread.clone(), returns, is_entry), frames, thread }
            });
            self.bound.insert(address, now);
        }
    }

    /// The filter of a breakpoint, if it is temporary.
    pub fn filter(&self, address: u64) -> Option<&Filter> {
        self.bound.get(&address).map(|bound| &bound.filter)
    }

    /// The thread of the temporary breakpoints, if there are any.
    pub fn thread(&self) -> Option<Level> {
        self.bound.values().next().map(|bound| bound.thread.clone())
    }

    /// The functions that a program is to return from.
    pub fn frames(&self) -> Option<&Frames> {
        self.bound.values().find_map(|bound| bound.frames.as_ref())
    }

    /// Forgets a removed breakpoint.
    pub fn forget(&mut self, address: u64) {
        self.bound.remove(&address);
        self.fresh.remove(&address);
    }
}

/// Accepts only the thread at `here`. If a function `returns` to the address, accepts only the state after
/// the return. At a function's entry (`is_entry`), when going back, accepts only the frame of the thread or
/// one of its callers.
fn in_thread(here: Level, returns: bool, is_entry: bool) -> Filter {
    Filter::new(move |machine| {
        let stack = machine.cpu().core().reg64(RSP);
        let is_deep_enough = if returns { stack > here.stack } else { !is_entry || stack >= here.stack };
        is_deep_enough && here.runs(machine)
    })
}
