//! Breakpoints and watchpoints that stop only in one process or address space.

use gdb::{DebugTarget, FIRST_CPU, Stop, WatchKind, Watchpoint};
use gdb_server::GdbTarget;
use tiny_guest::linux::{CALLS, ROOT, task};

use crate::guest::{Asked, Guest, linux, tiny};

const EVERYWHERE: &str = "break- and watchpoints stop in all processes\n";

fn at_a_switch() -> Guest {
    let mut guest = linux();
    guest.go_to("__switch_to");
    guest
}

fn all(only: &str) -> String {
    format!("break- and watchpoints stop only in {only}\n")
}

#[test]
fn a_restriction_is_described_with_what_it_means_here() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    assert_eq!(target.ask("break-in"), EVERYWHERE);
    let alpha = "process 5 (alpha) has CR3 0x110000\n";
    let tables = "these are the page tables of process 5 (alpha)\n";
    let with_root = all("the address space with CR3 0x110000");
    for (argument, said, expected) in [
        ("5", alpha.to_string(), all("process 5")),
        ("6", format!("6 is a thread of it: {alpha}"), all("process 5")),
        ("alpha", alpha.to_string(), all("processes named 'alpha'")),
        ("beta", alpha.to_string(), all("processes named 'beta'")),
        ("here", tables.to_string(), with_root.clone()),
        ("0x110000", tables.to_string(), with_root.clone()),
        ("0x110fff", tables.to_string(), with_root.clone()),
        (
            "1114112",
            "there is no process 1114112 at this position; points stop where there is one\n".into(),
            all("process 1114112"),
        ),
        (
            "4194305",
            "no process has these page tables here\n".into(),
            all("the address space with CR3 0x400000"),
        ),
        (
            "99",
            "there is no process 99 at this position; points stop where there is one\n".into(),
            all("process 99"),
        ),
        (
            "2",
            "2 (worker) is a kernel thread without an address space of its own: points stop while it runs\n"
                .into(),
            all("process 2"),
        ),
        ("0", "process 0 (swapper) has no address space any more\n".into(), all("process 0")),
        (
            "gamma",
            "no process is named 'gamma' at this position; points stop where there is one\n".into(),
            all("processes named 'gamma'"),
        ),
        (
            "a-name-of-more-than-fifteen",
            "no process is named 'a-name-of-more-' at this position; points stop where there is one\n".into(),
            all("processes named 'a-name-of-more-'"),
        ),
        (
            "fourteen-bytesé",
            "no process is named 'fourteen-bytes' at this position; points stop where there is one\n".into(),
            all("processes named 'fourteen-bytes'"),
        ),
        ("anywhere", String::new(), EVERYWHERE.to_string()),
    ] {
        let answer = target.ask(&format!("break-in {argument}"));
        assert_eq!(answer, said + &expected, "{argument}");
    }
}

#[test]
fn some_points_may_have_a_restriction_of_their_own() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    target.ask("break-in gamma");
    let answer = target.ask("break-in \"alpha\" 0x10 calls");
    let expected = "process 5 (alpha) has CR3 0x110000\n".to_string()
        + &all("processes named 'gamma'")
        + "those at 0x10 stop only in processes named 'alpha'\n"
        + &format!("those at {CALLS:#x} stop only in processes named 'alpha'\n");
    assert_eq!(answer, expected);
    let answer = target.ask("break-in anywhere 0x10");
    assert!(!answer.contains("0x10 ") && answer.contains("'gamma'"), "{answer}");
    let answer = target.ask("break-in anywhere nowhere");
    assert_eq!(answer, "error: 'nowhere' is neither a number nor a symbol of the guest's kernel\n");
}

#[test]
fn several_processes_of_one_name_are_told() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    target.write_memory(FIRST_CPU, task(2) + 0x58, b"alpha\0\0").unwrap();
    let answer = target.ask("break-in alpha");
    let last = "points stop in all 2 of them; a number instead of the name means one\n";
    assert!(answer.contains(last) && answer.starts_with("2 (alpha) is a kernel thread "), "{answer}");
}

