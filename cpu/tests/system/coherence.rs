//! Tests that a guest never sees an outdated translation or outdated code from the CPU's caches. The guests change page
//! tables, code and page flags while they run.
//!
//! Every test is a single run, because a new state would empty the CPU's caches.

use cpu::Stop;
use guest_ram::PageFlags;
use iced_x86::code_asm::*;

use crate::harness::*;

/// A page that a test remaps, and two RAM pages to which the page is mapped.
const PAGE: u64 = 0x9_0000;
const LEFT: u64 = 0xa_0000;
const RIGHT: u64 = 0xb_0000;
/// The address of a second top-level page table, which [`two_roots`] makes point to the same lower tables as the
/// first.
const OTHER_ROOT: u64 = 0xc_0000;
/// A page that no top-level page table leads to yet. A test makes it a page table.
const NEW_TABLE: u64 = 0xd_0000;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;

fn entry_of(address: u64) -> u64 {
    TABLES + 0x3000 + 8 * (address >> 12)
}

/// Long mode with two roots, where PAGE is mapped to LEFT.
fn two_roots() -> Machine {
    let m = Machine::long();
    m.put64(OTHER_ROOT, (TABLES + 0x1000) | 7);
    m.put64(entry_of(PAGE), LEFT | 7);
    m.put64(LEFT, 1);
    m.put64(RIGHT, 2);
    m
}

fn set_root(a: &mut CodeAssembler, root: u64) {
    a.mov(rax, root).unwrap();
    a.mov(cr3, rax).unwrap();
}

/// Emits a store of a word to an address.
fn write64(a: &mut CodeAssembler, address: u64, value: u64) {
    a.mov(rax, value).unwrap();
    a.mov(rdx, address).unwrap();
    a.mov(qword_ptr(rdx), rax).unwrap();
}

fn halts(m: &mut Machine) {
    assert_eq!(m.run(), Stop::Halted, "rip {:#x}", m.state.rip);
}

#[test]
fn an_entry_changed_in_another_address_space_is_changed() {
    let mut m = two_roots();
    m.code(64, |a| {
        a.mov(rbx, qword_ptr(PAGE)).unwrap();
        set_root(a, OTHER_ROOT);
        write64(a, entry_of(PAGE), RIGHT | 7);
        set_root(a, TABLES);
        a.mov(rcx, qword_ptr(PAGE)).unwrap();
        a.hlt().unwrap();
    });
    halts(&mut m);
    assert_eq!((m.state.gpr[3], m.state.gpr[1]), (1, 2));
}

/// The test stores to one byte of a page-table entry. This byte does not contain the present bit.
#[test]
fn a_store_to_a_part_of_an_entry_changes_it() {
    let mut m = two_roots();
    let byte = entry_of(PAGE) + 2;
    assert_eq!((LEFT ^ RIGHT, LEFT >> 16 & 1), (1 << 16, 0));
    m.code(64, |a| {
        a.mov(rbx, qword_ptr(PAGE)).unwrap();
        a.mov(byte_ptr(byte), (RIGHT >> 16) as i32).unwrap();
        a.mov(rcx, qword_ptr(PAGE)).unwrap();
        a.hlt().unwrap();
    });
    halts(&mut m);
    assert_eq!((m.state.gpr[3], m.state.gpr[1]), (1, 2));
}

#[test]
fn two_address_spaces_have_their_own_code_at_one_address() {
    let mut m = two_roots();
    // The second root leads to its own page table.
    let tables = OTHER_ROOT;
    for level in 0..2 {
        m.put64(tables + 0x1000 * level, (tables + 0x1000 * (level + 1)) | 7);
    }
    m.put64(tables + 0x2000, (tables + 0x3000) | 7);
    for page in 0..512 {
        m.put64(tables + 0x3000 + 8 * page, page << 12 | 7);
    }
    m.put64(tables + 0x3000 + 8 * (PAGE >> 12), RIGHT | 7);
    for (page, value) in [(LEFT, 1), (RIGHT, 2)] {
        m.code_at(64, page, PAGE, |a| {
            a.lea(rbx, ptr(rbx + rbx * 2 + value)).unwrap();
            a.ret().unwrap();
        });
    }
    m.state.gpr[3] = 0;
    m.code(64, |a| {
        for root in [TABLES, OTHER_ROOT, TABLES, OTHER_ROOT, OTHER_ROOT, TABLES] {
            set_root(a, root);
            a.call(PAGE).unwrap();
        }
        a.hlt().unwrap();
    });
    halts(&mut m);
    let expected = [1, 2, 1, 2, 2, 1].iter().fold(0, |sum, value| sum * 3 + value);
    assert_eq!(m.state.gpr[3], expected);
}

