//! The state in which a machine starts that does not start at power-on: all of a machine that ran, as one more image.
//!
//! Counts begin at zero there, as at power-on, and virtual time goes on. So whatever knows machines that start at their
//! first instruction (recordings, checkpoints, the timeline) need not know which kind of start it was.
//!
//! A start holds the machine's state, its RAM, and the blocks that the guest wrote over the disk's image.
//! [`crate::Machine::build`] takes it in place of kernel and initial RAM disk. The clock's idle time takes over what
//! instructions had counted. The log of the new recording begins with the power-on of the old one, at the guest time of the
//! start: the machine is built from that power-on, and keeps its seed and its date.
//!
//! A first checkpoint would not do as a start. Checkpoints may be thinned out, dropped and left out of a pack, and a replay
//! does without them.
//!
//! To make one, a timeline goes to the place, and [`StartingState::of`] takes everything from its machine. A run that is recorded
//! later pauses ([`crate::inputs::Inputs::pauses`]) and goes to its own start ([`crate::Machine::begin_at`]), as every replay
//! will: both lose what a state does not hold. What the guest had written to its disk until then stays in memory
//! ([`crate::disk::OverlayDisk::set_start`]), under its later writes.
//!
//! What a machine does with a start is in `going_on`. `vmm/recording/FORMAT.md` describes the file. The file may be a
//! stranger's: nothing in it is trusted, and no more is read than a machine of this size can have.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Maps, PAGE_BYTES, Page, PageMap, PageRef};

use crate::error::Error;
use crate::format::Format;
use crate::machine_state::MachineState;

/// Begins the file; the version follows, outside of the compressed part.
const MAGIC: &[u8; 8] = b"TTVMFROM";
const VERSION: u32 = 1;
/// Most memory that decompressing may ask for, as a power of two.
const WINDOW_LOG_MAX: u32 = 24;
/// No state of a machine without its memory is larger.
const MAX_STATE_BYTES: u32 = 16 << 20;
/// Stands behind the last page.
const NO_PAGE: u64 = u64::MAX;

/// How well a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Takes a fraction of a second, and gains most of the space.
    Fast,
    /// Takes some seconds, for a file that is sent to others.
    Small,
}

