//! Tests a long way back in a recording. A guest writes a field of an object early, works and sleeps for a while,
//! and then panics because of the field. The command reverse-continue finds the write, shows its progress, and can
//! be interrupted.
//!
//! `TTVM_GUEST_MINUTES=10 cargo test --release -p tests gdb_long -- --nocapture` puts ten minutes of guest time between
//! the write and the panic, with work in every second, and prints durations. Without the variable, the guest panics
//! half a minute after the write.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gdb_server::GdbTarget;
use guest_symbols::Symbols;
use history::timeline::Timeline;
use machine::Outcome;
use machine::script::Script;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use recording::pace::CheckpointOptions;
use tests::gdb::batch;
use tests::guests::{BUGS, CLOUD_ELF, Guest, linux_options};
use tests::record::{open, record_with_checkpoints};
use tests::run::last_lines;

/// Offset of the written field in the module's table of ports: `ports[2].reply`.
const FIELD: u64 = 2 * 32 + 8;

/// The guest time between the write and the panic, and the guest's work during this time.
struct Meanwhile {
    seconds: u32,
    /// The number of iterations of the shell's loop in every second.
    work: u32,
    /// Whether the test is the full version.
    full: bool,
}

impl Meanwhile {
    fn wanted() -> Meanwhile {
        match std::env::var("TTVM_GUEST_MINUTES") {
            Ok(minutes) => {
                let minutes: u32 = minutes.parse().expect("TTVM_GUEST_MINUTES is a number of minutes");
                Meanwhile { seconds: 60 * minutes, work: 400, full: true }
            }
            Err(_) => Meanwhile { seconds: 30, work: 100, full: false },
        }
    }
}

/// The recording, and the field's address.
struct Panicked {
    path: PathBuf,
    symbols: Symbols,
    field: u64,
}

/// Records a guest that closes a port of the module with the null-call bug, waits, and delivers a letter to the port.
fn record_panic(directory: &Path, meanwhile: &Meanwhile) -> Panicked {
    let parameters = "nokaslr cryptomgr.notests oops=panic panic_on_warn=1 rdinit=/bin/busybox -- sh";
    let guest = Guest::new(&linux_options(&CLOUD_ELF, &BUGS, parameters, 128));
    let Meanwhile { seconds, work, .. } = meanwhile;
    let wait = format!(
        "i=0; while [ $i -lt {seconds} ]; do j=0; while [ $j -lt {work} ]; do j=$((j+1)); done; \
         /bin/busybox sleep 1; i=$((i+1)); done"
    );
    let mut script = Script::shell(&[
        "/bin/busybox mount -t proc proc /proc; /bin/busybox insmod /bugs/null-call/postbox.ko",
        "for p in 0 1 2 3; do echo open $p >/proc/postbox; done; echo close 2 >/proc/postbox",
        &wait,
        "echo letter 2 x >/proc/postbox",
    ]);
    let path = directory.join("long.ttvm");
    let options = CheckpointOptions::default();
    let (machine, end) = record_with_checkpoints(&guest, &path, &mut script, options);
    assert_eq!(end.outcome, Outcome::Panic, "{}", last_lines(&script));
    assert!(end.at.time_ns > u64::from(*seconds) * 1_000_000_000, "{:?}", end.at);
    println!("{} instructions, {:.1} s guest time", end.at.count, end.at.time_ns as f64 / 1e9);
    let symbols = Symbols::of_guest(&machine).expect("the kernel runs");
    let field = symbols.address_of("ports").expect("the module is loaded") + FIELD;
    Panicked { path, symbols, field }
}

/// The results of a session.
struct Walk {
    transcript: String,
    /// Progress messages with their times.
    progress: Vec<(Duration, String)>,
}

