//! Differences between CPU models in what they execute: see [`cpu::CpuModel`].

use cpu::CpuModel;
use guest_ram::{PAGE_SIZE, PageFlags};
use iced_x86::code_asm::*;

use crate::harness::{CODE, DATA, Machine};

/// Three CPU models. Each of them executes some instructions differently from the others.
const MODELS: [CpuModel; 3] = [CpuModel::V2, CpuModel::V2Kvm, CpuModel::V2KvmTcg];
const STACK_FAULT: u8 = 12;
const GENERAL_PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;
const RF: u64 = 1 << 16;
const NOT_CANONICAL: u64 = 0x6e72_6574_6661_2065;

fn machine(model: CpuModel) -> Machine {
    let mut m = Machine::long();
    m.cpu.set_model(model);
    m
}

/// The error code of the page fault that `inc dword [DATA]` raises.
fn update_fault(model: CpuModel, clear: u64, user: bool) -> u64 {
    let m = machine(model);
    let mut m = if user { m.in_user_mode() } else { m };
    m.page(DATA, clear, 0);
    m.code(64, |a| a.inc(dword_ptr(DATA)).unwrap());
    assert_eq!(m.run_to_handler(), PAGE_FAULT);
    m.stack64(0)
}

#[test]
fn an_update_of_a_missing_page_faults_as_a_write_but_under_tcg_as_a_read() {
    assert_eq!(MODELS.map(|model| update_fault(model, 1, false)), [2, 2, 0]);
    assert_eq!(MODELS.map(|model| update_fault(model, 1, true)), [6, 6, 4]);
    // On every model, a read-only page gives the error code of a write.
    assert_eq!(MODELS.map(|model| update_fault(model, 2, true)), [7, 7, 7]);
}

/// The RFLAGS that an interrupt before the first instruction pushes, in a machine whose RF is `rf`.
fn pushed_flags(model: CpuModel, rf: u64) -> u64 {
    let mut m = machine(model);
    m.state.rflags |= 0x200 | rf;
    m.bus.signals.interrupt = true;
    m.bus.vector = 0x40;
    m.code(64, |a| a.nop().unwrap());
    assert_eq!(m.run_to_handler(), 0x40);
    m.stack64(2)
}

#[test]
fn interrupts_push_rf_as_the_model_says() {
    assert_eq!(MODELS.map(|model| pushed_flags(model, 0) & RF), [0, 0, RF]);
    assert_eq!(MODELS.map(|model| pushed_flags(model, RF) & RF), [RF, 0, RF]);
}

/// The vector that a misaligned load raises, for user code with alignment checks on.
fn misaligned_load(model: CpuModel) -> u8 {
    let mut m = machine(model).in_user_mode();
    m.state.cr0 |= 1 << 18;
    m.state.rflags |= 1 << 18;
    m.code(64, |a| {
        a.mov(eax, dword_ptr(DATA + 1)).unwrap();
        a.ud2().unwrap();
    });
    m.run_to_handler()
}

#[test]
fn alignment_is_not_checked_under_tcg() {
    assert_eq!(MODELS.map(misaligned_load), [17, 17, 6]);
}

/// The offsets, among an FXSAVE image's first 160 bytes, that are written.
fn written(model: CpuModel) -> Vec<usize> {
    let images = [0_u8, 0xff].map(|before| {
        let mut m = machine(model);
        m.state.cr4 |= 0x200;
        m.put(DATA, &[before; 512]);
        m.code(64, |a| {
            a.fld1().unwrap();
            a.fxsave64(ptr(DATA)).unwrap();
            a.hlt().unwrap();
        });
        assert_eq!(m.run(), cpu::Stop::Halted);
        (0..160).map(|at| m.ram().load_u8(DATA + at)).collect::<Vec<u8>>()
    });
    (0..160).filter(|&at| images[0][at] == images[1][at]).collect()
}

#[test]
fn fxsave_leaves_gaps_under_tcg() {
    for model in [CpuModel::V2, CpuModel::V2Kvm] {
        assert_eq!(written(model), (0..160).collect::<Vec<_>>());
    }
    let gap = |at: usize| matches!(at, 6 | 7) || at >= 32 && at % 16 >= 10;
    assert_eq!(written(CpuModel::V2KvmTcg), (0..160).filter(|&at| !gap(at)).collect::<Vec<_>>());
}

/// The vector for an access to a non-canonical address, and CR2 after it.
fn noncanonical_fault(model: CpuModel, code: impl FnOnce(&mut CodeAssembler)) -> (u8, u64) {
    // Use user mode, so that the handler has a stack even if the code changes its own.
    let mut m = machine(model).in_user_mode();
    m.state.cr2 = 5;
    m.state.gpr[0] = NOT_CANONICAL;
    m.state.gpr[5] = NOT_CANONICAL;
    m.code(64, code);
    (m.run_to_handler(), m.cpu.state().cr2)
}

