//! Page tables change while the CPU runs: at every level, after many writes, in every width. The TLB's cached
//! translations are never visible.

use cpu::Stop;
use guest_ram::PageFlags;
use iced_x86::code_asm::*;

use crate::harness::*;

/// A page with a word and a routine, and two RAM pages for it.
const PAGE: u64 = 0x9_0000;
const LEFT: u64 = 0xa_0000;
const RIGHT: u64 = 0xb_0000;
/// Other page tables for the lowest addresses: the page table here, and each higher level a page further. These
/// tables map PAGE to RIGHT.
const OTHERS: u64 = 0xc_0000;

/// Writes a routine to the start of a RAM page, and a word to the middle of this page. The routine and the word
/// contain `value`.
fn furnish(m: &Machine, page: u64, value: i32) {
    m.code_at(64, page, PAGE, |a| {
        a.lea(ebx, dword_ptr(ebx + ebx * 8 + value)).unwrap();
        a.ret().unwrap();
    });
    m.put64(page + 0x800, value as u64);
}

/// Long mode with PAGE mapped to LEFT.
fn machine() -> Machine {
    let m = Machine::long();
    furnish(&m, LEFT, 1);
    furnish(&m, RIGHT, 2);
    let table = TABLES + 0x3000;
    let other = OTHERS;
    for n in 0..512 {
        m.put64(other + 8 * n, m.ram().load_u64(table + 8 * n));
    }
    m.put64(table + 8 * (PAGE >> 12), LEFT | 7);
    m.put64(other + 8 * (PAGE >> 12), RIGHT | 7);
    for level in 1..3 {
        m.put64(OTHERS + 0x1000 * level, (OTHERS + 0x1000 * (level - 1)) | 7);
    }
    m
}

/// Emits code that calls the routine in PAGE, multiplies RSI by nine, and adds PAGE's word to RSI.
fn look(a: &mut CodeAssembler) {
    a.mov(rdx, PAGE).unwrap();
    a.call(rdx).unwrap();
    a.lea(rsi, ptr(rsi + rsi * 8)).unwrap();
    a.add(rsi, qword_ptr(rdx + 0x800)).unwrap();
}

/// Emits a store of a word to an address.
fn write64(a: &mut CodeAssembler, address: u64, value: u64) {
    a.mov(rax, value).unwrap();
    a.mov(rdx, address).unwrap();
    a.mov(qword_ptr(rdx), rax).unwrap();
}

/// Runs the code to its end. RBX and RSI must then both hold the sum that results if each [`look`] found the next
/// of these values in PAGE.
fn expect(m: &mut Machine, values: &[u64]) {
    assert_eq!(m.run_steps(10_000), Stop::Halted);
    let expected = values.iter().fold(0, |sum, value| sum * 9 + value);
    assert_eq!((m.state.gpr[3], m.state.gpr[6]), (expected, expected), "rip {:#x}", m.state.rip);
}

#[test]
fn an_entry_of_any_level_that_changes_leads_elsewhere() {
    // The test changes the first entry of the page directory, of the pointer table, and of the topmost table.
    for level in 0..3 {
        let entry = TABLES + 0x2000 - 0x1000 * level;
        let mut m = machine();
        let (before, after) = (m.ram().load_u64(entry), (OTHERS + 0x1000 * level) | 7);
        m.code(64, |a| {
            for value in [after, before, after, before] {
                look(a);
                look(a);
                write64(a, entry, value);
            }
            look(a);
            a.hlt().unwrap();
        });
        expect(&mut m, &[1, 1, 2, 2, 1, 1, 2, 2, 1]);
    }
}

#[test]
fn a_large_page_that_becomes_a_table_is_one() {
    const LARGE: u64 = 1 << 7;
    let entry = TABLES + 0x2000;
    let mut m = machine();
    // With a large page, addresses equal RAM addresses.
    furnish(&m, PAGE, 3);
    m.code(64, |a| {
        look(a);
        write64(a, entry, LARGE | 7);
        look(a);
        write64(a, entry, OTHERS | 7);
        look(a);
        write64(a, entry, LARGE | 7);
        look(a);
        a.hlt().unwrap();
    });
    expect(&mut m, &[1, 3, 2, 3]);
}

