//! Tests that an unchanged recording replays without a difference, and that a changed recording diverges or is
//! refused. No recording may make ttvm panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};

use history::replay::{self, ReplayEnd, last_place, replay};
use machine::RunStop;
use machine::error::{Error, exit_code};
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use machine::script::Script;
use recording::log::{EventRecord, LogRecord};
use recording::with_recording;
use recording::{Opened, Recording};
use tests::guests::{BUSYBOX, BUSYBOX_GENERIC, CLOUD, GENERIC, Guest, SID, repository};
use tests::program::ttvm;
use tests::random::Random;
use tests::record::{open, record};
use tests::run::assert_shows;
use tests::traveller::{Traveller, guest, script};

fn replay_quietly(path: &Path) -> Result<ReplayEnd, Error> {
    with_recording!(Opened::open(path)?, recording => replay(&recording, None, |_| Ok(()), |_| {}).map(|(_, end)| end))
}

fn traveller() -> (tempfile::TempDir, Traveller) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let traveller = Traveller::record(directory.path());
    (directory, traveller)
}

#[test]
fn a_session_in_a_stock_kernel_replays() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("session.ttvm");
    let mut script = Script::shell(&["echo $((6 * 7)) is it", "ls -l /proc/self/fd | wc -l", "poweroff -f"]);
    record(&Guest::linux(&CLOUD, &BUSYBOX, "", 256), &path, &mut script);
    assert_shows(&script, "\n42 is it\n");
    assert_eq!(replay_quietly(&path).unwrap(), ReplayEnd::Verified);
}

#[test]
fn two_recordings_of_the_same_inputs_are_the_same_bytes() {
    let (directory, first) = traveller();
    let second = directory.path().join("second.ttvm");
    record(&guest(), &second, &mut script());
    for file in ["manifest.json", "events.log"] {
        assert!(
            std::fs::read(first.path.join(file)).unwrap() == std::fs::read(second.join(file)).unwrap(),
            "{file}"
        );
    }
    assert_eq!(replay_quietly(&second).unwrap(), ReplayEnd::Verified);
}

/// Replays a recording, and changes one bit of RAM in the middle. Returns whether the hashes at the end are equal.
fn replay_with_flipped_bit(traveller: &Traveller, address: u64, bit: u32) -> Result<bool, Error> {
    let recording = open(&traveller.path);
    let (mut machine, mut player) = replay::open(&recording)?;
    let middle = Instructions(traveller.end.at.count.number() / 2);
    assert_eq!(machine.run(middle, &mut player)?, RunStop::Reached);
    let before = machine.ram().load_u8(address);
    machine.ram().store_u8(address, before ^ 1 << bit);
    machine.run(last_place(&recording) + 1, &mut player)?;
    Ok(machine.hashes() == traveller.end.hashes && machine.moment() == traveller.end.at)
}

#[test]
fn one_wrong_bit_of_ram_does_not_go_unnoticed() {
    let (_directory, traveller) = traveller();
    for bit in 0..8 {
        // If the bit is in memory with which the guest computes, the guest takes another path. The replay finds
        // this difference at the next event.
        let error = replay_with_flipped_bit(&traveller, traveller.counter, bit).expect_err("it must diverge");
        assert!(matches!(&error, Error::Divergence(_)), "{error}");
        assert_eq!(error.exit_code(), exit_code::DIVERGED);
        // If the guest never reads the changed memory, only the hashes at the end differ.
        assert!(!replay_with_flipped_bit(&traveller, 7 << 20, bit).unwrap());
    }
}

/// Writes the traveller's recording once more, with changed records.
fn rewrite(traveller: &Traveller, to: &Path, change: impl FnOnce(&mut Vec<LogRecord<Instructions>>)) {
    let recording = open(&traveller.path);
    let mut records: Vec<_> = recording.log.events().map(|event| LogRecord::Event(event.unwrap())).collect();
    records.extend(recording.log.end.clone().map(LogRecord::End));
    change(&mut records);
    let mut writer = Recording::<Instructions>::create(to, &recording.manifest.machine).unwrap();
    records.iter().for_each(|record| writer.append(record).unwrap());
}

