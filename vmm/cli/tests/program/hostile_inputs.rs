//! Hostile recordings and packed files at the command line, changed at random but with right checksums. Each verb
//! must end by itself, within its memory and time, and neither panic nor die from a signal.
//!
//! `scripts/fuzz-recordings` runs this with more inputs than the tests do. `TTVM_HOSTILE_INPUTS` is the number of
//! inputs, `TTVM_HOSTILE_SEED` the number of the first. An input that fails is kept, and its commands are printed.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use machine::Outcome;
use machine::inputs::Event;
use machine::unit::Unit;
use nix::sys::resource::{UsageWho, getrusage};
use recording::log::{LogRecord, LogWriter};
use recording::{EVENTS, MANIFEST, Manifest, Opened, Recording, with_recording};
use tiny_guest::{Numbers, change, record_with_checkpoints, stopped, typed};

/// The limits of each command, for prlimit(1).
const LIMITS: [&str; 2] = ["--as=2000000000", "--cpu=400"];
/// A replay that waits for the next exit fails after this number of instructions. The default is 2^32, and 2^32 jumps
/// of the interpreter take 75 s in a release build.
const MOST_STEPS_WITHOUT_EXIT: (&str, &str) = ("TTVM_MOST_STEPS_WITHOUT_EXIT", "16777216");
/// The recording into which a packed file is first unpacked.
const UNPACKED: &str = "unpacked.ttvm";

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// The recordings from which inputs are made: one counts instructions, one counts exits, and both also exist as packed
/// files.
fn make_bases(directory: &Path) -> Vec<PathBuf> {
    let keys = typed(&[(20_000, "a"), (40_000, "bc")]);
    record_with_checkpoints(directory, "a.ttvm", 10_000, keys, &[30_001, 50_000]);
    let (exits, _) = stopped::record_with_checkpoints(directory, 3);
    fs::rename(&exits.path, directory.join("b.ttvm")).unwrap();
    for (name, packed) in [("a.ttvm", "a.packed"), ("b.ttvm", "b.packed")] {
        let (code, _, told) = crate::common::ttvm(directory, &["pack", name, "-o", packed]);
        assert_eq!(code, 0, "{told}");
    }
    ["a.ttvm", "b.ttvm", "a.packed", "b.packed"].map(|name| directory.join(name)).to_vec()
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Changes bytes of a file.
fn change_file(path: &Path, numbers: &mut Numbers) {
    let bytes = fs::read(path).unwrap();
    if !bytes.is_empty() {
        fs::write(path, change(&bytes, numbers)).unwrap();
    }
}

/// A number of the kind that often breaks programs.
fn odd_number(numbers: &mut Numbers) -> u64 {
    let usual =
        [0, 1, 2, 255, 4095, 4096, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 62) + 1, 1 << 63];
    match numbers.below(4) {
        0 => u64::MAX - numbers.below(3),
        1 => numbers.below(1 << 30),
        _ => usual[numbers.below(usual.len() as u64) as usize],
    }
}

/// Replaces a log by a log with other records and right checksums.
fn rewrite_log<C: Unit>(recording: &Recording<C>, change: impl FnOnce(&mut Vec<LogRecord<C>>)) {
    let mut records = recording.log.records().unwrap();
    change(&mut records);
    let path = recording.path.join(EVENTS);
    fs::remove_file(&path).unwrap();
    let mut log = LogWriter::create(&path, recording.log.format).unwrap();
    records.iter().for_each(|record| log.append(record).unwrap());
}

/// Changes records of the log.
fn change_records<C: Unit>(records: &mut Vec<LogRecord<C>>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(records.len() as u64) as usize;
        match numbers.below(8) {
            0 => drop(records.remove(at)),
            1 => {
                let other = records[numbers.below(records.len() as u64) as usize].clone();
                records.insert(at, other);
            }
            2 => {
                let other = numbers.below(records.len() as u64) as usize;
                records.swap(at, other);
            }
            3 => records.truncate(at + 1),
            _ => change_record(&mut records[at], numbers),
        }
        if records.is_empty() {
            return;
        }
    }
}

fn change_record<C: Unit>(record: &mut LogRecord<C>, numbers: &mut Numbers) {
    let what = numbers.below(6);
    let number = odd_number(numbers);
    let moment = match record {
        LogRecord::Machine(hash) => {
            hash[0] ^= 1;
            return;
        }
        LogRecord::SystemCalls(count) => {
            *count = number;
            return;
        }
        LogRecord::Event(event) => {
            match what {
                0 => event.rip = number,
                1 => event.branches = number,
                2 => event.cpu_hash[0] ^= 1,
                3 => change_event(&mut event.event, numbers),
                _ => {}
            }
            &mut event.at
        }
        LogRecord::Check(check) => {
            match what {
                0 => check.rip = number,
                1 => check.branches = number,
                2 => check.cpu_hash[0] ^= 1,
                3 => check.ram_digest = Some([7; 16]),
                _ => {}
            }
            &mut check.at
        }
        LogRecord::End(end) => {
            match what {
                0 => end.branches = number,
                1 => end.console_bytes = number,
                2 => end.outcome = Outcome::Ended,
                _ => {}
            }
            &mut end.at
        }
    };
    match what {
        4 => moment.count = C::new(number),
        5 => moment.time_ns = number,
        _ => {}
    }
}

