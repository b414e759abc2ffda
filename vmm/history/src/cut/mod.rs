//! Makes a small recording of a recording's end. A user can send such a recording to the person who debugs a crash.
//!
//! ```text
//!   the recording    ├──────────────────────┬───────────────┤
//!                                        the cut          the end
//!   what is made                            ├───────────────┤   begins with a state, needs no image
//! ```
//!
//! The new recording starts in a [`StartingState`] at the cut, and its log has the events after the cut. To be small,
//! the new recording leaves out contents that the run no longer needs:
//!
//! - free pages of memory that the run does not access after the cut. A page is free if the guest's kernel has it
//!   on its free lists both at the cut and at the end;
//! - disk blocks that the guest does not read, or writes before it reads them.
//!
//! To find the accessed pages, the part after the cut is replayed with an observer on all free pages. Then the part
//! is replayed again and recorded, without the left-out pages and blocks. Both machines must be equal at the end,
//! in registers, devices, and all pages and blocks that were not left out.
//!
//! The positions in the new recording are counted from the cut. Guest time continues from the longer recording.

mod inputs;
mod touched;

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use checkpoint::PAGE_BYTES;
use gathered_image::{Contents, Image, Read, Source};
use guest_ram::{PAGE_SIZE, RamLayout};
use guest_symbols::free_pages;
use machine::config::{ImageFile, hash_image};
use machine::contents_hash::Scheme;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::notation::{Distance, PositionSpec};
use machine::position::{Count, Instructions};
use machine::starting_state::WriteProgress;
use machine::{Machine, StartingState};
use recording::{Cut, Recordable, Recording};

use self::inputs::Remaining;
use crate::timeline::Timeline;
use crate::workers::Poll;

/// The file name of the disk's image in the new recording's folder. A pack of the recording contains the image as
/// `images/disk`.
const DISK: &str = "disk";

/// A summary of the cut recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOut {
    /// The description of the cut in the new recording's manifest.
    pub cut: Cut,
    /// The new recording's length.
    pub length: Instructions,
    /// Number of disk blocks in the new recording.
    pub disk_blocks: u64,
}

/// Makes a new recording of the last `last_ns` of guest time of `recording`, which does not change. The new folder
/// must not exist. If `all_memory` is true, free pages are not left out. The replays stop if `poll` returns true.
/// The writing of the starting state stops if `compressing` returns true.
pub fn cut_out_end(
    recording: &Recording<Instructions>,
    last_ns: u64,
    all_memory: bool,
    folder: &Path,
    poll: &mut Poll<'_>,
    compressing: &mut WriteProgress<'_>,
) -> Result<CutOut, Error> {
    if !recording.manifest.machine.passthrough.is_empty() {
        let why = "the guest has devices of the host, whose state cannot be restored: the recording cannot begin in \
            the middle; pack it without --last";
        return Err(Error::Unsupported(why.to_string()));
    }
    let mut timeline = Timeline::open(recording)?;
    let end = timeline.end();
    timeline.seek(end, poll)?.unless_interrupted()?;
    let free_at_end = if all_memory { BTreeSet::new() } else { free(timeline.machine()) };
    let length_ns = recording.log.last_moment().time_ns - recording.log.power_on()?.at.time_ns;
    let from = match PositionSpec::Before(Distance::Nanoseconds(last_ns)) {
        _ if last_ns >= length_ns => PositionSpec::Start,
        from => from,
    };
    let from = timeline.resolve_outside(from, poll)?;
    timeline.seek(from, poll)?.unless_interrupted()?;
    let mut start = StartingState::of(timeline.machine_mut())?;
    let snapshot = timeline.snapshot()?;
    let free = if free_at_end.is_empty() { free_at_end } else { &free_at_end & &free(timeline.machine()) };
    drop(timeline);
    let used: BTreeSet<u64> = start.ram_pages().filter(|page| free.contains(page)).collect();

    // Replays with all contents, to find the pages and blocks that the run needs.
    let mut whole = Recordable::<Instructions>::going_on(EngineKind::SOFT, recording, start.clone())?;
    if let Some(disk) = whole.machine.disk_mut() {
        disk.note_read();
    }
    let inputs = Remaining::new(recording, &snapshot, end)?;
    let free = touched::untouched(&mut whole.machine, used, inputs, poll)?;
    let blocks = whole.machine.disk_mut().map(|disk| disk.take_read()).unwrap_or_default();

    // Replays without the pages and blocks that the run does not need, and records.
    recording::create_folder(folder)?;
    let mut small = recording.clone();
    if let Some(disk) = &mut small.manifest.machine.disk {
        *disk = disk_of(disk, &blocks, &start, folder)?;
    }
    let unread: Vec<u64> = start.disk_blocks().filter(|block| !blocks.contains(block)).collect();
    start.leave_out(free.iter().copied(), unread.into_iter());
    let cut = Cut { instructions: from.number(), free_pages: free.len() as u64 };
    let mut again = Recordable::<Instructions>::going_on(EngineKind::SOFT, &small, start)?;
    let inputs = Remaining::new(recording, &snapshot, end)?;
    again.record_cut_in_empty(folder, cut, compressing)?.run(inputs)?;
    must_be_equal(&mut whole.machine, &mut again.machine, &free)?;
    let length = again.machine.moment().count;
    Ok(CutOut { cut, length, disk_blocks: blocks.len() as u64 })
}