#[test]
fn code_whose_entry_changed_in_another_address_space_is_other_code() {
    let mut m = two_roots();
    for (page, value) in [(LEFT, 1), (RIGHT, 2)] {
        m.code_at(64, page, PAGE, |a| {
            a.mov(ecx, value).unwrap();
            a.ret().unwrap();
        });
    }
    m.code(64, |a| {
        a.call(PAGE).unwrap();
        a.mov(ebx, ecx).unwrap();
        set_root(a, OTHER_ROOT);
        write64(a, entry_of(PAGE), RIGHT | 7);
        set_root(a, TABLES);
        a.call(PAGE).unwrap();
        a.hlt().unwrap();
    });
    halts(&mut m);
    assert_eq!((m.state.gpr[3], m.state.gpr[1]), (1, 2));
}

/// An instruction of a hot loop lies in two pages. The instruction's second page is remapped, then written,
/// then unmapped.
#[test]
fn an_instruction_across_pages_is_what_both_hold() {
    let mut m = two_roots();
    let start = PAGE - 3;
    // add ebx, imm32, with the operand's lowest byte in the first page; then ret.
    m.put(start, &[0x81, 0xc3, 0x00]);
    m.put(LEFT, &[0x01, 0, 0, 0xc3]);
    m.put(RIGHT, &[0x00, 1, 0, 0xc3]);
    // This RET in the second page only serves to enter the page into the TLB.
    let beside = 0x100;
    m.put(LEFT + beside, &[0xc3]);
    m.put(RIGHT + beside, &[0xc3]);
    let (rounds, elsewhere, written) = (400_u64, 40, 100);
    m.code(64, |a| {
        let [mut again, mut stays, mut same] = [a.create_label(), a.create_label(), a.create_label()];
        a.mov(r8, entry_of(PAGE)).unwrap();
        a.mov(ecx, rounds as u32).unwrap();
        a.xor(ebx, ebx).unwrap();
        a.set_label(&mut again).unwrap();
        a.call(PAGE + beside).unwrap();
        a.call(start).unwrap();
        for (every, label) in [(elsewhere, &mut stays), (written, &mut same)] {
            a.mov(eax, ecx).unwrap();
            a.xor(edx, edx).unwrap();
            a.mov(r9d, every as u32).unwrap();
            a.div(r9d).unwrap();
            a.test(edx, edx).unwrap();
            a.jnz(*label).unwrap();
            if every == elsewhere {
                a.xor(qword_ptr(r8), (LEFT ^ RIGHT) as i32).unwrap();
            } else {
                a.add(byte_ptr(LEFT), 1).unwrap();
            }
            a.set_label(label).unwrap();
            // The assembler allows only one label for an instruction.
            a.nop().unwrap();
        }
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
        a.mov(qword_ptr(r8), 0).unwrap();
        a.call(start).unwrap();
    });
    assert_eq!(m.run_steps(100_000), Stop::Halted);
    assert_eq!((m.state.rip, m.state.cr2, m.stack64(1)), (handler(14) + 1, PAGE, start));
    let (mut sum, mut left, mut operand) = (0_u64, true, 1_u64);
    for round in (1..=rounds).rev() {
        sum += if left { operand << 8 } else { 1 << 16 };
        left ^= round % elsewhere == 0;
        operand += u64::from(round % written == 0);
    }
    assert_eq!(m.state.gpr[3], sum);
}