#[test]
fn a_table_with_many_writes_is_still_a_table() {
    // The test writes to a table of another address space, at each level. With 200 writes to the table's upper
    // half, the CPU takes the page for ordinary memory.
    for (level, count) in (0..4).flat_map(|level| [(level, 40), (level, 200)]) {
        let mut m = machine();
        let root = OTHERS + 0x3000;
        m.put64(root, (OTHERS + 0x2000) | 7);
        // Tables that map PAGE to LEFT.
        const MORE: u64 = 0xd_0000;
        for n in 0..512 {
            m.put64(MORE + 8 * n, m.ram().load_u64(TABLES + 0x3000 + 8 * n));
        }
        for upper in 1..3 {
            m.put64(MORE + 0x1000 * upper, (MORE + 0x1000 * (upper - 1)) | 7);
        }
        let table = OTHERS + 0x1000 * level;
        let entry = table + if level == 0 { 8 * (PAGE >> 12) } else { 0 };
        let after = [LEFT, MORE, MORE + 0x1000, MORE + 0x2000][level as usize] | 7;
        m.code(64, |a| {
            for _ in 0..2 {
                a.mov(rax, root).unwrap();
                a.mov(cr3, rax).unwrap();
                look(a);
                a.mov(rax, TABLES).unwrap();
                a.mov(cr3, rax).unwrap();
                for round in 0..count {
                    write64(a, table + 0xc00 + 8 * (round % 64), 0x5555_0000 + round);
                }
            }
            write64(a, entry, after);
            a.mov(rax, root).unwrap();
            a.mov(cr3, rax).unwrap();
            look(a);
            look(a);
            a.hlt().unwrap();
        });
        expect(&mut m, &[2, 2, 1, 1]);
    }
}

