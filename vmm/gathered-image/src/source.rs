//! Where the blocks of an image come from.

use std::io;

use crate::Block;

/// The contents of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The block has only zeros.
    Zero,
    /// The block cannot be read. The guest gets an error.
    Unreadable,
    /// The block has these bytes.
    Bytes(Box<Block>),
}

/// Makes the blocks of an image.
pub trait Source: Send {
    /// The contents of `count` neighbouring blocks. The image asks for each block once.
    ///
    /// # Errors
    ///
    /// If the source itself failed. The run then cannot go on.
    fn read(&mut self, first: u64, count: u32) -> io::Result<Vec<Contents>>;
}
