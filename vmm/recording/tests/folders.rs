//! The files of a recording's folder: which folders are recordings, and where a recording finds its images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use machine::config::{ImageFile, MachineConfig, hash_image};
use machine::contents_hash::Scheme;
use machine::error::Error;
use machine::inputs::{Event, PowerOn};
use machine::position::{Exits, Instructions, Moment};
use machine::start::{KernelFiles, ModuleFile, Start};
use recording::log::{EventRecord, Log, LogRecord, parse_log};
use recording::pack::{check_log, unpack};
use recording::player::MOST_STEPS_WITHOUT_RECORD;
use recording::relink::{MovedImages, relink};
use recording::{EVENTS, MANIFEST, Manifest, Opened, Recording, Recounted, create_folder};

fn image(directory: &Path, name: &str) -> ImageFile {
    let path = directory.join(name);
    std::fs::write(&path, format!("contents of {name}")).unwrap();
    hash_image(&path, if name == "disk" { Scheme::Sparse } else { Scheme::Whole }).unwrap()
}

/// A machine with a kernel, and with an initial RAM disk, two modules and a disk if `with_all`.
fn machine(directory: &Path, with_all: bool) -> MachineConfig {
    let module = |name: &str| ModuleFile { file: image(directory, name), cmdline: String::new() };
    MachineConfig {
        cpu_model: cpu::CpuModel::default().name().to_string(),
        processors: Default::default(),
        memory_bytes: 64 << 20,
        start: Start::Kernel(KernelFiles {
            kernel: image(directory, "kernel"),
            initrd: with_all.then(|| image(directory, "initrd")),
            modules: if with_all { vec![module("first"), module("second")] } else { Vec::new() },
            cmdline: String::new(),
        }),
        disk: with_all.then(|| image(directory, "disk")),
        debug_ports: devices::DebugPortsV1 { console: false, exit: None },
        network: None,
        passthrough: Vec::new(),
    }
}

fn record(number: u64, event: Event) -> LogRecord<Instructions> {
    let at = Moment { count: Instructions(number), time_ns: number };
    LogRecord::Event(EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event })
}

fn power_on() -> Event {
    Event::PowerOn(PowerOn { unix_seconds: 1, seed: [7; 32], columns: 80, rows: 25 })
}

/// Writes a recording with these events.
fn write(path: &Path, machine: &MachineConfig, events: Vec<LogRecord<Instructions>>) {
    let mut log = Recording::<Instructions>::create(path, machine).unwrap();
    events.iter().for_each(|event| log.append(event).unwrap());
}

fn manifest(recording: &Path) -> Manifest {
    Manifest::parse(&std::fs::read_to_string(recording.join(MANIFEST)).unwrap()).unwrap()
}

fn paths(recording: &Path) -> Vec<PathBuf> {
    manifest(recording).machine.images().map(|(_, image)| image.path.clone()).collect()
}

fn why(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn moved_images_are_found_again_if_they_are_the_recorded_ones() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = old.path().join("r.ttvm");
    write(&path, &machine(old.path(), true), vec![record(0, power_on())]);
    let before = paths(&path);
    // Makes the same files in the folder `new`.
    machine(new.path(), true);
    let moved = |name: &str| Some(new.path().join(name));
    let modules = vec![new.path().join("first"), new.path().join("second")];

    // Images without a new path keep their paths.
    relink(&path, &MovedImages { initrd: moved("initrd"), ..MovedImages::default() }).unwrap();
    let mut expected = before.clone();
    expected[1] = new.path().join("initrd");
    assert_eq!(paths(&path), expected);
    relink(&path, &MovedImages { disk: moved("disk"), ..MovedImages::default() }).unwrap();
    expected[4] = new.path().join("disk");
    assert_eq!(paths(&path), expected);
    relink(
        &path,
        &MovedImages { kernel: moved("kernel"), modules: modules.clone(), ..MovedImages::default() },
    )
    .unwrap();
    let all: Vec<_> =
        ["kernel", "initrd", "first", "second", "disk"].map(|name| new.path().join(name)).into();
    assert_eq!(paths(&path), all);
    assert!(matches!(Opened::open(&path).unwrap(), Opened::ByInstructions(_)));

    // The manifest does not change if a new path leads to another image, or if only one of the modules has a new path.
    let other = MovedImages { kernel: moved("initrd"), disk: moved("disk"), ..MovedImages::default() };
    assert!(why(relink(&path, &other)).contains("is not the kernel of the recording"));
    let one = MovedImages { modules: modules[..1].to_vec(), ..MovedImages::default() };
    assert!(why(relink(&path, &one)).contains("has 2 of boot module, and you named 1"));
    let swapped = MovedImages { modules: modules.into_iter().rev().collect(), ..MovedImages::default() };
    assert!(relink(&path, &swapped).is_err());
    assert_eq!(paths(&path), all);
}

