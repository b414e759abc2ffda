//! Damaged recordings. Opening, replaying or verifying a damaged recording gives an error message or the recorded
//! run, and never a different run.

use std::path::{Path, PathBuf};

use history::replay::{Replay, ReplayEnd};
use machine::error::{Error, exit_code};
use machine::inputs::Event;
use machine::position::Instructions;
use recording::player::Scrutiny;
use recording::{EVENTS, MANIFEST, NEWEST_FORMAT, OLDEST_FORMAT, Opened, Recording};
use tiny_guest::{Numbers, change, change_log, event_of, record, typed};

const ROUNDS: u32 = 10_000;
const CHANGES: u64 = 1000;

struct Original {
    directory: tempfile::TempDir,
    recording: Recording<Instructions>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

fn original() -> Original {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(20_000, "a"), (40_000, "bc"), (60_000, "d")]);
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, keys);
    let kernel = recording.manifest.machine.start.booted().kernel.path.clone();
    let paths = [recording.path.join(MANIFEST), recording.path.join(EVENTS), kernel];
    let files = paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).to_vec();
    Original { directory, recording, files }
}

fn opened(path: &Path) -> Result<Recording<Instructions>, Error> {
    match Opened::open(path)? {
        Opened::ByInstructions(recording) => Ok(recording),
        Opened::ByExits(_) => panic!("opened as a recording of another machine"),
    }
}

/// Opens and replays a whole recording.
fn replayed(path: &Path) -> Result<(Recording<Instructions>, ReplayEnd, Instructions), Error> {
    let recording = opened(path)?;
    let mut replay = Replay::new(&recording, Scrutiny::Everything, |_| Ok(()))?;
    let end = replay.run(None, |_| {})?;
    let at = replay.machine.moment().count;
    drop(replay);
    Ok((recording, end, at))
}

