//! Tests the algorithm with thousands of landings on the software CPU, with an extremely bad counter.

use cpu::{AddressKind, Counts, Cpu, EmptyBus, Met, Stop, fold_registers};
use guest_ram::GuestRam;
use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::*;

use super::*;
use crate::counter::{Behaviour, Skid};

#[path = "../../tests/landings/guest.rs"]
mod guest;

use guest::{Random, Reference, Snapshot};

/// The software CPU as a vCPU with a counter.
struct FakeVcpu {
    cpu: Cpu,
    skid: Skid,
    /// The count at which the armed overflow comes. The outer `None` means that no overflow is armed, and the inner
    /// `None` that the armed overflow is lost.
    delivery: Option<Option<u64>>,
    overflowed: bool,
    breakpoint: Option<u64>,
    pass: bool,
    left: Left,
}

/// Branches between two signals of the watchdog.
const WATCHDOG: u64 = 150_000;

impl FakeVcpu {
    fn new(ram: GuestRam, behaviour: Behaviour, seed: u64) -> FakeVcpu {
        let (skid, cpu) = (Skid::new(behaviour, seed), Cpu::new(ram));
        let (delivery, overflowed, breakpoint, pass) = (None, false, None, false);
        FakeVcpu { cpu, skid, delivery, overflowed, breakpoint, pass, left: Left::Other }
    }

    fn set_state(&mut self, to: &Snapshot) {
        self.cpu.set_state(&to.state);
        self.cpu.set_counts(to.counts);
        self.left = Left::Other;
    }

    fn step(&mut self, steps: u64) -> Stop {
        let origin = if std::mem::take(&mut self.pass) { self.cpu.steps() } else { u64::MAX };
        self.cpu.run(&mut EmptyBus::default(), self.cpu.steps() + steps, origin)
    }

    fn enter(&mut self) {
        self.cpu.set_breakpoints(self.breakpoint.map(|rip| (AddressKind::Linear, rip)));
        let watchdog = self.cpu.branches() + 1 + self.skid.below(WATCHDOG);
        let end = self.delivery.flatten().unwrap_or(u64::MAX).min(watchdog);
        self.left = loop {
            let left = end.saturating_sub(self.cpu.branches());
            if left == 0 {
                break Left::Signal;
            }
            if self.step(left) == Stop::Met(Met::Breakpoint) {
                break Left::Breakpoint;
            }
        };
        if self.left == Left::Signal {
            // Stop anywhere, not only right after a branch: also in a repeated instruction, or in an interrupt
            // shadow.
            let extra = self.skid.below(8);
            if extra > 0 && self.step(extra) == Stop::Met(Met::Breakpoint) {
                self.left = Left::Breakpoint;
            }
        }
        if self.delivery.flatten().is_some_and(|delivery| self.cpu.branches() >= delivery) {
            self.delivery = None;
            self.overflowed = true;
        }
    }
}

impl Guest for FakeVcpu {
    fn place(&mut self) -> Result<Place, Error> {
        let state = self.cpu.state();
        let registers = fold_registers(&state.gpr);
        let interruptible = !state.interrupt_shadow;
        Ok(Place { branches: self.cpu.branches(), rip: state.rip, registers, interruptible, left: self.left })
    }

    fn arm(&mut self, branches: Option<u64>) -> Result<(), Error> {
        let due = branches.map(|branches| self.cpu.branches() + branches);
        self.delivery = due.map(|due| self.skid.next().map(|late| due + late));
        self.overflowed = false;
        Ok(())
    }

    fn overflowed(&mut self) -> bool {
        self.overflowed
    }

    fn set_breakpoint(&mut self, rip: Option<u64>) -> Result<(), Error> {
        self.breakpoint = rip;
        Ok(())
    }

    fn pass_breakpoint(&mut self, pass: bool) {
        self.pass = pass;
    }
}

fn goal_of(place: &Snapshot, not_here: bool) -> LandingPlace {
    let Snapshot { state, counts, .. } = place;
    LandingPlace {
        rip: state.rip,
        registers: fold_registers(&state.gpr),
        branches: Some(counts.branches),
        not_here,
        ..LandingPlace::default()
    }
}

/// Makes one try of a landing, which may overshoot.
fn land(vcpu: &mut FakeVcpu, goal: LandingPlace, margin: &mut Margin, seen: &mut Landings) -> Arrival {
    let mut landing = Landing::new(goal, goal.branches.expect("it is counted"), margin);
    let arrival = loop {
        if let Some(arrival) = landing.look(vcpu, seen).expect("nothing fails here") {
            break arrival;
        }
        vcpu.enter();
    };
    landing.end(vcpu, Some(arrival), margin, seen).expect("nothing fails here");
    arrival
}