/// The pages that are free in the guest's kernel. Empty if the guest runs no known kernel.
fn free(machine: &Machine<Instructions>) -> BTreeSet<u64> {
    let layout = machine.ram().layout();
    let blocks = free_pages(machine).unwrap_or_else(|why| {
        log::warn!("free memory is kept: {why}");
        Vec::new()
    });
    pages_of(&blocks, layout)
}

/// The pages of RAM, numbered by offset, in these blocks of physical pages.
fn pages_of(blocks: &[Range<u64>], layout: &RamLayout) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for (address, offset, bytes) in layout.ranges() {
        let (first, behind) = (address / PAGE_SIZE, (address + bytes) / PAGE_SIZE);
        for block in blocks {
            let within = block.start.max(first)..block.end.min(behind);
            pages.extend(within.map(|page| page - first + offset / PAGE_SIZE));
        }
    }
    pages
}

/// Makes an image with these blocks of another image, and holes in place of all others. Blocks in the starting state
/// need not be in the image.
fn disk_of(
    image: &ImageFile,
    blocks: &BTreeSet<u64>,
    start: &StartingState,
    folder: &Path,
) -> Result<ImageFile, Error> {
    let over: BTreeSet<u64> = start.disk_blocks().collect();
    if image.is_gathered() {
        return gathered_disk_of(image, blocks.difference(&over).copied(), folder);
    }
    let from = plain_file::open(&image.path).map_err(Error::file("open", &image.path))?;
    let path = folder.join(DISK);
    let to = File::create_new(&path).map_err(Error::file("create", &path))?;
    to.set_len(image.size_bytes).map_err(Error::file("make room for", &path))?;
    for block in blocks.difference(&over) {
        let at = block * PAGE_BYTES as u64;
        let mut contents = vec![0; (image.size_bytes - at).min(PAGE_BYTES as u64) as usize];
        from.read_exact_at(&mut contents, at).map_err(Error::file("read", &image.path))?;
        to.write_all_at(&contents, at).map_err(Error::file("write", &path))?;
    }
    hash_image(&path, Scheme::Sparse)
}

/// Makes a gathered image with these blocks of another gathered image.
fn gathered_disk_of(
    image: &ImageFile,
    blocks: impl Iterator<Item = u64>,
    folder: &Path,
) -> Result<ImageFile, Error> {
    let path = folder.join(DISK);
    let failed = |error: gathered_image::Error| Error::recording(&path, error.to_string());
    let from = image.open_gathered()?;
    let to = Image::create(&path, from.blocks(), from.id()).map_err(failed)?.gather_from(Copied(from));
    for block in blocks {
        to.gather(block, 1).map_err(failed)?;
    }
    Ok(ImageFile { path, ..image.clone() })
}

/// The source of an image that has some blocks of another image.
struct Copied(Image);

impl Source for Copied {
    fn read(&mut self, first: u64, count: u32) -> std::io::Result<Vec<Contents>> {
        let block = |number| {
            let mut bytes = Box::new([0; PAGE_BYTES]);
            Ok(match self.0.read(number, &mut bytes).map_err(std::io::Error::other)? {
                Read::Done => Contents::Bytes(bytes),
                Read::Unreadable => Contents::Unreadable,
            })
        };
        (first..first + u64::from(count)).map(block).collect()
    }
}

