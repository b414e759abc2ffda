use super::*;

const TPR: u64 = 0x80;
const EOI: u64 = 0xB0;
const SVR: u64 = 0xF0;
const ESR: u64 = 0x280;
const ICR_LOW: u64 = 0x300;
const ICR_HIGH: u64 = 0x310;
const LVT_TIMER_REGISTER: u64 = 0x320;
const LVT_LINT0_REGISTER: u64 = 0x350;
const LVT_ERROR_REGISTER: u64 = 0x370;
const INITIAL_COUNT: u64 = 0x380;
const CURRENT_COUNT: u64 = 0x390;
const DIVIDE: u64 = 0x3E0;
const DIVIDE_BY_1: u32 = 0x0B;

fn enabled() -> LocalApic {
    let mut apic = LocalApic::new();
    apic.write(SVR, 0x1FF, 0);
    apic
}

fn x2apic() -> LocalApic {
    let mut apic = enabled();
    apic.write_msr(MSR_APIC_BASE, 0xFEE0_0D00, 0).unwrap();
    apic
}

fn fixed(vector: u8, level: bool) -> InterruptMessage {
    InterruptMessage { destination: 0, logical: false, mode: DeliveryMode::Fixed, vector, level }
}

#[test]
fn reset_values() {
    let mut apic = LocalApic::new();
    for (offset, value) in [
        (0x20, 0),
        (0x30, 0x0006_0014),
        (TPR, 0),
        (0xE0, u32::MAX),
        (SVR, 0xFF),
        (LVT_TIMER_REGISTER, 0x1_0000),
        (LVT_LINT0_REGISTER, 0x1_0000),
        (0x100, 0),
    ] {
        assert_eq!(apic.read(offset, 0), value, "{offset:#x}");
    }
    assert_eq!(apic.read_msr(MSR_APIC_BASE, 0), Ok(0xFEE0_0900));
    assert_eq!(apic.mmio_base(), Some(LAPIC_BASE));
}

#[test]
fn interrupts_nest_by_priority_class() {
    let mut apic = enabled();
    assert!(apic.deliver(&fixed(0x41, false)));
    assert_eq!(apic.acknowledge(), Some(0x41));
    assert!(apic.deliver(&fixed(0x4F, false)));
    assert_eq!(apic.pending_vector(), None, "same class");
    assert!(apic.deliver(&fixed(0x50, false)));
    assert_eq!(apic.acknowledge(), Some(0x50));
    assert_eq!(apic.read(0xA0, 0), 0x50, "PPR");
    apic.write(EOI, 0, 0);
    assert_eq!(apic.read(0xA0, 0), 0x40);
    assert_eq!(apic.pending_vector(), None);
    apic.write(EOI, 0, 0);
    assert_eq!(apic.acknowledge(), Some(0x4F));
    assert_eq!(apic.read(0x120, 0), 1 << 15, "ISR bits 64 to 95");
    assert_eq!(apic.take_eoi_broadcast(), None, "edges are not broadcast");
}

#[test]
fn task_priority_is_cr8() {
    let mut apic = enabled();
    apic.deliver(&fixed(0x35, false));
    for (cr8, pending) in [(0, true), (2, true), (3, false), (15, false)] {
        apic.set_cr8(cr8);
        assert_eq!(apic.pending_vector().is_some(), pending, "CR8 {cr8}");
        assert_eq!(apic.read(TPR, 0), u32::from(cr8) << 4);
    }
    apic.write(TPR, 0x25, 0);
    assert_eq!(apic.cr8(), 2);
    assert_eq!(apic.read(0xA0, 0), 0x25);
}

#[test]
fn level_interrupts_are_broadcast_at_eoi() {
    let mut apic = enabled();
    apic.deliver(&fixed(0x61, true));
    assert_eq!(apic.read(0x1B0, 0), 1 << 1, "TMR");
    apic.acknowledge();
    apic.write(EOI, 0, 0);
    assert_eq!(apic.take_eoi_broadcast(), Some(0x61));
    apic.deliver(&fixed(0x61, false));
    assert_eq!(apic.read(0x1B0, 0), 0);
}

