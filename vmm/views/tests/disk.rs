//! Tests the view of the guest's disk: partitions and file systems before and after the guest overwrites the table.

use history::never;
use history::timeline::{Breakpoint, Stops, Timeline};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::position::Instructions;
use tiny_guest::STIRRED;
use tiny_guest::virtio::{self, DISK, DISK_SECTORS, Queue, read, written};
use views::disk::DiskContents;

const HEADER: u64 = STIRRED + 0x100;
const DATA: u64 = STIRRED + 0x1000;

/// The guest writes zeroes to the disk's first sector.
fn overwrites(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let queue = Queue::of(DISK, 0);
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    virtio::header(a, HEADER, 1, 0)?;
    virtio::request(a, queue, 0, &[read(HEADER, 16), read(DATA, 512), written(DATA + 600, 1)])?;
    virtio::to_doorbell(a, queue)?;
    virtio::notify(a, queue)?;
    a.nop()
}

/// A table with the partitions 1 and 3. The first one has a file system, and the other one has swap space.
fn partitions(disk: &mut [u8]) {
    disk[..512].fill(0);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (slot, kind, start, sectors) in [(0, 0x83, 2, 8_u32), (2, 0x82, 16, 10)] {
        let entry = &mut disk[446 + 16 * slot..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&u32::to_le_bytes(start));
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
    }
    let superblock = &mut disk[2 * 512 + 1024..][..1024];
    superblock.fill(0);
    superblock[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    // A journal, extents, and changes in the journal.
    superblock[0x5c] = 4;
    superblock[0x60] = 0x44;
    (0..16).for_each(|number| superblock[0x68 + number] = number as u8);
    superblock[0x78..0x7c].copy_from_slice(b"ro\nt");
    disk[16 * 512 + 0xff6..][..10].copy_from_slice(b"SWAPSPACE2");
}

#[test]
fn partitions_are_those_of_the_position() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, addresses) =
        virtio::record(directory.path(), "r.ttvm", partitions, overwrites, Vec::new());
    let mut timeline = Timeline::open(&recording).unwrap();
    let before = DiskContents::of(timeline.machine_mut()).unwrap();
    let breakpoints = vec![Breakpoint::at(*addresses.last().unwrap())];
    timeline.set_stops(Stops { breakpoints, ..Stops::default() });
    timeline.run_forward(&mut never).unwrap();
    assert!(timeline.position() > Instructions(0));
    let after = DiskContents::of(timeline.machine_mut()).unwrap();

    let expected = "\
disk             16384 bytes (16.0 KiB), 2 partitions (mbr)
partition 1   from byte 1024, 4.0 KiB (4096 bytes), type 0x83: ext4, label ro\\u000at, UUID \
00010203-0405-0607-0809-0a0b0c0d0e0f, journal in use
partition 3   from byte 8192, 5.0 KiB (5120 bytes), type 0x82: swap";
    let info = before.info().unwrap();
    assert_eq!(info.to_string(), expected);
    assert!(info.file_system.is_none() && info.partitions[1].partition.start_bytes == 8192);
    let text = after.info().unwrap().to_string();
    let none = "disk             16384 bytes (16.0 KiB)\n          no partitions: no known file system";
    assert_eq!((text.as_str(), after.info().unwrap().size_bytes), (none, DISK_SECTORS * 512));

    let error = |found: Result<(), machine::error::Error>| found.unwrap_err().to_string();
    let missing = error(before.volume(Some(2)).map(drop));
    assert_eq!(missing, "the disk has no partition 2 at this position; it has 1, 3");
    let choose = error(before.files(None).map(drop));
    assert!(
        choose.starts_with("the disk has partitions; choose one") && choose.ends_with(": 1, 3"),
        "{choose}"
    );
    let table = error(after.volume(Some(1)).map(drop));
    assert!(table.starts_with("the disk has no table of partitions at this position"), "{table}");
    assert!(before.files(Some(3)).is_err() && after.files(None).is_err());

    let (recording, _) = tiny_guest::record(directory.path(), "tiny.ttvm", 100, Vec::new());
    let mut timeline = Timeline::open(&recording).unwrap();
    let error = error(DiskContents::of(timeline.machine_mut()).map(drop));
    assert_eq!(error, "the machine of this recording has no disk; record with --disk");
}

#[test]
fn the_bytes_of_a_partition_are_those_of_the_disk() {
    use guest_disk::ByteSource;
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = virtio::record(directory.path(), "r.ttvm", partitions, overwrites, Vec::new());
    let mut timeline = Timeline::open(&recording).unwrap();
    let contents = DiskContents::of(timeline.machine_mut()).unwrap();
    let mut swap = contents.volume(Some(3)).unwrap();
    let mut bytes = [0; 4];
    swap.read_at(8, &mut bytes).unwrap();
    assert_eq!(bytes, [8192 + 8, 8192 + 9, 8192 + 10, 8192 + 11].map(virtio::disk_byte));
    assert_eq!((swap.size_bytes(), swap.read_at(5118, &mut bytes).is_err()), (5120, true));
    let mut whole = contents.volume(None).unwrap();
    whole.read_at(510, &mut bytes[..2]).unwrap();
    assert_eq!((whole.size_bytes(), &bytes[..2]), (16384, &[0x55, 0xaa][..]));
}