#[test]
fn a_kernel_thread_borrows_page_tables() {
    let mut guest = at_a_switch();
    let current = guest.kernel.address_of("current_task");
    let mut target = guest.target();
    target.write_memory(FIRST_CPU, current, &task(2).to_le_bytes()).unwrap();
    let told = "these are the page tables of process 5 (alpha)\n\
                2 (worker), which runs here, is a kernel thread and only borrows them\n";
    assert_eq!(target.ask("break-in here"), told.to_string() + &all("the address space with CR3 0x110000"));
    let other = "no process has these page tables here\n".to_string();
    assert_eq!(target.ask("break-in 0x5000"), other + &all("the address space with CR3 0x5000"));
}

/// The threads that stop at the function `__switch_to`, by the stops' positions: `alpha` at 81, and `beta` at 87.
fn stops(target: &mut GdbTarget<'_>) -> Vec<u64> {
    target.ask("goto start");
    let mut places = Vec::new();
    while let Stop::Breakpoint(_) | Stop::Watchpoint { .. } = target.forward() {
        places.push(target.position());
    }
    places
}

#[test]
fn breakpoints_stop_where_the_restriction_allows() {
    let mut guest = linux();
    let switch = guest.kernel.address_of("__switch_to");
    guest.go_to("__switch_to");
    let mut target = guest.target();
    target.break_at(switch);
    let (alpha, beta) = ([81, 177, 273, 369, 465], [87, 183, 279, 375, 471]);
    let mut both = [alpha, beta].concat();
    both.sort();
    assert_eq!(stops(&mut target), both);
    for (restriction, expected) in [
        ("alpha", &alpha[..]),
        ("beta", &beta),
        ("gamma", &[]),
        ("5", &both),
        ("2", &[]),
        ("here", &both),
        ("0x5000", &[]),
        ("anywhere", &both),
    ] {
        target.ask("goto 81");
        target.ask(&format!("break-in {restriction}"));
        assert_eq!(stops(&mut target), expected, "{restriction}");
    }
    target.ask("break-in gamma");
    target.ask(&format!("break-in beta {switch:#x}"));
    assert_eq!(stops(&mut target), beta, "a point's own restriction comes first");
}

#[test]
fn watchpoints_stop_where_the_restriction_allows() {
    let mut guest = at_a_switch();
    let current = guest.kernel.address_of("current_task");
    let mut target = guest.target();
    let watchpoint = Watchpoint { address: current, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(watchpoint).unwrap();
    assert_eq!(stops(&mut target).len(), 10);
    target.ask("break-in beta");
    // After the write the thread is already the next one.
    assert_eq!(stops(&mut target), [83, 179, 275, 371, 467]);
    target.clear_watchpoint(watchpoint);
    assert_eq!(stops(&mut target), [0; 0]);
}

#[test]
fn without_a_kernel_page_tables_are_a_restriction() {
    let directory = tempfile::tempdir().unwrap();
    let recording = tiny_guest::record_long(directory.path(), "r.ttvm", 1);
    let mut timeline = history::timeline::Timeline::open_with(&recording, 1).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    target.ask("goto 100");
    let root = target.registers().cr3;
    let (rip, at) = (target.registers().rip, target.position());
    target.break_at(rip);
    assert_eq!(target.ask("break-in here"), all(&format!("the address space with CR3 {root:#x}")));
    assert_eq!(target.forward(), Stop::Breakpoint(rip));
    assert_eq!(target.position(), at + 2);
    target.ask(&format!("break-in {:#x}", root + 0x1000));
    assert_eq!(target.forward(), Stop::HistoryEnd);
    assert_ne!(root, ROOT);
    drop(target);
    let (_directory, mut timeline) = tiny(10);
    let mut target = GdbTarget::new(&mut timeline);
    let answer = target.ask("break-in anywhere calls");
    assert_eq!(answer, "error: 'calls' is neither a number nor a symbol of the guest's kernel\n");
}