type Change = fn(&mut Vec<LogRecord<Instructions>>);

const TAMPERINGS: [(&str, Change); 8] = [
    ("another key", |records| set_event(records, 3, Event::ConsoleInput(b"z".to_vec()))),
    ("one key more", |records| set_event(records, 4, Event::ConsoleInput(b"ab".to_vec()))),
    ("no key", |records| drop(records.remove(2))),
    ("a power button", |records| set_event(records, 5, Event::PowerButton)),
    ("an event later", |records| at_event(records, 6, |event| event.at.count = event.at.count + 1)),
    ("an event earlier in time", |records| at_event(records, 1, |event| event.at.time_ns -= 1)),
    ("another hash of the registers", |records| at_event(records, 7, |event| event.cpu_hash[0] ^= 1)),
    ("another end", |records| {
        let Some(LogRecord::End(end)) = records.last_mut() else { panic!("the recording has an end") };
        end.hashes.devices[0] ^= 1;
    }),
];

fn at_event(
    records: &mut [LogRecord<Instructions>],
    number: usize,
    change: impl FnOnce(&mut EventRecord<Instructions>),
) {
    let LogRecord::Event(event) = &mut records[number] else { panic!("record {number} is an event") };
    change(event);
}

fn set_event(records: &mut [LogRecord<Instructions>], number: usize, event: Event) {
    at_event(records, number, |record| record.event = event);
}

#[test]
fn a_changed_recording_diverges() {
    let (directory, traveller) = traveller();
    for (number, (what, change)) in TAMPERINGS.into_iter().enumerate() {
        let path = directory.path().join(format!("{number}.ttvm"));
        rewrite(&traveller, &path, change);
        match replay_quietly(&path) {
            Err(error @ Error::Divergence(_)) => assert_eq!(error.exit_code(), exit_code::DIVERGED, "{what}"),
            // Reading already refuses this log: virtual time must never be smaller than the number of steps.
            Err(Error::Recording { .. }) if what == "an event earlier in time" => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn a_recording_that_was_cut_off_replays_to_its_last_event() {
    let (_directory, traveller) = traveller();
    let file = traveller.path.join("events.log");
    let bytes = std::fs::read(&file).unwrap();
    let mut random = Random::new(1);
    for length in (0..40).map(|_| random.below(bytes.len() as u64) as usize).chain([0, 8, bytes.len() - 1]) {
        std::fs::write(&file, &bytes[..length]).unwrap();
        match Opened::open(&traveller.path) {
            Ok(Opened::ByInstructions(recording)) => {
                let last =
                    recording.log.events().last().expect("an open recording has events").unwrap().at.count;
                let (machine, end) = replay(&recording, None, |_| Ok(()), |_| {}).unwrap();
                assert_eq!(end, ReplayEnd::Stopped, "cut at {length}");
                assert!(machine.moment().count >= last, "cut at {length}");
            }
            Ok(Opened::ByExits(_)) => panic!("cut at {length}: counts exits"),
            Err(error) => {
                assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING, "cut at {length}: {error}");
                assert!(length < 130, "cut at {length}: {error}");
            }
        }
    }
}

/// Opens and replays a damaged recording. Fails if ttvm panics, or if the error has an exit code that is not for
/// recordings.
fn survives(path: &Path, what: &str) {
    let result = catch_unwind(AssertUnwindSafe(|| replay_quietly(path)));
    match result {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            let known = [exit_code::FAILED, exit_code::DIVERGED, exit_code::UNREADABLE_RECORDING]
                .contains(&error.exit_code());
            assert!(known, "{what}: {error}");
        }
        Err(_) => panic!("{what}: reading the recording panicked"),
    }
}

#[test]
fn damaged_files_never_cause_a_panic() {
    let (_directory, traveller) = traveller();
    let mut random = Random::new(99);
    for name in ["events.log", "manifest.json"] {
        let file = traveller.path.join(name);
        let bytes = std::fs::read(&file).unwrap();
        for round in 0..150 {
            let mut damaged = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                damaged[at] = if name == "events.log" {
                    random.next_u64() as u8
                } else {
                    b"0189aZ\"{}[],:-. \n"[random.below(17) as usize]
                };
            }
            std::fs::write(&file, &damaged).unwrap();
            survives(&traveller.path, &format!("{name}, round {round}"));
        }
        std::fs::write(&file, &bytes).unwrap();
    }
}

