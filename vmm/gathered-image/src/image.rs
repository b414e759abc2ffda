//! The image.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Block;
use crate::frame::{HEADER_BYTES as FRAME_HEADER_BYTES, Header, MOST_BLOCKS, Place, copy_block, pack};
use crate::source::Source;

const MAGIC: &[u8; 8] = b"TTVMBLKS";
const VERSION: u32 = 1;
/// The largest number of blocks on a disk: 4 PiB. Offsets in bytes are then far from the end of a `u64`.
const MOST_BLOCKS_OF_DISK: u64 = 1 << 40;
/// The size of the file's header in bytes.
const HEADER_BYTES: usize = 40;

/// The reason for which an image or a block cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host cannot read or write the file.
    #[error("cannot {action} the file: {source}")]
    File {
        /// The action.
        action: &'static str,
        /// The host's reason.
        source: io::Error,
    },
    /// The file is not an image, or has damage.
    #[error("{0}")]
    Damaged(String),
    /// The image has no source, and its file does not have the block.
    #[error("the recording does not have block {0}, because the guest did not read it while it was recorded")]
    Missing(u64),
    /// The source failed.
    #[error("the source of its blocks failed: {0}")]
    Source(io::Error),
}

/// The result of reading a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The block was read.
    Done,
    /// The block is unreadable, so the guest gets an error.
    Unreadable,
}

/// A disk image that is gathered block by block. Clones share the file and the source.
#[derive(Clone)]
pub struct Image {
    blocks: u64,
    id: [u8; 16],
    gathered: Arc<Mutex<Gathered>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("blocks", &self.blocks).field("id", &self.id).finish_non_exhaustive()
    }
}

/// The frames of the file, and the source of further frames.
struct Gathered {
    file: File,
    /// The number of blocks on the disk.
    blocks: u64,
    /// The frames by the number of their first block, with the offset of the frame in the file.
    frames: BTreeMap<u64, (Header, u64)>,
    /// The end of the last complete frame.
    end: u64,
    source: Option<Box<dyn Source>>,
    /// The unpacked payload of the frame that was used last, with the number of the frame's first block.
    unpacked: Option<(u64, Vec<u8>)>,
}