#[test]
fn addresses_that_are_not_canonical_land_in_cr2_under_tcg() {
    let data = MODELS.map(|model| noncanonical_fault(model, |a| a.inc(dword_ptr(rax + 0x14)).unwrap()));
    let gp = GENERAL_PROTECTION;
    assert_eq!(data, [(gp, 5), (gp, 5), (gp, NOT_CANONICAL + 0x14)]);
    let stack = MODELS.map(|model| noncanonical_fault(model, |a| a.mov(ecx, dword_ptr(rbp + 8)).unwrap()));
    assert_eq!(stack, [(STACK_FAULT, 5), (STACK_FAULT, 5), (gp, NOT_CANONICAL + 8)]);
    let pop = MODELS.map(|model| {
        noncanonical_fault(model, |a| {
            a.mov(rsp, rax).unwrap();
            a.pop(rdx).unwrap();
        })
    });
    assert_eq!(pop, [(STACK_FAULT, 5), (STACK_FAULT, 5), (gp, NOT_CANONICAL)]);
    // For an access that begins at a canonical address, CR2 is the page of the first non-canonical byte.
    let crossing = MODELS.map(|model| {
        noncanonical_fault(model, |a| {
            a.mov(rbx, 0x7fff_ffff_fffd_u64).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
        })
    });
    assert_eq!(crossing, [(gp, 5), (gp, 5), (gp, 1 << 47)]);
}

#[test]
fn control_bits_of_hidden_features_are_reserved() {
    // UMIP, PCIDE and OSXSAVE; and SMAP, which every model has.
    for (bit, taken) in
        [(11, [true, false, false]), (17, [true, false, false]), (18, [true, false, false]), (21, [true; 3])]
    {
        let found = MODELS.map(|model| {
            let mut m = machine(model);
            m.state.gpr[0] = m.state.cr4 | 1 << bit;
            m.code(64, |a| {
                a.mov(cr4, rax).unwrap();
                a.hlt().unwrap();
            });
            assert_eq!(m.run(), cpu::Stop::Halted);
            m.state.cr4 == m.state.gpr[0]
        });
        assert_eq!(found, taken, "bit {bit}");
    }
}

/// The exception that RDMSR of a register raises, or the value in EDX:EAX.
fn read_msr(model: CpuModel, index: u32) -> Result<u64, u8> {
    let mut m = machine(model);
    m.code(64, |a| {
        a.mov(ecx, index).unwrap();
        a.mov(eax, 7).unwrap();
        a.mov(edx, 7).unwrap();
        a.rdmsr().unwrap();
        a.int3().unwrap();
    });
    match m.run_to_handler() {
        3 => Ok(m.state.gpr[2] << 32 | m.state.gpr[0]),
        vector => Err(vector),
    }
}

/// Linux starts its machine checks where CPUID announces them, and then reads these registers. There are no banks.
#[test]
fn machine_checks_are_there_since_ttvm_v2_1() {
    const MCG_CAP: u32 = 0x179;
    const MCG_STATUS: u32 = 0x17a;
    for (model, status, bit_is_taken) in
        [(CpuModel::V2, Err(GENERAL_PROTECTION), false), (CpuModel::V2_1, Ok(0), true)]
    {
        assert_eq!(read_msr(model, MCG_CAP), Ok(0), "{model:?}");
        assert_eq!(read_msr(model, MCG_STATUS), status, "{model:?}");
        let mut m = machine(model);
        m.state.gpr[0] = m.state.cr4 | 1 << 6;
        m.code(64, |a| {
            a.mov(cr4, rax).unwrap();
            a.hlt().unwrap();
        });
        assert_eq!(m.run(), cpu::Stop::Halted);
        assert_eq!(m.state.cr4 == m.state.gpr[0], bit_is_taken, "{model:?}");
    }
}

#[test]
fn names_and_models_are_one_to_one() {
    let for_kvm = [CpuModel::V2Kvm, CpuModel::V2KvmTcg, CpuModel::V2_1Kvm, CpuModel::V2_1KvmTcg];
    let all = [&[CpuModel::V2, CpuModel::V2_1][..], &for_kvm].concat();
    for &model in &all {
        assert_eq!(CpuModel::named(model.name()), Some(model));
    }
    assert_eq!(CpuModel::names().count(), all.len());
    assert_eq!(CpuModel::named("ttvm-v3"), None);
}

/// Whether a RAM page has decoded code.
fn has_code(m: &Machine, address: u64) -> bool {
    m.ram().flags().has(address / PAGE_SIZE, PageFlags::CODE)
}

#[test]
fn another_model_drops_the_code_that_was_decoded() {
    let mut m = machine(CpuModel::V2);
    m.code(64, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.jmp(again).unwrap();
    });
    m.run_steps(1000);
    assert!(has_code(&m, CODE));
    m.cpu.set_model(CpuModel::V2);
    assert!(has_code(&m, CODE), "it is the same model");
    m.cpu.set_model(CpuModel::V2Kvm);
    assert!(!has_code(&m, CODE));
}