struct World {
    vcpu: FakeVcpu,
    margin: Margin,
    seen: Landings,
}

impl World {
    fn new(behaviour: Behaviour, seed: u64) -> World {
        let vcpu = FakeVcpu::new(guest::ram(), behaviour, seed);
        World { vcpu, margin: Margin::new(), seen: Landings::default() }
    }

    fn restore(&mut self, to: &Snapshot) {
        to.put_ram(self.vcpu.cpu.ram());
        self.vcpu.set_state(to);
    }

    /// Whether registers, RAM and counts are as at a place.
    fn is_at(&self, place: &Snapshot) -> bool {
        let mut ram = vec![0; place.ram.len()];
        self.vcpu.cpu.ram().read_bytes(0, &mut ram);
        let without_steps = |counts: Counts| Counts { steps: 0, ..counts };
        self.vcpu.cpu.state() == place.state
            && without_steps(self.vcpu.cpu.counts()) == without_steps(place.counts)
            && ram == place.ram
    }

    /// Lands at the place `to` from the place `from`, at which the vCPU may already stand. Returns the number of
    /// tries.
    fn travel(&mut self, from: &Snapshot, stands_there: bool, to: &Snapshot) -> u32 {
        for tries in 1..100 {
            if tries > 1 || !stands_there {
                self.restore(from);
            }
            let mut goal = goal_of(to, false);
            loop {
                match land(&mut self.vcpu, goal, &mut self.margin, &mut self.seen) {
                    Arrival::Overshot => break,
                    Arrival::Landed if self.is_at(to) => return tries,
                    Arrival::Landed => goal.not_here = true,
                }
            }
        }
        panic!("overshot a hundred times: {:?}", self.seen);
    }
}

#[test]
fn landings_are_exact_whatever_the_counter_does() {
    const LANDINGS: u64 = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let mut random = Random(7);
    let mut reference = Reference::new();
    let mut world = World::new(Behaviour::default(), 11);
    let mut from = reference.snapshot();
    let (mut tries, mut stands_there) = (0, false);
    for _ in 0..LANDINGS {
        reference.advance(random.magnitude(60_000));
        let to = reference.snapshot();
        tries += u64::from(world.travel(&from, stands_there, &to));
        stands_there = random.below(4) != 0;
        if stands_there {
            from = to;
        }
    }
    let Landings { landed, overshot, lost_overflows, largest_skid, hits } = world.seen;
    assert!(landed >= LANDINGS && tries == LANDINGS + overshot, "{:?}", world.seen);
    // The simulated counter must have been as late as intended.
    let enough = LANDINGS / 100;
    assert!(overshot > enough && lost_overflows > enough / 2 && largest_skid > 10_000, "{:?}", world.seen);
    assert!(hits < LANDINGS * 200, "{:?}", world.seen);
}

/// A counter whose overflows are never late or lost.
const PUNCTUAL: Behaviour =
    Behaviour { largest_skid: 0, lost_one_in: u64::MAX, overshoot_one_in: u64::MAX, largest_overshoot: 0 };

/// A hundred branches, then four calls without a branch between them. The called function changes only RAM, or only a
/// register.
fn calls(ram: &GuestRam, changes_register: bool) -> (Snapshot, u64) {
    const CODE: u64 = 0x1000;
    const DATA: i32 = 0x20000;
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    let mut round = a.create_label();
    let mut function = a.create_label();
    let mut write = |a: &mut CodeAssembler| -> Result<(), IcedError> {
        a.mov(ecx, 100)?;
        a.set_label(&mut round)?;
        a.dec(ecx)?;
        a.jnz(round)?;
        (0..4).try_for_each(|_| a.call(function))?;
        // Then the code loops for ever, so that a guest that misses the landing keeps running.
        a.mov(ecx, -1)?;
        a.jmp(round)?;
        a.set_label(&mut function)?;
        // Add more than 1: a small odd number may look like a copy of RFLAGS, which is not compared in full.
        if changes_register {
            a.add(r8, 0x100)?
        } else {
            a.inc(qword_ptr(DATA))?
        };
        a.ret()
    };
    write(&mut a).expect("every instruction exists");
    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let code = a.assemble_options(CODE, options).expect("it can be encoded");
    let address = code.label_ip(&function).expect("it is set");
    ram.write_bytes(CODE, &code.inner.code_buffer);
    let mut bytes = vec![0; guest::RAM_BYTES];
    ram.read_bytes(0, &mut bytes);
    (Snapshot { ram: bytes, ..Reference::new().snapshot() }, address)
}