/// The changes of a manifest: the change's name, a text in the manifest, and its replacement.
const FOREIGN: [(&str, &str, &str); 6] = [
    ("a later format", "\"format_version\": ", "\"format_version\": 9"),
    ("no memory", "\"memory_bytes\": 8388608", "\"memory_bytes\": 0"),
    ("all memory there is", "\"memory_bytes\": 8388608", "\"memory_bytes\": 18446744073709551615"),
    ("far too much memory", "\"memory_bytes\": 8388608", "\"memory_bytes\": 4611686018427387904"),
    ("another CPU", "\"ttvm-v2.1\"", "\"i486\""),
    ("another kernel", "\"hash\": \"", "\"hash\": \"0"),
];

#[test]
fn foreign_recordings_are_refused() {
    let (directory, traveller) = traveller();
    let file = traveller.path.join("manifest.json");
    let text = std::fs::read_to_string(&file).unwrap();
    for (what, from, to) in FOREIGN {
        assert!(text.contains(from), "{what}: {text}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let result = catch_unwind(|| replay_quietly(&traveller.path));
        let error = result.unwrap_or_else(|_| panic!("{what}: panicked")).expect_err(what);
        assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING, "{what}: {error}");
    }
    std::fs::write(&file, text).unwrap();
    assert_eq!(replay_quietly(&traveller.path).unwrap(), ReplayEnd::Verified);
    for empty in [directory.path().to_path_buf(), directory.path().join("none"), file] {
        let error = replay_quietly(&empty).expect_err("there is no recording");
        assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING, "{error}");
    }
}

/// Records a guest that runs `command`. Returns the recorder's message, its exit code, and the exit code of
/// `ttvm state --at panic`.
fn recorded(directory: &Path, command: &str) -> (String, Option<i32>, Option<i32>) {
    let cmdline = format!("console=ttyS0 panic=-1 ttvm.run=\"{command}\"");
    let (kernel, initrd) = (CLOUD.path(), BUSYBOX.path());
    let machine =
        ["--kernel", kernel.to_str().unwrap(), "--initrd", initrd.to_str().unwrap(), "--memory", "128M"];
    let run = |arguments: &[&str]| {
        let mut program = Command::new(ttvm());
        program.current_dir(directory).args(arguments).stdin(Stdio::null()).output().expect("ttvm can be run")
    };
    let done =
        run(&[&["record", "-o", "r.ttvm"][..], &machine, &["--unpaced", "--cmdline", &cmdline]].concat());
    let state = run(&["state", "r.ttvm", "--at", "panic"]);
    (String::from_utf8_lossy(&done.stderr).into_owned(), done.status.code(), state.status.code())
}

/// In this test, a kernel with `panic=-1` reboots before the panic's report is complete. No driver can report the
/// panic to the machine before the reboot.
#[test]
fn a_panic_of_a_kernel_that_reboots_is_a_panic() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (said, code, state) = recorded(directory.path(), "echo c >/proc/sysrq-trigger");
    assert!(said.contains("the guest's kernel panicked, and the guest reset itself"), "{said}");
    assert_eq!((code, state), (Some(exit_code::FAILED), Some(exit_code::DONE)), "{said}");
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (said, code, state) = recorded(directory.path(), "reboot -f");
    assert!(said.contains("ttvm: the guest reset itself"), "{said}");
    assert_eq!((code, state), (Some(exit_code::DONE), Some(exit_code::USAGE)), "{said}");
}

