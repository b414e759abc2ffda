//! CPUID, model-specific registers, the TSC, FS and GS bases, XCR0, flags.

use cpu::Stop;
use iced_x86::code_asm::*;

use crate::harness::*;

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let mut m = Machine::long().in_user_mode();
    m.long_gate(3, handler(3), 0xee00, 0);
    m.state.gpr[0] = leaf.into();
    m.state.gpr[1] = subleaf.into();
    m.code(64, |a| {
        a.cpuid().unwrap();
        a.int3().unwrap();
    });
    assert_eq!(m.run_to_handler(), 3);
    [0, 3, 1, 2].map(|n: usize| m.state.gpr[n] as u32)
}

#[test]
fn cpuid_names_the_model() {
    let [max, b, c, d] = cpuid(0, 0);
    assert_eq!(max, 0xd);
    let vendor: Vec<u8> = [b, d, c].iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(vendor, b"AuthenticAMD");
    let brand: Vec<u8> =
        (0x8000_0002..=0x8000_0004).flat_map(|l| cpuid(l, 0)).flat_map(u32::to_le_bytes).collect();
    assert_eq!(brand.split(|&b| b == 0).next(), Some(&b"ttvm-v2.1 deterministic x86-64 CPU"[..]));
    let [_, b, c, d] = cpuid(0x4000_0000, 0);
    let hypervisor: Vec<u8> = [b, c, d].iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(hypervisor, b"TTVMTTVMTTVM");
    assert_eq!(cpuid(1, 0)[0], 0x0080_0f12);
    assert_eq!(cpuid(0x8000_0008, 0)[0], 48 << 8 | 40);
    assert_eq!(cpuid(0xd, 0), [3, 576, 576, 0]);
    assert_eq!(cpuid(0x1234, 0), [0; 4]);
}

#[test]
fn cpuid_has_all_of_x86_64_v2_and_nothing_of_v3s_vectors() {
    let [_, _, c1, d1] = cpuid(1, 0);
    // These bits of ECX show CX16, POPCNT, SSE3, SSE4.1, SSE4.2 and SSSE3.
    for bit in [13, 23, 0, 19, 20, 9] {
        assert_ne!(c1 & 1 << bit, 0, "leaf 1 ECX bit {bit}");
    }
    // These bits of EDX show FPU, CX8, CMOV, MMX, FXSR, SSE and SSE2.
    for bit in [0, 8, 15, 23, 24, 25, 26] {
        assert_ne!(d1 & 1 << bit, 0, "leaf 1 EDX bit {bit}");
    }
    let [_, _, c, d] = cpuid(0x8000_0001, 0);
    assert_ne!(c & 1, 0, "LAHF");
    assert_ne!(d & 1 << 11, 0, "SYSCALL");
    // These bits of ECX would show MONITOR, FMA, AVX, F16C and RDRAND.
    for bit in [3, 12, 28, 29, 30] {
        assert_eq!(c1 & 1 << bit, 0, "leaf 1 ECX bit {bit}");
    }
    // These bits of EBX would show HLE, AVX2, RTM and RDSEED.
    for bit in [4, 5, 11, 18] {
        assert_eq!(cpuid(7, 0)[1] & 1 << bit, 0, "leaf 7 EBX bit {bit}");
    }
}

#[test]
fn osxsave_follows_cr4() {
    assert_eq!(cpuid(1, 0)[2] & 1 << 27, 0);
    let mut m = Machine::long();
    m.state.cr4 |= 1 << 18;
    m.state.gpr[0] = 1;
    m.code(64, |a| {
        a.cpuid().unwrap();
        a.hlt().unwrap();
    });
    m.run();
    assert_ne!(m.state.gpr[1] & 1 << 27, 0);
}

#[test]
fn cpuid_shows_an_apic_where_its_base_enables_it() {
    for disabled in [false, true] {
        for leaf in [1, 0x8000_0001] {
            let mut m = Machine::long();
            m.bus.apic_disabled = disabled;
            m.state.gpr[0] = leaf;
            m.code(64, |a| {
                a.cpuid().unwrap();
                a.hlt().unwrap();
            });
            m.run();
            assert_eq!(m.state.gpr[2] & 1 << 9 == 0, disabled, "leaf {leaf:#x}");
        }
    }
}

#[test]
fn performance_counters_are_there_and_count_nothing() {
    for index in 0xc001_0000..=0xc001_0007 {
        let mut m = Machine::long();
        assert!(write_msr(&mut m, index, 0x53_0076));
        assert_eq!(read_msr(&mut m, index), Some(0), "{index:#x}");
    }
    let mut m = Machine::long();
    assert_eq!(read_msr(&mut m, 0xc001_0008), None);
}

#[test]
fn there_are_no_banks_of_machine_checks() {
    let mut m = Machine::long();
    assert_eq!(read_msr(&mut m, 0x179), Some(0));
    assert!(!write_msr(&mut m, 0x179, 0));
}

