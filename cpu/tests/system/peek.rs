//! Reads another address space by its root, and compares with what the CPU finds there.

use cpu::Stop;
use iced_x86::code_asm::*;

use crate::harness::*;

/// Root of the address space that is not current; its tables follow.
const OTHER: u64 = 0x9_0000;
const TABLES_END: u64 = 0xa_0000;
/// An address that a 4 KiB page of the other space maps to [`DATA`]. The current space maps this address to itself or
/// not at all.
const MOVED: u64 = 0x40_0000;
/// An address in a page that both address spaces map by a large page.
const SAME: u64 = DATA + 0x1008;
/// An address that is not mapped in either space.
const ABSENT: u64 = 0x3f00_0000;
/// A virtual address in a large page, and the physical address to which the other space maps it.
const LARGE: (u64, u64) = (0x80_0000 + 0x8_1010, 0x8_1010);

/// 4-level, PAE and 32-bit paging, with the bitness of code in each.
fn machines() -> [(&'static str, u32, Machine); 3] {
    let long = Machine::long();
    long.put64(OTHER, (OTHER + 0x1000) | 7);
    long.put64(OTHER + 0x1000, (OTHER + 0x2000) | 7);
    directory(&long, OTHER + 0x2000);

    let mut pae = Machine::protected();
    for root in [TABLES, OTHER] {
        pae.put64(root, (root + 0x2000) | 1);
        pae.put64(root + 0x2000, 0x87);
    }
    directory(&pae, OTHER + 0x2000);
    pae.state.cr4 = 0x20;
    pae.state.pdptes = [(TABLES + 0x2000) | 1, 0, 0, 0];

    let mut narrow = Machine::protected();
    for root in [TABLES, OTHER] {
        narrow.put32(root, 0x87);
    }
    narrow.put32(OTHER + 4, (OTHER as u32 + 0x1000) | 7);
    narrow.put32(OTHER + 0x1000, DATA as u32 | 7);
    narrow.put32(OTHER + 8, 0x87);
    narrow.state.cr4 = 0x10;

    for m in [&mut pae, &mut narrow] {
        m.state.cr3 = TABLES;
        m.state.cr0 |= 0x8001_0000;
    }
    [("4-level", 64, long), ("PAE", 32, pae), ("32-bit", 32, narrow)]
}

/// A page directory of 2 MiB pages and one table.
fn directory(m: &Machine, at: u64) {
    m.put64(at, 0x87);
    m.put64(at + 8 * (MOVED >> 21), (at + 0x1000) | 7);
    m.put64(at + 0x1000, DATA | 7);
    m.put64(at + 8 * (LARGE.0 >> 21), 0x87);
}

fn tables(m: &Machine) -> Vec<u8> {
    let mut bytes = vec![0; (TABLES_END - TABLES) as usize];
    m.ram().read_bytes(TABLES, &mut bytes);
    bytes
}

/// The value that a program in the other space reads at an address; `None` if it faults.
fn read_there(m: &mut Machine, bitness: u32, address: u64) -> Option<u32> {
    m.state.cr3 = OTHER;
    if m.state.cr4 & 0x20 != 0 && bitness == 32 {
        m.state.pdptes = [0, 1, 2, 3].map(|n| m.ram().load_u64(OTHER + 8 * n));
    }
    m.state.gpr[1] = address;
    m.code(bitness, |a| {
        a.mov(eax, if bitness == 64 { dword_ptr(rcx) } else { dword_ptr(ecx) }).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    (m.state.rip < HANDLERS).then_some(m.state.gpr[0] as u32)
}

#[test]
fn another_root_gives_what_the_cpu_finds_there_and_changes_nothing() {
    for (name, bitness, mut m) in machines() {
        m.put32(DATA + 0x10, 0x1234_5678);
        m.put32(SAME, 0x89ab_cdef);
        m.put32(LARGE.1, 0x5555_aaaa);
        m.load();
        let before = tables(&m);
        let cases = [
            ("a small page", MOVED + 0x10, Some(DATA + 0x10)),
            ("a large page", LARGE.0, Some(LARGE.1)),
            ("mapped alike", SAME, Some(SAME)),
            ("absent", ABSENT, None),
        ];
        for (what, address, expected) in cases {
            let core = m.cpu.core();
            assert_eq!(core.peek_address_in(OTHER, address), expected, "{name}: {what}");
            let mut bytes = [0; 4];
            let read = core.peek_in(OTHER, address, &mut bytes);
            let word = expected.map(|gpa| m.ram().load_u32(gpa));
            assert_eq!((read == 4).then(|| u32::from_le_bytes(bytes)), word, "{name}: {what}");
        }
        for address in [MOVED + 0x10, SAME, ABSENT, CODE] {
            let core = m.cpu.core();
            assert_eq!(
                core.peek_address_in(TABLES, address),
                core.peek_address(address),
                "{name}: {address:#x}"
            );
            assert_ne!(core.peek_address(address), Some(DATA + 0x10), "{name}: the current space is another");
        }
        assert!(m.cpu.state() == m.state && tables(&m) == before, "{name}: a look changed something");

        for (what, address, expected) in cases {
            let mut there =
                machines().into_iter().find(|(other, ..)| *other == name).expect("it is one of them").2;
            for gpa in [DATA + 0x10, SAME, LARGE.1] {
                there.put32(gpa, m.ram().load_u32(gpa));
            }
            let word = expected.map(|gpa| m.ram().load_u32(gpa));
            assert_eq!(read_there(&mut there, bitness, address), word, "{name}: {what}");
            assert_ne!(tables(&there), before, "{name}: the CPU's walk sets accessed bits");
        }
    }
}

#[test]
fn a_range_ends_where_the_other_space_does() {
    let (_, _, mut m) = machines().into_iter().next().expect("there are three");
    m.load();
    let mut bytes = [0; 0x20];
    assert_eq!(m.cpu.core().peek_in(OTHER, MOVED + 0xff0, &mut bytes), 0x10);
    assert_eq!(m.cpu.core().peek_address_in(OTHER, 1 << 47), None, "not canonical");
}

#[test]
fn without_paging_every_root_is_the_same() {
    let mut m = Machine::protected();
    m.load();
    // In protected mode, linear addresses have 32 bits.
    for address in [DATA, 1 << 32 | DATA] {
        assert_eq!(m.cpu.core().peek_address_in(OTHER, address), Some(DATA));
        assert_eq!(m.cpu.core().peek_address(address), Some(DATA));
    }
}