/// Tests the oldest and the newest kernel that is installed, with a disk. The test removes the whole recording and its
/// images, and then replays the end.
#[test]
fn the_end_of_a_crash_is_small_and_replays_alone() {
    let images = [[CLOUD, BUSYBOX], SID];
    for ([kernel, initrd], most_bytes) in
        images.map(|images| images.map(|image| image.path())).into_iter().zip([10_000_000, 13_000_000])
    {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let folder = directory.path();
        let run = |line: &str| {
            let mut program = Command::new(ttvm());
            let done = program.current_dir(folder).args(line.split(' ')).stdin(Stdio::null()).output();
            let done = done.expect("ttvm can be run");
            let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            (done.status.code(), said.concat())
        };
        let disk = std::fs::File::create_new(folder.join("disk.img")).expect("the folder is empty");
        disk.set_len(64 << 20).expect("it may have holes");
        let command =
            "sleep 3; dd if=/dev/vda of=/dev/null bs=64k skip=16 count=4; echo c >/proc/sysrq-trigger";
        let mut record = Command::new(ttvm());
        record.current_dir(folder).stdin(Stdio::null()).args(["record", "-o", "r.ttvm", "--unpaced"]);
        record
            .args(["--memory", "128M", "--disk", "disk.img", "--kernel"])
            .arg(&kernel)
            .arg("--initrd")
            .arg(&initrd);
        record.arg("--cmdline").arg(format!("console=ttyS0 panic=-1 ttvm.run=\"{command}\""));
        let said = String::from_utf8_lossy(&record.output().expect("ttvm can be run").stderr).into_owned();
        assert!(said.contains("the guest's kernel panicked"), "{said}");

        let (code, said) = run("pack r.ttvm --last 2s -o end.packed");
        assert!(code == Some(exit_code::DONE) && said.contains("blocks of the disk"), "{said}");
        let bytes = std::fs::metadata(folder.join("end.packed")).expect("it is there").len();
        assert!(bytes < most_bytes, "{bytes}");
        std::fs::remove_dir_all(folder.join("r.ttvm")).expect("it is there");
        std::fs::remove_file(folder.join("disk.img")).expect("it is there");
        let left: Vec<_> = std::fs::read_dir(folder).expect("it is there").flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");

        assert_eq!(run("unpack end.packed -o end.ttvm").0, Some(exit_code::DONE));
        let (code, said) = run("verify end.ttvm");
        assert!(code == Some(exit_code::DONE) && said.contains("equal to the end"), "{said}");
        let info: serde_json::Value =
            serde_json::from_str(&run("info end.ttvm --json").1).expect("it is JSON");
        let number = |field: &str| info["cut"][field].as_u64().unwrap_or_else(|| panic!("{info}"));
        assert!(number("instructions") > 500_000_000 && number("free_pages") > 500, "{info}");
        let (code, said) = run("state end.ttvm --at panic");
        assert!(code == Some(exit_code::DONE) && said.contains("(sh)"), "{said}");
        let (code, said) = run("run --snapshot-from end.ttvm");
        assert!(code != Some(exit_code::DONE) && said.contains("only the end of a longer one"), "{said}");
    }
}

/// In this test, the guest runs the command that the guide shows.
#[test]
fn a_shell_in_the_guest_asks_for_its_recording_to_be_kept() {
    let page =
        std::fs::read_to_string(repository().join("docs/src/recordings.md")).expect("the guide is there");
    let ask = page.lines().find(|line| line.contains("of=/dev/port")).expect("it shows how to ask");
    let (kernel, initrd) = (GENERIC.path(), BUSYBOX_GENERIC.path());
    for (command, is_kept) in [(ask, true), ("true", false)] {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let cmdline = format!("console=ttyS0 ttvm.run=\"{command}\"");
        let mut record = Command::new(ttvm());
        record.current_dir(directory.path()).stdin(Stdio::null());
        record.args([
            "record",
            "-o",
            "r.ttvm",
            "--keep-on",
            "fail",
            "--last",
            "1s",
            "--unpaced",
            "--cmdline",
            &cmdline,
        ]);
        record.arg("--kernel").arg(&kernel).arg("--initrd").arg(&initrd);
        let output = record.output().expect("ttvm can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit_code::DONE), "{said}");
        assert_eq!(
            said.contains("recorded in r.ttvm; the guest asked to keep the recording"),
            is_kept,
            "{said}"
        );
        assert_eq!(directory.path().join("r.ttvm").exists(), is_kept);
    }
}
