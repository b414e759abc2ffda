//! The translator's interface on hosts that are not x86-64, where no translator can be made.

use crate::{Entry, Guest, Left, Link, Parts, Resume, Source, TlbSlot, Undefined};

/// The code of a block. The type has no values.
#[derive(Clone)]
pub enum Translation {}

#[allow(missing_docs, reason = "it cannot be called")]
impl Translation {
    pub fn size(&self) -> usize {
        match *self {}
    }
}

/// Translates blocks and runs them. The type has no values.
pub enum Translator {}

/// The interface of the translator on x86-64 hosts.
#[allow(missing_docs, clippy::unused_self, reason = "none of it can be called")]
impl Translator {
    pub fn new(_: Undefined, _: Parts) -> Option<Translator> {
        None
    }
    pub fn parts(&self) -> Parts {
        match *self {}
    }
    pub fn undefined(&self) -> Undefined {
        match *self {}
    }
    pub fn translate(&mut self, _: &Source<'_>) -> Option<Translation> {
        match *self {}
    }
    pub fn is_movable(&self, _: &Translation) -> bool {
        match *self {}
    }
    pub fn place(&mut self, _: &Translation, _: u64, _: u32) -> Option<Entry> {
        match *self {}
    }
    pub fn moves_rightly(&mut self, _: &Translation, _: &Source<'_>) -> Option<bool> {
        match *self {}
    }
    pub fn find(&self, _: u64, _: &TlbSlot, _: u64) -> Option<Entry> {
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
    pub fn link(&mut self, _: Link, _: Entry, _: &TlbSlot) {
        match *self {}
    }
    pub fn remember(&mut self, _: Entry, _: &TlbSlot) {
        match *self {}
    }
    pub fn run(&mut self, _: Entry, _: Guest<'_>, _: u64) -> Option<Left> {
        match *self {}
    }
    pub fn resume(&mut self, _: Resume, _: Guest<'_>, _: u64) -> Option<Left> {
        match *self {}
    }
}
