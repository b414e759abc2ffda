//! Runs random system code in random states. Nothing may panic, and a run in single steps with saved states must end
//! exactly like an uninterrupted one.

use cpu::{Counts, CpuState, Stop};

use crate::harness::*;

/// A small linear congruential generator, so that the cases are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 29
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next() as usize % from.len()]
    }
}

const OPCODES: &[&[u8]] = &[
    &[0x8e],
    &[0x8c],
    &[0x0f, 0x01],
    &[0x0f, 0x00],
    &[0x0f, 0x22, 0xc0],
    &[0x0f, 0x22, 0xe1],
    &[0x0f, 0x20],
    &[0x0f, 0x21],
    &[0x0f, 0x23],
    &[0x0f, 0x02],
    &[0x0f, 0x03],
    &[0x0f, 0x05],
    &[0x0f, 0x07],
    &[0x0f, 0x34],
    &[0x0f, 0x35],
    &[0x0f, 0x30],
    &[0x0f, 0x32],
    &[0x0f, 0xa2],
    &[0x0f, 0xb2],
    &[0x0f, 0xa1],
    &[0x48, 0xcf],
    &[0x48, 0xcb],
    &[0xcf],
    &[0xcb],
    &[0xca, 8, 0],
    &[0xff],
    &[0x9a, 0, 0, 2, 0],
    &[0xea, 0, 0, 2, 0],
    &[0x9c],
    &[0x9d],
    &[0xcd],
    &[0xcc],
    &[0xfa],
    &[0xfb],
    &[0x17],
    &[0x1f],
    &[0x66],
    &[0xe4],
    &[0xee],
    &[0xf4],
];

const VALUES: &[u64] = &[
    0,
    1,
    DATA,
    DATA + 0xffc,
    KERNEL_STACK,
    USER_STACK,
    CODE,
    0x8001_0033,
    0x20,
    0x10,
    KERNEL_DS as u64,
    USER_CS64 as u64,
    FREE1 as u64,
    TR as u64,
    0xc000_0080,
    0xc000_0101,
    0xffff_8000_0000_0000,
    1 << 47,
    u64::MAX,
    0x3302,
    0x2_3102,
];

/// A machine that is determined by the seed alone.
pub fn machine(seed: u64) -> Machine {
    let random = &mut Random(seed);
    let mut m = match seed % 4 {
        0 => Machine::long(),
        1 => Machine::long().in_user_mode(),
        2 => Machine::protected(),
        _ => Machine::protected().in_user_mode(),
    };
    for register in 0..16 {
        if register != 4 || random.next().is_multiple_of(4) {
            m.state.gpr[register] = random.pick(VALUES);
        }
    }
    m.state.rflags |= random.next() & 0x3_7f00 & if seed.is_multiple_of(3) { u64::MAX } else { 0x3200 };
    if m.state.msrs.efer & 0x400 != 0 || m.state.segments[1].base == 0 {
        m.state.rflags &= !(1 << 17);
    }
    m.state.dr = [CODE + 2, DATA, handler(13), USER_CODE];
    m.state.dr7 = 0x400 | random.next() & 0xffff_23ff & if seed.is_multiple_of(5) { u64::MAX } else { 0 };
    m.state.msrs.star = 0x0018_0008_0002_0000;
    m.state.msrs.lstar = CODE;
    m.state.msrs.sysenter_cs = 8;
    m.put64(GDT + u64::from(FREE1), random.next() << 35 ^ random.next() | 1 << 47);
    m.put64(TSS2 + 32, random.pick(VALUES));
    for at in 0..0x200 {
        m.put64(DATA + 8 * at, random.pick(VALUES));
        m.put64(KERNEL_STACK + 8 * at, random.pick(VALUES));
    }
    let mut code = Vec::new();
    while code.len() < 60 {
        code.extend(random.pick(OPCODES));
        code.push(random.next() as u8);
    }
    m.put(m.state.rip, &code);
    // Handlers return instead of halting.
    for vector in 0..=255 {
        m.put(handler(vector), random.pick(&[&[0x48, 0xcf, 0xf4], &[0x9d, 0xcf, 0xf4], &[0xf4, 0xf4, 0xf4]]));
    }
    m
}

const STEPS: u64 = 40;

fn finish(mut m: Machine, steps_at_once: u64) -> (Stop, (CpuState, Counts), Vec<u8>) {
    let mut stop = Stop::Budget;
    while stop == Stop::Budget && m.counts.steps < STEPS {
        let wanted = steps_at_once.min(STEPS - m.counts.steps);
        let before = m.counts.steps;
        stop = m.run_steps(wanted);
        if stop == Stop::Budget {
            assert_eq!(m.counts.steps, before + wanted, "a budget is exact");
        }
    }
    let mut memory = vec![0; 0xa_0000];
    m.ram().read_bytes(0, &mut memory);
    (stop, (m.state, m.counts), memory)
}

#[test]
fn stepping_through_saved_states_changes_nothing() {
    for seed in 0..1000 {
        let whole = finish(machine(seed), STEPS);
        let stepped = finish(machine(seed), 1);
        assert!(whole.1 == stepped.1, "seed {seed}: {:#x?}\n{:#x?}", whole.1, stepped.1);
        assert_eq!(whole.0, stepped.0, "seed {seed}");
        assert!(whole.2 == stepped.2, "seed {seed}: memory differs");
    }
}