/// Runs WRMSR. Returns whether the write succeeded.
fn write_msr(m: &mut Machine, index: u32, value: u64) -> bool {
    m.state.halted = false;
    m.state.rip = CODE;
    m.state.gpr[1] = index.into();
    m.state.gpr[0] = value & 0xffff_ffff;
    m.state.gpr[2] = value >> 32;
    m.code(64, |a| {
        a.wrmsr().unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    m.state.rip == CODE + 3
}

/// Runs RDMSR; `None` if it faults.
fn read_msr(m: &mut Machine, index: u32) -> Option<u64> {
    m.state.halted = false;
    m.state.rip = CODE;
    m.state.gpr[1] = index.into();
    m.code(64, |a| {
        a.rdmsr().unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    (m.state.rip == CODE + 3).then_some(m.state.gpr[2] << 32 | m.state.gpr[0])
}

#[test]
fn msr_writes_are_checked() {
    const NOT_CANONICAL: u64 = 1 << 50;
    let cases: &[(u32, u64, bool)] = &[
        (0xc000_0080, 0xd01, true),
        (0xc000_0080, 0xc01, false),           // LME under paging
        (0xc000_0080, 0xd01 | 1 << 12, false), // SVME
        (0xc000_0081, u64::MAX, true),
        (0xc000_0082, 0xffff_8000_0000_0000, true),
        (0xc000_0082, NOT_CANONICAL, false),
        (0xc000_0100, NOT_CANONICAL, false),
        (0xc000_0101, 0x1234, true),
        (0xc000_0102, NOT_CANONICAL, false),
        (0x277, 0x0007_0406_0007_0406, true),
        (0x277, 2, false),
        (0x2ff, 0xc06, true),
        (0x2ff, 0xc02, false),
        (0x250, 0x0606_0606_0606_0606, true),
        (0x250, 7, false),
        (0x200, 6, true),
        (0x201, 0xff_ffff_f800, true),
        (0x201, 1 << 40, false),
        (0xfe, 0, false),
        (0x1234, 0, false),
    ];
    for &(index, value, taken) in cases {
        let mut m = Machine::long();
        assert_eq!(write_msr(&mut m, index, value), taken, "{index:#x} = {value:#x}");
        if taken {
            assert_eq!(read_msr(&mut m, index), Some(value), "{index:#x}");
        }
    }
}

#[test]
fn unknown_msrs_are_the_boards() {
    let mut m = Machine::long();
    m.bus.msrs.insert(0x802, 7);
    assert_eq!(read_msr(&mut m, 0x802), Some(7));
    assert!(write_msr(&mut m, 0x802, 9));
    assert_eq!(m.bus.msrs[&0x802], 9);
    assert_eq!(read_msr(&mut m, 0x803), None);
    assert!(!write_msr(&mut m, 0x803, 9));
}

#[test]
fn the_tsc_and_its_deadline_carry_the_guests_offset() {
    let mut m = Machine::long();
    m.bus.msrs.insert(0x6e0, 0);
    assert_eq!(read_msr(&mut m, 0x10), Some(1000), "raw, at step 0");
    assert!(write_msr(&mut m, 0x3b, 500));
    assert_eq!(m.state.msrs.tsc_offset, 500);
    let steps = m.counts.steps;
    assert_eq!(read_msr(&mut m, 0x10), Some(1500 + steps));
    assert!(write_msr(&mut m, 0x10, 0));
    assert_eq!(read_msr(&mut m, 0x3b), Some(m.state.msrs.tsc_offset));
    assert_eq!(m.state.msrs.tsc_offset as i64, -1006);
    assert!(write_msr(&mut m, 0x6e0, 50));
    assert_eq!(m.bus.msrs[&0x6e0], 1056);
    assert_eq!(read_msr(&mut m, 0x6e0), Some(50));
    assert!(write_msr(&mut m, 0x6e0, 0));
    assert_eq!(m.bus.msrs[&0x6e0], 0);
}

#[test]
fn rdtsc_is_the_levels_business_under_tsd() {
    for (bits, user, vector) in [(0, true, 3), (4, true, 13), (4, false, 3)] {
        let mut m = if user { Machine::long().in_user_mode() } else { Machine::long() };
        m.long_gate(3, handler(3), 0xee00, 0);
        m.state.cr4 |= bits;
        m.state.msrs.tsc_aux = 77;
        m.code(64, |a| {
            a.rdtscp().unwrap();
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), vector);
        if vector == 3 {
            assert_eq!((m.state.gpr[0], m.state.gpr[2], m.state.gpr[1]), (1000, 0, 77));
        }
    }
}

#[test]
fn bases_of_fs_and_gs() {
    let mut m = Machine::long();
    m.state.cr4 |= 1 << 16;
    m.state.msrs.kernel_gs_base = 0xffff_8000_1234_5678;
    m.state.segments[5].base = 0x1111;
    m.state.gpr[0] = 0xffff_ffff_0000_0000;
    m.code(64, |a| {
        a.swapgs().unwrap();
        a.rdgsbase(rbx).unwrap();
        a.wrfsbase(rax).unwrap();
        a.rdfsbase(ecx).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.gpr[3], 0xffff_8000_1234_5678);
    assert_eq!(m.state.msrs.kernel_gs_base, 0x1111);
    assert_eq!((m.state.segments[4].base, m.state.gpr[1]), (0xffff_ffff_0000_0000, 0));
    m.state.cr4 = 0x20;
    m.state.halted = false;
    m.state.rip = CODE + 3;
    assert_eq!(m.run_to_handler(), 6, "without CR4.FSGSBASE they do not exist");
}

#[test]
fn a_null_selector_clears_the_base() {
    let mut m = Machine::long();
    m.state.segments[4].base = 0x1234;
    m.state.gpr[0] = 0;
    m.code(64, |a| {
        a.mov(fs, eax).unwrap();
        a.hlt().unwrap();
    });
    m.run();
    assert_eq!(m.state.segments[4].base, 0);
}

#[test]
fn xcr0_knows_x87_and_sse() {
    for (value, taken) in [(1, true), (3, true), (2, false), (0, false), (7, false)] {
        let mut m = Machine::long();
        m.state.cr4 |= 1 << 18;
        m.state.gpr[0] = value;
        m.state.gpr[1] = 0;
        m.state.gpr[2] = 0;
        m.code(64, |a| {
            a.xsetbv().unwrap();
            a.xgetbv().unwrap();
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), if taken { 3 } else { 13 });
        assert_eq!(m.state.xcr0, if taken { value } else { 1 });
    }
}

#[test]
fn popf_changes_what_the_level_allows() {
    const ALL: u64 = 0x3f_7fd7 & !0x1_0100;
    let cases: &[(bool, u64, u64)] =
        &[(false, 0, 0x24_7ed7), (true, 0, 0x24_4cd7), (true, 3 << 12, 0x24_7ed7)];
    for &(user, iopl, expected) in cases {
        let mut m = if user { Machine::long().in_user_mode() } else { Machine::long() };
        m.long_gate(3, handler(3), 0xee00, 0);
        m.state.rflags |= iopl;
        m.put64(DATA, ALL);
        m.state.gpr[4] = DATA;
        m.code(64, |a| {
            a.popfq().unwrap();
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), 3);
        assert_eq!(m.stack64(2), expected, "user {user}, IOPL {iopl:#x}");
    }
}

#[test]
fn what_does_not_exist_is_undefined() {
    let programs: [(&str, &[u8]); 7] = [
        ("CMPOXADD", &[0xc4, 0xe2, 0x71, 0xe0, 0x00]),
        ("MONITOR", &[0x0f, 0x01, 0xc8]),
        ("MWAIT", &[0x0f, 0x01, 0xc9]),
        ("VMCALL", &[0x0f, 0x01, 0xc1]),
        ("VMMCALL", &[0x0f, 0x01, 0xd9]),
        ("RSM", &[0x0f, 0xaa]),
        ("RDRAND", &[0x0f, 0xc7, 0xf0]),
    ];
    for (name, bytes) in programs {
        let mut m = Machine::long();
        m.put(CODE, bytes);
        assert_eq!(m.run_to_handler(), 6, "{name}");
    }
}

#[test]
fn model_specific_registers_are_open_from_outside_as_at_level_0() {
    const LSTAR: u32 = 0xc000_0082;
    let mut m = Machine::long();
    m.load();
    assert_eq!(m.cpu.read_msr(&mut m.bus, 0xc000_0080), Some(m.state.msrs.efer));
    assert_eq!(m.cpu.read_msr(&mut m.bus, 0x1234_5678), None);
    assert_eq!(m.cpu.write_msr(&mut m.bus, LSTAR, 0xffff_8000_1234_5678), Some(()));
    assert_eq!(m.cpu.read_msr(&mut m.bus, LSTAR), Some(0xffff_8000_1234_5678));
    // The value is not canonical.
    assert_eq!(m.cpu.write_msr(&mut m.bus, LSTAR, 1 << 47), None);
    assert_eq!(m.cpu.read_msr(&mut m.bus, LSTAR), Some(0xffff_8000_1234_5678));
}

#[test]
fn system_calls_are_counted() {
    const SYSTEM_CALL: u8 = 0x80;
    let mut m = Machine::long();
    m.code_at(64, handler(SYSTEM_CALL), handler(SYSTEM_CALL), |a| a.iretq().unwrap());
    m.code(64, |a| {
        for _ in 0..3 {
            a.int(i32::from(SYSTEM_CALL)).unwrap();
        }
        a.int(0x81).unwrap();
    });
    assert_eq!(m.run_to_handler(), 0x81);
    assert_eq!(m.cpu.system_calls(), 3);
}

#[test]
fn conditional_branches_are_counted_taken_or_not() {
    let mut m = Machine::long();
    m.code(64, |a| {
        let mut behind = a.create_label();
        a.test(esp, esp).unwrap();
        a.jz(behind).unwrap();
        a.jnz(behind).unwrap();
        a.ud2().unwrap();
        a.set_label(&mut behind).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.cpu.branches(), 2);
}