fn change_event(event: &mut Event, numbers: &mut Numbers) {
    let number = odd_number(numbers);
    *event = match numbers.below(7) {
        0 => Event::ConsoleInput(vec![0x1b; numbers.below(5000) as usize]),
        1 => Event::ConsoleResize { columns: number as u16, rows: 0 },
        2 => Event::TimePassed { ns: number },
        3 => Event::NetworkInput(vec![vec![0; numbers.below(3000) as usize]; 3]),
        4 => Event::PowerButton,
        5 => Event::Ended,
        _ => Event::Stopped(machine::inputs::Stopped { registers: number, ram_digest: [1; 16] }),
    };
}

/// Changes numbers in the manifest's text, and gives the log the new machine's checksum.
fn change_manifest<C: Unit>(recording: &Recording<C>, numbers: &mut Numbers) {
    let path = recording.path.join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    let is_first_digit = |at: usize| {
        let bytes = text.as_bytes();
        bytes[at].is_ascii_digit() && !(bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'"')
    };
    let places: Vec<usize> = (1..text.len()).filter(|&at| is_first_digit(at)).collect();
    let at = places[numbers.below(places.len() as u64) as usize];
    let end = at + text[at..].bytes().take_while(u8::is_ascii_digit).count();
    let changed = format!("{}{}{}", &text[..at], odd_number(numbers), &text[end..]);
    fs::write(&path, &changed).unwrap();
    let Ok(manifest) = Manifest::parse(&changed) else { return };
    let hash = manifest.machine_hash();
    rewrite_log(recording, |records| {
        if let Some(LogRecord::Machine(old)) = records.first_mut() {
            *old = hash;
        }
    });
}

fn change_recording<C: Unit>(recording: &Recording<C>, numbers: &mut Numbers) {
    match numbers.below(5) {
        0 | 1 => rewrite_log(recording, |records| change_records(records, numbers)),
        2 => change_manifest(recording, numbers),
        _ => {
            let files = files_below(&recording.path);
            for _ in 0..=numbers.below(3) {
                change_file(&files[numbers.below(files.len() as u64) as usize], numbers);
            }
        }
    }
}

/// The commands that run on an input.
fn commands(is_packed: bool) -> Vec<Vec<&'static str>> {
    let name = if is_packed { UNPACKED } else { "input" };
    let mut commands = vec![
        vec!["info", name],
        vec!["log", name, "--checks"],
        vec!["verify", name],
        vec!["state", name],
        vec!["search", name, "write:0x200000+64", "--all", "--limit", "3"],
        vec!["replay", name],
    ];
    if is_packed {
        commands.insert(0, vec!["unpack", "input", "-o", UNPACKED]);
    }
    commands
}

/// Makes the input with this number, and runs all verbs on it. The error says what went wrong.
fn try_input(bases: &[PathBuf], number: u64) -> Result<u32, String> {
    let mut numbers = Numbers(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    numbers.below(2);
    let base = &bases[numbers.below(bases.len() as u64) as usize];
    let directory = tempfile::Builder::new().prefix("ttvm-hostile-").tempdir().unwrap();
    let input = directory.path().join("input");
    copy(base, &input);
    if input.is_dir() {
        with_recording!(Opened::open(&input).unwrap(), recording => change_recording(&recording, &mut numbers));
    } else {
        (0..=numbers.below(3)).for_each(|_| change_file(&input, &mut numbers));
    }
    let mut refused = 0;
    for command in commands(!input.is_dir()) {
        let mut limited = Command::new("prlimit");
        limited.env(MOST_STEPS_WITHOUT_EXIT.0, MOST_STEPS_WITHOUT_EXIT.1);
        limited.args(LIMITS).arg(env!("CARGO_BIN_EXE_ttvm")).args(&command);
        let output = limited.current_dir(directory.path()).stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        let is_well = output.status.code().is_some_and(|code| (0..=5).contains(&code));
        if !is_well || told.contains("panicked") {
            let signal = output.status.signal();
            let code = output.status.code();
            let kept = directory.keep();
            return Err(format!(
                "input {number}: code {code:?}, signal {signal:?}: (cd {}; prlimit {} ttvm {}): {told}",
                kept.display(),
                LIMITS.join(" "),
                command.join(" ")
            ));
        }
        refused += u32::from(output.status.code() != Some(0));
        if command[0] == "unpack" && output.status.code() != Some(0) {
            break;
        }
    }
    Ok(refused)
}

#[test]
fn no_input_ends_a_verb_by_a_panic_a_signal_or_never() {
    let (count, first) = (variable("TTVM_HOSTILE_INPUTS", 50), variable("TTVM_HOSTILE_SEED", 1));
    let directory = tempfile::tempdir().unwrap();
    let bases = make_bases(directory.path());
    let (next, refused, failures) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= count {
                        return;
                    }
                    match try_input(&bases, first.wrapping_add(number)) {
                        Ok(times) => drop(refused.fetch_add(times.into(), Relaxed)),
                        Err(why) => {
                            println!("{why}");
                            failures.lock().unwrap().push(why);
                        }
                    }
                    if number % 500 == 499 {
                        println!("{} inputs", number + 1);
                    }
                }
            });
        }
    });
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = (used.user_time().tv_sec() + used.system_time().tv_sec()) as f64;
    let refused = refused.into_inner();
    println!(
        "{count} inputs from {first} on: {refused} commands refused one, {seconds} s of the processor's time"
    );
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(refused >= count / 2, "{refused}");
}
