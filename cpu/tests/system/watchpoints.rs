//! A debugger's watchpoints: every hit of a step, in both pages of an access, in ranges of any length. Also breakpoints
//! at addresses that cannot be fetched.

use cpu::{AddressKind, Hit, Met, Stop, Trap, Traps, WatchHit, WatchKind, Watchpoint};
use iced_x86::code_asm::*;

use crate::harness::*;

const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;

fn watch(space: AddressKind, address: u64, length: u64, kind: WatchKind) -> Watchpoint {
    Watchpoint { space, address, length, kind }
}

/// Executes one instruction that writes RAX to memory. Returns the hits.
fn hits_of_write(m: &mut Machine, address: u64, points: &[Watchpoint]) -> Vec<WatchHit> {
    m.state.gpr[1] = address;
    m.code(64, |a| a.mov(qword_ptr(rcx), rax).unwrap());
    m.load();
    m.cpu.set_watchpoints(points.iter().copied());
    let stop = m.cpu.run(&mut m.bus, m.counts.steps + 1, m.counts.steps);
    let hits = m.cpu.hits().iter().map(|hit| match hit {
        Hit::Watch(hit) => *hit,
        Hit::Trap(trap) => panic!("{trap:?}"),
    });
    let hits: Vec<_> = hits.collect();
    assert_eq!(stop, hits.first().map_or(Stop::Budget, |&hit| Stop::Met(Met::Watchpoint(hit))));
    hits
}

#[test]
fn all_hits_of_a_step_are_named() {
    let mut m = Machine::long();
    let points = [
        watch(AddressKind::Linear, DATA + 2, 2, WatchKind::Write),
        watch(AddressKind::Linear, DATA + 4, 100, WatchKind::Access),
        watch(AddressKind::Linear, DATA + 8, 8, WatchKind::Write),
        watch(AddressKind::Linear, DATA, 8, WatchKind::Read),
        watch(AddressKind::Physical, DATA, 1, WatchKind::Write),
    ];
    m.state.gpr[0] = 0xff_0000;
    let hits = hits_of_write(&mut m, DATA, &points);
    let hit = |n: usize, length, changed| {
        let watchpoint: Watchpoint = points[n];
        let (address, old) = (watchpoint.address, Some(0));
        WatchHit { watchpoint, address, kind: WatchKind::Write, changed, length, old }
    };
    assert_eq!(hits, [hit(0, 2, true), hit(1, 4, false), hit(4, 1, false)]);
}

/// The delivery of an exception writes its frame and is also a trap event.
#[test]
fn a_trap_hides_no_watchpoint_and_no_watchpoint_a_trap() {
    let mut m = Machine::long();
    m.code(64, |a| a.ud2().unwrap());
    let point = watch(AddressKind::Linear, KERNEL_STACK - 8, 8, WatchKind::Write);
    m.load();
    m.cpu.set_watchpoints([point]);
    m.cpu.set_traps(Traps { vectors: [6].into(), ..Traps::default() });
    m.cpu.run(&mut m.bus, m.counts.steps + 1, m.counts.steps);
    let hits = m.cpu.hits();
    assert!(hits.contains(&Hit::Trap(Trap::Vector(6))), "{hits:?}");
    assert!(hits.iter().any(|hit| matches!(hit, Hit::Watch(hit) if hit.watchpoint == point)), "{hits:?}");
    // The next step has none of these hits.
    m.cpu.run(&mut m.bus, m.counts.steps + 2, u64::MAX);
    assert_eq!(m.cpu.hits(), []);
}

#[test]
fn the_second_page_of_an_access_is_watched_by_either_address() {
    let mut m = Machine::long();
    // The page after DATA's is mapped to another frame.
    let frame = DATA + 0x8000;
    m.page(DATA + 0x1000, 0xffff_f000, frame);
    let behind = DATA + 0x1000;
    for (space, address) in [
        (AddressKind::Physical, frame),
        (AddressKind::Linear, behind),
        (AddressKind::Physical, frame + 3),
        (AddressKind::Physical, behind - 1),
        (AddressKind::Linear, behind - 4),
    ] {
        let point = watch(space, address, 1, WatchKind::Write);
        let hits = hits_of_write(&mut m, behind - 4, &[point]);
        assert_eq!(hits.iter().map(|hit| hit.address).collect::<Vec<_>>(), [address], "{space:?}");
    }
    // The access does not write to the frame that follows DATA's frame in RAM.
    for address in [behind, frame + 4] {
        let point = watch(AddressKind::Physical, address, 1, WatchKind::Write);
        assert_eq!(hits_of_write(&mut m, behind - 4, &[point]), [], "{address:#x}");
    }
}

#[test]
fn ranges_may_have_any_length_and_end_where_addresses_end() {
    let mut m = Machine::long();
    for (address, length) in
        [(0, 0x7fff_ffff_ffff_ffff), (0, u64::MAX), (1, u64::MAX), (DATA + 7, u64::MAX - DATA)]
    {
        let point = watch(AddressKind::Linear, address, length, WatchKind::Write);
        let hits = hits_of_write(&mut m, DATA, &[point]);
        assert_eq!(hits.iter().map(|hit| hit.address).collect::<Vec<_>>(), [DATA.max(address)]);
    }
    // The same access, through the last page of the address space.
    let top = 0xffff_ffff_ffff_f000_u64;
    m.put64(TABLES + 8 * 511, (TABLES + 0x1000) | 7);
    m.put64(TABLES + 0x1000 + 8 * 511, (TABLES + 0x2000) | 7);
    m.put64(TABLES + 0x2000 + 8 * 511, (TABLES + 0x3000) | 7);
    m.put64(TABLES + 0x3000 + 8 * 511, (DATA & !0xfff) | 7);
    for address in [u64::MAX, top, top + 0xff8] {
        let point = watch(AddressKind::Linear, address, u64::MAX - address + 1, WatchKind::Write);
        let hits = hits_of_write(&mut m, top + 0xff8, &[point]);
        assert_eq!(hits.len(), 1, "{address:#x}");
    }
    let none = watch(AddressKind::Linear, DATA, 0, WatchKind::Write);
    assert_eq!(hits_of_write(&mut m, DATA, &[none]), []);
}