#[test]
fn images_that_a_recording_does_not_have_cannot_have_moved() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    write(&path, &machine(directory.path(), false), vec![record(0, power_on())]);
    let here = Some(directory.path().join("kernel"));
    for (moved, expected) in [
        (
            MovedImages { initrd: here.clone(), ..MovedImages::default() },
            "has no initial RAM disk: leave it out",
        ),
        (MovedImages { disk: here.clone(), ..MovedImages::default() }, "has no disk image: leave it out"),
        (
            MovedImages { modules: vec![here.clone().unwrap()], ..MovedImages::default() },
            "has no boot module",
        ),
    ] {
        let error = why(relink(&path, &moved));
        assert!(error.contains(expected), "{error}");
    }
    assert!(relink(directory.path(), &MovedImages::default()).is_err(), "a folder without a manifest");
    assert!(
        why(relink(&directory.path().join("kernel"), &MovedImages::default()))
            .contains("a recording is a folder")
    );
}

#[test]
fn a_recording_that_starts_from_a_state_has_no_kernel_that_could_have_moved() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = machine(directory.path(), true);
    let booted = config.start.booted().clone();
    config.start = Start::State { state: image(directory.path(), "start"), booted };
    let path = directory.path().join("r.ttvm");
    write(&path, &config, vec![record(0, power_on())]);
    let before = paths(&path);
    let here = Some(directory.path().join("kernel"));
    for moved in [
        MovedImages { kernel: here.clone(), ..MovedImages::default() },
        MovedImages { initrd: here.clone(), ..MovedImages::default() },
        MovedImages { modules: vec![here.clone().unwrap()], ..MovedImages::default() },
    ] {
        assert!(why(relink(&path, &moved)).contains("needs no kernel: give only --disk"), "{moved:?}");
    }
    let new = tempfile::tempdir().unwrap();
    image(new.path(), "disk");
    relink(&path, &MovedImages { disk: Some(new.path().join("disk")), ..MovedImages::default() }).unwrap();
    let expected: Vec<_> = [before[0].clone(), new.path().join("disk")].into();
    assert_eq!(paths(&path), expected);
}

#[test]
fn what_is_no_recording_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let config = machine(directory.path(), false);
    let refused = |name: &str, events: Vec<LogRecord<Instructions>>, change: &dyn Fn(&Path)| {
        let path = directory.path().join(name);
        write(&path, &config, events);
        change(&path);
        Opened::open(&path).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let begun = || vec![record(0, power_on())];
    assert_eq!(refused("good", begun(), &|_| {}), "");
    assert!(refused("empty", Vec::new(), &|_| {}).contains("the recording's log is empty"));
    // The largest accepted distance between two records, and one instruction more.
    let longest = |steps: u64| vec![record(0, power_on()), record(steps, Event::PowerButton)];
    assert_eq!(refused("long", longest(MOST_STEPS_WITHOUT_RECORD), &|_| {}), "");
    let error = refused("longer", longest(MOST_STEPS_WITHOUT_RECORD + 1), &|_| {});
    assert!(error.contains("4294967297 instructions without a record"), "{error}");
    let changed = |path: &Path| {
        let text = std::fs::read_to_string(path.join(MANIFEST)).unwrap();
        std::fs::write(path.join(MANIFEST), text.replace("67108864", "134217728")).unwrap();
    };
    assert!(refused("changed", begun(), &changed).contains("does not describe the machine of the event log"));
    assert!(
        refused("no log", begun(), &|path| std::fs::remove_file(path.join(EVENTS)).unwrap())
            .contains("cannot be read")
    );
    assert!(Opened::open(&directory.path().join("kernel")).is_err());
    let error = create_folder(&directory.path().join("good")).unwrap_err().to_string();
    assert!(error.contains("ttvm never overwrites files"), "{error}");
    let error = create_folder(&directory.path().join("not there").join("r")).unwrap_err().to_string();
    assert!(!error.contains("never overwrites"), "{error}");
}