#[test]
fn one_shot_timer() {
    for (divide, factor) in
        [(0x0, 2), (0x1, 4), (0x2, 8), (0x3, 16), (0x8, 32), (0x9, 64), (0xA, 128), (0xB, 1)]
    {
        let mut apic = enabled();
        apic.write(LVT_TIMER_REGISTER, 0xEC, 0);
        apic.write(DIVIDE, divide, 0);
        apic.write(INITIAL_COUNT, 1000, 50);
        let end_ns = 50 + 1000 * factor;
        assert_eq!(apic.next_deadline_ns(), Some(end_ns), "divide {divide:#x}");
        assert_eq!(apic.read(CURRENT_COUNT, 50 + 400 * factor), 600);
        apic.advance(end_ns - 1);
        assert_eq!(apic.pending_vector(), None);
        apic.advance(end_ns);
        assert_eq!(apic.acknowledge(), Some(0xEC));
        assert_eq!((apic.next_deadline_ns(), apic.read(CURRENT_COUNT, end_ns)), (None, 0));
    }
}

#[test]
fn periodic_timer_keeps_its_phase() {
    let mut apic = enabled();
    apic.write(LVT_TIMER_REGISTER, 0x2_00EC, 0);
    apic.write(DIVIDE, DIVIDE_BY_1, 0);
    apic.write(INITIAL_COUNT, 1000, 7);
    for period in 1..5 {
        assert_eq!(apic.next_deadline_ns(), Some(7 + 1000 * period));
        apic.advance(7 + 1000 * period);
        assert_eq!(apic.acknowledge(), Some(0xEC));
        apic.write(EOI, 0, 0);
    }
    apic.advance(9_500);
    assert_eq!(apic.next_deadline_ns(), Some(10_007), "several periods at once");
    assert_eq!(apic.read(CURRENT_COUNT, 9_500), 507);
    apic.write(INITIAL_COUNT, 0, 9_600);
    assert_eq!(apic.next_deadline_ns(), None);
}

#[test]
fn tsc_deadline_timer() {
    let mut apic = enabled();
    apic.write_msr(MSR_TSC_DEADLINE, 500, 0).unwrap();
    assert_eq!(apic.read_msr(MSR_TSC_DEADLINE, 0), Ok(0), "ignored in the other modes");
    apic.write(LVT_TIMER_REGISTER, 0x4_00EC, 0);
    apic.write(INITIAL_COUNT, 10, 0);
    assert_eq!(apic.next_deadline_ns(), None, "the initial count is ignored in this mode");
    apic.write_msr(MSR_TSC_DEADLINE, 500, 0).unwrap();
    assert_eq!(apic.read_msr(MSR_TSC_DEADLINE, 0), Ok(500));
    apic.advance(499);
    assert_eq!(apic.pending_vector(), None);
    apic.advance(500);
    assert_eq!(apic.acknowledge(), Some(0xEC));
    assert_eq!(apic.read_msr(MSR_TSC_DEADLINE, 500), Ok(0));
    apic.write(EOI, 0, 500);
    apic.write_msr(MSR_TSC_DEADLINE, 400, 600).unwrap();
    assert_eq!(apic.acknowledge(), Some(0xEC), "a deadline in the past is due at once");
    apic.write_msr(MSR_TSC_DEADLINE, 900, 700).unwrap();
    apic.write_msr(MSR_TSC_DEADLINE, 0, 800).unwrap();
    assert_eq!(apic.next_deadline_ns(), None, "zero disarms");
    apic.write_msr(MSR_TSC_DEADLINE, 900, 700).unwrap();
    apic.write(LVT_TIMER_REGISTER, 0xEC, 700);
    assert_eq!(apic.next_deadline_ns(), None, "so does leaving the mode");
}

