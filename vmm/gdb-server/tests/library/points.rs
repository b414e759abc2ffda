//! Breakpoints, conditions, watchpoints, registers and memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use gdb::{Condition, DebugTarget, FIRST_CPU, Stop, WatchKind, Watchpoint};
use gdb_server::GdbTarget;
use history::never;
use tiny_guest::linux::{CALLS, TEXT, UNMAPPED};

use crate::guest::{Asked, linux, several, tiny};

#[test]
fn breakpoints_stop_runs_in_both_directions_until_they_are_cleared() {
    let mut guest = linux();
    let (decoy, switch) = (guest.kernel.address_of("decoy"), guest.kernel.address_of("__switch_to"));
    let mut target = guest.target();
    target.break_at(decoy);
    target.break_at(switch);
    let mut visits = Vec::new();
    for _ in 0..4 {
        let Stop::Breakpoint(address) = target.forward() else { panic!("it stops") };
        visits.push((address, target.position()));
    }
    assert_eq!(visits, [(decoy, 65), (switch, 81), (switch, 87), (decoy, 161)]);
    assert_eq!((target.backward(), target.position()), (Stop::Breakpoint(switch), 87));
    target.clear_breakpoint(switch);
    assert_eq!((target.backward(), target.position()), (Stop::Breakpoint(decoy), 65));
    assert_eq!((target.backward(), target.position()), (Stop::HistoryStart, 0));
    target.clear_breakpoint(decoy);
    assert_eq!((target.forward(), target.position()), (Stop::HistoryEnd, 519));
}

/// A condition on the word at an address: whether it has this value. The bytecode is a gdb agent expression.
fn word_is(address: u64, value: u8) -> Condition {
    let address = address.to_be_bytes();
    // const64 ADDRESS, ref64, const8 VALUE, equal, end.
    let mut code = vec![0x25];
    code.extend(address);
    code.extend([0x1a, 0x22, value, 0x13, 0x27]);
    Condition::new(code)
}

#[test]
fn a_breakpoint_stops_only_if_one_of_its_conditions_is_true() {
    let mut guest = linux();
    let switch = guest.kernel.address_of("__switch_to");
    let mut target = guest.target();
    target.break_at(switch);
    target.set_conditions(switch, &[word_is(CALLS, 2), word_is(CALLS, 4)]);
    let mut visits = Vec::new();
    while target.forward() == Stop::Breakpoint(switch) {
        visits.push(target.position());
    }
    assert_eq!(visits, [273, 279, 465, 471]);
    target.ask("goto 80");
    target.set_conditions(switch, &[]);
    assert_eq!((target.forward(), target.position()), (Stop::Breakpoint(switch), 81));
    // Restriction and condition must both allow the stop.
    target.set_conditions(switch, &[word_is(CALLS, 2)]);
    target.ask("break-in beta");
    assert_eq!((target.forward(), target.position()), (Stop::Breakpoint(switch), 279));
    assert_eq!(target.forward(), Stop::HistoryEnd);
}

fn watch(kind: WatchKind) -> Watchpoint {
    Watchpoint { address: CALLS, length: 8, kind }
}

#[test]
fn watchpoints_of_each_kind_say_their_kind() {
    let mut guest = linux();
    let mut target = guest.target();
    for kind in [WatchKind::Read, WatchKind::Write, WatchKind::Access] {
        target.ask("goto 100");
        target.set_watchpoint(watch(kind)).unwrap();
        let hit = Stop::Watchpoint { kind, address: CALLS };
        assert_eq!((target.forward(), target.position()), (hit, 188), "{kind:?}");
        assert_eq!((target.backward(), target.position()), (hit, 187), "{kind:?}");
        assert_eq!((target.backward(), target.position()), (hit, 91), "{kind:?}");
        target.clear_watchpoint(watch(kind));
        assert_eq!(target.forward(), Stop::HistoryEnd);
    }
}

#[test]
fn a_write_that_changes_nothing_is_no_hit() {
    let directory = tempfile::tempdir().unwrap();
    // In each call this guest writes the same byte twice.
    let (recording, _) = tiny_guest::record_calls(directory.path(), "r.ttvm", 3, None);
    let mut timeline = history::timeline::Timeline::open_with(&recording, 1).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    let stirred = Watchpoint { address: tiny_guest::STIRRED, length: 1, kind: WatchKind::Write };
    target.set_watchpoint(stirred).unwrap();
    let mut hits = 0;
    while let Stop::Watchpoint { .. } = target.forward() {
        hits += 1;
    }
    assert_eq!(hits, 3);
    target.clear_watchpoint(stirred);
    target.set_watchpoint(Watchpoint { kind: WatchKind::Access, ..stirred }).unwrap();
    let mut hits = 0;
    while let Stop::Watchpoint { .. } = target.backward() {
        hits += 1;
    }
    assert_eq!(hits, 6);
}

