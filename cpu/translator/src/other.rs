//! The translator of hosts that have none: there is no value of it.

use crate::{Entry, FlagImage, Frame, Left, Link, Resume, Source, TlbSlots};

/// Translates blocks, and runs them.
pub enum Translator {}

/// What a run works on.
pub struct Guest<'a> {
    /// The registers.
    pub frame: &'a mut Frame,
    /// The arithmetic flags.
    pub flags: &'a mut FlagImage,
    /// The slots of the privilege in force.
    pub slots: &'a TlbSlots,
    /// The address space, and what must have been in force when a target in it was remembered.
    pub context: usize,
    /// See `context`.
    pub tag: u64,
    /// Whether instructions on XMM registers fault.
    pub vectors_blocked: bool,
}

/// The same interface as that of hosts that have one.
#[allow(missing_docs, clippy::unused_self, reason = "none of it can be called")]
impl Translator {
    pub fn new() -> Option<Translator> {
        None
    }
    pub fn translate(&mut self, _: &Source<'_>) -> Option<Entry> {
        match *self {}
    }
    pub fn find(&self, _: u64, _: u64, _: u64) -> Option<Entry> {
        match *self {}
    }
    pub fn is_full(&self) -> bool {
        match *self {}
    }
    pub fn clear(&mut self) {
        match *self {}
    }
    pub fn forget(&mut self, _: Entry) {
        match *self {}
    }
    pub fn is_alive(&self, _: Entry) -> bool {
        match *self {}
    }
    pub fn link(&mut self, _: Link, _: Entry) {
        match *self {}
    }
    pub fn remember(&mut self, _: usize, _: u64, _: Entry) {
        match *self {}
    }
    pub fn forget_page(&mut self, _: usize, _: u64) {
        match *self {}
    }
    pub fn run(&mut self, _: Entry, _: Guest<'_>, _: u64) -> Option<Left> {
        match *self {}
    }
    pub fn resume(&mut self, _: Resume, _: Guest<'_>, _: u64) -> Option<Left> {
        match *self {}
    }
}
