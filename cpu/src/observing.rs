//! The wants of an observer, in the form in which the CPU looks them up.
//!
//! Whatever it does not want stays as fast as it is without an observer:
//!
//! - Pages with bytes whose loads or stores are wanted stay off the fast path, as those with watchpoints do.
//! - Code in pages with wanted fetches is decoded in blocks of one instruction, kept beside the others; those that are wanted
//!   are executed one by one, and never translated.
//! - System calls and deliveries are looked at where they are entered, as for traps.
//! - Where every place, or branches, are wanted, [`crate::attention::OBSERVED`] has the CPU go instruction by instruction.
//!
//! What happens in a step is kept until the step is complete.

use crate::debug_points::{SystemCalls, WatchKind};
use crate::happening::{Happening, Places, Vectors, Wants};
use crate::ranges::Spaces;

/// A set of places as it is looked in.
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

    pub fn touches(&self, address: u64, gpa: u64, length: u64) -> bool {
        self.all || self.places.touch(address, gpa, length)
    }

    fn touches_page(&self, address: u64, gpa: u64) -> bool {
        self.all || self.places.touch_page(address, gpa, |()| true)
    }
}

/// What the observer wants, and what it has not been told of yet.
#[derive(Default)]
pub(crate) struct Observing {
    pub fetches: Wanted,
    pub loads: Wanted,
    pub stores: Wanted,
    pub branches: bool,
    pub system_calls: SystemCalls,
    pub deliveries: Vectors,
    /// What the running step did so far.
    pub happened: Vec<Happening>,
    /// RIP of the last instruction that may have done something.
    pub rip: u64,
    /// The observer has asked to stop.
    pub stop: bool,
}

impl Observing {
    pub fn of(wants: Wants) -> Observing {
        Observing {
            fetches: Wanted::of(&wants.fetches),
            loads: Wanted::of(&wants.loads),
            stores: Wanted::of(&wants.stores),
            branches: wants.branches,
            system_calls: wants.system_calls,
            deliveries: wants.deliveries,
            ..Observing::default()
        }
    }

    /// Whether it wants to know of no load and no store.
    #[inline]
    pub fn sees_no_access(&self) -> bool {
        self.loads.is_nothing() && self.stores.is_nothing()
    }

    /// Whether an access of this kind to the page of an address may be wanted.
    pub fn sees_page(&self, address: u64, gpa: u64, kind: WatchKind) -> bool {
        match kind {
            WatchKind::Read => self.loads.touches_page(address, gpa),
            WatchKind::Write => self.stores.touches_page(address, gpa),
            WatchKind::Access => {
                self.loads.touches_page(address, gpa) || self.stores.touches_page(address, gpa)
            }
        }
    }

    /// Whether some fetches in the page of an address are wanted, but not all of all pages.
    pub fn picks_fetches_in_page(&self, address: u64, gpa: u64) -> bool {
        self.picks_fetches() && self.fetches.touches_page(address, gpa)
    }

    /// Whether some fetches are wanted, but not all.
    pub fn picks_fetches(&self) -> bool {
        !self.fetches.all && !self.fetches.places.are_empty()
    }

    /// Whether it wants what is found only instruction by instruction.
    pub fn sees_every_instruction(&self) -> bool {
        self.branches || self.fetches.all || self.loads.all || self.stores.all
    }
}
