//! Control registers and their consistency rules.

use cpu::Stop;
use iced_x86::code_asm::*;

use crate::harness::*;

/// A HLT followed by the mark byte stands for RDTSC. HLT and mark are one step. Outside 64-bit mode the mark has no
/// effect.
#[test]
fn a_marked_halt_reads_the_time_and_goes_on_behind_the_mark() {
    const MARK: u8 = 0xd6;
    let code = [0xf4, MARK, 0xf4, 0x90];
    let mut m = Machine::long();
    m.bus.time_reads = Some((MARK, 0x1_0000_0007));
    m.state.msrs.tsc_offset = 1;
    m.put(CODE, &code);
    m.run();
    assert_eq!((m.state.rip, m.counts.steps, m.state.halted), (CODE + 3, 2, true));
    assert_eq!((m.state.gpr[0], m.state.gpr[2]), (8, 1));
    let mut m = Machine::long();
    m.bus.time_reads = Some((MARK, 7));
    m.put(CODE, &code);
    m.state.rflags |= 1 << 8;
    assert_eq!((m.run_to_handler(), m.stack64(0)), (1, CODE + 2), "a single step is both bytes");
    let mut m = Machine::protected();
    m.bus.time_reads = Some((MARK, 7));
    m.put(CODE, &code);
    m.run();
    assert_eq!((m.state.rip, m.counts.steps, m.state.halted), (CODE + 1, 1, true));
}

/// Runs MOV CRn, RAX. Returns whether the write succeeded.
fn write(m: &mut Machine, number: u8, value: u64) -> bool {
    m.state.gpr[0] = value;
    m.state.halted = false;
    m.state.rip = CODE;
    // 0F 22 /r; CR8 needs REX.R.
    let bytes = [0x40 | (number >> 3) << 2, 0x0f, 0x22, 0xc0 | (number & 7) << 3, 0xf4];
    m.put(CODE, &bytes);
    let stop = m.run();
    assert_eq!(stop, Stop::Halted);
    m.state.rip == CODE + 5
}

#[test]
fn consistency_rules_in_long_mode() {
    let base = Machine::long();
    let (old0, old4) = (base.state.cr0, base.state.cr4);
    let cases: &[(u8, u64, bool, &str)] = &[
        (0, old0, true, "the same"),
        (0, old0 | 1 << 32, false, "upper half"),
        (0, old0 & !1, false, "paging without protection"),
        (0, old0 | 1 << 29, false, "NW without CD"),
        (0, old0 | 3 << 29, true, "NW with CD"),
        (0, old0 & !(1 << 31), false, "paging off in 64-bit mode"),
        (2, u64::MAX, true, "CR2 takes anything"),
        (3, TABLES | 0x18, true, "cache bits"),
        (3, TABLES | 1 << 40, false, "beyond the physical address"),
        (3, TABLES | 1 << 63, false, "bit 63 without PCIDs"),
        (4, old4 & !0x20, false, "PAE off in long mode"),
        (4, old4 | 1 << 12, false, "LA57"),
        (4, old4 | 1 << 13, false, "VMXE"),
        (4, old4 | 1 << 32, false, "upper half"),
        (4, old4 | 1 << 17, true, "PCIDE"),
        (8, 15, true, "the highest priority"),
        (8, 16, false, "too high a priority"),
    ];
    for &(number, value, taken, name) in cases {
        let mut m = Machine::long();
        assert_eq!(write(&mut m, number, value), taken, "{name}");
        if !taken {
            assert_eq!((m.state.cr0, m.state.cr3, m.state.cr4), (old0, TABLES, old4), "{name}");
        }
    }
}

#[test]
fn cr0_keeps_et_and_ignores_reserved_bits() {
    let mut m = Machine::long();
    let old = m.state.cr0;
    assert!(write(&mut m, 0, old & !0x10 | 0x80));
    assert_eq!(m.state.cr0, old);
}

#[test]
fn pcids() {
    let mut m = Machine::long();
    m.state.cr3 = TABLES | 8;
    let old = m.state.cr4;
    assert!(!write(&mut m, 4, old | 1 << 17), "low bits of CR3 must be clear");
    m = Machine::long();
    assert!(write(&mut m, 4, old | 1 << 17));
    assert!(write(&mut m, 3, TABLES | 0x123 | 1 << 63));
    assert_eq!(m.state.cr3, TABLES | 0x123, "bit 63 is not stored");
}

#[test]
fn cr8_is_the_boards() {
    let mut m = Machine::long();
    assert!(write(&mut m, 8, 5));
    assert_eq!(m.bus.cr8, 5);
}

#[test]
fn missing_registers_are_undefined_and_user_code_is_refused() {
    for number in [1, 5, 6, 7, 9, 15] {
        let mut m = Machine::long();
        assert!(!write(&mut m, number, 0));
        assert_eq!(m.state.rip, handler(6) + 1, "CR{number}");
    }
    let mut m = Machine::long().in_user_mode();
    m.code(64, |a| a.mov(rax, cr0).unwrap());
    assert_eq!(m.run_to_handler(), 13);
}

#[test]
fn page_table_changes_count_at_once() {
    let mut m = Machine::long();
    m.state.gpr[1] = DATA;
    // SIDT's ten bytes overwrite the page-table entry for DATA with zeros. No INVLPG follows.
    m.state.gpr[2] = TABLES + 0x3000 + 8 * (DATA >> 12) - 2;
    m.state.idtr.base = IDT;
    m.code(64, |a| {
        a.sidt(ptr(rcx)).unwrap();
        a.sidt(ptr(rdx)).unwrap();
        a.sidt(ptr(rcx)).unwrap();
    });
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!(m.stack64(1), CODE + 6);
    assert_eq!(m.state.cr2, DATA);
}

#[test]
fn lmsw_sets_pe_only() {
    let mut m = Machine::long();
    m.state.gpr[0] = 0xe;
    m.code(64, |a| {
        a.lmsw(ax).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.cr0, 0x8001_003f);
}

#[test]
fn umip_hides_tables_from_user_code() {
    for (bits, vector) in [(0, 3), (1 << 11, 13)] {
        let mut m = Machine::long().in_user_mode();
        m.long_gate(3, handler(3), 0xee00, 0);
        m.state.cr4 |= bits;
        m.state.gpr[1] = DATA;
        m.code(64, |a| {
            a.sgdt(ptr(rcx)).unwrap();
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), vector);
    }
}