#[test]
fn tables_that_lead_to_themselves_end() {
    // The topmost table's last entry leads to itself, as in some kernels, and is then removed.
    let mut m = machine();
    let own = TABLES + 8 * 511;
    m.put64(own, TABLES | 7);
    // That entry maps the topmost table at the end of the address space.
    let seen_at = 0_u64.wrapping_sub(0x1000);
    m.code(64, |a| {
        a.mov(rdx, seen_at).unwrap();
        a.mov(rsi, qword_ptr(rdx)).unwrap();
        write64(a, own, 0);
        a.mov(rdx, seen_at).unwrap();
        a.mov(rdi, qword_ptr(rdx)).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!(m.state.gpr[6] & !0x20, (TABLES + 0x1000) | 7);
    assert_eq!(m.state.gpr[7], 0);
}

#[test]
fn either_half_of_eight_bytes_is_an_entry_in_32_bit_paging() {
    for page in [PAGE, PAGE + 0x1000] {
        let mut m = Machine::protected();
        let (root, table) = (OTHERS as u32, OTHERS as u32 + 0x1000);
        m.put32(root.into(), table | 7);
        for n in 0..1024 {
            m.put32((table + 4 * n).into(), n << 12 | 7);
        }
        let entry = table + 4 * (page >> 12) as u32;
        m.put32(entry.into(), LEFT as u32 | 7);
        m.put32(LEFT, 1);
        m.put32(RIGHT, 2);
        m.state.cr0 |= 1 << 31;
        m.state.cr3 = root.into();
        m.code(32, |a| {
            a.mov(ebx, dword_ptr(page as u32)).unwrap();
            a.mov(dword_ptr(entry), RIGHT as i32 | 7).unwrap();
            a.mov(esi, dword_ptr(page as u32)).unwrap();
            a.hlt().unwrap();
        });
        assert_eq!(m.run(), Stop::Halted);
        assert_eq!((m.state.gpr[3], m.state.gpr[6]), (1, 2), "{page:#x}");
    }
}

#[test]
fn write_protection_holds_for_the_kernel_while_wp_is_set() {
    const WP: u64 = 1 << 16;
    let mut m = Machine::long();
    m.page(PAGE, 2, 0);
    let (with, without) = (m.state.cr0 | WP, m.state.cr0 & !WP);
    m.state.cr0 = without;
    m.code(64, |a| {
        for value in [1, 2] {
            a.mov(dword_ptr(PAGE), value).unwrap();
        }
        a.mov(rax, with).unwrap();
        a.mov(cr0, rax).unwrap();
        a.mov(dword_ptr(PAGE), 3).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!(m.ram().load_u32(PAGE), 2);
}

#[test]
fn code_that_may_only_be_executed_cannot_be_read() {
    for readable in [true, false] {
        let mut m = Machine::protected();
        if !readable {
            m.state.segments[1].attributes &= !2;
        }
        // MOV EAX, CS:[CODE]; HLT.
        m.put(CODE, &[0x2e, 0xa1, 0, 0, 2, 0, 0xf4]);
        if readable {
            assert_eq!(m.run(), Stop::Halted);
            assert_eq!(m.state.gpr[0], 0x0000_a12e);
        } else {
            assert_eq!(m.run_to_handler(), 13);
        }
    }
}

/// A walk sets accessed bits in every entry on the way and, for a write, the dirty bit in the last entry. A
/// walk changes nothing else. The walk's own writes make only the tables' pages dirty.
#[test]
fn walks_set_accessed_and_dirty_bits_and_nothing_else() {
    const PRESENT: u64 = 7;
    let entries = |mode: &str, page: u64| match mode {
        "long" => vec![
            (TABLES, 8, TABLES + 0x1000),
            (TABLES + 0x1000, 8, TABLES + 0x2000),
            (TABLES + 0x2000, 8, TABLES + 0x3000),
            (TABLES + 0x3000 + 8 * (page >> 12), 8, page),
        ],
        "PAE" => vec![(TABLES, 8, TABLES + 0x1000), (TABLES + 0x1000 + 8 * (page >> 12), 8, page)],
        _ => vec![(TABLES, 4, TABLES + 0x1000), (TABLES + 0x1000 + 4 * (page >> 12), 4, page)],
    };
    for mode in ["long", "PAE", "32-bit"] {
        for writes in [false, true] {
            let mut m = if mode == "long" { Machine::long() } else { Machine::protected() };
            if mode != "long" {
                let bytes = if mode == "PAE" { 8 } else { 4 };
                for page in 0..512 {
                    let entry = TABLES + 0x1000 + bytes * page;
                    m.put(entry, &(page << 12 | PRESENT).to_le_bytes()[..bytes as usize]);
                }
                m.put64(TABLES, (TABLES + 0x1000) | PRESENT);
                m.state.pdptes[0] = TABLES | 1;
                m.state.cr0 |= 1 << 31;
                m.state.cr3 = TABLES;
                m.state.cr4 = if mode == "PAE" { 0x20 } else { 0 };
            }
            m.code(if mode == "long" { 64 } else { 32 }, |a| match (writes, mode) {
                (false, "long") => a.mov(eax, dword_ptr(rbx)).unwrap(),
                (true, "long") => a.mov(dword_ptr(rbx), eax).unwrap(),
                (false, _) => a.mov(eax, dword_ptr(ebx)).unwrap(),
                (true, _) => a.mov(dword_ptr(ebx), eax).unwrap(),
            });
            m.state.gpr[3] = PAGE;
            let on_the_way = entries(mode, PAGE);
            let tables: Vec<u64> = on_the_way.iter().map(|(at, ..)| at >> 12).collect();
            for &table in &tables {
                m.ram().flags().clear(table, PageFlags::DIRTY);
            }
            for (round, made_dirty) in [(1, true), (2, false)] {
                assert_eq!(m.run_steps(1), Stop::Budget);
                m.state.rip = CODE;
                for (number, &(at, bytes, leads_to)) in on_the_way.iter().enumerate() {
                    let last = number + 1 == on_the_way.len();
                    let dirty = if last && writes { 0x40 } else { 0 };
                    let value = if bytes == 8 { m.ram().load_u64(at) } else { m.ram().load_u32(at).into() };
                    let what = format!("{mode}, writes {writes}, level {number}, round {round}");
                    assert_eq!(value, leads_to | PRESENT | 0x20 | dirty, "{what}");
                }
                for &table in &tables {
                    let flag = m.ram().flags().has(table, PageFlags::DIRTY);
                    assert_eq!(flag, made_dirty, "{mode}, page {table:#x}, round {round}");
                    m.ram().flags().clear(table, PageFlags::DIRTY);
                }
            }
        }
    }
}

/// Two page directories of 32-bit paging have equal first entries. In 4-level paging, equal first entries of the
/// roots would mean that the lowest 512 GiB are mapped alike.
#[test]
fn roots_of_32_bit_paging_share_what_all_their_entries_share() {
    let mut m = Machine::protected();
    let other_root = OTHERS;
    for root in [TABLES, other_root] {
        // Large identity-mapped pages.
        m.put32(root, 0x83);
        m.put32(root + 4, 0x40_0083);
    }
    m.put32(TABLES + 8, 0x40_0083);
    m.put32(other_root + 8, 0x80_0083);
    m.put32(0x40_0000, 1);
    m.put32(0x80_0000, 2);
    m.state.cr0 |= 1 << 31;
    m.state.cr3 = TABLES;
    m.state.cr4 = 0x10;
    m.state.gpr[1] = 0x80_0000;
    m.state.gpr[2] = other_root;
    m.code(32, |a| {
        a.mov(ebx, dword_ptr(ecx)).unwrap();
        a.mov(cr3, edx).unwrap();
        a.mov(esi, dword_ptr(ecx)).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!((m.state.gpr[3], m.state.gpr[6]), (1, 2));
}
