//! How an observer is told of what it wants.
//!
//! Whatever it does not want stays as fast as it is without an observer:
//!
//! - Pages with bytes whose loads or stores are wanted stay off the fast path, as those with watchpoints do.
//! - Code in pages with wanted fetches is decoded in blocks of one instruction, kept beside the others; those that are wanted
//!   are executed one by one, and never translated.
//! - System calls and deliveries are looked at where they are entered, as for traps.
//! - Where every place, or branches, are wanted, [`attention::OBSERVED`] has the CPU go instruction by instruction.
//!
//! What happens in a step is kept until the step is complete.

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use crate::attention;
use crate::core::Core;
use crate::debug_points::{PageAccess, SystemCalls, WatchKind};
use crate::decode::MAX_LENGTH;
use crate::observer::{At, Bytes, Happening, Observer, Places, Vectors, Wants};
use crate::op::Op;
use crate::ranges::Spaces;

/// A set of places as it is looked in.
#[derive(Default)]
struct Wanted {
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

    fn is_nothing(&self) -> bool {
        !self.all && self.places.are_empty()
    }

    fn touches(&self, address: u64, gpa: u64, length: u64) -> bool {
        self.all || self.places.touch(address, gpa, length)
    }

    fn touches_page(&self, address: u64, gpa: u64) -> bool {
        self.all || self.places.touch_page(address, gpa, |()| true)
    }
}

/// The observer, and what it has not been told of yet.
#[derive(Default)]
pub(crate) struct Observing {
    observer: Option<Box<dyn Observer>>,
    fetches: Wanted,
    loads: Wanted,
    stores: Wanted,
    branches: bool,
    system_calls: SystemCalls,
    deliveries: Vectors,
    /// What the running step did so far.
    happened: Vec<Happening>,
    /// RIP of the last instruction that may have done something.
    pub rip: u64,
    /// The observer has asked to stop.
    pub stop: bool,
}

impl Observing {
    fn of(observer: Option<Box<dyn Observer>>) -> Observing {
        let wants = observer.as_ref().map_or_else(Wants::default, |observer| observer.wants());
        Observing {
            observer,
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
    fn sees_every_instruction(&self) -> bool {
        self.branches || self.fetches.all || self.loads.all || self.stores.all
    }
}

/// A branch that is about to be executed.
pub(crate) struct Branch {
    conditional: bool,
    behind: u64,
}

impl Core {
    /// Replaces the observer; returns the one before. The caller drops the code if either picks fetches.
    pub(crate) fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        let before = std::mem::replace(&mut self.observing, Observing::of(observer));
        if !before.sees_no_access() || !self.observing.sees_no_access() {
            self.mmu.flush_all();
        }
        if self.observing.sees_every_instruction() {
            self.attention |= attention::OBSERVED;
        } else {
            self.attention &= !attention::OBSERVED;
        }
        before.observer
    }

    /// Notes something that the observer wants, and ends the block.
    fn happened(&mut self, happening: Happening) {
        self.observing.happened.push(happening);
        self.attention |= attention::HIT;
        self.break_block = true;
    }

    /// Tells the observer of the instruction at RIP, if it wants the fetch. To be called right before that is executed.
    pub(crate) fn observe_fetch(&mut self) {
        if self.observing.fetches.is_nothing() || !self.sees_fetch_at_rip() {
            return;
        }
        self.tell(At { step: self.block_steps, rip: self.rip }, &Happening::Fetch);
    }

    /// Whether the fetch of the instruction at RIP is wanted.
    pub(crate) fn sees_fetch_at_rip(&self) -> bool {
        let address = self.rip.wrapping_add(self.frame.seg_base[1]);
        let address = if self.is_64bit() { address } else { address & 0xffff_ffff };
        self.observing.fetches.touches(address, self.peek_address(address).unwrap_or(u64::MAX), 1)
    }

    /// Notes an access, if it is wanted.
    pub(crate) fn observe_access(&mut self, access: &PageAccess<'_>) {
        let wanted =
            if access.kind == WatchKind::Write { &self.observing.stores } else { &self.observing.loads };
        if wanted.is_nothing() {
            return;
        }
        let parts = (0..access.bytes.len()).step_by(Bytes::MOST);
        for from in parts {
            let part = from..access.bytes.len().min(from + Bytes::MOST);
            let (address, physical) = (access.address + from as u64, access.gpa + from as u64);
            let bytes = Bytes::of(&access.bytes[part.clone()]);
            let wanted =
                if access.kind == WatchKind::Write { &self.observing.stores } else { &self.observing.loads };
            if !wanted.touches(address, physical, bytes.len() as u64) {
                continue;
            }
            self.happened(match access.kind {
                WatchKind::Write => {
                    let before = access.before.map(|before| Bytes::of(&before[part]));
                    Happening::Store { address, physical, before, after: bytes }
                }
                _ => Happening::Load { address, physical, value: bytes },
            });
        }
    }

    /// Notes a system call, if it is wanted.
    pub(crate) fn observe_system_call(&mut self, number: u64) {
        if self.observing.system_calls.contains(number) {
            self.happened(Happening::SystemCall { number });
        }
    }

    /// Notes a delivery, if it is wanted.
    pub(crate) fn observe_delivery(&mut self, vector: u8, error_code: Option<u32>) {
        if self.observing.deliveries.contain(vector) {
            self.happened(Happening::Delivery { vector, error_code });
        }
    }

    /// The branch that the op at RIP is, if branches are wanted.
    pub(crate) fn branch_ahead(&self, op: &Op) -> Option<Branch> {
        if !self.observing.branches || op.flags & Op::SETS_RIP == 0 {
            return None;
        }
        let mut bytes = [0; MAX_LENGTH];
        let address = self.rip.wrapping_add(self.frame.seg_base[1]);
        let known = self.peek(address, &mut bytes);
        let bits = self.code_size.bits();
        let instruction = Decoder::with_ip(bits, &bytes[..known], self.rip, DecoderOptions::NONE).decode();
        let conditional = match instruction.flow_control() {
            FlowControl::ConditionalBranch => true,
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Call
            | FlowControl::IndirectCall => false,
            _ => return None,
        };
        Some(Branch { conditional, behind: self.next_rip(self.rip, op.next) })
    }

    /// Notes that a branch completed.
    pub(crate) fn observe_branch(&mut self, branch: &Branch) {
        let taken = !branch.conditional || self.rip != branch.behind;
        self.happened(Happening::Branch { to: self.rip, conditional: branch.conditional, taken });
    }

    /// Tells the observer what the step that just completed did.
    pub(crate) fn observe_step(&mut self) {
        if self.observing.happened.is_empty() {
            return;
        }
        let mut happened = std::mem::take(&mut self.observing.happened);
        let at = At { step: self.block_steps - 1, rip: self.observing.rip };
        happened.iter().for_each(|happening| self.tell(at, happening));
        happened.clear();
        self.observing.happened = happened;
    }

    fn tell(&mut self, at: At, happening: &Happening) {
        let Some(mut observer) = self.observing.observer.take() else { return };
        if observer.happened(at, happening, self).is_break() {
            self.observing.stop = true;
            self.attention |= attention::HIT;
        }
        self.observing.observer = Some(observer);
    }
}
