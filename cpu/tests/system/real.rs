//! Real mode: the interrupt vector table, segment loads, and the way into protected mode and back.

use cpu::Stop;
use iced_x86::code_asm::*;

use crate::harness::*;

#[test]
fn interrupts_go_through_the_vector_table() {
    let mut m = Machine::real();
    m.state.rflags |= 0x200;
    m.code(16, |a| a.int(0x21).unwrap());
    assert_eq!(m.run_to_handler(), 0x21);
    assert_eq!((m.stack16(0), m.stack16(1), m.stack16(2)), (0x102, 0x2000, 0x202));
    assert_eq!(m.state.gpr[4], 0x8000 - 6);
    assert_eq!((m.state.segments[1].selector, m.state.segments[1].base), (0x3000, 0x3_0000));
    assert_eq!(m.state.rflags & 0x200, 0);
}

#[test]
fn faults_return_to_the_instruction_and_iret_goes_back() {
    let mut m = Machine::real();
    m.put(handler(6), &[0xcf]);
    m.code(16, |a| a.ud2().unwrap());
    m.run_steps(1);
    assert_eq!(m.stack16(0), 0x100);
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.segments[1].base, m.state.gpr[4]), (0x100, 0x2_0000, 0x8000));
}

#[test]
fn a_short_vector_table_leads_to_shutdown() {
    let mut m = Machine::real();
    m.state.idtr.limit = 3;
    m.code(16, |a| a.int(0x21).unwrap());
    assert_eq!(m.run(), Stop::Shutdown);
}

#[test]
fn segment_loads_keep_the_hidden_limit() {
    let mut m = Machine::real();
    m.state.segments[3].limit = u32::MAX;
    m.state.gpr[0] = 0x1234;
    m.code(16, |a| {
        a.mov(ds, eax).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    let loaded = m.state.segments[3];
    assert_eq!((loaded.selector, loaded.base, loaded.limit), (0x1234, 0x1_2340, u32::MAX));
}

#[test]
fn the_same_offset_in_another_segment_is_other_code() {
    let mut m = Machine::real();
    // JMP 4000:0100, then JMP 5000:0100, then HLT: each at offset 100h of its segment.
    m.put(0x2_0100, &[0xea, 0x00, 0x01, 0x00, 0x40]);
    m.put(0x4_0100, &[0xea, 0x00, 0x01, 0x00, 0x50]);
    m.put(0x5_0100, &[0xf4]);
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!((m.state.segments[1].base, m.state.rip), (0x5_0000, 0x101));
}

#[test]
fn the_way_to_long_mode() {
    let mut m = Machine::long();
    m.state.cr0 = 0x10;
    m.state.cr4 = 0;
    m.state.msrs.efer = 0;
    m.state.rip = 0x100;
    m.state.gpr[4] = 0x8000;
    for segment in &mut m.state.segments {
        *segment = cpu::Segment { selector: 0x2000, base: 0x2_0000, limit: 0xffff, attributes: 0x93 };
    }
    m.state.gpr[1] = 0xc000_0080;
    m.state.gpr[0] = 0x101;
    m.state.gpr[2] = 0;
    m.state.gpr[3] = 0x20;
    m.state.gpr[6] = TABLES;
    m.state.gpr[7] = 0x8000_0011;
    m.code(16, |a| {
        a.wrmsr().unwrap();
        a.mov(cr4, ebx).unwrap();
        a.mov(cr3, esi).unwrap();
        a.mov(cr0, edi).unwrap();
        a.db(&[0x66, 0xea, 0, 3, 2, 0, 8, 0]).unwrap();
    });
    m.code_at(64, 0x2_0300, 0x2_0300, |a| {
        a.swapgs().unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.rip, 0x2_0304);
    assert_eq!(m.state.msrs.efer, 0x501);
    assert!(m.state.segments[1].long());
}