#[test]
fn no_random_change_makes_another_run_of_a_recording() {
    let original = original();
    let (_, end, whole) = replayed(&original.recording.path).unwrap();
    assert_eq!(end, ReplayEnd::Verified);
    let mut numbers = Numbers(7);
    let (mut refused, mut cut) = (0, 0);
    for round in 0..CHANGES {
        let (path, bytes) = &original.files[numbers.below(original.files.len() as u64) as usize];
        let changed = change(bytes, &mut numbers);
        std::fs::write(path, &changed).unwrap();
        match replayed(&original.recording.path) {
            Err(error) => {
                let code = error.exit_code();
                let told = [exit_code::DIVERGED, exit_code::UNREADABLE_RECORDING].contains(&code);
                assert!(told, "round {round}: exit code {code}: {error}");
                let named = error.to_string().contains(path.file_stem().unwrap().to_str().unwrap());
                assert!(named, "round {round}: {} is not named in: {error}", path.display());
                refused += 1;
            }
            // The change was harmless. Either no contents changed, or the log ends early, and the replay reports this.
            Ok((recording, ReplayEnd::Verified, at)) => {
                assert_eq!(recording.log, original.recording.log, "round {round}");
                assert_eq!(at, whole, "round {round}");
            }
            Ok((recording, ReplayEnd::Stopped, _)) => {
                assert!(recording.log.end.is_none() && path.ends_with(EVENTS), "round {round}");
                let (log, whole) = (&recording.log, &original.recording.log);
                let (records, whole) = (log.records().unwrap(), whole.records().unwrap());
                assert_eq!(records, whole[..records.len()], "round {round}");
                cut += 1;
            }
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert!(refused > CHANGES / 2 && cut > CHANGES / 50, "{refused} refused, {cut} cut off");
}

#[test]
fn what_is_missing_or_foreign_is_named() {
    let original = original();
    let path = &original.recording.path;
    let sentence = || match replayed(path) {
        Err(error) => {
            assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING, "{error}");
            error.to_string()
        }
        Ok(_) => panic!("replayed"),
    };
    let hash = &original.recording.manifest.machine.start.booted().kernel.hash;
    let (kernel, bytes) = &original.files[2];
    std::fs::remove_file(kernel).unwrap();
    let text = sentence();
    assert!(text.contains("the kernel of this recording") && text.contains(hash), "{text}");
    std::fs::create_dir(kernel).unwrap();
    assert!(sentence().contains("not a regular file"));
    std::fs::remove_dir(kernel).unwrap();
    std::fs::write(kernel, [bytes, &b"x"[..]].concat()).unwrap();
    let text = sentence();
    assert!(text.contains("has changed") && text.contains(hash), "{text}");
    // Another file of the same size is refused too. The message must not show the other file's hash, because the
    // other file may be any file of the user.
    let other = vec![b'x'; bytes.len()];
    std::fs::write(kernel, &other).unwrap();
    let (text, now) = (sentence(), blake3::hash(&other).to_hex().to_string());
    assert!(text.contains("has changed") && text.contains(hash) && !text.contains(&now), "{text}");
    std::fs::write(kernel, bytes).unwrap();

    let (manifest, bytes) = &original.files[0];
    let version = |number| format!("\"format_version\": {number}");
    let newer = String::from_utf8(bytes.clone())
        .unwrap()
        .replace(&version(OLDEST_FORMAT), &version(NEWEST_FORMAT + 1));
    std::fs::write(manifest, newer).unwrap();
    assert!(sentence().contains(&format!("has format version {}", NEWEST_FORMAT + 1)));
    let longer = String::from_utf8(bytes.clone())
        .unwrap()
        .replace("\"memory_bytes\": 4194304", "\"memory_bytes\": 8388608");
    std::fs::write(manifest, longer).unwrap();
    assert!(sentence().contains("does not describe the machine"));
    std::fs::remove_file(manifest).unwrap();
    assert!(sentence().contains(MANIFEST));
    drop(original.directory);
}

#[test]
fn whatever_a_stranger_gives_at_power_on_there_is_no_panic() {
    let original = original();
    for unix_seconds in [i64::MIN, i64::MIN / 2, -1, 0, 1 << 40, i64::MAX / 2, i64::MAX] {
        for (columns, rows) in [(0, 0), (u16::MAX, u16::MAX)] {
            let mut recording = original.recording.clone();
            change_log(&mut recording, |log| {
                let Event::PowerOn(power_on) = &mut event_of(log, 0).event else { panic!() };
                (power_on.unix_seconds, power_on.columns, power_on.rows) = (unix_seconds, columns, rows);
            });
            let error = Replay::new(&recording, Scrutiny::Everything, |_| Ok(()))
                .and_then(|mut replay| replay.run(None, |_| {}))
                .expect_err("this is another run");
            assert_eq!(error.exit_code(), exit_code::DIVERGED, "{unix_seconds}: {error}");
        }
    }
}

#[test]
fn a_log_cut_off_at_any_record_replays_to_its_last_one() {
    let original = original();
    let (path, bytes) = &original.files[1];
    let whole = &original.recording.log;
    let mut lengths = std::collections::BTreeSet::new();
    for length in (9..bytes.len()).step_by(11) {
        std::fs::write(path, &bytes[..length]).unwrap();
        match opened(&original.recording.path) {
            // Cuts inside one record give the same log, so only one of them is tested.
            Ok(recording) if !lengths.insert(recording.log.bytes) => continue,
            Ok(_) => {}
            Err(error) => {
                assert!(error.to_string().contains("before the run began") || length < 60, "{error}");
                continue;
            }
        }
        let (recording, end, at) = replayed(&original.recording.path).unwrap();
        assert_eq!(end, ReplayEnd::Stopped);
        let last = recording.log.last_moment().count;
        assert!(at == last || at == last + 1, "{at} {last}");
    }
    assert!(lengths.len() > whole.check_count() / 2, "{} lengths", lengths.len());
}
