//! A starting state: the whole state of a machine that has run, as an image from which another machine starts.
//!
//! In the new machine, counts begin at zero, as at power-on, and virtual time continues. So recordings, checkpoints and
//! the timeline need not know whether a machine started at power-on or in a state.
//!
//! A starting state holds the machine's state, its RAM, and the blocks that the guest wrote over the disk's image.
//! [`crate::Machine::build`] takes a starting state in place of kernel and initial RAM disk. The virtual time that came
//! from instructions becomes idle time of the clock. The log of the new recording begins with the old one's power-on
//! event, at the guest time of the start. The new machine is built from this power-on event, so the machine keeps the
//! old seed and date.
//!
//! A recording's first checkpoint could not replace a starting state. Checkpoints may be thinned out,
//! dropped, and left out of a pack; a replay works without them.
//!
//! To make a starting state, a timeline goes to the position, and [`StartingState::of`] copies the state of its
//! machine. If the recording of a live run begins later, the run pauses ([`crate::inputs::Inputs::pauses`]). The
//! machine then moves to the starting state that was made from its own state ([`crate::Machine::begin_at`]). Every
//! replay also begins in the starting state. A state does not hold all parts of a machine. The recorded run and its
//! replays thus begin without the same parts. The guest's earlier writes to its disk stay in memory
//! ([`crate::disk::OverlayDisk::set_start`]). If the guest writes such a block again, reads return the later
//! contents.
//!
//! The module `going_on` makes starting states, and starts machines from them. `vmm/recording/FORMAT.md` describes
//! the file. The file may come from a stranger: the reader checks all values, and reads no more than a machine of
//! this size can have.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Maps, PAGE_BYTES, Page, PageMap, PageRef};
use cpu::TurnState;
use lzma_rust2::{FilterType, XzOptions, XzReader, XzWriter};

use crate::error::Error;
use crate::format::Format;
use crate::machine_state::MachineState;
use crate::processors::Processors;

/// The first bytes of the file. The version follows, outside of the compressed part.
const MAGIC: &[u8; 8] = b"TTVMFROM";
/// The base-2 logarithm of the largest window, in bytes, that decompressing Zstandard may use.
const WINDOW_LOG_MAX: u32 = 24;
/// The most memory that decompressing XZ may use.
const XZ_MEMORY_KIB: u32 = 32 << 10;
/// The preset of XZ. With this preset, compressing a megabyte takes a third of a second.
const XZ_PRESET: u32 = 6;
/// The number of low bits of a byte's position that XZ's model uses. Memory is full of words of eight bytes.
const XZ_POSITION_BITS: u32 = 3;
/// The largest size in bytes of a machine's state without RAM and disk.
const MAX_STATE_BYTES: u32 = 16 << 20;
/// This number in place of a page's number ends the list of pages.
const NO_PAGE: u64 = u64::MAX;

/// How well a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Zstandard at its fastest level: compressing takes a fraction of a second, and saves most of the space.
    Fast,
    /// XZ: compressing takes a third of a second for each megabyte. A file that is sent to others is compressed in
    /// this way.
    Small,
}

impl Effort {
    /// The version number in the file, which says how the file is compressed.
    fn version(self) -> u32 {
        match self {
            Effort::Fast => 1,
            Effort::Small => 2,
        }
    }

    fn of_version(version: u32) -> Option<Effort> {
        [Effort::Fast, Effort::Small].into_iter().find(|effort| effort.version() == version)
    }
}

/// A function that [`StartingState::write`] calls before each page. The arguments are the written bytes of pages and the
/// bytes of all pages, before compression. The function returns whether to stop.
pub type WriteProgress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// The form of [`WriteProgress`] that this module uses: the function returns an error to stop the writing.
type NotePage<'a> = dyn FnMut() -> std::io::Result<()> + 'a;

/// A machine's state, from which another machine starts.
#[derive(Clone, Debug)]
pub struct StartingState {
    /// The state without memory and disk. The state's count of steps is zero.
    pub(super) state: MachineState,
    /// RAM, and the blocks of the disk that differ from its image.
    pub(super) maps: Maps,
}

impl StartingState {
    /// The pages of RAM that are not all zeroes, by number.
    pub fn ram_pages(&self) -> impl Iterator<Item = u64> {
        let held = |(page, version): (u64, &PageRef)| matches!(version, PageRef::Held(_)).then_some(page);
        self.maps.ram.iter_not_base().filter_map(held)
    }

    /// The blocks of the disk that differ from its image.
    pub fn disk_blocks(&self) -> impl Iterator<Item = u64> {
        self.maps.disk.iter_not_base().map(|(block, _)| block)
    }

    /// Begins a new turn by the policy of these processors. Drops all given turns that are still waiting.
    pub fn begin_turns(&mut self, processors: Processors) {
        self.state.others.turns = TurnState::at_start(processors.turn_rules());
    }

    /// Drops pages of RAM and blocks of the disk that the run from this state on does not need. These pages of RAM then
    /// read as zeroes, and these blocks of the disk as in its image.
    pub fn leave_out(&mut self, ram: impl Iterator<Item = u64>, disk: impl Iterator<Item = u64>) {
        ram.for_each(|page| self.maps.ram.set(page, PageRef::Zero));
        disk.for_each(|block| self.maps.disk.set(block, PageRef::Base));
    }

