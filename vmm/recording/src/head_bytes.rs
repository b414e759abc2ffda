//! The bytes of a checkpoint's head, in each format.

use machine::Format;
use machine::unit::Unit;

use crate::checkpoint_head::CheckpointHead;
use crate::head_v1::CheckpointHeadV1;

impl<C: Unit> CheckpointHead<C> {
    /// The bytes of the checkpoint's head.
    pub fn to_bytes(&self, format: Format) -> Vec<u8> {
        match format {
            Format::V5 | Format::V6 => postcard::to_stdvec(&CheckpointHeadV1::from(self)),
        }
        .expect("plain data in memory always serializes")
    }

    /// Parses a checkpoint's head. Returns `None` if the bytes are no head. The bytes may come from strangers.
    pub fn parse(format: Format, bytes: &[u8]) -> Option<CheckpointHead<C>> {
        match format {
            Format::V5 | Format::V6 => {
                let (head, rest) = postcard::take_from_bytes::<CheckpointHeadV1>(bytes).ok()?;
                rest.is_empty().then(|| head.into())
            }
        }
    }
}