impl Image {
    /// Makes a new file without blocks. `blocks` is the number of blocks on the disk. `id` tells the image from other images.
    ///
    /// # Errors
    ///
    /// If the host cannot make the file, or if the file exists.
    pub fn create(path: &Path, blocks: u64, id: [u8; 16]) -> Result<Image, Error> {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path);
        Image::begin(file.map_err(failed("create"))?, blocks, id)
    }

    /// Does the same as [`Image::create`], but the file has no name. The host removes the file at the end of the process.
    ///
    /// # Errors
    ///
    /// If the host cannot make a file in `folder`.
    pub fn create_unnamed(folder: &Path, blocks: u64, id: [u8; 16]) -> Result<Image, Error> {
        Image::begin(tempfile::tempfile_in(folder).map_err(failed("create"))?, blocks, id)
    }

    fn begin(file: File, blocks: u64, id: [u8; 16]) -> Result<Image, Error> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&blocks.to_le_bytes());
        header[24..].copy_from_slice(&id);
        file.write_all_at(&header, 0).map_err(failed("write"))?;
        Ok(Image::of(file, blocks, id))
    }

    fn of(file: File, blocks: u64, id: [u8; 16]) -> Image {
        let gathered = Gathered {
            file,
            blocks,
            frames: BTreeMap::new(),
            end: HEADER_BYTES as u64,
            source: None,
            unpacked: None,
        };
        Image { blocks, id, gathered: Arc::new(Mutex::new(gathered)) }
    }

    /// Opens an image for reading.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not an image, or has damage in the header of a frame.
    pub fn open(path: &Path) -> Result<Image, Error> {
        let file = plain_file::open(path).map_err(failed("open"))?;
        let mut header = [0; HEADER_BYTES];
        match file.read_exact_at(&mut header, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(Error::Damaged("the file is too short for a gathered disk".to_string()));
            }
            Err(error) => return Err(failed("read")(error)),
        }
        if &header[..8] != MAGIC {
            return Err(Error::Damaged("the file is not a gathered disk".to_string()));
        }
        let version = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        if version != VERSION {
            let why = format!("the file has version {version}, and this program reads version {VERSION}");
            return Err(Error::Damaged(why));
        }
        let blocks = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
        if !(1..=MOST_BLOCKS_OF_DISK).contains(&blocks) {
            return Err(Error::Damaged(format!("the file claims a disk of {blocks} blocks")));
        }
        let image = Image::of(file, blocks, header[24..].try_into().expect("sixteen bytes"));
        image.locked().scan()?;
        Ok(image)
    }

    /// From now on, the image takes blocks that it does not have from `source`.
    pub fn gather_from(self, source: impl Source + 'static) -> Image {
        self.locked().source = Some(Box::new(source));
        self
    }

    /// The number of blocks on the disk.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The image's id.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The number of blocks that the file has.
    pub fn gathered_blocks(&self) -> u64 {
        self.locked().frames.values().map(|(header, _)| u64::from(header.count)).sum()
    }

    /// The size in bytes of the file up to the end of its last complete frame.
    pub fn file_bytes(&self) -> u64 {
        self.locked().end
    }

    /// Takes `count` neighbouring blocks from the source, apart from the blocks that the image has already. Does nothing without a
    /// source. [`Image::read`] also takes a block, but one call for many blocks is faster.
    ///
    /// # Errors
    ///
    /// If the source fails, or if the file cannot be written.
    pub fn gather(&self, first: u64, count: u64) -> Result<(), Error> {
        self.locked().gather(first, count)
    }

    /// Reads a block.
    ///
    /// # Errors
    ///
    /// The errors of [`Image::gather`]; if the image has no source and its file does not have the block; or if the
    /// file is damaged.
    pub fn read(&self, block: u64, to: &mut Block) -> Result<Read, Error> {
        self.locked().read(block, to)
    }

    /// Reads all frames, to find damage.
    ///
    /// # Errors
    ///
    /// If a frame is damaged.
    pub fn check(&self) -> Result<(), Error> {
        let gathered = self.locked();
        gathered.frames.values().try_for_each(|&(header, at)| gathered.unpack(header, at).map(drop))
    }

    fn locked(&self) -> MutexGuard<'_, Gathered> {
        // A panic while the lock was held leaves at most a frame in the file that is not in the list.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathered {
    /// Adds the frames after `end` to the list. A frame that was cut off does not count.
    fn scan(&mut self) -> Result<(), Error> {
        let size = self.file.metadata().map_err(failed("look at"))?.len();
        while self.end + FRAME_HEADER_BYTES as u64 <= size {
            let mut bytes = [0; FRAME_HEADER_BYTES];
            self.file.read_exact_at(&mut bytes, self.end).map_err(failed("read"))?;
            // After a power failure, a file may end in zeros that nobody wrote.
            if bytes == [0; FRAME_HEADER_BYTES] {
                return Ok(());
            }
            let header = Header::parse(&bytes, self.blocks).map_err(damaged)?;
            let behind = self.end + FRAME_HEADER_BYTES as u64 + u64::from(header.payload_bytes);
            if behind > size {
                return Ok(());
            }
            if self.frame_before(header.end() - 1).is_some_and(|(other, _)| other.end() > header.first) {
                return Err(damaged("two frames have the same block"));
            }
            self.frames.insert(header.first, (header, self.end));
            self.end = behind;
        }
        Ok(())
    }

    /// The last frame that does not begin after a block.
    fn frame_before(&self, block: u64) -> Option<(Header, u64)> {
        self.frames.range(..=block).next_back().map(|(_, frame)| *frame)
    }

    /// The frame with a block.
    fn frame_with(&self, block: u64) -> Option<(Header, u64)> {
        self.frame_before(block).filter(|(header, _)| block < header.end())
    }

    fn gather(&mut self, first: u64, count: u64) -> Result<(), Error> {
        let end = first.saturating_add(count).min(self.blocks);
        let mut block = first;
        while self.source.is_some() && block < end {
            if let Some((header, _)) = self.frame_with(block) {
                block = header.end();
                continue;
            }
            let next = self.frames.range(block..).next().map_or(end, |(&first, _)| first.min(end));
            let count = (next - block).min(u64::from(MOST_BLOCKS)) as u32;
            self.gather_frame(block, count)?;
            block += u64::from(count);
        }
        Ok(())
    }

    /// Takes some blocks from the source, and writes them to the file.
    fn gather_frame(&mut self, first: u64, count: u32) -> Result<(), Error> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let blocks = source.read(first, count).map_err(Error::Source)?;
        if blocks.len() != count as usize {
            let why = format!("it gave {} blocks in place of {count}", blocks.len());
            return Err(Error::Source(io::Error::other(why)));
        }
        let (header, bytes, unpacked) = pack(first, &blocks).map_err(failed("compress a part of"))?;
        self.file.write_all_at(&bytes, self.end).map_err(failed("write"))?;
        self.frames.insert(first, (header, self.end));
        self.end += bytes.len() as u64;
        self.unpacked = Some((first, unpacked));
        Ok(())
    }

    fn read(&mut self, block: u64, to: &mut Block) -> Result<Read, Error> {
        let (header, at) = self.frame_of(block)?;
        match header.place(block) {
            Place::Zero => to.fill(0),
            Place::Unreadable => return Ok(Read::Unreadable),
            Place::Payload(number) => {
                if self.unpacked.as_ref().is_none_or(|(first, _)| *first != header.first) {
                    self.unpacked = Some((header.first, self.unpack(header, at)?));
                }
                let unpacked = self.unpacked.as_ref().expect("it was unpacked above");
                copy_block(&unpacked.1, number, to);
            }
        }
        Ok(Read::Done)
    }

    /// The frame with a block, from the list, from the source, or from a part of the file that another process wrote meanwhile.
    fn frame_of(&mut self, block: u64) -> Result<(Header, u64), Error> {
        if let Some(frame) = self.frame_with(block) {
            return Ok(frame);
        }
        match self.source {
            Some(_) => self.gather(block, 1)?,
            None => self.scan()?,
        }
        self.frame_with(block).ok_or(Error::Missing(block))
    }

    fn unpack(&self, header: Header, at: u64) -> Result<Vec<u8>, Error> {
        let mut payload = vec![0; header.payload_bytes as usize];
        let behind_header = at + FRAME_HEADER_BYTES as u64;
        self.file.read_exact_at(&mut payload, behind_header).map_err(failed("read"))?;
        header.unpack(&payload).map_err(damaged)
    }
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { action, source }
}

fn damaged(why: &str) -> Error {
    Error::Damaged(format!("the file is damaged: {why}"))
}