/// Under one root a page is written as data. Under the other root the page becomes a table. Then the page is
/// written again under the first root.
#[test]
fn a_page_that_became_a_table_elsewhere_is_written_as_one() {
    let mut m = two_roots();
    // The other root has its own tables from the PDPT on, with NEW_TABLE at the first 2 MiB of the second GiB.
    let directory = NEW_TABLE + 0x1000;
    let pointers = NEW_TABLE + 0x2000;
    m.put64(OTHER_ROOT, pointers | 7);
    m.put64(pointers, (TABLES + 0x2000) | 7);
    m.put64(pointers + 8, directory | 7);
    m.put64(directory, NEW_TABLE | 7);
    let far = 1_u64 << 30;
    m.code(64, |a| {
        write64(a, NEW_TABLE, LEFT | 7);
        set_root(a, OTHER_ROOT);
        a.mov(rdi, far).unwrap();
        a.mov(rbx, qword_ptr(rdi)).unwrap();
        set_root(a, TABLES);
        write64(a, NEW_TABLE, RIGHT | 7);
        set_root(a, OTHER_ROOT);
        a.mov(rcx, qword_ptr(rdi)).unwrap();
        a.hlt().unwrap();
    });
    halts(&mut m);
    assert_eq!((m.state.gpr[3], m.state.gpr[1]), (1, 2));
}