/// Returns an error if the two machines differ at the end. Pages that were left out are not compared.
fn must_be_equal(
    whole: &mut Machine<Instructions>,
    again: &mut Machine<Instructions>,
    left_out: &BTreeSet<u64>,
) -> Result<(), Error> {
    let differs = |what: String| {
        let why = format!(
            "the end would not replay exactly ({what} would differ); pack it with --free-memory, or without --last"
        );
        Error::Unsupported(why)
    };
    if (whole.moment(), whole.outcome()) != (again.moment(), again.outcome()) {
        return Err(differs("its length".to_string()));
    }
    if whole.state() != again.state() {
        return Err(differs("the machine's state".to_string()));
    }
    let (mut one, mut other) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    for page in (0..whole.ram().flags().pages()).filter(|page| !left_out.contains(page)) {
        whole.ram().read_bytes(page * PAGE_SIZE, &mut one);
        again.ram().read_bytes(page * PAGE_SIZE, &mut other);
        if one != other {
            return Err(differs(format!("page {page:#x} of its memory")));
        }
    }
    let written = |machine: &mut Machine<Instructions>| machine.disk_mut().map(|disk| disk.version());
    let (Some(blocks), Some(theirs)) = (written(whole), written(again)) else { return Ok(()) };
    let numbers: BTreeSet<u64> =
        blocks.iter_not_base().chain(theirs.iter_not_base()).map(|(number, _)| number).collect();
    for number in numbers {
        whole.read_block(number, &mut one)?;
        again.read_block(number, &mut other)?;
        if one != other {
            return Err(differs(format!("block {number} of its disk")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use devices::virtio::BlockBackend;
    use guest_ram::{HIGH_RAM_START, LOW_RAM_LIMIT};
    use machine::config::{MachineConfig, MachineOptions};
    use machine::inputs::PowerOn;

    use super::*;

    type Change<'a> = dyn Fn(&mut Machine<Instructions>) + 'a;

    /// A machine whose disk has five and a half blocks, each filled with its number.
    fn machine(directory: &Path) -> (Machine<Instructions>, ImageFile) {
        let image = directory.join("image");
        let contents: Vec<u8> = (0..5 * PAGE_BYTES + 2048).map(|at| (at / PAGE_BYTES) as u8).collect();
        std::fs::write(&image, contents).unwrap();
        let options = MachineOptions {
            kernel: tiny_guest::write_kernel(directory, 10_000),
            disk: Some(image),
            memory_bytes: 4 << 20,
            ..MachineOptions::default()
        };
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        let power_on = PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 };
        let machine = Machine::<Instructions>::new(&config, &images, &power_on).unwrap();
        (machine, config.disk.unwrap())
    }

    fn run(machine: &mut Machine<Instructions>, place: u64) {
        machine.run(Instructions(place), &mut tiny_guest::Script(Vec::new())).unwrap();
    }

    fn write(machine: &mut Machine<Instructions>, block: u64, byte: u8) {
        machine.disk_mut().unwrap().write(8 * block, &[byte; PAGE_BYTES]).unwrap();
    }

    #[test]
    fn pages_have_the_numbers_of_their_offsets_in_ram() {
        let layout = RamLayout::new(LOW_RAM_LIMIT + 4 * PAGE_SIZE);
        let (low, high) = (LOW_RAM_LIMIT / PAGE_SIZE, HIGH_RAM_START / PAGE_SIZE);
        // The first block ends in the device hole, the second begins in the hole, and the third ends beyond RAM.
        let blocks = [low - 1..low + 3, high - 2..high + 1, high + 3..high + 9, 5..7];
        assert_eq!(pages_of(&blocks, &layout), BTreeSet::from([5, 6, low - 1, low, low + 3]));
    }

    #[test]
    fn what_did_not_come_to_the_same_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let page = 2 << 20;
        let differ = |change: &Change<'_>, left_out: &[u64]| {
            let [mut whole, mut again] = [0, 1].map(|_| machine(directory.path()).0);
            [&mut whole, &mut again].into_iter().for_each(|machine| {
                write(machine, 2, 9);
                run(machine, 1_000);
            });
            change(&mut again);
            let left_out = left_out.iter().copied().collect();
            must_be_equal(&mut whole, &mut again, &left_out).err().map(|error| error.to_string())
        };
        assert_eq!(differ(&|_| {}, &[]), None);
        let flip = |machine: &mut Machine<Instructions>| machine.flip_ram_bit(page, 1);
        let cases: [(&str, &Change<'_>); 5] = [
            ("its length would differ", &|machine| run(machine, 1_001)),
            ("page 0x200 of its memory would differ", &flip),
            ("block 2 of its disk would differ", &|machine| write(machine, 2, 8)),
            ("block 3 of its disk would differ", &|machine| write(machine, 3, 8)),
            ("the machine's state would differ", &|machine| {
                let mut state = machine.state();
                state.cpu.gpr[3] ^= 1;
                let maps = machine.maps().unwrap();
                machine.restore(&state, &maps).unwrap();
            }),
        ];
        for (why, change) in cases {
            let told = differ(change, &[1, 2]).unwrap_or_default();
            assert!(told.contains(why), "{why}: {told}");
        }
        assert_eq!(differ(&flip, &[page / PAGE_SIZE]), None, "it was left out");
        // A disk block that was written with the image's own contents does not count as a difference.
        assert_eq!(differ(&|machine| write(machine, 3, 3), &[]), None);
    }

    #[test]
    fn a_disk_has_what_is_read_before_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (mut machine, image) = machine(directory.path());
        write(&mut machine, 3, 9);
        let start = StartingState::of(&mut machine).unwrap();
        let folder = directory.path().join("new");
        std::fs::create_dir(&folder).unwrap();
        let made = disk_of(&image, &BTreeSet::from([1, 3, 5]), &start, &folder).unwrap();
        let contents = std::fs::read(folder.join(DISK)).unwrap();
        let firsts: Vec<u8> = contents.iter().step_by(PAGE_BYTES).copied().collect();
        assert_eq!((contents.len() as u64, made.size_bytes), (image.size_bytes, image.size_bytes));
        assert_eq!(firsts, [0, 1, 0, 0, 0, 5], "the start has block 3");
        assert!(contents[5 * PAGE_BYTES..].iter().all(|&byte| byte == 5));
    }
}
