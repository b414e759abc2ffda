//! Tables of partitions: MBR with logical partitions, and GPT. Partitions have the numbers that Linux gives them.
//!
//! The layouts are from the UEFI specification 2.10, section 5, and from Linux' `block/partitions`. Sectors have 512
//! bytes, as on the disk that ttvm gives a guest.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::source::{ByteSource, bytes_at, field};

const SECTOR: u64 = 512;
/// The largest number of logical partitions in an MBR table.
const MOST_LOGICAL: usize = 128;
/// The largest number of entries in a GPT table. Tables usually have 128 entries.
const MOST_ENTRIES: u32 = 1024;
/// The largest size in bytes of a GPT entry. Entries usually have 128 bytes.
const MOST_ENTRY_BYTES: u32 = 4096;
/// The types of MBR partitions that contain logical partitions.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The type of the MBR partition that covers a disk with a GPT table.
const PROTECTIVE: u8 = 0xee;

/// A table of partitions.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Table {
    /// The kind of the table: `mbr` or `gpt`.
    pub kind: &'static str,
    /// The partitions, in the order of their numbers.
    pub partitions: Vec<Partition>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Partition {
    /// The partition's number.
    pub number: u32,
    /// The offset of its first byte on the disk.
    pub start_bytes: u64,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The type in the table: a byte in hex for MBR, a GUID for GPT.
    #[serde(rename = "type")]
    pub type_text: String,
    /// The name in a GPT table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Reads the table of a disk's partitions. Returns `None` if the disk has no table.
///
/// # Errors
///
/// If the disk cannot be read.
pub fn read<S: ByteSource>(disk: &mut S) -> Result<Option<Table>, Error> {
    let Some(sector) = bytes_at::<512, S>(disk, 0)? else { return Ok(None) };
    if !is_mbr(&sector) {
        return Ok(None);
    }
    if slots(&sector).iter().any(|slot| slot.type_byte == PROTECTIVE)
        && let Some(table) = gpt(disk)?
    {
        return Ok(Some(table));
    }
    mbr(disk, &sector).map(Some)
}

/// One of the four entries in a sector of an MBR table.
#[derive(Clone, Copy)]
struct Slot {
    type_byte: u8,
    start: u64,
    sectors: u64,
}

impl Slot {
    fn is_used(self) -> bool {
        self.type_byte != 0 && self.sectors > 0
    }
}

fn slots(sector: &[u8; 512]) -> [Slot; 4] {
    [0, 1, 2, 3].map(|number| {
        let at = 446 + 16 * number;
        let word = |at| u64::from(u32::from_le_bytes(field(sector, at)));
        Slot { type_byte: sector[at + 4], start: word(at + 8), sectors: word(at + 12) }
    })
}

/// Whether the first sector is a table. The first sector of a FAT or NTFS file system has the same signature.
fn is_mbr(sector: &[u8; 512]) -> bool {
    let has_signature = sector[510..] == [0x55, 0xaa];
    let flags = [446, 462, 478, 494].iter().all(|&at| matches!(sector[at], 0 | 0x80));
    let is_file_system = sector[0x36..0x39] == *b"FAT"
        || sector[0x52..0x55] == *b"FAT"
        || sector[3..7] == *b"NTFS"
        || sector[3..8] == *b"EXFAT";
    has_signature && flags && !is_file_system && slots(sector).iter().any(|slot| slot.is_used())
}

fn mbr<S: ByteSource>(disk: &mut S, sector: &[u8; 512]) -> Result<Table, Error> {
    let mut partitions = Vec::new();
    for (number, slot) in (1..).zip(slots(sector)).filter(|(_, slot)| slot.is_used()) {
        partitions.push(of_slot(number, slot, 0));
    }
    let extended =
        slots(sector).into_iter().find(|slot| slot.is_used() && EXTENDED.contains(&slot.type_byte));
    if let Some(extended) = extended {
        add_logical(disk, extended.start, &mut partitions)?;
    }
    Ok(Table { kind: "mbr", partitions })
}

/// Adds the logical partitions. Each logical partition has a sector of its own, which names the next sector.
fn add_logical<S: ByteSource>(
    disk: &mut S,
    extended: u64,
    partitions: &mut Vec<Partition>,
) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let (mut at, mut number) = (extended, 5);
    while seen.len() < MOST_LOGICAL && seen.insert(at) {
        let Some(sector) = bytes_at::<512, S>(disk, at * SECTOR)? else { break };
        if sector[510..] != [0x55, 0xaa] {
            break;
        }
        let slots = slots(&sector);
        let is_link = |slot: &Slot| EXTENDED.contains(&slot.type_byte);
        for slot in slots.iter().filter(|slot| slot.is_used() && !is_link(slot)) {
            partitions.push(of_slot(number, *slot, at));
            number += 1;
        }
        match slots.iter().find(|slot| slot.is_used() && is_link(slot)) {
            Some(link) => at = extended + link.start,
            None => break,
        }
    }
    Ok(())
}