/// So much code is replaced that the code buffer is emptied during the test, including the loop's own code.
#[test]
fn code_that_is_written_again_and_again_is_always_the_newest() {
    let mut m = Machine::long();
    let rounds = 6000_u32;
    // Four blocks. The loop writes the operand in the first block.
    m.code_at(64, LEFT, LEFT, |a| {
        a.add(ebx, 0x1_0000).unwrap();
        a.jmp(LEFT + 0x100).unwrap();
    });
    for block in [LEFT + 0x100, LEFT + 0x200] {
        m.code_at(64, block, block, |a| a.jmp(block + 0x100).unwrap());
    }
    m.code_at(64, LEFT + 0x300, LEFT + 0x300, |a| a.ret().unwrap());
    m.code(64, |a| {
        let mut again = a.create_label();
        a.mov(ecx, rounds).unwrap();
        a.xor(ebx, ebx).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(dword_ptr(LEFT + 2), ecx).unwrap();
        a.call(LEFT).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run_steps(100_000), Stop::Halted, "rip {:#x}", m.state.rip);
    assert_eq!(m.state.gpr[3], u64::from(rounds * (rounds + 1) / 2));
}

/// Reads a page, writes it, clears its D bit in the guest and writes again. Returns the entry after each step.
fn dirty_after(m: &mut Machine, bitness: u32, page: u64, entry: u64) -> [u64; 4] {
    let seen = DATA;
    m.code(bitness, |a| {
        let note = |a: &mut CodeAssembler, n: u64| {
            a.mov(eax, dword_ptr(entry)).unwrap();
            a.mov(dword_ptr(seen + 4 * n), eax).unwrap();
        };
        a.mov(ebx, dword_ptr(page)).unwrap();
        note(a, 0);
        a.mov(dword_ptr(page), ebx).unwrap();
        note(a, 1);
        a.and(dword_ptr(entry), !(DIRTY as i32)).unwrap();
        a.mov(ebx, dword_ptr(page)).unwrap();
        note(a, 2);
        a.mov(dword_ptr(page + 8), ebx).unwrap();
        note(a, 3);
        a.hlt().unwrap();
    });
    halts(m);
    std::array::from_fn(|n| u64::from(m.ram().load_u32(seen + 4 * n as u64)) & (ACCESSED | DIRTY))
}

const READ_WRITTEN_READ_WRITTEN: [u64; 4] = [ACCESSED, ACCESSED | DIRTY, ACCESSED, ACCESSED | DIRTY];

#[test]
fn writes_make_4_kib_and_2_mib_pages_dirty() {
    let large = 4 << 20;
    let directory_entry = TABLES + 0x2000 + 8 * (large >> 21);
    for (page, entry, value) in
        [(PAGE, entry_of(PAGE), PAGE | 7), (large, directory_entry, large | LARGE | 7)]
    {
        let mut m = Machine::long();
        m.put64(entry, value);
        assert_eq!(dirty_after(&mut m, 64, page, entry), READ_WRITTEN_READ_WRITTEN, "{page:#x}");
    }
}

#[test]
fn writes_make_1_gib_pages_dirty() {
    let mut m = Machine::long();
    // The second GiB maps the first GiB again.
    let entry = TABLES + 0x1000 + 8;
    m.put64(entry, LARGE | 7);
    assert_eq!(dirty_after(&mut m, 64, (1 << 30) + PAGE, entry), READ_WRITTEN_READ_WRITTEN);
}

#[test]
fn writes_make_4_mib_pages_dirty() {
    const CR4_PSE: u64 = 1 << 4;
    let mut m = Machine::protected();
    for n in 0..4 {
        m.put32(TABLES + 4 * n, (n << 22 | LARGE | 7) as u32);
    }
    m.state.cr0 |= 1 << 31;
    m.state.cr3 = TABLES;
    m.state.cr4 = CR4_PSE;
    assert_eq!(dirty_after(&mut m, 32, 8 << 20, TABLES + 8), READ_WRITTEN_READ_WRITTEN);
}

/// The last byte of a jump is the first byte of a cache line, or of a page, that has no other code. The store
/// writes only this byte.
#[test]
fn a_store_to_the_last_byte_of_a_block_is_seen() {
    for last in [CODE + 0x100, CODE + 0x1000] {
        let mut m = Machine::long();
        let (first, second) = (0x40_u8, 0x60_u8);
        m.put(last - 1, &[0xeb, first]);
        m.code(64, |a| a.jmp(last - 1).unwrap());
        m.code_at(64, last + 1 + u64::from(first), last + 1 + u64::from(first), |a| {
            a.inc(ebx).unwrap();
            a.mov(byte_ptr(last), i32::from(second)).unwrap();
            a.jmp(last - 1).unwrap();
        });
        m.code_at(64, last + 1 + u64::from(second), last + 1 + u64::from(second), |a| a.hlt().unwrap());
        assert_eq!(m.run_steps(20), Stop::Halted, "{last:#x}");
        assert_eq!(m.state.gpr[3], 1, "{last:#x}");
    }
}

/// The block's first byte is the last byte of a cache line. The store writes only this byte.
#[test]
fn a_store_to_the_first_byte_of_a_block_is_seen() {
    let mut m = Machine::long();
    let block = CODE + 0x13f;
    // JMP rel8 becomes HLT.
    m.put(block, &[0xeb, 0x40]);
    m.code(64, |a| a.jmp(block).unwrap());
    m.code_at(64, block + 0x42, block + 0x42, |a| {
        a.mov(byte_ptr(block), 0xf4_u8 as i8 as i32).unwrap();
        a.jmp(block).unwrap();
    });
    assert_eq!(m.run_steps(20), Stop::Halted);
}

/// A store to bytes next to code, which must not change the code, and then a store to the code.
#[test]
fn a_store_beside_code_does_not_hide_the_next() {
    let mut m = Machine::long();
    m.put(PAGE, &[0x90, 0xc3]);
    m.code(64, |a| {
        a.call(PAGE).unwrap();
        a.mov(byte_ptr(PAGE + 0x800), al).unwrap();
        a.mov(byte_ptr(PAGE), 0xf4_u8 as i8 as i32).unwrap();
        a.call(PAGE).unwrap();
        a.ud2().unwrap();
    });
    halts(&mut m);
    assert_eq!(m.state.rip, PAGE + 1);
}

/// A store to an unused entry of a page table, and then a store to the entry in use.
#[test]
fn a_store_beside_an_entry_does_not_hide_the_next() {
    let mut m = two_roots();
    m.put64(entry_of(PAGE) + 0x100, 0);
    m.code(64, |a| {
        a.mov(rbx, qword_ptr(PAGE)).unwrap();
        write64(a, entry_of(PAGE) + 0x100, LEFT | 7);
        write64(a, entry_of(PAGE), RIGHT | 7);
        a.mov(rcx, qword_ptr(PAGE)).unwrap();
        a.hlt().unwrap();
    });
    halts(&mut m);
    assert_eq!((m.state.gpr[3], m.state.gpr[1]), (1, 2));
}

/// Emits REP MOVSB of `bytes` bytes, which changes RCX, RSI and RDI.
fn copy(a: &mut CodeAssembler, from: u64, to: u64, bytes: u64) {
    a.mov(esi, from as u32).unwrap();
    a.mov(edi, to as u32).unwrap();
    a.mov(ecx, bytes as u32).unwrap();
    a.rep().movsb().unwrap();
}

/// Emits REP STOSB of the byte in AL.
fn fill(a: &mut CodeAssembler, to: u64, bytes: u64) {
    a.mov(edi, to as u32).unwrap();
    a.mov(ecx, bytes as u32).unwrap();
    a.rep().stosb().unwrap();
}

#[test]
fn stores_copies_and_fills_onto_a_clean_page_make_it_dirty() {
    let page = PAGE / 0x1000;
    type Write = fn(&mut CodeAssembler);
    let ways: [(&str, Write); 3] = [
        ("store", |a| a.mov(qword_ptr(PAGE), rbx).unwrap()),
        ("copy", |a| copy(a, DATA, PAGE, 16)),
        ("fill", |a| fill(a, PAGE, 16)),
    ];
    for (name, write) in ways {
        // The guest's D bit is independent of our dirty flag.
        for entry in [0, ACCESSED | DIRTY] {
            let mut m = Machine::long();
            m.page(PAGE, 0, entry);
            m.ram().flags().clear(page, PageFlags::DIRTY);
            m.code(64, |a| {
                // Enters both pages into the TLB for reading.
                a.mov(rbx, qword_ptr(DATA)).unwrap();
                a.mov(rbx, qword_ptr(PAGE)).unwrap();
                write(a);
                a.hlt().unwrap();
            });
            halts(&mut m);
            assert!(m.ram().flags().has(page, PageFlags::DIRTY), "{name}, {entry:#x}");
            assert_eq!(m.ram().load_u64(entry_of(PAGE)) & DIRTY, DIRTY, "{name}, {entry:#x}");
        }
    }
}

#[test]
fn copies_onto_code_replace_it() {
    for copies in [true, false] {
        let mut m = Machine::long();
        // NOPs and RET; and MOV ECX, 2 and RET with the same length.
        m.put(PAGE, &[0x90, 0x90, 0x90, 0x90, 0x90, 0xc3]);
        m.put(DATA, &[0xb9, 2, 0, 0, 0, 0xc3]);
        m.code(64, |a| {
            // Enters the page into the TLB for writing before it holds code.
            a.mov(byte_ptr(PAGE + 0x800), al).unwrap();
            a.mov(bl, byte_ptr(DATA)).unwrap();
            a.call(PAGE).unwrap();
            a.mov(eax, 0xf4).unwrap();
            if copies {
                copy(a, DATA, PAGE, 6)
            } else {
                fill(a, PAGE, 6)
            };
            a.call(PAGE).unwrap();
            a.hlt().unwrap();
        });
        halts(&mut m);
        if copies {
            assert_eq!(m.state.gpr[1], 2);
        } else {
            assert_eq!(m.state.rip, PAGE + 1, "HLT where the code was filled");
        }
    }
}

#[test]
fn copies_onto_page_tables_change_translations() {
    for copies in [true, false] {
        let mut m = two_roots();
        let table = entry_of(PAGE);
        m.put64(DATA, RIGHT | 7);
        m.put64(DATA + 8, RIGHT | 7);
        m.code(64, |a| {
            // A store enters the table into the TLB for writing. Then a walk reads the table for a page not used
            // before.
            a.mov(rax, qword_ptr(table + 0x20)).unwrap();
            a.mov(qword_ptr(table + 0x20), rax).unwrap();
            a.mov(rbx, qword_ptr(PAGE)).unwrap();
            a.mov(al, byte_ptr(DATA)).unwrap();
            a.mov(eax, 0).unwrap();
            if copies {
                copy(a, DATA, table, 16)
            } else {
                fill(a, table, 16)
            };
            a.mov(rdx, qword_ptr(PAGE)).unwrap();
            a.hlt().unwrap();
        });
        if copies {
            halts(&mut m);
            assert_eq!((m.state.gpr[3], m.state.gpr[2]), (1, 2));
        } else {
            assert_eq!(m.run_to_handler(), 14, "the entry is not present any more");
        }
    }
}

/// If source and target overlap, a copy to a higher address repeats a pattern. A copy to a lower address moves the
/// bytes. Both copies work across a page's end.
#[test]
fn copies_within_a_page_go_byte_by_byte() {
    for (distance, expected) in [(1_i64, b"aaaaaaaa"), (3, b"abcabcab"), (-1, b"abcdefgh")] {
        for at in [PAGE + 0x100, PAGE + 0x1000 - 4] {
            let mut m = Machine::long();
            m.put(at, b"abcdefgh.");
            let to = at.wrapping_add_signed(distance);
            m.code(64, |a| {
                copy(a, at, to, 8);
                a.hlt().unwrap();
            });
            halts(&mut m);
            let mut bytes = [0; 8];
            m.ram().read_bytes(to, &mut bytes);
            assert_eq!(&bytes, expected, "by {distance} at {at:#x}");
            assert_eq!(m.state.gpr[6..8], [at + 8, to + 8]);
            assert_eq!(m.state.gpr[1], 0);
        }
    }
}

#[test]
fn copies_go_down_with_df() {
    let mut m = Machine::long();
    m.put(PAGE, b"abcdefgh");
    m.code(64, |a| {
        a.std().unwrap();
        copy(a, PAGE + 7, DATA + 7, 8);
        a.hlt().unwrap();
    });
    halts(&mut m);
    let mut bytes = [0; 8];
    m.ram().read_bytes(DATA, &mut bytes);
    assert_eq!(&bytes, b"abcdefgh");
    assert_eq!(m.state.gpr[6..8], [PAGE - 1, DATA - 1]);
}

/// Runs `steps` steps without setting a new state.
fn go_on(m: &mut Machine, steps: u64) {
    let until = m.cpu.steps() + steps;
    assert_eq!(m.cpu.run(&mut m.bus, until, u64::MAX), Stop::Budget);
}

#[test]
fn registers_are_replaced_whatever_is_kept_beside_them() {
    let ways: [fn(&mut Machine, &cpu::CpuState); 3] = [
        |m, state| m.cpu.set_state(state),
        |m, state| m.cpu.restore_state(state),
        |m, state| m.cpu.set_registers(state),
    ];
    for replace in ways {
        let mut m = Machine::long();
        m.code(64, |a| {
            a.inc(eax).unwrap();
            a.inc(eax).unwrap();
            a.inc(eax).unwrap();
        });
        m.load();
        let before = m.cpu.state();
        go_on(&mut m, 2);
        assert_eq!(m.cpu.state().gpr[0], 2);
        replace(&mut m, &before);
        assert_eq!(m.cpu.state(), before);
        go_on(&mut m, 3);
        assert_eq!((m.cpu.state().gpr[0], m.cpu.rip()), (3, CODE + 6));
    }
}

/// Restores a state after RAM was replaced.
#[test]
fn code_that_was_replaced_before_a_state_is_restored_is_other_code() {
    let mut m = Machine::long();
    m.code(64, |a| a.inc(eax).unwrap());
    m.load();
    let before = m.cpu.state();
    go_on(&mut m, 1);
    // DEC EAX.
    m.ram().replace_bytes(CODE, &[0xff, 0xc8]);
    m.cpu.restore_state(&before);
    go_on(&mut m, 1);
    assert_eq!(m.cpu.state().gpr[0], u64::from(u32::MAX));
}

#[test]
fn writes_are_tracked_anew_in_every_address_space() {
    let page = PAGE / 0x1000;
    for other_root_between in [false, true] {
        let mut m = two_roots();
        m.put64(entry_of(PAGE), PAGE | 7);
        m.code(64, |a| {
            a.mov(qword_ptr(PAGE), rbx).unwrap();
            set_root(a, if other_root_between { OTHER_ROOT } else { TABLES });
            // This write to CR3 restarts the tracking of writes.
            set_root(a, TABLES);
            a.mov(qword_ptr(PAGE), rbx).unwrap();
        });
        m.load();
        go_on(&mut m, 3);
        assert!(m.ram().flags().has(page, PageFlags::DIRTY));
        m.ram().flags().clear(page, PageFlags::DIRTY);
        m.cpu.track_writes_anew();
        go_on(&mut m, 3);
        assert!(m.ram().flags().has(page, PageFlags::DIRTY), "other root {other_root_between}");
    }
}