    /// Writes the state to a new file, in this format. Removes the file if writing fails, or if `progress` says to stop.
    pub fn write(
        &self,
        path: &Path,
        format: Format,
        effort: Effort,
        progress: &mut WriteProgress<'_>,
    ) -> Result<(), Error> {
        let file = File::create_new(path).map_err(Error::file("create", path))?;
        let [ram, disk] = self.written_maps().map(|(map, left_out)| written_pages(map, left_out).count());
        let total_bytes = ((ram + disk) * PAGE_BYTES) as u64;
        let (mut done_bytes, mut is_stopped) = (0, false);
        let mut note_page = || {
            is_stopped = progress(done_bytes, total_bytes);
            done_bytes += PAGE_BYTES as u64;
            if is_stopped { Err(std::io::Error::other("stopped")) } else { Ok(()) }
        };
        let written = self.write_to(BufWriter::new(file), format, effort, &mut note_page);
        if let Err(error) = written {
            // If the file cannot be removed either, the caller still gets the first error.
            let _ = std::fs::remove_file(path);
            return Err(if is_stopped { Error::Interrupted } else { Error::file("write", path)(error) });
        }
        Ok(())
    }

    fn write_to(
        &self,
        mut out: impl Write,
        format: Format,
        effort: Effort,
        note_page: &mut NotePage<'_>,
    ) -> std::io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&effort.version().to_le_bytes())?;
        match effort {
            Effort::Fast => {
                let mut encoder = zstd::Encoder::new(out, 1)?;
                encoder.include_checksum(true)?;
                self.write_body(format, &mut encoder, note_page)?;
                encoder.finish()?.flush()
            }
            Effort::Small => {
                let mut options = XzOptions::with_preset(XZ_PRESET);
                options.lzma_options.pb = XZ_POSITION_BITS;
                // The filter replaces relative targets of calls by absolute targets. So all calls of one function
                // have equal bytes, which compress well.
                options.prepend_pre_filter(FilterType::BcjX86, 0);
                let mut encoder = XzWriter::new(out, options)?;
                self.write_body(format, &mut encoder, note_page)?;
                encoder.finish()?.flush()
            }
        }
    }

    fn write_body(
        &self,
        format: Format,
        out: &mut impl Write,
        note_page: &mut NotePage<'_>,
    ) -> std::io::Result<()> {
        let state = self.state.to_bytes(format);
        out.write_all(&(state.len() as u32).to_le_bytes())?;
        out.write_all(&state)?;
        for (map, left_out) in self.written_maps() {
            write_pages(map, left_out, out, note_page)?;
        }
        Ok(())
    }

    /// The maps that are written to the file. With each map, the contents of the pages that the file leaves out.
    fn written_maps(&self) -> [(&PageMap, &PageRef); 2] {
        [(&self.maps.ram, &PageRef::Zero), (&self.maps.disk, &PageRef::Base)]
    }

    /// Reads a starting state of this format, for a machine with this many pages of RAM and disk blocks. Never
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
        let version = u32::from_le_bytes(*version);
        let Some(effort) = Effort::of_version(version) else {
            return Err(format!(
                "has version {version} of starting states; this ttvm reads versions 1 and 2"
            ));
        };
        let parse = |mut from: &mut dyn Read| parse_body(&mut from, format, ram_pages, disk_blocks);
        let parsed = match effort {
            Effort::Fast => zstd::Decoder::with_buffer(rest)
                .and_then(|mut decoder| {
                    decoder.window_log_max(WINDOW_LOG_MAX).map(|()| decoder.single_frame())
                })
                .map_err(|error| error.to_string())
                .and_then(|mut decoder| parse(&mut decoder)),
            Effort::Small => parse(&mut XzReader::new_mem_limit(rest, false, XZ_MEMORY_KIB)),
        };
        parsed.map_err(|why| format!("is damaged: {why}"))
    }
}

/// Makes a map's reference to page contents in memory.
pub(super) fn held(contents: &Page) -> PageRef {
    if *contents == [0; PAGE_BYTES] { PageRef::Zero } else { PageRef::Held(Arc::new(*contents)) }
}

/// The pages of a map that do not equal `left_out`.
fn written_pages<'a>(map: &'a PageMap, left_out: &'a PageRef) -> impl Iterator<Item = (u64, &'a PageRef)> {
    map.iter_not_base().filter(|(_, version)| !version.same_as(left_out))
}

/// Writes the number of pages in the map. Then writes each page's number and contents, and an end mark. Leaves out
/// pages that equal `left_out`.
fn write_pages(
    map: &PageMap,
    left_out: &PageRef,
    out: &mut impl Write,
    note_page: &mut NotePage<'_>,
) -> std::io::Result<()> {
    out.write_all(&map.len().to_le_bytes())?;
    for (page, version) in written_pages(map, left_out) {
        note_page()?;
        let contents = match version {
            PageRef::Held(contents) => contents,
            _ => &[0; PAGE_BYTES],
        };
        out.write_all(&page.to_le_bytes())?;
        out.write_all(contents)?;
    }
    out.write_all(&NO_PAGE.to_le_bytes())
}

fn parse_body(
    from: &mut impl Read,
    format: Format,
    ram_pages: u64,
    disk_blocks: u64,
) -> Result<StartingState, String> {
    let text = |error: std::io::Error| error.to_string();
    let length = u32::from_le_bytes(exact(from)?);
    if length > MAX_STATE_BYTES {
        return Err(format!("its state claims {length} bytes"));
    }
    let mut state = vec![0; length as usize];
    from.read_exact(&mut state).map_err(text)?;
    let state = MachineState::from_bytes(format, &state)
        .filter(|state| state.outcome.is_none() && state.counts.steps == 0)
        .ok_or("no machine starts in its state")?;
    let ram = parse_pages(from, PageMap::zeroed(ram_pages), "memory")?;
    let disk = parse_pages(from, PageMap::new(disk_blocks), "disk")?;
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