impl Effort {
    /// Zstandard's.
    fn level(self) -> i32 {
        match self {
            Effort::Fast => 1,
            Effort::Small => 12,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct StartingState {
    /// Everything but memory and disk, with a count of steps of zero.
    pub(super) state: MachineState,
    /// RAM, and the disk's blocks that are not those of its image.
    pub(super) maps: Maps,
}

impl StartingState {
    /// The pages of RAM that are not all zeroes, by number.
    pub fn ram_pages(&self) -> impl Iterator<Item = u64> {
        let held = |(page, version): (u64, &PageRef)| matches!(version, PageRef::Held(_)).then_some(page);
        self.maps.ram.iter_not_base().filter_map(held)
    }

    /// The blocks of the disk that are not those of its image.
    pub fn disk_blocks(&self) -> impl Iterator<Item = u64> {
        self.maps.disk.iter_not_base().map(|(block, _)| block)
    }

    /// Leaves out what the run from here on does not need: these pages of RAM read as zeroes then, and these blocks of the
    /// disk are those of its image.
    pub fn leave_out(&mut self, ram: impl Iterator<Item = u64>, disk: impl Iterator<Item = u64>) {
        ram.for_each(|page| self.maps.ram.set(page, PageRef::Zero));
        disk.for_each(|block| self.maps.disk.set(block, PageRef::Base));
    }

    /// Writes it to a file that does not exist yet, for a recording of this format. Half a file is not left behind.
    pub fn write(&self, path: &Path, format: Format, effort: Effort) -> Result<(), Error> {
        let file = File::create_new(path).map_err(Error::file("create", path))?;
        if let Err(error) = self.write_to(BufWriter::new(file), format, effort) {
            // That it cannot be removed either is no news.
            let _ = std::fs::remove_file(path);
            return Err(Error::file("write", path)(error));
        }
        Ok(())
    }

    fn write_to(&self, mut out: impl Write, format: Format, effort: Effort) -> std::io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let mut encoder = zstd::Encoder::new(out, effort.level())?;
        encoder.include_checksum(true)?;
        let state = self.state.to_bytes(format);
        encoder.write_all(&(state.len() as u32).to_le_bytes())?;
        encoder.write_all(&state)?;
        for (map, left_out) in [(&self.maps.ram, &PageRef::Zero), (&self.maps.disk, &PageRef::Base)] {
            write_pages(map, left_out, &mut encoder)?;
        }
        encoder.finish()?.flush()
    }

    /// Reads the starting state of a recording of this format, whose machine has so many pages of RAM and disk blocks. Never
    /// panics, whatever the bytes are.
    pub fn parse(
        bytes: &[u8],
        format: Format,
        ram_pages: u64,
        disk_blocks: u64,
    ) -> Result<StartingState, String> {
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or("is too short for a starting state")?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or("is too short for a starting state")?;
        if magic != MAGIC {
            return Err("is no starting state (wrong magic bytes)".to_string());
        }
        if u32::from_le_bytes(*version) != VERSION {
            let version = u32::from_le_bytes(*version);
            return Err(format!(
                "has version {version} of starting states; this ttvm reads version {VERSION}"
            ));
        }
        parse_body(rest, format, ram_pages, disk_blocks).map_err(|why| format!("is damaged: {why}"))
    }
}

/// A page as maps hold it in memory.
pub(super) fn held(contents: &Page) -> PageRef {
    if *contents == [0; PAGE_BYTES] { PageRef::Zero } else { PageRef::Held(Arc::new(*contents)) }
}

/// The number of pages, those that are not left out each behind its number, and an end.
fn write_pages(map: &PageMap, left_out: &PageRef, out: &mut impl Write) -> std::io::Result<()> {
    out.write_all(&map.len().to_le_bytes())?;
    for (page, version) in map.iter_not_base() {
        let contents = match version {
            _ if version.same_as(left_out) => continue,
            PageRef::Held(contents) => contents,
            _ => &[0; PAGE_BYTES],
        };
        out.write_all(&page.to_le_bytes())?;
        out.write_all(contents)?;
    }
    out.write_all(&NO_PAGE.to_le_bytes())
}

fn parse_body(
    bytes: &[u8],
    format: Format,
    ram_pages: u64,
    disk_blocks: u64,
) -> Result<StartingState, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut from = zstd::Decoder::with_buffer(bytes).map_err(text)?.single_frame();
    from.window_log_max(WINDOW_LOG_MAX).map_err(text)?;
    let length = u32::from_le_bytes(exact(&mut from)?);
    if length > MAX_STATE_BYTES {
        return Err(format!("its state claims {length} bytes"));
    }
    let mut state = vec![0; length as usize];
    from.read_exact(&mut state).map_err(text)?;
    let state = MachineState::from_bytes(format, &state)
        .filter(|state| state.outcome.is_none() && state.counts.steps == 0)
        .ok_or("no machine starts in its state")?;
    let ram = parse_pages(&mut from, PageMap::zeroed(ram_pages), "memory")?;
    let disk = parse_pages(&mut from, PageMap::new(disk_blocks), "disk")?;
    match from.read(&mut [0]).map_err(text)? {
        0 => Ok(StartingState { state, maps: Maps { ram, disk } }),
        _ => Err("something follows its last page".to_string()),
    }
}

fn parse_pages(from: &mut impl Read, mut map: PageMap, what: &str) -> Result<PageMap, String> {
    let count = u64::from_le_bytes(exact(from)?);
    if count != map.len() {
        return Err(format!("its {what} has {count} pages, and the machine's has {}", map.len()));
    }
    let mut next = 0;
    loop {
        let page = u64::from_le_bytes(exact(from)?);
        if page == NO_PAGE {
            return Ok(map);
        }
        if page < next || page >= count {
            return Err(format!("page {page} of its {what} is out of order"));
        }
        map.set(page, held(&exact(from)?));
        next = page + 1;
    }
}

fn exact<const N: usize>(from: &mut impl Read) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