/// A snapshot for each visit of this address.
fn visits(from: &Snapshot, address: u64, count: usize) -> Vec<Snapshot> {
    let ram = guest::ram();
    from.put_ram(&ram);
    let mut cpu = Cpu::new(ram);
    cpu.set_state(&from.state);
    cpu.set_counts(from.counts);
    let mut visits = Vec::new();
    while visits.len() < count {
        cpu.run(&mut EmptyBus::default(), cpu.steps() + 1, u64::MAX);
        if cpu.rip() == address {
            let mut bytes = vec![0; guest::RAM_BYTES];
            cpu.ram().read_bytes(0, &mut bytes);
            visits.push(Snapshot { state: cpu.state(), counts: cpu.counts(), ram: bytes });
        }
    }
    visits
}

#[test]
fn hits_after_as_many_branches_are_told_apart() {
    for changes_register in [true, false] {
        let mut world = World::new(PUNCTUAL, 3);
        let (from, function) = calls(world.vcpu.cpu.ram(), changes_register);
        let visits = visits(&from, function, 4);
        let counts = visits.iter().map(|visit| visit.counts.branches).collect::<Vec<_>>();
        assert_eq!(counts, [100; 4], "no branch is between them");
        for (number, visit) in visits.iter().enumerate() {
            world.restore(&from);
            let hits = world.seen.hits;
            let mut arrival =
                land(&mut world.vcpu, goal_of(visit, false), &mut world.margin, &mut world.seen);
            if !changes_register {
                // All visits have the same registers, so the caller must compare RAM and continue from each
                // wrong visit.
                for earlier in &visits[..number] {
                    assert!(world.is_at(earlier), "visit {number}");
                    let goal = goal_of(visit, true);
                    arrival = land(&mut world.vcpu, goal, &mut world.margin, &mut world.seen);
                }
            }
            assert_eq!(arrival, Arrival::Landed, "visit {number}, a register changes: {changes_register}");
            assert!(world.is_at(visit), "visit {number}, a register changes: {changes_register}");
            assert!(world.seen.hits - hits > number as u64, "every visit on the way was a hit");
            assert_eq!(world.travel(&from, false, visit), 1);
        }
    }
}

#[test]
fn margins_follow_the_skid() {
    let quiet = Behaviour { lost_one_in: u64::MAX, overshoot_one_in: u64::MAX, ..Behaviour::default() };
    let margin_after = |largest_skid| {
        let mut reference = Reference::new();
        let mut world = World::new(Behaviour { largest_skid, ..quiet }, 3);
        for _ in 0..300 {
            let from = reference.snapshot();
            reference.advance(30_000);
            world.travel(&from, false, &reference.snapshot());
        }
        world.margin.usual
    };
    let (small, large) = (margin_after(0), margin_after(8_000));
    assert_eq!(small, Margin::LEAST);
    assert!(large > 4 * Margin::LEAST, "{large}");
}

#[test]
fn nothing_lands_in_an_interrupt_shadow() {
    let mut reference = Reference::new();
    let mut world = World::new(Behaviour::default(), 5);
    let from = reference.snapshot();
    reference.advance_to_shadow();
    let shadow = reference.snapshot();
    for _ in 0..4 {
        world.restore(&from);
        let arrival = land(&mut world.vcpu, goal_of(&shadow, false), &mut world.margin, &mut world.seen);
        assert_eq!(arrival, Arrival::Overshot);
    }
    assert_eq!(world.seen.landed, 0);
}

#[test]
fn nothing_lands_where_a_signal_interrupted_a_repeated_instruction() {
    let mut world = World::new(Behaviour::default(), 5);
    let place = Place { branches: 9, rip: 0x1000, registers: 3, interruptible: true, left: Left::Signal };
    let goal = LandingPlace { rip: 0x1000, registers: 3, branches: Some(9), ..LandingPlace::default() };
    let mut landing = Landing::new(goal, 9, &world.margin);
    assert!(!landing.stands_on_goal(&mut world.vcpu, &place, &mut world.seen));
    let hit = Place { left: Left::Breakpoint, ..place };
    assert!(landing.stands_on_goal(&mut world.vcpu, &hit, &mut world.seen));
}

#[test]
fn what_is_behind_the_place_is_overshot() {
    let mut reference = Reference::new();
    let mut world = World::new(Behaviour::default(), 5);
    reference.advance(100);
    let early = reference.snapshot();
    reference.advance(10_000);
    world.restore(&reference.snapshot());
    let arrival = land(&mut world.vcpu, goal_of(&early, false), &mut world.margin, &mut world.seen);
    assert_eq!(
        (arrival, world.vcpu.cpu.branches()),
        (Arrival::Overshot, reference.snapshot().counts.branches)
    );
}
