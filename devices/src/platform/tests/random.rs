//! Random machines. No access may panic, and a restored machine must behave like the original. The number of calls that
//! advance the time must not matter.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

const SEEDS: u64 = 150;
const STEPS: usize = 400;

/// An action on the board, after some time.
#[derive(Clone, Copy, Debug)]
enum Step {
    PortRead(u16, u8),
    PortWrite(u16, u8, u32),
    MemoryRead(u64, usize),
    MemoryWrite(u64, usize, u64),
    MsrRead(u32),
    MsrWrite(u32, u64),
    Cr8(u8),
    Acknowledge,
    Nmi,
    Input(u8),
    PowerButton,
}

/// Ranges of ports that belong to a chip: first port, and number of ports.
const PORTS: [(u16, u16); 16] = [
    (PIC_MASTER_PORT, 2),
    (PIC_SLAVE_PORT, 2),
    (0x4D0, 2),
    (PIT_PORT, 4),
    (PIT_PORT, 4),
    (PORT_B, 1),
    (KEYBOARD_COMMAND_PORT, 1),
    (CMOS_PORT, 2),
    (CMOS_PORT, 2),
    (0x80, 0x13),
    (SERIAL_PORT, 8),
    (SERIAL_PORT, 8),
    (DEBUG_EXIT_PORT, 5),
    (PM1_EVENT_PORT, 12),
    (PCI_CONFIG_PORT, 8),
    (0, u16::MAX),
];

fn random_step(rng: &mut ChaCha8Rng, now_ns: u64) -> Step {
    let mut pick = |limit: u64| rng.next_u64() % limit;
    let (first, number) = PORTS[pick(PORTS.len() as u64) as usize];
    let port = first + pick(u64::from(number)) as u16;
    let size = [1, 1, 1, 2, 4][pick(5) as usize];
    let length = [4, 4, 4, 4, 1, 2, 8, 3, 0, 16][pick(10) as usize];
    let page = [LAPIC_BASE, LAPIC_BASE, IOAPIC_BASE, IOAPIC_BASE, PCI_MMIO_START][pick(5) as usize];
    let offset = if page == IOAPIC_BASE { pick(5) * 0x10 } else { pick(0x41) * 0x10 } + pick(16) / 15;
    let small = [pick(0x100), pick(0x40), 0x8000 | pick(0x100), pick(1 << 20)][pick(4) as usize];
    let msr = [MSR_TSC_DEADLINE, MSR_TSC_DEADLINE, 0x800 + pick(0x41) as u32, 0x10][pick(4) as usize];
    let base = 0xFEE0_0100 | [0x800, 0x800, 0xC00, 0x400, 0x000][pick(5) as usize];
    let kind = pick(100);
    let full = rng.next_u64();
    match kind {
        0..25 => Step::PortRead(port, size),
        25..55 => Step::PortWrite(port, size, full as u32),
        55..60 => Step::MemoryRead(page + offset, length),
        60..80 => Step::MemoryWrite(page + offset, length, small),
        80..82 => Step::MsrRead(msr),
        82..86 => Step::MsrWrite(msr, if msr == MSR_TSC_DEADLINE { now_ns + full % 100_000 } else { small }),
        86 if full.is_multiple_of(4) => Step::MsrWrite(MSR_APIC_BASE, base),
        86 | 87 => Step::MemoryWrite(LAPIC_BASE + 0xB0, 4, 0),
        88 => Step::PortWrite(PIC_MASTER_PORT, 1, 0x20),
        89 => Step::Cr8(full as u8 & 0x03),
        90..95 => Step::Acknowledge,
        95 => Step::Nmi,
        96..99 => Step::Input(full as u8),
        _ => Step::PowerButton,
    }
}

fn random_wait_ns(rng: &mut ChaCha8Rng) -> u64 {
    match rng.next_u64() % 20 {
        0..12 => rng.next_u64() % 1000,
        12..18 => rng.next_u64() % 1_000_000,
        18 => rng.next_u64() % 100_000_000,
        _ => rng.next_u64() % 600_000_000,
    }
}

impl Machine {
    /// Runs a step. Returns the step's result, the output and requests, and the pending interrupt, as text.
    fn step(&mut self, step: Step) -> String {
        let (platform, memory, now_ns) = (&mut self.platform, self.memory.memory(), self.now_ns);
        let mut data = [0; 16];
        let seen = match step {
            Step::PortRead(port, size) => u64::from(platform.pio_read(memory, now_ns, port, size)),
            Step::PortWrite(port, size, value) => {
                platform.pio_write(memory, now_ns, port, size, value);
                0
            }
            Step::MemoryRead(gpa, length) => {
                platform.mmio_read(memory, now_ns, gpa, &mut data[..length]);
                u64::from_le_bytes(*data.first_chunk().unwrap())
            }
            Step::MemoryWrite(gpa, length, value) => {
                data[..8].copy_from_slice(&value.to_le_bytes());
                platform.mmio_write(memory, now_ns, gpa, &data[..length]);
                0
            }
            Step::MsrRead(index) => platform.apic_read_msr(now_ns, index).unwrap_or(u64::MAX),
            Step::MsrWrite(index, value) => u64::from(platform.apic_write_msr(now_ns, index, value).is_ok()),
            Step::Cr8(value) => {
                platform.set_cr8(value);
                0
            }
            Step::Acknowledge => platform.acknowledge_interrupt().map_or(999, u64::from),
            Step::Nmi => u64::from(platform.take_nmi()),
            Step::Input(byte) => platform.push_input(now_ns, &[byte; 3]) as u64,
            Step::PowerButton => {
                platform.press_power_button(now_ns);
                0
            }
        };
        let outside = (platform.take_output(), platform.take_debug_output(), platform.take_requests());
        let inside = (platform.interrupt_pending(), platform.next_deadline_ns(), platform.cr8());
        format!("{seen:#x} {outside:?} {inside:?}")
    }
}

