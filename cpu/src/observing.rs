//! The happenings that an observer wants, in a form for fast lookups.
//!
//! Steps without a wanted happening stay as fast as without an observer:
//!
//! - Pages with wanted loads or stores stay off the fast path, as pages with watchpoints do.
//! - Code in pages with wanted fetches is decoded into blocks of one instruction, stored beside the normal blocks.
//!   Blocks with wanted fetches are executed one by one and never translated.
//! - A block ends before an instruction that the filter selects. The instruction is a block of its own, which is
//!   never translated.
//! - Calls, returns and jumps that may be wanted are not translated. The interpreter executes them.
//! - The code that checks for a debugger's traps also checks for wanted system calls and deliveries.
//! - If every address or all branches are wanted, [`crate::attention::OBSERVED`] makes the CPU execute one
//!   instruction at a time.
//!
//! The happenings of a step are kept until the step is complete.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::debug_points::{SystemCalls, WatchKind};
use crate::happening::{Calls, Happening, InstructionFilter, Places, Vectors, Wants};
use crate::ranges::Spaces;

/// A set of address ranges, in a form for fast lookups.
#[derive(Default)]
pub(crate) struct Wanted {
    all: bool,
    places: Spaces<()>,
}

impl Wanted {
    fn of(places: &Places) -> Wanted {
        let named = match places {
            Places::In(named) => named.as_slice(),
            Places::None | Places::All => &[],
        };
        let ranges = named.iter().filter(|place| !place.addresses.is_empty());
        let range = |(space, first, last)| (space, first, last, ());
        let ranges = ranges.map(|place| (place.space, *place.addresses.start(), *place.addresses.end()));
        Wanted { all: *places == Places::All, places: Spaces::of(ranges.map(range)) }
    }

    pub fn is_nothing(&self) -> bool {
        !self.all && self.places.are_empty()
    }

    /// Whether every address is wanted.
    pub fn is_everything(&self) -> bool {
        self.all
    }

    pub fn touches(&self, address: u64, gpa: u64, length: u64) -> bool {
        self.all || self.places.touch(address, gpa, length)
    }

    fn touches_page(&self, address: u64, gpa: u64) -> bool {
        self.all || self.places.touch_page(address, gpa, |()| true)
    }
}

/// The kinds of happenings that the observer wants, and the happenings not yet reported.
#[derive(Default)]
pub(crate) struct Observing {
    pub fetches: Wanted,
    pub instructions: Option<InstructionFilter>,
    pub loads: Wanted,
    pub stores: Wanted,
    pub branches: bool,
    pub calls: Calls,
    pub jumps_to: Arc<BTreeSet<u64>>,
    pub system_calls: SystemCalls,
    pub deliveries: Vectors,
    /// The happenings of the running step so far.
    pub happened: Vec<Happening>,
    /// RIP of the last instruction that may have caused a happening.
    pub rip: u64,
    /// Whether the observer has asked to stop.
    pub stop: bool,
}

impl Observing {
    pub fn of(wants: Wants) -> Observing {
        Observing {
            fetches: Wanted::of(&wants.fetches),
            instructions: wants.instructions,
            loads: Wanted::of(&wants.loads),
            stores: Wanted::of(&wants.stores),
            branches: wants.branches,
            calls: wants.calls,
            jumps_to: wants.jumps_to,
            system_calls: wants.system_calls,
            deliveries: wants.deliveries,
            ..Observing::default()
        }
    }

    /// Whether the observer wants no loads and no stores.
    #[inline]
    pub fn sees_no_access(&self) -> bool {
        self.loads.is_nothing() && self.stores.is_nothing()
    }

    /// Whether the observer may want accesses of this kind to the page of an address.
    pub fn sees_page(&self, address: u64, gpa: u64, kind: WatchKind) -> bool {
        match kind {
            WatchKind::Read => self.loads.touches_page(address, gpa),
            WatchKind::Write => self.stores.touches_page(address, gpa),
            WatchKind::Access => {
                self.loads.touches_page(address, gpa) || self.stores.touches_page(address, gpa)
            }
        }
    }

    /// Whether some but not all fetches are wanted, and some may be in the page of an address.
    pub fn picks_fetches_in_page(&self, address: u64, gpa: u64) -> bool {
        self.picks_fetches() && self.fetches.touches_page(address, gpa)
    }

    /// Whether blocks are decoded or translated in another way than without the observer.
    pub fn changes_code(&self) -> bool {
        self.calls != Calls::None
            || !self.jumps_to.is_empty()
            || self.picks_fetches()
            || self.instructions.is_some()
    }

    /// Whether the translation of a block depends on the block's address.
    pub fn depends_on_address(&self) -> bool {
        self.calls == Calls::UpperHalf || !self.jumps_to.is_empty()
    }

    /// Whether the observer wants no fetches.
    pub fn sees_no_fetch(&self) -> bool {
        self.fetches.is_nothing() && self.instructions.is_none()
    }

    /// Whether some fetches are wanted, but not all.
    pub fn picks_fetches(&self) -> bool {
        !self.fetches.all && !self.fetches.places.are_empty()
    }

    /// Whether the observer wants happenings that the CPU notices only when it executes one instruction at a time.
    pub fn sees_every_instruction(&self) -> bool {
        self.branches || self.fetches.all || self.loads.all || self.stores.all
    }
}
