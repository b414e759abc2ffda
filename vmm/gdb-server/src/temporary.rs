//! Temporary breakpoints. gdb sets temporary breakpoints for a step over a call, `finish` or `until`. A temporary
//! breakpoint stops only the thread that the user steps. At a return address it stops only after the function has
//! returned.
//!
//! gdb does not say which breakpoints it set by itself. The commands in `gdb/commands/tt.py` send the addresses of the
//! user's breakpoints, and all other breakpoints are temporary. Without these commands, a breakpoint counts as
//! temporary in two cases. In the first, gdb sets the breakpoint between two movements, and does not show the place
//! between these movements to its user. In the second, the breakpoint is at a return address on the stack, and gdb sets
//! it before a movement forward.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::frames::{Frames, StackWords};
use super::level::Level;
use history::timeline::{Direction, Filter};
use machine::Machine;
use machine::position::Instructions;

const RSP: u8 = 4;

/// The breakpoints that gdb sets by itself, and their restrictions.
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
    /// The functions from which a program must return before the breakpoint stops it.
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

    /// The functions from which a program must return before a temporary breakpoint stops it.
    pub fn frames(&self) -> Option<&Frames> {
        self.bound.values().find_map(|bound| bound.frames.as_ref())
    }

    /// Notes that gdb has removed a breakpoint.
    pub fn forget(&mut self, address: u64) {
        self.bound.remove(&address);
        self.fresh.remove(&address);
    }
}

/// A filter that is true only in the thread of `here`. If `returns` is true, the address is a return address, and the
/// filter is true only after the return. If `is_entry` is true, a backward run goes to a function's entry. Then the
/// filter is true only in the thread's present frame or in a caller's frame.
fn in_thread(here: Level, returns: bool, is_entry: bool) -> Filter {
    Filter::new(move |machine| {
        let stack = machine.cpu().core().reg64(RSP);
        let is_deep_enough = if returns { stack > here.stack } else { !is_entry || stack >= here.stack };
        is_deep_enough && here.runs(machine)
    })
}