#[test]
fn a_masked_timer_expires_silently() {
    let mut apic = enabled();
    apic.write(LVT_TIMER_REGISTER, 0x1_00EC, 0);
    apic.write(INITIAL_COUNT, 10, 0);
    apic.advance(100);
    apic.write(LVT_TIMER_REGISTER, 0xEC, 100);
    assert_eq!(apic.pending_vector(), None);
}

#[test]
fn changing_the_divider_keeps_the_count() {
    let mut apic = enabled();
    apic.write(DIVIDE, DIVIDE_BY_1, 0);
    apic.write(INITIAL_COUNT, 1000, 0);
    apic.write(DIVIDE, 0x0, 400);
    assert_eq!(apic.read(CURRENT_COUNT, 400), 600);
    assert_eq!(apic.next_deadline_ns(), Some(1600));
}

#[test]
fn ipis_to_ourselves_arrive() {
    for (high, low, arrives) in [
        (0, 0x0_00F1, true),
        (0xFF00_0000, 0x0_00F1, true),
        (0x0100_0000, 0x0_00F1, false),
        (0, 0x4_00F1, true),
        (0, 0x8_00F1, true),
        (0, 0xC_00F1, false),
        (0x0100_0000, 0x0_08F1, true),
        (0x0200_0000, 0x0_08F1, false),
        (0, 0x0_01F1, true),
        (0, 0x0_05F1, false),
        (0, 0x0_06F1, false),
    ] {
        let mut apic = enabled();
        apic.write(0xD0, 0x0100_0000, 0);
        apic.write(ICR_HIGH, high, 0);
        apic.write(ICR_LOW, low, 0);
        assert_eq!(apic.pending_vector(), arrives.then_some(0xF1), "{high:#x} {low:#x}");
        assert_eq!((apic.read(ICR_LOW, 0), apic.read(ICR_HIGH, 0)), (low, high));
    }
    let mut apic = enabled();
    apic.write(ICR_LOW, 0x400, 0);
    assert!(apic.take_nmi() && !apic.take_nmi());
}

#[test]
fn logical_destinations() {
    let logical = |destination| InterruptMessage { destination, logical: true, ..fixed(0x40, false) };
    for (dfr, ldr, destination, arrives) in [
        (0xFFFF_FFFF, 0x01, 0x01, true),
        (0xFFFF_FFFF, 0x01, 0x03, true),
        (0xFFFF_FFFF, 0x01, 0x02, false),
        (0xFFFF_FFFF, 0x00, 0xFF, true),
        (0x0FFF_FFFF, 0x21, 0x21, true),
        (0x0FFF_FFFF, 0x21, 0x31, false),
        (0x0FFF_FFFF, 0x21, 0x22, false),
        (0x0FFF_FFFF, 0x21, 0xF1, true),
    ] {
        let mut apic = enabled();
        apic.write(0xE0, dfr, 0);
        apic.write(0xD0, ldr << 24, 0);
        assert_eq!(apic.deliver(&logical(destination)), arrives, "{dfr:#x} {ldr:#x} {destination:#x}");
    }
    let mut apic = x2apic();
    assert!(apic.deliver(&logical(0x01)));
    assert!(!apic.deliver(&logical(0x02)));
}

#[test]
fn disabled_by_software_nothing_is_accepted_and_entries_stay_masked() {
    let mut apic = enabled();
    apic.write(LVT_LINT0_REGISTER, 0x700, 0);
    assert!(apic.passes_external_interrupt());
    apic.deliver(&fixed(0x40, false));
    apic.write(SVR, 0xFF, 0);
    assert!(!apic.deliver(&fixed(0x41, false)));
    assert_eq!(apic.pending_vector(), Some(0x40), "what was accepted before stays");
    assert_eq!(apic.read(LVT_LINT0_REGISTER, 0), 0x1_0700);
    apic.write(LVT_LINT0_REGISTER, 0x700, 0);
    assert_eq!(apic.read(LVT_LINT0_REGISTER, 0), 0x1_0700);
    assert!(!apic.passes_external_interrupt());
}

