//! Tests branches, which are copies of this test program itself. The program does not use Rust's test harness,
//! because the harness starts threads.

use std::cell::Cell;
use std::io::{Read, Seek, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use branches::{Branch, Ending, Error, MAX_REPORT_BYTES, OneThread, Plan, Start, run_all};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.contains(&"--list".to_string()) {
        // `cargo test` passes its arguments to this program, which has one test.
        if !arguments.contains(&"--ignored".to_string()) {
            println!("branches: test");
        }
        return;
    }
    // One branch panics on purpose. The hook prints a panic only in the template, not in branches.
    let template = std::process::id();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::process::id() == template {
            usual(panic);
        }
    }));
    let one_thread = OneThread::watch().unwrap();
    endings(&one_thread);
    memory_is_copied_when_it_is_written(&one_thread);
    every_branch_has_its_number(&one_thread);
    branches_prepare_one_after_the_other(&one_thread);
    all_end_when_they_are_asked_to(&one_thread);
    other_threads_are_refused(&one_thread);
}

fn ending(one_thread: &OneThread, body: impl FnOnce(&mut Start) -> Vec<u8>) -> Ending {
    Branch::begin(one_thread, body).unwrap().wait()
}

fn endings(one_thread: &OneThread) {
    let longest = vec![7; MAX_REPORT_BYTES];
    assert_eq!(ending(one_thread, |_| longest.clone()), Ending::Reported(longest.clone()));
    assert_eq!(ending(one_thread, |_| [&longest[..], b"!"].concat()), Ending::Exited(1));
    assert_eq!(ending(one_thread, |_| panic!("in a branch")), Ending::Exited(101));
    assert_eq!(ending(one_thread, |_| std::process::exit(3)), Ending::Exited(3));
    assert_eq!(ending(one_thread, |_| std::process::abort()), Ending::Killed("SIGABRT"));
}

fn memory_is_copied_when_it_is_written(one_thread: &OneThread) {
    let mut memory = vec![1_u8; 1 << 20];
    let report = ending(one_thread, |_| {
        memory.fill(2);
        vec![memory[5]]
    });
    assert_eq!((report, memory[5]), (Ending::Reported(vec![2]), 1));
}

fn every_branch_has_its_number(one_thread: &OneThread) {
    let plan = Plan { count: 20, at_once: NonZeroU32::new(3).unwrap(), is_over: &|| false };
    let mut endings = Vec::new();
    let mut ended = |number, ending| endings.push((number, ending));
    assert_eq!(run_all(one_thread, &plan, &mut |number, _| vec![number as u8], &mut ended).unwrap(), 20);
    endings.sort_by_key(|(number, _)| *number);
    let expected: Vec<_> = (1..=20).map(|number| (number, Ending::Reported(vec![number as u8]))).collect();
    assert_eq!(endings, expected);
}

/// The bodies share the file `standing` and its offset. Each appends a line when it begins to prepare, and when it stands.
fn branches_prepare_one_after_the_other(one_thread: &OneThread) {
    const COUNT: u32 = 12;
    let file = tempfile::tempfile().unwrap();
    let mut body = |number: u32, start: &mut Start| {
        // The last branch never says that it stands.
        writeln!(&file, "{number} begins").unwrap();
        std::thread::sleep(Duration::from_millis(3));
        writeln!(&file, "{number} stands").unwrap();
        if number < COUNT {
            assert!(start.stands() >= Duration::from_millis(3));
        }
        std::thread::sleep(Duration::from_millis(5));
        Vec::new()
    };
    let plan = Plan { count: COUNT, at_once: NonZeroU32::new(COUNT).unwrap(), is_over: &|| false };
    let mut ended = |_, ending| assert_eq!(ending, Ending::Reported(Vec::new()));
    run_all(one_thread, &plan, &mut body, &mut ended).unwrap();
    let expected: String = (1..=COUNT).map(|number| format!("{number} begins\n{number} stands\n")).collect();
    let mut written = String::new();
    (&file).rewind().unwrap();
    (&file).read_to_string(&mut written).unwrap();
    assert_eq!(written, expected);
}

fn all_end_when_they_are_asked_to(one_thread: &OneThread) {
    let looks = Cell::new(0);
    let is_over = || {
        looks.set(looks.get() + 1);
        looks.get() > 12
    };
    let plan = Plan { count: 100, at_once: NonZeroU32::new(4).unwrap(), is_over: &is_over };
    let mut endings = Vec::new();
    let mut body = |_, start: &mut Start| loop {
        start.stands();
        std::thread::park();
    };
    let begun = run_all(one_thread, &plan, &mut body, &mut |_, ending| endings.push(ending));
    assert_eq!((begun.unwrap(), endings), (4, vec![Ending::Killed("SIGTERM"); 4]));
}

fn other_threads_are_refused(one_thread: &OneThread) {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || stopped.recv());
    let refused = Branch::begin(one_thread, |_| Vec::new());
    assert!(matches!(refused, Err(Error::SeveralThreads(2))));
    drop(stop);
    let _ = thread.join();
    assert_eq!(ending(one_thread, |_| Vec::new()), Ending::Reported(Vec::new()));
}