#[test]
fn runs_stop_when_gdb_asks() {
    let (_directory, mut timeline) = tiny(2_000_000);
    let mut target = GdbTarget::new(&mut timeline);
    assert_eq!(target.run_forward(&mut || true), Ok(Stop::Interrupted));
    target.ask("goto 10000000");
    assert_eq!(target.run_backward(&mut || true), Ok(Stop::Interrupted));
}

#[test]
fn memory_is_read_and_written_where_it_is_mapped() {
    let mut guest = linux();
    guest.go_to("__switch_to");
    let mut target = guest.target();
    let mut bytes = [0; 5];
    assert_eq!((target.read_memory(FIRST_CPU, TEXT, &mut bytes), &bytes), (5, b"hello"));
    assert_eq!(target.read_memory(FIRST_CPU, (4 << 20) - 2, &mut bytes), 2);
    assert_eq!(target.read_memory(FIRST_CPU, UNMAPPED, &mut bytes), 0);
    let refusal = target.write_memory(FIRST_CPU, (4 << 20) - 2, b"hello").unwrap_err().to_string();
    assert_eq!(refusal, "no RAM is mapped at all of 5 bytes at 0x3ffffe");
    assert_eq!(target.ask("position"), "81 519 0\n");
    target.write_memory(FIRST_CPU, TEXT, b"HELLO").unwrap();
    assert_eq!((target.read_memory(FIRST_CPU, TEXT, &mut bytes), &bytes), (5, b"HELLO"));
}

#[test]
fn a_fork_only_goes_forward() {
    let mut guest = linux();
    let switch = guest.kernel.address_of("__switch_to");
    guest.go_to("__switch_to");
    let mut target = guest.target();
    target.write_memory(FIRST_CPU, TEXT, b"HELLO").unwrap();
    assert!(target.step_backward(FIRST_CPU, &mut never).unwrap_err().to_string().contains("scratch fork"));
    target.break_at(switch);
    assert!(target.run_backward(&mut never).unwrap_err().to_string().contains("scratch fork"));
    assert_eq!(target.forward(), Stop::Breakpoint(switch));
}

#[test]
fn registers_that_cannot_be_changed_are_refused() {
    let mut guest = linux();
    guest.go_to("__switch_to");
    let mut target = guest.target();
    let old = target.registers();
    type Change = fn(&mut gdb::Registers);
    let changes: [(Change, &str); 4] = [
        (|new| new.ss ^= 8, "a segment register cannot be changed from here"),
        (|new| new.cr4 ^= 1, "a control register cannot be changed from here"),
        (|new| new.gs_base = 1 << 47, "gs_base must be a canonical address"),
        (|new| new.k_gs_base = 1 << 47, "k_gs_base must be a canonical address"),
    ];
    for (change, why) in changes {
        let mut new = old.clone();
        change(&mut new);
        assert_eq!(target.write_registers(FIRST_CPU, &new).unwrap_err().to_string(), why);
    }
    assert_eq!((target.registers(), target.ask("position")), (old.clone(), "81 519 0\n".to_string()));
    let mut new = old.clone();
    // A flag that no debugger can set is left out.
    (new.rax, new.eflags) = (7, old.eflags | 1 | 1 << 17);
    (new.fs_base, new.gs_base, new.k_gs_base, new.cr2) = (1, 2, 3, 4);
    (new.mxcsr, new.xmm[15]) = (0x1f81, 5);
    target.write_registers(FIRST_CPU, &new).unwrap();
    new.eflags = old.eflags | 1;
    assert_eq!(target.registers(), new);
    assert_eq!(target.ask("position"), "81 519 1\n");
    // A flag can be cleared again.
    new.eflags &= !1;
    target.write_registers(FIRST_CPU, &new).unwrap();
    assert_eq!(target.registers().eflags, old.eflags & !1);
}