/// Runs gdb from the recording's end. `on_progress` gets the first progress message and gdb's process.
fn walk(
    timeline: &mut Timeline,
    directory: &Path,
    every: Duration,
    commands: &[String],
    on_progress: impl Fn(Pid) + Send + Sync + 'static,
) -> Walk {
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let socket = directory.join("gdb.socket");
    let listener = gdb::Listener::bind(&format!("unix:{}", socket.display())).expect("a socket");
    let mut gdb = batch::gdb();
    batch::attach(&mut gdb, &socket, commands);
    gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut gdb = gdb.spawn().expect("gdb must be installed: run scripts/setup");
    let pid = Pid::from_raw(gdb.id() as i32);
    let begun = Instant::now();
    let progress = std::sync::Arc::new(Mutex::new(Vec::new()));
    let heard = progress.clone();
    let mut target = GdbTarget::new(timeline).with_progress(every, move |text| {
        let mut heard = heard.lock().expect("no thread panics while it holds the lock");
        if heard.is_empty() {
            on_progress(pid);
        }
        heard.push((begun.elapsed(), text));
    });
    let transcript = std::thread::scope(|scope| {
        let (mut output, mut errors) = (gdb.stdout.take().expect("piped"), gdb.stderr.take().expect("piped"));
        let errors = scope.spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).expect("gdb prints text");
            text
        });
        let socket = &socket;
        let output = scope.spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).expect("gdb prints text");
            gdb.wait().expect("it is our child");
            batch::leave(socket);
            text
        });
        gdb::serve(&listener, &mut target, |_| false).expect("gdb is served");
        output.join().expect("gdb's output") + &errors.join().expect("gdb's errors")
    });
    let progress = progress.lock().expect("no thread panics while it holds the lock").clone();
    Walk { transcript, progress }
}

fn show(name: &str, field: u64) -> String {
    format!("printf \"{name} %lx %lx\\n\", $rip, *(unsigned long *) {field:#x}")
}

/// Returns RIP and the field's value from the line in which gdb printed `name`.
fn shown(transcript: &str, name: &str) -> (u64, u64) {
    let line = transcript.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let words = line.and_then(|line| line.split_once(' '));
    let (rip, value) = words.unwrap_or_else(|| panic!("no '{name}' in gdb's output:\n{transcript}"));
    let number =
        |digits| u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("{digits}: {transcript}"));
    (number(rip), number(value))
}

fn finds_the_write(panicked: &Panicked, timeline: &mut Timeline, directory: &Path, full: bool) {
    let field = panicked.field;
    let commands = [
        show("panic", field),
        format!("watch *(unsigned long *) {field:#x}"),
        "reverse-continue".to_string(),
        show("before", field),
        "stepi".to_string(),
        show("after", field),
        "detach".to_string(),
    ];
    // Only in the full version, the search takes longer than two seconds. So in the short version, each poll sends
    // a progress message.
    let every = if full { Duration::from_secs(2) } else { Duration::ZERO };
    let begun = Instant::now();
    let Walk { transcript, progress } = walk(timeline, directory, every, &commands, |_| {});
    let (_, last) = shown(&transcript, "panic");
    let (rip, before) = shown(&transcript, "before");
    assert_eq!((last, shown(&transcript, "after").1), (0, 0), "{transcript}");
    let function = |address| panicked.symbols.name_of(address).map(|(name, _)| name);
    assert_eq!(function(rip), Some("port_close"), "{transcript}");
    assert_eq!(function(before), Some("acknowledge"), "{transcript}");
    assert!(transcript.contains("million instructions replayed"), "gdb shows no progress:\n{transcript}");
    assert!(!progress.is_empty());
    if full {
        println!("gdb was done after {:.1} s; the server said:", begun.elapsed().as_secs_f64());
        progress.iter().for_each(|(at, text)| println!("{:>7.1} s  {text}", at.as_secs_f64()));
    }
}

/// Tests that ^C stops a search at any time, and that gdb still works after the ^C.
fn can_be_interrupted(panicked: &Panicked, timeline: &mut Timeline, directory: &Path) {
    let field = panicked.field;
    let commands = [
        // The guest never writes to this address.
        format!("watch *(unsigned long *) {:#x}", field + 16),
        "reverse-continue".to_string(),
        "info program".to_string(),
        show("stopped", field),
        "reverse-stepi".to_string(),
        show("stepped", field),
        "detach".to_string(),
    ];
    let interrupt = |gdb| kill(gdb, Signal::SIGINT).expect("gdb runs");
    let Walk { transcript, .. } = walk(timeline, directory, Duration::ZERO, &commands, interrupt);
    assert!(transcript.contains("received signal SIGINT"), "{transcript}");
    assert_eq!(batch::ends_of_history(&transcript), 0, "{transcript}");
    shown(&transcript, "stepped");
}

#[test]
fn a_long_way_back_ends_right_and_can_be_interrupted() {
    if !BUGS.exists() {
        return skip::test("there is no guest with bugs; guest-images/bugs/build says why");
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let meanwhile = Meanwhile::wanted();
    let panicked = record_panic(directory.path(), &meanwhile);
    let mut timeline = Timeline::open(&open(&panicked.path)).unwrap_or_else(|error| panic!("{error}"));
    can_be_interrupted(&panicked, &mut timeline, directory.path());
    finds_the_write(&panicked, &mut timeline, directory.path(), meanwhile.full);
}
