//! Reports happenings to the observer.

use super::Cpu;
use crate::attention;
use crate::happening::{At, Happening, Wants};
use crate::observer::Observer;

impl Cpu {
    /// Attaches an observer, or detaches the present one, and returns the previous observer. Must be called between
    /// runs. Drops decoded code if one of the two observers wants calls, or some fetches but not all.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        let changes_code = self.core.observing.changes_code();
        let wants = observer.as_ref().map_or_else(Wants::default, |observer| observer.wants());
        self.core.set_wants(wants);
        if changes_code || self.core.observing.changes_code() {
            self.drop_code();
        }
        std::mem::replace(&mut self.observer, observer)
    }

    /// Reports the instruction at RIP to the observer if it wants the fetch. Call this right before the
    /// instruction is executed.
    pub(super) fn observe_fetch(&mut self) {
        if self.core.observing.sees_no_fetch() || !self.core.sees_fetch_at_rip() {
            return;
        }
        self.tell(At { step: self.core.block_steps, rip: self.core.rip }, &Happening::Fetch);
    }

    /// Reports the happenings of the step that just completed.
    pub(super) fn observe_step(&mut self) {
        if self.core.observing.happened.is_empty() {
            return;
        }
        let mut happened = std::mem::take(&mut self.core.observing.happened);
        let at = At { step: self.core.block_steps - 1, rip: self.core.observing.rip };
        happened.iter().for_each(|happening| self.tell(at, happening));
        happened.clear();
        self.core.observing.happened = happened;
    }

    fn tell(&mut self, at: At, happening: &Happening) {
        let Some(observer) = &mut self.observer else { return };
        if observer.happened(at, happening, &self.core).is_break() {
            self.core.observing.stop = true;
            self.core.attention |= attention::HIT;
        }
    }
}