#[test]
fn errors_are_latched_by_a_write_and_interrupt_once() {
    let mut apic = enabled();
    apic.write(LVT_ERROR_REGISTER, 0xFE, 0);
    apic.deliver(&fixed(5, false));
    assert_eq!(apic.acknowledge(), Some(0xFE));
    assert_eq!(apic.read(ESR, 0), 0);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), ESR_RECEIVED_ILLEGAL);
    apic.write(ICR_LOW, 0x4_0003, 0);
    apic.read(0x3F0, 0);
    apic.write(0x400, 0, 0);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), ESR_SEND_ILLEGAL | ESR_ILLEGAL_REGISTER);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), 0);
}

#[test]
fn an_error_entry_with_an_illegal_vector_does_not_recurse() {
    let mut apic = enabled();
    apic.write(LVT_ERROR_REGISTER, 0x05, 0);
    apic.read(0x3F0, 0);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), ESR_RECEIVED_ILLEGAL | ESR_ILLEGAL_REGISTER);
}

#[test]
fn lint_pins() {
    let mut apic = LocalApic::new();
    apic.set_virtual_wire_mode();
    assert!(apic.passes_external_interrupt());
    apic.set_lint(1, true);
    assert!(apic.take_nmi());
    apic.set_lint(1, true);
    assert!(!apic.take_nmi(), "an edge");
    apic.write(LVT_LINT0_REGISTER, 0x31, 0);
    apic.set_lint(0, true);
    assert_eq!(apic.pending_vector(), Some(0x31), "fixed mode");
}

#[test]
fn base_register_transitions() {
    const OFF: u64 = 0xFEE0_0100;
    const XAPIC: u64 = 0xFEE0_0900;
    const X2APIC: u64 = 0xFEE0_0D00;
    const INVALID: u64 = 0xFEE0_0500;
    for (path, allowed) in [
        (&[X2APIC][..], true),
        (&[OFF], true),
        (&[INVALID], false),
        (&[OFF, XAPIC], true),
        (&[OFF, X2APIC], false),
        (&[OFF, INVALID], false),
        (&[X2APIC, OFF], true),
        (&[X2APIC, XAPIC], false),
        (&[X2APIC, INVALID], false),
        (&[X2APIC, OFF, XAPIC, X2APIC], true),
        (&[XAPIC | 1], false),
        (&[XAPIC | 1 << 39], true),
        (&[XAPIC | 1 << 40], false),
        (&[XAPIC | 1 << 52], false),
    ] {
        let mut apic = LocalApic::new();
        let results: Vec<_> = path.iter().map(|&value| apic.write_msr(MSR_APIC_BASE, value, 0)).collect();
        let (last, before) = results.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok), "{path:x?}");
        assert_eq!(last.is_ok(), allowed, "{path:x?}");
    }
}

#[test]
fn disabling_resets_and_relocating_moves_the_page() {
    let mut apic = enabled();
    apic.write(TPR, 0x20, 0);
    apic.write_msr(MSR_APIC_BASE, 0xD000_0900, 0).unwrap();
    assert_eq!(apic.mmio_base(), Some(0xD000_0000));
    assert_eq!(apic.cr8(), 2);
    apic.write_msr(MSR_APIC_BASE, 0xFEE0_0100, 0).unwrap();
    assert_eq!(apic.mmio_base(), None);
    assert!(apic.passes_external_interrupt(), "the pin is INTR now");
    assert!(!apic.deliver(&fixed(0x40, false)));
    apic.write_msr(MSR_APIC_BASE, 0xFEE0_0900, 0).unwrap();
    assert_eq!((apic.cr8(), apic.read(SVR, 0)), (0, 0xFF));
}

