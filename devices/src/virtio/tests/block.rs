//! Requests to the block device, good and bad.

use super::driver::{Buffer, F_INDIRECT_DESC};
use super::*;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;
/// The value of the status byte before the device writes it.
const UNTOUCHED: u8 = 0xEE;

/// A machine with one disk, its driver's ring and places for header, data and status.
struct Disk {
    pc: Pc,
    ring: Ring,
    header: u64,
    data: u64,
    status: u64,
}

impl Disk {
    const DATA_BYTES: u64 = 256 << 10;

    fn new(disk: MemoryDisk) -> Disk {
        let mut bus = PciBus::new();
        bus.add(Block::new(disk));
        let mut pc = Pc::new(bus);
        let (_, mut rings) = Driver::start(&mut pc, 1, F_INDIRECT_DESC, false);
        let (header, data, status) = (pc.allocate(16), pc.allocate(Disk::DATA_BYTES), pc.allocate(1));
        Disk { pc, ring: rings.remove(0), header, data, status }
    }

    fn backend(&mut self) -> &mut MemoryDisk {
        self.pc.bus.block_backend_mut(1).unwrap()
    }

    fn set_header(&self, kind: u32, sector: u64) {
        self.pc.store(self.header, &kind.to_le_bytes());
        self.pc.store(self.header + 8, &sector.to_le_bytes());
        self.pc.store(self.status, &[UNTOUCHED]);
    }

    /// Runs a request with these data buffers, direct or indirect; returns status and used length.
    fn request(&mut self, kind: u32, sector: u64, data: &[Buffer], indirect: bool) -> (u8, u32) {
        self.set_header(kind, sector);
        let mut chain = vec![(self.header, 16, false)];
        chain.extend(data);
        chain.push((self.status, 1, true));
        self.run(&chain, indirect)
    }

    fn run(&mut self, chain: &[Buffer], indirect: bool) -> (u8, u32) {
        let head = match indirect {
            true => self.ring.add_indirect(&mut self.pc, chain),
            false => self.ring.add(&self.pc, chain),
        };
        self.ring.kick(&mut self.pc);
        let (used, length) = self.ring.pop(&self.pc).expect("the request completes inside the notification");
        assert_eq!(used, head);
        (self.pc.load(self.status, 1)[0], length)
    }

    fn read_sector(&mut self, sector: u64) -> Vec<u8> {
        let data = self.data;
        assert_eq!(self.request(0, sector, &[(data, 512, true)], false), (OK, 513));
        self.pc.load(data, 512)
    }
}

#[test]
fn the_configuration_describes_the_disk() {
    let mut pc = pc();
    let driver = Driver::probe(&mut pc, BLOCK_SLOT);
    let config: [u8; 64] = pc.read(driver.config.unwrap());
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(u64::from(word(0)), DISK_SECTORS);
    assert_eq!((word(8), word(12), word(20)), (64 << 10, 254, 512), "size_max, seg_max, blk_size");
    assert_eq!((word(36), word(40), word(44)), (32768, 8, 1), "discard limits");
    assert_eq!((word(48), word(52), config[56]), (32768, 1, 1), "write-zeroes limits");
    assert_eq!(word(60), 0, "behind the end");
}

#[test]
fn what_is_written_is_read_back() {
    for indirect in [false, true] {
        let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
        let data = disk.data;
        let pattern: Vec<u8> = (0..3 * 512_u32).map(|i| (i * 7 + i / 512) as u8).collect();
        disk.pc.store(data, &pattern);
        // Segments need not be whole sectors; only their sum must be.
        let out = [(data, 100, false), (data + 100, 1000, false), (data + 1100, 436, false)];
        assert_eq!(disk.request(1, 5, &out, indirect), (OK, 1));
        disk.pc.store(data, &[0; 2048]);
        let back = [(data + 512, 1, true), (data + 513, 1535, true)];
        assert_eq!(disk.request(0, 5, &back, indirect), (OK, 3 * 512 + 1));
        assert_eq!(disk.pc.load(data + 512, 3 * 512), pattern);
        assert_eq!((disk.read_sector(4)[0], disk.read_sector(8)[511]), (5, 9), "neighbours are untouched");
    }
}

