//! A disk image that keeps each block when a guest first reads it.
//!
//! ```
//! use gathered_image::{BLOCK_BYTES, Contents, Image, Read, Source};
//!
//! /// A source whose blocks are full of their numbers.
//! struct Numbers;
//!
//! impl Source for Numbers {
//!     fn read(&mut self, first: u64, count: u32) -> std::io::Result<Vec<Contents>> {
//!         let block = |number| Contents::Bytes(Box::new([number as u8; BLOCK_BYTES]));
//!         Ok((first..first + u64::from(count)).map(block).collect())
//!     }
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("disk");
//! let live = Image::create(&path, 1 << 28, [7; 16])?.gather_from(Numbers);
//! let mut block = [0; BLOCK_BYTES];
//! assert_eq!((live.read(1000, &mut block)?, block[0]), (Read::Done, 232));
//!
//! // The file has the block now, and a replay needs no source.
//! let kept = Image::open(&path)?;
//! assert_eq!((kept.read(1000, &mut block)?, block[0]), (Read::Done, 232));
//! assert!(kept.read(1001, &mut block).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! While a guest runs, the image has a [`Source`], which makes the blocks. The image asks the source once for each block,
//! and writes the answer to its file before the guest gets the answer. So a block never changes. An image without a source has
//! only the blocks in its file. A source may also say that a block is unreadable. The guest then gets an error
//! whenever it reads this block.
//!
//! # The file
//!
//! All numbers are little endian. A header of 40 bytes comes first. The header has the magic `TTVMBLKS`, the version (32 bits) and a zero
//! (32 bits). The number of blocks on the disk (64 bits) and the image's id (16 bytes) follow. Then come frames. Each frame has some neighbouring blocks:
//!
//! | bytes | contents |
//! | --- | --- |
//! | 0 to 7 | number of the first block |
//! | 8 to 15 | a bit for each block: it has only zeros |
//! | 16 to 23 | a bit for each block: it is unreadable |
//! | 24 to 27 | number of blocks, 1 to 64 |
//! | 28 to 31 | size of the payload in bytes |
//! | 32 to 35 | CRC-32 of the payload |
//! | 36 to 39 | CRC-32 of bytes 0 to 35 |
//! | 40 and on | the payload: all other blocks of the frame, 4096 bytes each, compressed together by zstd |
//!
//! No block is in two frames. A frame that was cut off, at the end of the file, does not count. The file may come from a stranger:
//! every length is checked, and damage is an error.

#![forbid(unsafe_code)]

mod frame;
mod image;
mod source;

pub use image::{Error, Image, Read};
pub use source::{Contents, Source};

/// The size of a block in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// The bytes of a block.
pub type Block = [u8; BLOCK_BYTES];
