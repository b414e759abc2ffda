//! The disk of a tree.

use ext4_layout::{Block, Layout};

use crate::options::{Error, Options};
use crate::tree::{HostTree, Unreadable};
use crate::warning::Warning;

/// An ext4 disk with the folders and files of the host.
#[derive(Debug)]
pub struct Disk {
    layout: Layout<HostTree>,
}

impl Disk {
    /// A disk that lists a folder when the guest first looks at it.
    ///
    /// # Errors
    ///
    /// The errors of [`HostTree::new`], or if the sizes in `layout` do not fit.
    pub fn new(layout: ext4_layout::Options, options: &Options) -> Result<Disk, Error> {
        let tree = HostTree::new(options)?;
        let root = tree.root().clone();
        Ok(Disk { layout: Layout::new(layout, tree, &root)? })
    }

    /// A disk that lists all folders at once, so that its counts are exact, too.
    ///
    /// # Errors
    ///
    /// The errors of [`Disk::new`].
    pub fn eager(layout: ext4_layout::Options, options: &Options) -> Result<Disk, Error> {
        let tree = HostTree::new(options)?;
        let root = tree.root().clone();
        Ok(Disk { layout: Layout::eager(layout, tree, &root)? })
    }

    /// The number of blocks of 4096 bytes.
    pub fn blocks(&self) -> u64 {
        self.layout.blocks()
    }

    /// Reads a block; `None` has zeros. Later calls give the same bytes, or an error if the file was changed meanwhile. So
    /// the caller keeps the answer.
    ///
    /// # Errors
    ///
    /// If the block belongs to a file that cannot be read.
    pub fn read_block(&mut self, number: u64) -> Result<Option<Box<[u8; 4096]>>, Unreadable> {
        match self.layout.block(number) {
            Block::Zero => Ok(None),
            Block::Made(bytes) => Ok(Some(bytes)),
            Block::File { id, offset } => {
                let mut bytes = Box::new([0; 4096]);
                self.layout.tree_mut().read(id, offset, &mut *bytes)?;
                Ok(Some(bytes))
            }
        }
    }

    /// The warnings since the last call, in their order.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        self.layout.tree_mut().take_warnings()
    }
}