#[test]
fn x2apic_registers() {
    let mut apic = x2apic();
    assert_eq!(apic.mmio_base(), None);
    // Each row has an MSR, whether the MSR can be read, and whether 0 can be written.
    for (index, readable, writable) in [
        (0x802, true, false),
        (0x803, true, false),
        (0x808, true, true),
        (0x809, false, false),
        (0x80A, true, false),
        (0x80B, false, true),
        (0x80D, true, false),
        (0x80E, false, false),
        (0x80F, true, true),
        (0x810, true, false),
        (0x827, true, false),
        (0x828, true, true),
        (0x82F, true, true),
        (0x830, true, true),
        (0x831, false, false),
        (0x832, true, true),
        (0x837, true, true),
        (0x838, true, true),
        (0x839, true, false),
        (0x83E, true, true),
        (0x840, false, false),
        (0x8FF, false, false),
    ] {
        let mut probe = apic.clone();
        assert_eq!(probe.read_msr(index, 0).is_ok(), readable, "read {index:#x}");
        assert_eq!(probe.write_msr(index, 0, 0).is_ok(), writable, "write {index:#x}");
    }
    for (index, value) in
        [(0x808, 0x100), (0x80B, 1), (0x828, 1), (0x80F, 0x1000), (0x838, 1 << 32), (0x83F, 0x100)]
    {
        assert_eq!(apic.write_msr(index, value, 0), Err(GeneralProtection), "reserved bits of {index:#x}");
    }
    assert_eq!(apic.read_msr(0x80D, 0), Ok(1), "logical id");
    apic.write_msr(0x83F, 0xF2, 0).unwrap();
    assert_eq!(apic.acknowledge(), Some(0xF2), "self IPI");
    apic.write_msr(0x80B, 0, 0).unwrap();
    apic.write_msr(0x830, 0xFFFF_FFFF_0000_00F3, 0).unwrap();
    assert_eq!(apic.acknowledge(), Some(0xF3), "broadcast");
    assert_eq!(enabled().read_msr(0x802, 0), Err(GeneralProtection), "only in x2APIC mode");
    assert_eq!(enabled().read_msr(0x10, 0), Err(GeneralProtection), "not ours");
}

/// The ICR's bits: logical destination, and shorthand "all but self".
const LOGICAL: u32 = 1 << 11;
const ALL_BUT_SELF: u32 = 3 << 18;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;

/// Three processors whose APICs software has enabled, with logical destinations 1, 2 and 4.
fn three() -> [LocalApic; 3] {
    [0, 1, 2].map(|id| {
        let mut apic = LocalApic::with_id(id);
        apic.write(SVR, 0x1FF, 0);
        apic.write(0xD0, 1 << (24 + id), 0);
        apic
    })
}

/// Sends a message from the first processor. Returns for each of the other two processors whether the message
/// addressed it.
fn send(apics: &mut [LocalApic; 3], destination: u32, command: u32) -> [bool; 2] {
    apics[0].write(ICR_HIGH, destination << 24, 0);
    apics[0].write(ICR_LOW, command, 0);
    let sent = apics[0].take_sent();
    [1, 2].map(|other| sent.iter().any(|ipi| apics[other].receive(ipi)))
}

#[test]
fn processors_know_their_numbers() {
    let mut apics = three();
    for (id, apic) in (0..).zip(&mut apics) {
        assert_eq!(apic.read(0x20, 0), id << 24);
        let base = apic.read_msr(MSR_APIC_BASE, 0).unwrap();
        assert_eq!(base & BASE_BSP != 0, id == 0);
        apic.write_msr(MSR_APIC_BASE, base | BASE_X2APIC, 0).unwrap();
        assert_eq!(apic.read_msr(0x802, 0), Ok(u64::from(id)));
        assert_eq!(apic.read_msr(0x80D, 0), Ok(1 << id));
    }
}