#[test]
fn the_tag_word_says_which_floating_point_registers_are_used_and_how() {
    let mut guest = linux();
    guest.go_to("__switch_to");
    let mut target = guest.target();
    let mut new = target.registers();
    assert_eq!((new.ftag, new.fstat), (0x5555, 0));
    let number = |mantissa: u64, exponent: u16| {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
        bytes[8..].copy_from_slice(&exponent.to_le_bytes());
        bytes
    };
    // The top of the stack is register 2, so ST(0) is register 2 and ST(6) is register 0.
    new.fstat = 2 << 11;
    new.ftag = 0;
    target.write_registers(FIRST_CPU, &new).unwrap();
    let mut new = target.registers();
    assert_eq!((new.fstat, new.ftag), (2 << 11, 0x5555), "all are zero");
    new.st[0] = number(1 << 63, 0x3fff);
    new.st[1] = number(1, 0);
    new.st[2] = number(1 << 63, 0x7fff);
    new.st[3] = number(1, 0x3fff);
    new.st[6] = number(1 << 63, 0xbfff);
    new.ftag = 0x5555 | 3 << 14;
    target.write_registers(FIRST_CPU, &new).unwrap();
    let read = target.registers();
    assert_eq!(read.st, new.st);
    // From register 7 down: empty, zero, special, special, special, valid, zero, valid.
    assert_eq!(read.ftag, 0b11_01_10_10_10_00_01_00);
}

#[test]
fn a_change_of_the_instruction_pointer_wakes_a_halted_processor() {
    let directory = tempfile::tempdir().unwrap();
    let script = vec![(2_000_000, machine::inputs::Event::Limit)];
    let (recording, _) = tiny_guest::record_asleep(directory.path(), "r.ttvm", script);
    let mut timeline = history::timeline::Timeline::open_with(&recording, 1).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    target.ask("goto end");
    let mut new = target.registers();
    let halted_at = new.rip;
    // Back to STI.
    new.rip = halted_at - 2;
    target.write_registers(FIRST_CPU, &new).unwrap();
    assert_eq!((target.step(), target.registers().rip), (Stop::Step, halted_at - 1));
}

#[test]
fn other_processors_can_be_read_but_not_changed() {
    let mut guest = several();
    guest.go_to("__switch_to");
    let switch = guest.kernel.address_of("__switch_to");
    let counting = guest.kernel.address_of("start_secondary");
    let mut target = guest.target();
    assert_eq!(target.selected_cpu(), FIRST_CPU);
    assert_eq!(target.read_registers(1).unwrap().rip, switch);
    let other = target.read_registers(2).unwrap();
    assert!((counting..counting + 0x100).contains(&other.rip), "{:#x}", other.rip);
    let why = "only the processor that executes the next instruction can be changed: select thread 1";
    assert_eq!(target.write_registers(2, &other).unwrap_err().to_string(), why);
    assert_eq!(target.write_memory(2, TEXT, b"x").unwrap_err().to_string(), why);
    assert_eq!(target.write_memory(9, TEXT, b"x").unwrap_err().to_string(), why);
    let mut bytes = [0; 5];
    for processor in [1, 2] {
        assert_eq!((target.read_memory(processor, TEXT, &mut bytes), &bytes), (5, b"hello"), "{processor}");
    }
    // The processor that never started has no paging.
    assert_eq!((target.read_memory(3, CALLS, &mut bytes), target.read_memory(4, TEXT, &mut bytes)), (0, 0));
    target.ask("threads look-at 2");
    assert_eq!(target.selected_cpu(), 2);
    assert_eq!(target.write_memory(1, TEXT, b"x").unwrap_err().to_string(), why);
    target.ask("threads look-at 3");
    assert_eq!(target.read_memory(1, CALLS, &mut bytes), 0);
    assert_eq!(target.read_memory(2, CALLS, &mut bytes), 5, "gdb names another processor than the shown one");
    target.ask("threads look-at 1");
    target.write_memory(1, TEXT, b"x").unwrap();
}

#[test]
fn progress_is_told_to_gdb_and_a_listener() {
    let (_directory, mut timeline) = tiny(10);
    let told = Rc::new(RefCell::new(Vec::new()));
    let texts = told.clone();
    let mut target = GdbTarget::new(&mut timeline)
        .with_progress(Duration::ZERO, move |text| texts.borrow_mut().push(text));
    let text = target.progress()().unwrap();
    let inner = text.strip_prefix('[').unwrap().strip_suffix("]\n").unwrap();
    assert!(inner.contains(" million instructions replayed, "), "{inner}");
    assert_eq!(*told.borrow(), [inner]);
    let seldom = GdbTarget::new(&mut timeline).with_progress(Duration::from_secs(3600), |_| {}).progress()();
    assert_eq!(seldom, None);
    assert_eq!(GdbTarget::new(&mut timeline).progress()(), None);
}