fn of_slot(number: u32, slot: Slot, base: u64) -> Partition {
    Partition {
        number,
        start_bytes: (base + slot.start) * SECTOR,
        size_bytes: slot.sectors * SECTOR,
        type_text: format!("{:#04x}", slot.type_byte),
        name: None,
    }
}

/// Reads the first good GPT table: the one at the disk's start, or the copy at the disk's end.
fn gpt<S: ByteSource>(disk: &mut S) -> Result<Option<Table>, Error> {
    let last = (disk.size_bytes() / SECTOR).saturating_sub(1);
    for at in [1, last] {
        if let Some(table) = gpt_at(disk, at)? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Reads the GPT table whose header is in sector `at`. Returns `None` if a checksum is wrong or a length is too large.
fn gpt_at<S: ByteSource>(disk: &mut S, at: u64) -> Result<Option<Table>, Error> {
    let Some(sector) = bytes_at::<512, S>(disk, at.saturating_mul(SECTOR))? else { return Ok(None) };
    let word = |at| u32::from_le_bytes(field(&sector, at));
    let header_bytes = word(12) as usize;
    if sector[..8] != *b"EFI PART" || !(92..=512).contains(&header_bytes) {
        return Ok(None);
    }
    let mut header = sector[..header_bytes].to_vec();
    header[16..20].fill(0);
    let (entries, count, entry_bytes) = (u64::from_le_bytes(field(&sector, 72)), word(80), word(84));
    let is_usual = count <= MOST_ENTRIES && (128..=MOST_ENTRY_BYTES).contains(&entry_bytes);
    if crc32fast::hash(&header) != word(16) || !is_usual {
        return Ok(None);
    }
    let mut bytes = vec![0; (count * entry_bytes) as usize];
    let offset = entries.saturating_mul(SECTOR);
    if crate::source::check(disk, offset, bytes.len()).is_err() {
        return Ok(None);
    }
    disk.read_at(offset, &mut bytes)?;
    if crc32fast::hash(&bytes) != word(88) {
        return Ok(None);
    }
    let partitions = (1..).zip(bytes.chunks_exact(entry_bytes as usize)).filter_map(of_entry);
    Ok(Some(Table { kind: "gpt", partitions: partitions.collect() }))
}

fn of_entry((number, entry): (u32, &[u8])) -> Option<Partition> {
    let (first, last) = (u64::from_le_bytes(field(entry, 32)), u64::from_le_bytes(field(entry, 40)));
    if entry[..16] == [0; 16] || last < first {
        return None;
    }
    let units: Vec<u16> =
        entry[56..128].chunks_exact(2).map(|two| u16::from_le_bytes(field(two, 0))).collect();
    let name = String::from_utf16_lossy(units.split(|&unit| unit == 0).next().unwrap_or_default());
    Some(Partition {
        number,
        start_bytes: first.saturating_mul(SECTOR),
        size_bytes: (last - first).saturating_add(1).saturating_mul(SECTOR),
        type_text: guid(entry),
        name: (!name.is_empty()).then_some(name),
    })
}

/// A GUID as text. The first three fields of a GUID are little endian.
fn guid(bytes: &[u8]) -> String {
    let (first, second, third) = (
        u32::from_le_bytes(field(bytes, 0)),
        u16::from_le_bytes(field(bytes, 4)),
        u16::from_le_bytes(field(bytes, 6)),
    );
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{first:08x}-{second:04x}-{third:04x}-{}-{}", hex(&bytes[8..10]), hex(&bytes[10..16]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seeded::Rng;

    /// Puts an MBR entry into a sector.
    fn put(disk: &mut [u8], sector: usize, slot: usize, type_byte: u8, start: u32, sectors: u32) {
        let at = sector * 512 + 446 + 16 * slot;
        disk[at + 4] = type_byte;
        disk[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        disk[sector * 512 + 510..][..2].copy_from_slice(&[0x55, 0xaa]);
    }

    /// A disk with a primary partition and two logical partitions.
    fn with_mbr() -> Vec<u8> {
        let mut disk = vec![0; 1000 * 512];
        put(&mut disk, 0, 0, 0x83, 8, 92);
        put(&mut disk, 0, 2, 0x05, 100, 900);
        put(&mut disk, 100, 0, 0x83, 10, 20);
        put(&mut disk, 100, 1, 0x05, 200, 100);
        put(&mut disk, 300, 0, 0x82, 5, 50);
        disk
    }

    /// A disk with a GPT table of one partition, and the copy of the table at the end.
    fn with_gpt() -> Vec<u8> {
        let mut disk = vec![0; 200 * 512];
        put(&mut disk, 0, 0, PROTECTIVE, 1, 199);
        let mut entries = vec![0; 128 * 128];
        let linux: Vec<u8> = (1..=16).collect();
        entries[256..272].copy_from_slice(&linux);
        entries[256 + 32..][..8].copy_from_slice(&40_u64.to_le_bytes());
        entries[256 + 40..][..8].copy_from_slice(&99_u64.to_le_bytes());
        let name: Vec<u8> = "root".encode_utf16().flat_map(u16::to_le_bytes).collect();
        entries[256 + 56..][..name.len()].copy_from_slice(&name);
        for (header, at) in [(1_usize, 2_usize), (199, 167)] {
            let mut bytes = vec![0; 92];
            bytes[..8].copy_from_slice(b"EFI PART");
            bytes[12..16].copy_from_slice(&92_u32.to_le_bytes());
            bytes[72..80].copy_from_slice(&(at as u64).to_le_bytes());
            bytes[80..84].copy_from_slice(&128_u32.to_le_bytes());
            bytes[84..88].copy_from_slice(&128_u32.to_le_bytes());
            bytes[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
            let sum = crc32fast::hash(&bytes);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
            disk[header * 512..][..92].copy_from_slice(&bytes);
            disk[at * 512..][..entries.len()].copy_from_slice(&entries);
        }
        disk
    }

    #[test]
    fn logical_partitions_have_the_numbers_from_five_on() {
        let table = read(&mut with_mbr()).unwrap().unwrap();
        let shown: Vec<_> = table
            .partitions
            .iter()
            .map(|it| (it.number, it.start_bytes / 512, it.size_bytes / 512, &*it.type_text))
            .collect();
        let expected =
            [(1, 8, 92, "0x83"), (3, 100, 900, "0x05"), (5, 110, 20, "0x83"), (6, 305, 50, "0x82")];
        assert_eq!((table.kind, &shown[..]), ("mbr", &expected[..]));
    }

    #[test]
    fn a_chain_of_logical_partitions_that_leads_back_ends() {
        let mut disk = with_mbr();
        put(&mut disk, 300, 1, 0x05, 200, 100);
        assert_eq!(read(&mut disk).unwrap().unwrap().partitions.len(), 4);
    }

    #[test]
    fn gpt_is_read_also_from_its_copy() {
        let mut disk = with_gpt();
        for damaged in [None, Some(512), Some(1024 + 300)] {
            if let Some(at) = damaged {
                disk[at] ^= 1;
            }
            let table = read(&mut disk).unwrap().unwrap();
            let [only] = &table.partitions[..] else { panic!("{table:?}") };
            assert_eq!((table.kind, only.number, only.name.as_deref()), ("gpt", 3, Some("root")));
            assert_eq!((only.start_bytes, only.size_bytes), (40 * 512, 60 * 512));
            assert_eq!(only.type_text, "04030201-0605-0807-090a-0b0c0d0e0f10");
        }
        // Without a good table, the protective partition is shown.
        disk[199 * 512] ^= 1;
        assert_eq!(read(&mut disk).unwrap().unwrap().kind, "mbr");
    }

    #[test]
    fn a_table_needs_its_signature_flags_and_a_partition() {
        let is_table = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut disk = vec![0; 1000 * 512];
            put(&mut disk, 0, 3, 0x83, 8, 92);
            change(&mut disk);
            read(&mut disk).unwrap().is_some()
        };
        assert!(is_table(&|_| ()));
        assert!(is_table(&|disk| disk[446] = 0x80));
        for at in [446, 462, 478, 494] {
            assert!(!is_table(&|disk| disk[at] = 1), "{at}");
        }
        for at in [510, 511] {
            assert!(!is_table(&|disk| disk[at] ^= 1), "{at}");
        }
        // A partition has a type and a size.
        assert!(!is_table(&|disk| disk[494 + 4] = 0));
        assert!(!is_table(&|disk| disk[494 + 12] = 0));
        for (at, name) in [(0x36, "FAT12   "), (0x52, "FAT32   "), (3, "NTFS    "), (3, "EXFAT   ")] {
            assert!(!is_table(&|disk| disk[at..at + 8].copy_from_slice(name.as_bytes())), "{name}");
        }
        assert!(is_table(&|disk| disk[3..11].copy_from_slice(b"GRUB    ")));
        assert!(is_table(&|disk| disk.truncate(512)));
        assert!(!is_table(&|disk| disk.truncate(511)));
    }

    /// The numbers and the first sectors of all partitions.
    fn starts(disk: &mut Vec<u8>) -> Vec<(u32, u64)> {
        let table = read(disk).unwrap().unwrap();
        table.partitions.iter().map(|it| (it.number, it.start_bytes / 512)).collect()
    }

    #[test]
    fn logical_partitions_are_in_each_kind_of_extended_partition() {
        for type_byte in EXTENDED {
            let mut disk = with_mbr();
            put(&mut disk, 0, 2, type_byte, 100, 900);
            put(&mut disk, 100, 1, type_byte, 200, 100);
            assert_eq!(starts(&mut disk), [(1, 8), (3, 100), (5, 110), (6, 305)], "{type_byte:#x}");
            // An empty extended partition has no logical partitions.
            put(&mut disk, 0, 2, type_byte, 100, 0);
            assert_eq!(starts(&mut disk), [(1, 8)]);
        }
        // A sector may name two partitions, or only the next sector.
        let mut disk = with_mbr();
        put(&mut disk, 100, 3, 0x83, 40, 1);
        assert_eq!(starts(&mut disk), [(1, 8), (3, 100), (5, 110), (6, 140), (7, 305)]);
        put(&mut disk, 100, 3, 0, 40, 1);
        put(&mut disk, 100, 0, 0, 10, 20);
        assert_eq!(starts(&mut disk), [(1, 8), (3, 100), (5, 305)]);
        // The chain ends at a sector without signature, at the disk's end, and at a link without sectors.
        let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut disk = with_mbr();
            change(&mut disk);
            starts(&mut disk)
        };
        let [two, three] = [vec![(1, 8), (3, 100)], vec![(1, 8), (3, 100), (5, 110)]];
        assert_eq!(damaged(&|disk| disk[100 * 512 + 511] = 0), two);
        assert_eq!(damaged(&|disk| disk[300 * 512 + 510] = 0), three);
        assert_eq!(damaged(&|disk| disk.truncate(300 * 512 + 511)), three);
        assert_eq!(damaged(&|disk| put(disk, 100, 1, 0x05, 200, 0)), three);
        assert_eq!(damaged(&|disk| put(disk, 100, 1, 0x05, u32::MAX, 1)), three);
    }

    #[test]
    fn at_most_128_sectors_with_logical_partitions_are_read() {
        let mut disk = vec![0; 1000 * 512];
        put(&mut disk, 0, 0, 0x05, 1, 999);
        for number in 0..200 {
            put(&mut disk, 1 + number, 0, 0x83, 500, 1);
            put(&mut disk, 1 + number, 1, 0x05, number as u32 + 1, 1);
        }
        let starts = starts(&mut disk);
        assert_eq!((starts.len(), starts.last()), (1 + 128, Some(&(132, 628))));
    }

    /// A disk with a GPT table whose header is in sector 1. `change` changes the header before its checksum is made.
    fn with_header(entries: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut disk = vec![0; 20_000 * 512];
        put(&mut disk, 0, 1, PROTECTIVE, 1, 19_999);
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[72..80].copy_from_slice(&2_u64.to_le_bytes());
        header[80..84].copy_from_slice(&(entries.len() as u32 / 128).to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(entries).to_le_bytes());
        change(&mut header);
        let length = u32::from_le_bytes(field(&header, 12)) as usize;
        let sum = crc32fast::hash(&header[..length.min(512)]);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        disk[512..1024].copy_from_slice(&header);
        disk[1024..][..entries.len()].copy_from_slice(entries);
        disk
    }

    /// An entry of a GPT table with this name.
    fn entry(first: u64, last: u64, name: &str) -> Vec<u8> {
        let mut entry = vec![0; 128];
        entry[15] = 1;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        entry[56..56 + name.len()].copy_from_slice(&name);
        entry
    }

    #[test]
    fn each_entry_of_gpt_is_read_exactly() {
        let longest = "a name of thirty-six letters, précis";
        assert_eq!(longest.encode_utf16().count(), 36);
        let entries = [
            entry(40, 40, ""),
            // The type is zero, so the entry is not in use.
            [&[0; 16], &entry(50, 60, "unused")[16..]].concat(),
            entry(70, 69, "backwards"),
            entry(80, 99, longest),
            entry(0, u64::MAX, "all"),
        ];
        let mut disk = with_header(&entries.concat(), |_| ());
        let table = read(&mut disk).unwrap().unwrap();
        let shown: Vec<_> = table
            .partitions
            .iter()
            .map(|it| (it.number, it.start_bytes, it.size_bytes, it.name.as_deref()))
            .collect();
        let expected =
            [(1, 40 * 512, 512, None), (4, 80 * 512, 20 * 512, Some(longest)), (5, 0, u64::MAX, Some("all"))];
        assert_eq!((table.kind, &shown[..]), ("gpt", &expected[..]));
    }

    #[test]
    fn gpt_tables_of_unusual_sizes() {
        let one = entry(40, 49, "one");
        let set = |at: usize, value: u32| {
            move |header: &mut Vec<u8>| header[at..at + 4].copy_from_slice(&value.to_le_bytes())
        };
        let kind = |disk: Vec<u8>| read(&mut { disk }).unwrap().unwrap().kind;
        for (length, expected) in [(91, "mbr"), (92, "gpt"), (512, "gpt"), (513, "mbr")] {
            assert_eq!(kind(with_header(&one, set(12, length))), expected, "a header of {length} bytes");
        }
        for (count, expected) in [(1024, "gpt"), (1025, "mbr")] {
            let entries = one.repeat(count);
            assert_eq!(kind(with_header(&entries, |_| ())), expected, "{count} entries");
        }
        for (size, expected) in [(127, "mbr"), (128, "gpt"), (4096, "gpt"), (4097, "mbr")] {
            let mut large = one.clone();
            large.resize(size as usize, 0);
            let disk = with_header(&large, |header| {
                set(80, 1)(header);
                set(84, size)(header);
            });
            assert_eq!(kind(disk), expected, "an entry of {size} bytes");
        }
        // The entries must be on the disk.
        for (sector, expected) in [(2, "gpt"), (19_999, "mbr"), (u32::MAX, "mbr")] {
            assert_eq!(kind(with_header(&one, set(72, sector))), expected, "entries in sector {sector}");
        }
        assert_eq!(kind(with_header(&one, set(76, u32::MAX))), "mbr");
        assert_eq!(kind(with_header(&one, set(0, 0))), "mbr");
        // Without the protective partition, the table of an older system counts.
        let mut disk = with_header(&one, |_| ());
        put(&mut disk, 0, 1, 0x83, 1, 5);
        assert_eq!(kind(disk), "mbr");
    }

    #[test]
    fn a_file_system_without_partitions_is_no_table() {
        let mut disk = with_mbr();
        disk[0x36..0x39].copy_from_slice(b"FAT");
        assert_eq!(read(&mut disk).unwrap(), None);
        assert_eq!(read(&mut vec![0; 100]).unwrap(), None);
        assert_eq!(read(&mut vec![0xff; 4096]).unwrap(), None);
    }

    #[test]
    fn damaged_tables_are_read_without_panic() {
        for (kind, good) in [with_mbr(), with_gpt()].into_iter().enumerate() {
            for seed in 0..2000 {
                let mut rng = Rng::new(&[kind as u64, seed]);
                let mut disk = good.clone();
                for _ in 0..=rng.below(8) {
                    let sector = rng.pick(&[0, 1, 2, 100, 199, 300]) % (disk.len() / 512);
                    let at = sector * 512 + rng.below(512) as usize;
                    disk[at] = rng.pick(&[0, 1, 0x80, 0xff, rng.clone().bits() as u8]);
                }
                let length = rng.below(disk.len() as u64 + 1) as usize;
                if rng.percent(20) {
                    disk.truncate(length);
                }
                read(&mut disk).unwrap();
            }
        }
    }
}