#[test]
fn messages_reach_the_processors_that_they_name() {
    let vector = 0x55;
    for (destination, command, ours, others) in [
        (2, vector, false, [false, true]),
        (0, vector, true, [false, false]),
        (0xFF, vector, true, [true, true]),
        (6, LOGICAL | vector, false, [true, true]),
        (3, LOGICAL | vector, true, [true, false]),
        (0, ALL_BUT_SELF | vector, false, [true, true]),
        (9, vector, false, [false, false]),
    ] {
        let mut apics = three();
        let what = format!("{command:#x} to {destination:#x}");
        assert_eq!(send(&mut apics, destination, command), others, "{what}");
        let pending = apics.each_ref().map(|apic| apic.pending_vector().is_some());
        assert_eq!(pending, [ours, others[0], others[1]], "{what}");
    }
    let mut apics = three();
    assert_eq!(send(&mut apics, 1, 0x400), [true, false]);
    assert_eq!(apics.each_ref().map(LocalApic::nmi_pending), [false, true, false]);
}

#[test]
fn a_processor_starts_when_it_is_told_to() {
    let mut apics = three();
    assert_eq!(apics.each_ref().map(LocalApic::startup)[..2], [StartupV1::Done, StartupV1::Awaited]);
    send(&mut apics, 1, INIT | 1 << 14);
    send(&mut apics, 1, INIT | 1 << 15);
    assert_eq!(apics[1].take_start(), None, "INIT alone starts nothing");
    send(&mut apics, 1, START_UP | 0x9A);
    assert_eq!(apics.each_ref().map(LocalApic::startup)[1..], [StartupV1::Due(0x9A), StartupV1::Awaited]);
    assert_eq!((apics[1].take_start(), apics[1].startup()), (Some(0x9A), StartupV1::Done));
    send(&mut apics, 1, START_UP | 0x9B);
    assert_eq!(apics[1].take_start(), None, "it runs already");
    apics[1].write(SVR, 0x1FF, 0);
    send(&mut apics, 1, 0x44);
    send(&mut apics, 1, INIT | 1 << 14);
    assert_eq!((apics[1].pending_vector(), apics[1].read(SVR, 0)), (None, 0xFF), "INIT resets the registers");
    assert_eq!(apics[1].startup(), StartupV1::Awaited);
}

/// The summary decodes the registers that the guest reads.
#[test]
fn a_summary_agrees_with_the_registers() {
    let mut apic = enabled();
    apic.deliver(&fixed(0x41, false));
    apic.acknowledge();
    apic.deliver(&fixed(0x52, false));
    apic.deliver(&fixed(0x31, false));
    apic.write(LVT_TIMER_REGISTER, 0x2_00EC, 0);
    apic.write(DIVIDE, 3, 0);
    apic.write(INITIAL_COUNT, 1000, 500);
    let seen = apic.summary();
    assert_eq!((seen.mode, seen.is_software_enabled), (Mode::XApic, true));
    assert_eq!((&seen.in_service[..], &seen.requested[..]), (&[0x41][..], &[0x31, 0x52][..]));
    assert_eq!(u32::from(seen.processor_priority), apic.read(0xA0, 0));
    let entry = |source: &str| *seen.entries.iter().find(|entry| entry.source == source).unwrap();
    let timer = LocalEntry { source: "timer", vector: 0xEC, mode: DeliveryMode::Fixed, is_masked: false };
    assert_eq!((entry("timer"), entry("LINT0").is_masked), (timer, true));
    let expected = TimerSummary {
        mode: TimerMode::Periodic,
        initial_count: 1000,
        divider: 16,
        expires_ns: Some(16_500),
    };
    assert_eq!(seen.timer, expected);
    assert_eq!(apic.next_deadline_ns(), Some(16_500));
    let seen = x2apic().summary();
    assert_eq!((seen.mode, seen.logical_id), (Mode::X2Apic, 1));
}