#[test]
fn a_recording_that_cannot_begin_leaves_an_empty_folder() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    std::fs::create_dir(&path).unwrap();
    // The log cannot be created, because a folder has its name.
    std::fs::create_dir(path.join(EVENTS)).unwrap();
    assert!(Recording::<Instructions>::begin(&path, &machine(directory.path(), false)).is_err());
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_carried_image_lies_in_the_recording_and_others_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    let mut config = machine(directory.path(), false);
    let Start::Kernel(files) = &mut config.start else { panic!() };
    files.kernel.path = "images/kernel".into();
    write(&path, &config, vec![record(0, power_on())]);
    let Opened::ByInstructions(recording) = Opened::open(&path).unwrap() else { panic!() };
    assert_eq!(recording.manifest.machine.start.booted().kernel.path, path.join("images/kernel"));
    assert!(!recording.is_part() && recording.checkpoints().unwrap().is_none());
}

#[test]
fn a_log_belongs_to_one_machine_and_has_events() {
    let directory = tempfile::tempdir().unwrap();
    let config = machine(directory.path(), false);
    let bytes = |name: &str, events| {
        let path = directory.path().join(name);
        write(&path, &config, events);
        (std::fs::read(path.join(EVENTS)).unwrap(), manifest(&path))
    };
    let (log, of_this) = bytes("1", vec![record(0, power_on())]);
    assert_eq!(check_log(&log, &of_this), Ok(()));
    let mut of_other = of_this.clone();
    of_other.machine.memory_bytes *= 2;
    for (bytes, manifest) in [(&log, &of_other), (&bytes("2", Vec::new()).0, &of_this)] {
        assert!(check_log(bytes, manifest).unwrap_err().contains("belongs to another recording"));
    }
    assert!(check_log(b"", &of_this).unwrap_err().contains("is empty"));
    assert_eq!(parse_log::<Instructions>(&log, of_this.format).unwrap().event_count(), 1);
}

#[test]
fn a_pack_that_is_none_leaves_no_folder() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("packed"), directory.path().join("r.ttvm"));
    for (contents, expected) in [
        (&b"TTVMPACK"[..], "is too short for a packed recording"),
        (b"TTVMPACX\x02\0\0\0", "is not a packed recording"),
        (b"TTVMPACK\x01\0\0\0", "has pack version 1; this ttvm reads version 2"),
        (b"TTVMPACK\x02\0\0\0", "is damaged"),
    ] {
        std::fs::write(&from, contents).unwrap();
        let error = why(unpack(&from, &to, 1 << 20));
        assert!(error.contains(expected) && !to.exists(), "{error}");
    }
    std::fs::create_dir(&to).unwrap();
    assert!(why(unpack(&from, &to, 1 << 20)).contains("cannot create") && to.exists());
}

#[test]
fn only_a_recording_that_was_recounted_from_a_later_exit_on_is_a_part() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    write(&path, &machine(directory.path(), false), vec![record(0, power_on())]);
    let Opened::ByInstructions(mut recording) = Opened::open(&path).unwrap() else { panic!() };
    let log = Arc::new(Log::<Exits>::of_records(&[LogRecord::Machine([0; 32])]).unwrap());
    for (from, is_part) in [(0, false), (1, true), (7, true)] {
        recording.recounted = Some(Arc::new(Recounted { log: log.clone(), from: Exits(from), skipped: 0 }));
        assert_eq!(recording.is_part(), is_part, "{from}");
    }
}
