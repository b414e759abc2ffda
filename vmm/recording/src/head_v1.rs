//! The first version of a checkpoint's head: [`CheckpointHead`] and its place in the log, field by field in
//! the order on disk.
//!
//! Nothing in this file may be moved, added or retyped; `tests/stored_bytes.rs` has an example of the bytes.

use serde::{Deserialize, Serialize};

use crate::checkpoint_head::CheckpointHead;
use crate::cursor::Cursor;
use crate::moment_v1::MomentV1;
use machine::position::Count;

/// The stored form of a [`CheckpointHead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointHeadV1 {
    at: MomentV1,
    branches: u64,
    system_calls: u64,
    rip: u64,
    cursor: CursorV1,
}

/// The stored form of a [`Cursor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CursorV1 {
    event: u64,
    check: u64,
    last_good: MomentV1,
    log_check: u32,
}

impl<C: Count> From<&CheckpointHead<C>> for CheckpointHeadV1 {
    fn from(head: &CheckpointHead<C>) -> CheckpointHeadV1 {
        let CheckpointHead { at, branches, system_calls, rip, cursor } = *head;
        CheckpointHeadV1 { at: at.into(), branches, system_calls, rip, cursor: cursor.into() }
    }
}

impl<C: Count> From<CheckpointHeadV1> for CheckpointHead<C> {
    fn from(stored: CheckpointHeadV1) -> CheckpointHead<C> {
        let CheckpointHeadV1 { at, branches, system_calls, rip, cursor } = stored;
        CheckpointHead { at: at.into(), branches, system_calls, rip, cursor: cursor.into() }
    }
}

impl<C: Count> From<Cursor<C>> for CursorV1 {
    fn from(cursor: Cursor<C>) -> CursorV1 {
        let Cursor { event, check, last_good, log_check } = cursor;
        CursorV1 { event: event as u64, check: check as u64, last_good: last_good.into(), log_check }
    }
}

impl<C: Count> From<CursorV1> for Cursor<C> {
    fn from(stored: CursorV1) -> Cursor<C> {
        let CursorV1 { event, check, last_good, log_check } = stored;
        // All hosts have 64 bits.
        let (event, check) = (event as usize, check as usize);
        Cursor { event, check, last_good: last_good.into(), log_check }
    }
}