#[test]
fn a_breakpoint_where_nothing_is_stops_with_and_without_traps() {
    let nowhere = 0x1234_5000_0000;
    // The second case: code that ends at the last byte of a page before an unmapped page.
    let before = DATA + 0x2ffe;
    for (flags, debug_control) in [(TF, 0), (0, 0x402), (0, 0)] {
        for rip in [nowhere, before, 0x8000_0000_0000_0000] {
            let mut m = Machine::long();
            m.page(before + 2, 1, 0);
            // The first bytes of a five-byte instruction.
            m.put(before, &[0xb8, 1]);
            m.state.rflags |= flags;
            m.state.dr7 |= debug_control;
            m.state.rip = rip;
            m.load();
            m.cpu.set_breakpoints([(AddressKind::Linear, rip)]);
            let stop = m.cpu.run(&mut m.bus, u64::MAX, u64::MAX);
            assert_eq!(stop, Stop::Met(Met::Breakpoint), "{rip:#x} with flags {flags:#x}");
            assert_eq!((m.cpu.rip(), m.cpu.steps()), (rip, m.counts.steps));
            let stop = m.cpu.run(&mut m.bus, u64::MAX, m.cpu.steps());
            assert_eq!(stop, Stop::Halted, "in the handler of the fault");
        }
    }
}

/// RF means that this instruction has already been restarted after a fault. The breakpoint was reported at the
/// first attempt, before the fault.
#[test]
fn a_breakpoint_where_nothing_is_does_not_stop_under_rf() {
    for flags in [RF, TF | RF] {
        let mut m = Machine::long();
        m.state.rflags |= flags;
        m.state.rip = 0x1234_5000_0000;
        m.load();
        m.cpu.set_breakpoints([(AddressKind::Linear, m.state.rip)]);
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Halted, "in the handler of the fault");
        assert_eq!(m.cpu.rip(), handler(14) + 1);
    }
}

/// An instruction whose fetch or load causes a page fault. The instruction restarts once the page is mapped.
#[test]
fn a_breakpoint_counts_once_where_its_instruction_faults_first() {
    let data = DATA + 0x3000;
    for (missing, rip) in [(data, CODE), (CODE, CODE), (CODE + 0x1000, CODE + 0xffe)] {
        let mut m = Machine::long();
        // MOV EAX, [RCX]; NOP; HLT
        m.put(rip, &[0x48, 0x8b, 0x01, 0x90, 0xf4]);
        m.state.gpr[1] = data;
        m.state.rip = rip;
        m.page(missing, 1, 0);
        m.load();
        m.cpu.set_breakpoints([(AddressKind::Linear, rip)]);
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Breakpoint));
        assert_eq!(
            m.cpu.run(&mut m.bus, u64::MAX, m.cpu.steps()),
            Stop::Halted,
            "in the handler of the fault"
        );
        m.state = m.cpu.state();
        assert_eq!((m.stack64(1), m.stack64(3) & RF), (rip, RF));
        // The handler maps the page and returns.
        let mut back = m.state.clone();
        (back.rip, back.rflags, back.halted) = (rip, m.stack64(3), false);
        m.page(missing, 0, 1);
        m.cpu.set_registers(&back);
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Halted);
        assert_eq!(m.cpu.rip(), rip + 5, "it did not stop again");
    }
}

/// The breakpoint is at the instruction after STI, in the interrupt shadow.
#[test]
fn a_breakpoint_where_nothing_is_stops_in_a_shadow() {
    let end = DATA + 0x2fff;
    let mut m = Machine::long();
    m.page(end + 1, 1, 0);
    m.put(end, &[0xfb]);
    m.state.rip = end;
    m.load();
    m.cpu.set_breakpoints([(AddressKind::Linear, end + 1)]);
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Breakpoint));
    assert_eq!((m.cpu.rip(), m.cpu.steps()), (end + 1, m.counts.steps + 1));
    assert!(m.cpu.state().interrupt_shadow);
}

#[test]
fn an_access_ends_in_its_second_page() {
    // Eight bytes, of which the last three are in the next page.
    let address = DATA + 0x1000 - 5;
    for (kind, write) in [(WatchKind::Read, false), (WatchKind::Write, true)] {
        // The distance of the watched byte from `address`, and whether the access hits this byte.
        for (distance, hit) in
            [(-1, false), (0, true), (4, true), (5, true), (7, true), (8, false), (12, false)]
        {
            let mut m = Machine::long();
            m.state.gpr[1] = address;
            m.state.gpr[0] = 0x0102_0304_0506_0708;
            m.code(64, |a| match write {
                true => a.mov(qword_ptr(rcx), rax).unwrap(),
                false => a.mov(rax, qword_ptr(rcx)).unwrap(),
            });
            m.load();
            let watched = address.wrapping_add_signed(distance);
            m.cpu.set_watchpoints([watch(AddressKind::Linear, watched, 1, kind)]);
            let stop = m.cpu.run(&mut m.bus, m.counts.steps + 1, m.counts.steps);
            assert_eq!(matches!(stop, Stop::Met(Met::Watchpoint(_))), hit, "{kind:?} {distance}");
        }
    }
}