#[test]
fn transfers_larger_than_the_bounce_buffer_arrive_whole() {
    let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
    let data = disk.data;
    let bytes = 200 << 10;
    assert_eq!(disk.request(0, 3, &[(data, bytes, true)], true), (OK, bytes + 1));
    let expected = disk.backend().bytes[3 * 512..][..bytes as usize].to_vec();
    assert_eq!(disk.pc.load(data, bytes as usize), expected);
    let mut reversed = expected;
    reversed.reverse();
    disk.pc.store(data, &reversed);
    assert_eq!(disk.request(1, 3, &[(data, bytes, false)], true), (OK, 1));
    assert_eq!(disk.backend().bytes[3 * 512..][..bytes as usize], reversed);
}

#[test]
fn several_requests_complete_in_one_notification() {
    let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
    disk.set_header(0, 9);
    let chains: Vec<u16> = (0..5)
        .map(|i| {
            let buffer = (disk.data + 512 * i, 512, true);
            disk.ring.add(&disk.pc, &[(disk.header, 16, false), buffer, (disk.status, 1, true)])
        })
        .collect();
    disk.ring.kick(&mut disk.pc);
    for head in chains {
        assert_eq!(disk.ring.pop(&disk.pc), Some((head, 513)));
    }
    assert_eq!(disk.pc.load(disk.data, 5 * 512), [10; 5 * 512]);
}

#[test]
fn flush_and_identification_work() {
    let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
    let data = disk.data;
    assert_eq!(disk.request(4, 0, &[], false), (OK, 1));
    assert_eq!(disk.backend().flushes, 1);
    assert_eq!(disk.request(8, 0, &[(data, 20, true)], false), (OK, 21));
    assert_eq!(disk.pc.load(data, 20), b"memory-disk-with-a-l");
    disk.pc.store(data, &[0xCC; 32]);
    assert_eq!(disk.request(8, 0, &[(data, 32, true)], false), (OK, 20), "the rest is not written");
    assert_eq!(disk.pc.load(data + 20, 12), [0xCC; 12]);
}

/// A discard or write-zeroes range.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [sector.to_le_bytes().as_slice(), &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn discard_and_write_zeroes_follow_their_ranges() {
    const DISCARD: u32 = 11;
    const ZEROES: u32 = 13;
    let cases: &[(u32, Vec<u8>, u8, &[u64])] = &[
        (DISCARD, [range(2, 1, 0), range(7, 2, 0)].concat(), OK, &[2, 7, 8]),
        (DISCARD, range(2, 1, 1), UNSUPP, &[]),
        (DISCARD, [range(2, 1, 0), range(DISK_SECTORS, 1, 0)].concat(), IOERR, &[]),
        (DISCARD, range(2, 1, 0).repeat(9), IOERR, &[]),
        (DISCARD, vec![0; 15], IOERR, &[]),
        (DISCARD, vec![], IOERR, &[]),
        (ZEROES, range(300, 200, 1), OK, &[300, 499]),
        (ZEROES, range(3, 0, 0), OK, &[]),
        (ZEROES, range(3, 1, 2), UNSUPP, &[]),
        (ZEROES, range(3, 1, 0).repeat(2), IOERR, &[]),
        (ZEROES, range(u64::MAX, 2, 0), IOERR, &[]),
        (ZEROES, range(0, 32769, 0), IOERR, &[]),
    ];
    for (kind, ranges, status, zeroed) in cases {
        let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
        let data = disk.data;
        disk.pc.store(data, ranges);
        let result = disk.request(*kind, 0, &[(data, ranges.len() as u32, false)], false);
        assert_eq!(result, (*status, 1), "{kind} {ranges:?}");
        for sector in [1, 2, 3, 6, 7, 8, 9, 299, 300, 499, 500] {
            let first = disk.backend().bytes[sector as usize * 512];
            assert_eq!(first == 0, zeroed.contains(&sector), "{kind} {ranges:?} sector {sector}");
        }
    }
}