/// Makes a machine. Every other machine starts with all interrupt sources set up, so that random accesses have an
/// effect.
fn random_machine(seed: u64) -> Machine {
    let mut m = machine();
    if seed.is_multiple_of(2) {
        return m;
    }
    m.init_pics(if seed % 4 == 1 { 0 } else { 0xFFFF });
    for (pin, entry) in [(2, 0x32), (4, 0x64), (8, 0x58), (9, 0x8079), (16, 0x8080)] {
        m.redirect(pin, entry);
    }
    m.start_pit(2, 11_932);
    for (port, value) in [(MCR, 0x08), (IER, 0x0F), (CMOS_PORT, 0x0B), (CMOS_PORT + 1, 0x72)] {
        m.outb(port, value);
    }
    m.write32(LAPIC_BASE + 0x320, 0x2_00EC);
    m.write32(LAPIC_BASE + 0x380, 1_000_000);
    m
}

fn restored(from: &Machine) -> Machine {
    let bytes = postcard::to_stdvec(&from.platform.state()).unwrap();
    let mut copy = machine();
    copy.now_ns = from.now_ns;
    copy.platform.restore(&postcard::from_bytes(&bytes).unwrap(), &[], 0, from.now_ns).unwrap();
    copy
}

#[test]
fn a_restored_machine_goes_on_like_the_original() {
    for seed in 0..SEEDS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let cut = rng.next_u64() as usize % STEPS;
        let (mut original, mut copy) = (random_machine(seed), machine());
        for index in 0..STEPS {
            original.advance_to(original.now_ns + random_wait_ns(&mut rng));
            if index == cut {
                copy = restored(&original);
            } else if index > cut {
                copy.advance_to(original.now_ns);
            }
            let step = random_step(&mut rng, original.now_ns);
            let seen = original.step(step);
            if index >= cut {
                assert_eq!(copy.step(step), seen, "seed {seed} step {index} {step:x?}");
                assert_eq!(copy.platform.state(), original.platform.state(), "seed {seed} step {index}");
            }
        }
    }
}

#[test]
fn it_makes_no_difference_how_often_time_is_advanced() {
    for seed in 1000..1000 + SEEDS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut often, mut seldom) = (random_machine(seed), random_machine(seed));
        for index in 0..STEPS {
            let until_ns = seldom.now_ns + random_wait_ns(&mut rng);
            for _ in 0..rng.next_u64() % 4 {
                let between_ns = often.now_ns + rng.next_u64() % (until_ns - often.now_ns + 1);
                often.advance_to(between_ns);
            }
            // Reads by a debugger must not change the state either.
            let _ = (often.platform.state(), often.platform.interrupt_pending());
            often.advance_to(until_ns);
            let step = random_step(&mut rng, until_ns);
            seldom.advance_to(until_ns);
            assert_eq!(seldom.step(step), often.step(step), "seed {seed} step {index} {step:x?}");
            assert_eq!(seldom.platform.state(), often.platform.state(), "seed {seed} step {index} {step:x?}");
        }
    }
}

/// Tests that no deadline is missing: between two deadlines a machine that is not accessed shows no new interrupt.
#[test]
fn interrupts_appear_only_at_deadlines() {
    for seed in 2000..2000 + SEEDS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut m = random_machine(seed);
        for index in 0..STEPS {
            let until_ns = m.now_ns + random_wait_ns(&mut rng);
            let quiet_ns = m.platform.next_deadline_ns().map_or(until_ns, |at_ns| (at_ns - 1).min(until_ns));
            let (before, state) = (m.platform.interrupt_pending(), m.platform.state());
            m.advance_to(quiet_ns.max(m.now_ns));
            assert_eq!(m.platform.interrupt_pending(), before, "seed {seed} step {index}");
            assert_eq!(m.platform.state(), state, "seed {seed} step {index}");
            m.advance_to(until_ns);
            let step = random_step(&mut rng, until_ns);
            m.step(step);
        }
    }
}

/// Any port, address, size, value and time, and states with flipped bits: nothing may panic.
#[test]
fn nothing_panics() {
    for seed in 3000..3000 + SEEDS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut m = machine();
        if seed % 3 == 0 {
            m.now_ns = u64::MAX - 1_000_000;
        }
        for _ in 0..STEPS {
            let now_ns = m.now_ns.saturating_add(rng.next_u64() % 100_000);
            m.advance_to(now_ns);
            let step = match rng.next_u64() % 4 {
                0 => Step::MemoryWrite(rng.next_u64(), rng.next_u64() as usize % 9, rng.next_u64()),
                1 => Step::MemoryRead(LAPIC_BASE + rng.next_u64() % 0x1000, rng.next_u64() as usize % 17),
                _ => random_step(&mut rng, now_ns & u64::MAX >> 1),
            };
            m.step(step);
            if rng.next_u64().is_multiple_of(20) {
                restore_damaged(&mut m, &mut rng);
            }
        }
    }
}

fn restore_damaged(m: &mut Machine, rng: &mut ChaCha8Rng) {
    let mut bytes = postcard::to_stdvec(&m.platform.state()).unwrap();
    for _ in 0..3 {
        let at = rng.next_u64() as usize % bytes.len();
        bytes[at] ^= 1 << (rng.next_u64() % 8);
    }
    if let Ok(state) = postcard::from_bytes(&bytes) {
        let _ = m.platform.restore(&state, &[], 0, m.now_ns);
    }
}