#[test]
fn impossible_requests_get_an_error_status() {
    let end = DISK_SECTORS;
    let cases: &[(&str, u32, u64, u32, bool, u8)] = &[
        ("read past the end", 0, end, 512, true, IOERR),
        ("read across the end", 0, end - 1, 1024, true, IOERR),
        ("read at a wild sector", 0, u64::MAX, 512, true, IOERR),
        ("read of half a sector", 0, 0, 256, true, IOERR),
        ("write past the end", 1, end, 512, false, IOERR),
        ("write of half a sector", 1, 0, 700, false, IOERR),
        ("unknown type", 99, 0, 512, true, UNSUPP),
        ("SCSI command", 2, 0, 512, true, UNSUPP),
    ];
    for &(name, kind, sector, bytes, writable, status) in cases {
        let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
        let (data, before) = (disk.data, disk.backend().bytes.clone());
        disk.pc.store(data, &[0xCC; 1024]);
        // Data is missing before the status byte, so the used length cannot include the status byte.
        let length = u32::from(!writable);
        assert_eq!(disk.request(kind, sector, &[(data, bytes, writable)], false), (status, length), "{name}");
        assert_eq!(disk.pc.load(data, 1024), [0xCC; 1024], "{name}");
        assert!(disk.backend().bytes == before, "{name}");
    }
}

#[test]
fn too_much_data_in_one_request_is_refused() {
    let mut disk = Disk::new(MemoryDisk::new(65536));
    let data = disk.data;
    let most = vec![(data, 64 << 10, true); 254];
    assert_eq!(disk.request(0, 0, &most, true), (OK, (254 << 16) + 1));
    assert_eq!(disk.request(0, 0, &[most, vec![(data, 512, true)]].concat(), true), (IOERR, 0));
}

#[test]
fn a_short_header_is_an_error_of_the_request() {
    let mut disk = Disk::new(MemoryDisk::new(DISK_SECTORS));
    disk.set_header(4, 0);
    let (header, status) = (disk.header, disk.status);
    assert_eq!(disk.run(&[(header, 15, false), (status, 1, true)], false), (IOERR, 1));
    assert_eq!(disk.run(&[(status, 1, true)], false), (IOERR, 1));
    assert_eq!(disk.run(&[(header, 7, false), (header + 7, 9, false), (status, 1, true)], false), (OK, 1));
}

#[test]
fn a_read_only_disk_says_so_and_refuses_writes() {
    let mut disk = Disk::new(MemoryDisk { read_only: true, ..MemoryDisk::new(DISK_SECTORS) });
    let driver = Driver::probe(&mut disk.pc, 1);
    let offered = driver.offered(&mut disk.pc);
    assert_eq!(offered & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5, "RO, and neither discard nor write-zeroes");
    let data = disk.data;
    disk.pc.store(data, &range(0, 1, 0));
    assert_eq!(disk.request(1, 0, &[(data, 512, false)], false), (IOERR, 1));
    for kind in [11, 13] {
        assert_eq!(disk.request(kind, 0, &[(data, 16, false)], false), (IOERR, 1));
    }
    assert_eq!(disk.read_sector(0), [1; 512]);
}

#[test]
fn a_failing_host_is_an_io_error_and_the_used_length_stays_honest() {
    let mut disk = Disk::new(MemoryDisk { bad_sector: Some(150), ..MemoryDisk::new(DISK_SECTORS) });
    let data = disk.data;
    // The first 64 KiB (128 sectors) arrive before the failure.
    assert_eq!(disk.request(0, 0, &[(data, 100 << 10, true)], false), (IOERR, 64 << 10));
    assert_eq!(disk.request(1, 150, &[(data, 512, false)], false), (IOERR, 1));
    assert_eq!(disk.read_sector(151), [152; 512], "the device works on");
}
