//! Tests that recordings survive packing and unpacking, and that hostile packs do no harm.

use std::collections::BTreeMap;

use checkpoint::{PAGE_BYTES, Space};

use super::*;
use crate::Opened;
use crate::log::{EventRecord, Log, LogRecord, parse_log};
use machine::Format;
use machine::config::{ImageFile, MachineConfig, hash_image};
use machine::contents_hash::Scheme;
use machine::inputs::{Event, PowerOn};
use machine::position::{Instructions, Moment};
use machine::start::{KernelFiles, ModuleFile, Start};

fn image(directory: &Path, name: &str, contents: &[u8]) -> ImageFile {
    let path = directory.join(name);
    std::fs::write(&path, contents).unwrap();
    ImageFile { path, hash: blake3::hash(contents).to_hex().to_string(), size_bytes: contents.len() as u64 }
}

/// Does the same as [`image`], but with the hash scheme that manifests use for disks.
fn disk(directory: &Path) -> ImageFile {
    let image = image(directory, "disk.img", &disk_contents());
    hash_image(&image.path, Scheme::Sparse).unwrap()
}

fn disk_contents() -> Vec<u8> {
    let mut disk = vec![0; 3_000_001];
    disk[5] = 1;
    disk[1_000_000..1_100_000].fill(7);
    disk
}

/// A recording with nothing but power-on, and with images of all kinds.
fn recording(directory: &Path) -> Recording<Instructions> {
    let machine = MachineConfig {
        cpu_model: cpu::CpuModel::default().name().to_string(),
        processors: Default::default(),
        memory_bytes: 64 << 20,
        start: Start::Kernel(KernelFiles {
            kernel: image(directory, "vmlinuz", b"kernel"),
            initrd: Some(image(directory, "initrd.gz", &[3; 100_000])),
            modules: vec![ModuleFile { file: image(directory, "m", b""), cmdline: "x=y".to_string() }],
            cmdline: String::new(),
        }),
        disk: Some(disk(directory)),
        debug_ports: devices::DebugPortsV1 { console: false, exit: None },
        network: None,
        passthrough: Vec::new(),
    };
    let path = directory.join("r.ttvm");
    let mut log = Recording::<Instructions>::create(&path, &machine).unwrap();
    let event = Event::PowerOn(PowerOn { unix_seconds: 1, seed: [7; 32], columns: 80, rows: 25 });
    let at = Moment::<Instructions>::default();
    log.append(&LogRecord::Event(EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event })).unwrap();
    let store = Store::create(path.join(CHECKPOINTS), 16, 733).unwrap();
    for position in [10, 20, 30] {
        let mut draft = store.add(position, position).unwrap();
        draft.page(Space::Ram, position / 10, &[position as u8; PAGE_BYTES]).unwrap();
        draft.page(Space::Disk, 732, &[position as u8 + 1; PAGE_BYTES]).unwrap();
        draft.finish(b"head", b"state").unwrap();
    }
    open(&path)
}

fn open(path: &Path) -> Recording<Instructions> {
    match Opened::open(path).unwrap() {
        Opened::ByInstructions(recording) => recording,
        Opened::ByExits(_) => panic!("{} counts exits", path.display()),
    }
}

/// Names and contents of the checkpoints' files.
fn checkpoint_files(recording: &Path) -> Vec<(String, Vec<u8>)> {
    let listed = std::fs::read_dir(recording.join(CHECKPOINTS)).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    let mut files: Vec<_> = listed.map(read).filter(|(name, _)| name != "lock").collect();
    files.sort();
    files
}

/// A sink that stores all files in memory. The sink asserts that the calls follow the contract of [`Sink`].
#[derive(Default)]
struct Memory {
    files: BTreeMap<PathBuf, Vec<u8>>,
    last: PathBuf,
}

impl Sink for Memory {
    fn begin(&mut self, name: &Path, size_bytes: u64) -> Result<(), Error> {
        let plain = name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        assert!(plain && name.is_relative(), "{}", name.display());
        self.last = name.to_path_buf();
        assert!(self.files.insert(self.last.clone(), vec![0; size_bytes as usize]).is_none());
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let file = self.files.get_mut(&self.last).unwrap();
        file[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn check_log(&mut self, manifest: &Manifest) -> Result<(), String> {
        check_log(&self.files[Path::new(EVENTS)], manifest)
    }
}

fn read(bytes: &[u8]) -> Result<(Contents, Memory), Error> {
    let mut memory = Memory::default();
    let contents = read_archive(bytes, 1 << 24, Path::new("packed"), &mut memory)?;
    Ok((contents, memory))
}

#[test]
fn an_unpacked_recording_carries_its_images() {
    let directory = tempfile::tempdir().unwrap();
    let original = recording(directory.path());
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("u.ttvm"));
    pack(&original, &packed, true).unwrap();
    for (_, image) in original.manifest.machine.images() {
        std::fs::remove_file(&image.path).unwrap();
    }
    unpack(&packed, &unpacked, DEFAULT_MAX_BYTES).unwrap();
    let copy = open(&unpacked);
    assert_eq!(copy.log, original.log);
    copy.read_images().unwrap();
    assert_eq!(std::fs::read(unpacked.join("images/disk")).unwrap(), disk_contents());
    assert_eq!(copy.manifest.machine.start.booted().kernel.path, unpacked.join("images/kernel"));
    assert_eq!(checkpoint_files(&unpacked).len(), 4);
    assert_eq!(checkpoint_files(&unpacked), checkpoint_files(&original.path));
    copy.checkpoints().unwrap().unwrap().verify(|_, _| {}).unwrap();
    // Packs the unpacked copy again.
    let again = directory.path().join("again");
    pack(&copy, &again, true).unwrap();
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&packed).unwrap());
}

/// Zeroes that a pack leaves out are still a part of the log.
#[test]
fn a_log_with_a_hole_is_unpacked_whole() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path());
    let machine = recording.manifest.machine.clone();
    let path = directory.path().join("zeroes.ttvm");
    let mut log = Recording::<Instructions>::create(&path, &machine).unwrap();
    let power_on = Event::PowerOn(PowerOn { unix_seconds: 1, seed: [7; 32], columns: 80, rows: 25 });
    let at = Moment::<Instructions>::default();
    for event in [power_on, Event::ConsoleInput(vec![0; 300_000])] {
        let record = EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event };
        log.append(&LogRecord::Event(record)).unwrap();
    }
    drop(log);
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("u.ttvm"));
    pack(&open(&path), &packed, false).unwrap();
    unpack(&packed, &unpacked, DEFAULT_MAX_BYTES).unwrap();
    assert_eq!(open(&unpacked).log, open(&path).log);
}

#[test]
fn checkpoints_may_be_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let original = recording(directory.path());
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("u.ttvm"));
    pack(&original, &packed, false).unwrap();
    unpack(&packed, &unpacked, DEFAULT_MAX_BYTES).unwrap();
    assert!(!unpacked.join(CHECKPOINTS).exists());
    assert!(open(&unpacked).checkpoints().unwrap().is_none());
}

#[test]
fn checkpoints_count_for_the_size_and_must_fit_together() {
    let directory = tempfile::tempdir().unwrap();
    let original = recording(directory.path());
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("u.ttvm"));
    pack(&original, &packed, true).unwrap();
    let images: u64 = original.manifest.machine.images().map(|(_, image)| image.size_bytes).sum();
    let without = images + original.log.bytes;
    let with = without + original.checkpoints().unwrap().unwrap().total_bytes();
    assert!(unpack(&packed, &unpacked, with - 1).unwrap_err().to_string().contains("--max-size"));
    unpack(&packed, &unpacked, with).unwrap();
    // A checkpoint whose pages later checkpoints need is missing. Every other file is whole, but the store is
    // incomplete.
    std::fs::remove_file(unpacked.join(CHECKPOINTS).join("00000001.ckpt")).unwrap();
    let copy = open(&unpacked);
    let store = copy.checkpoints().unwrap().unwrap();
    assert!(store.maps_at(20).unwrap_err().is_damage());
}

#[test]
fn nothing_is_overwritten_and_nothing_half_done_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let original = recording(directory.path());
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("u.ttvm"));
    pack(&original, &packed, true).unwrap();
    assert!(pack(&original, &packed, true).is_err() && unpack(&packed, directory.path(), 1 << 30).is_err());
    let bytes = std::fs::read(&packed).unwrap();
    std::fs::write(&packed, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(unpack(&packed, &unpacked, 1 << 30).unwrap_err().exit_code(), 4);
    assert!(!unpacked.exists());
    std::fs::write(&original.manifest.machine.start.booted().kernel.path, b"Kernel").unwrap();
    let other = directory.path().join("other");
    let error = pack(&original, &other, true).unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("kernel has changed"), "{error}");
    assert!(!other.exists());
}

#[test]
fn any_changed_byte_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let packed = directory.path().join("packed");
    pack(&recording(directory.path()), &packed, true).unwrap();
    let bytes = std::fs::read(&packed).unwrap();
    let (expected, files) = read(&bytes).unwrap();
    let log = |memory: &Memory| -> Log<Instructions> {
        parse_log(&memory.files[Path::new(EVENTS)], Format::default()).unwrap()
    };
    let (mut random, mut harmless) = (1_u64, 0);
    for round in 0..2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut damaged = bytes.clone();
        let at = (random >> 33) as usize % bytes.len();
        match round % 3 {
            0 => damaged[at] ^= 1 << (random >> 20 & 7),
            1 => damaged.truncate(at),
            _ => {
                damaged.remove(at);
            }
        }
        // Some bits of compressed data have no meaning, so a change of such a bit is not an error.
        if let Ok((contents, others)) = read(&damaged) {
            assert_eq!(contents.manifest, expected.manifest, "round {round} at {at}");
            assert_eq!(log(&others), log(&files), "round {round} at {at}");
            assert!(others.files == files.files, "round {round} at {at}");
            harmless += 1;
        }
    }
    assert!(harmless < 20, "{harmless} of 2000 changes made no difference");
}

/// The bytes of a file in an archive: its size, its pieces and its hash.
fn in_pieces(contents: &[u8]) -> Vec<u8> {
    let size = (contents.len() as u64).to_le_bytes();
    let mut bytes = size.to_vec();
    for (number, piece) in contents.chunks(archive::CHUNK_BYTES).enumerate() {
        bytes.extend(((number * archive::CHUNK_BYTES) as u64).to_le_bytes());
        bytes.extend((piece.len() as u32).to_le_bytes());
        bytes.extend(piece);
    }
    [&bytes[..], &size, &[0; 4], blake3::hash(contents).as_bytes()].concat()
}

/// An archive with these bytes as its compressed part.
fn archive(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [&archive::MAGIC[..], &archive::VERSION.to_le_bytes()].concat();
    bytes.extend(zstd::encode_all(&parts.concat()[..], 3).unwrap());
    bytes
}

#[test]
fn hostile_archives_are_refused_before_they_cost_anything() {
    let directory = tempfile::tempdir().unwrap();
    let original = recording(directory.path());
    let mut manifest = original.manifest.clone();
    manifest.machine.start.booted_mut().kernel.path = "../../escape".into();
    let text = manifest.text();
    let length = (text.len() as u32).to_le_bytes();
    let log = std::fs::read(original.path.join(EVENTS)).unwrap();
    let (size, whole) = ((log.len() as u64).to_le_bytes(), (log.len() as u32).to_le_bytes());
    let log_file = in_pieces(&log);
    let huge = u64::MAX.to_le_bytes();
    let (most, too_much) = (archive::MAX_LOG_BYTES.to_le_bytes(), (archive::MAX_LOG_BYTES + 1).to_le_bytes());
    let images: Vec<u8> = manifest
        .machine
        .images()
        .flat_map(|(_, image)| {
            let from = if image.path.ends_with("escape") {
                directory.path().join("vmlinuz")
            } else {
                image.path.clone()
            };
            in_pieces(&std::fs::read(from).unwrap())
        })
        .collect();
    let (nothing, one, unnamed) = (in_pieces(b""), 1_u32.to_le_bytes(), 100_000_000_u32.to_le_bytes());
    for (what, parts, expected) in [
        ("a manifest of 4 GiB", vec![&[0xff; 4][..]], "claims 4294967295 bytes"),
        ("a log of 16 EiB", vec![&length, text.as_bytes(), &huge], "claims 18446744073709551615 bytes"),
        ("the largest log", vec![&length, text.as_bytes(), &most], "--max-size"),
        (
            "a log above it",
            vec![&length, text.as_bytes(), &too_much],
            "the event log claims 17179869185 bytes",
        ),
        ("a piece outside", vec![&length, text.as_bytes(), &size, &huge, &whole, &log], "lies outside"),
        (
            "a piece twice",
            vec![&length, text.as_bytes(), &size, &[0; 8], &whole, &log, &[0; 8], &whole, &log],
            "lies outside",
        ),
        ("a piece of 4 GiB", vec![&length, text.as_bytes(), &size, &[0; 8], &[0xff; 4]], "lies outside"),
        (
            "a kernel of another size",
            vec![&length, text.as_bytes(), &log_file, &[9; 8]],
            "does not have the size",
        ),
        ("half a checkpoint", vec![&length, text.as_bytes(), &log_file, &images, &[1]], "is damaged"),
        ("some checkpoints", vec![&length, text.as_bytes(), &log_file, &images, &[7]], "but not 7"),
        (
            "a checkpoint without a name",
            vec![&length, text.as_bytes(), &log_file, &images, &[1], &nothing, &unnamed],
            "the number 100000000 of a checkpoint is out of order",
        ),
        (
            "a checkpoint twice",
            vec![&length, text.as_bytes(), &log_file, &images, &[1], &nothing, &one, &nothing, &one],
            "the number 1 of a checkpoint is out of order",
        ),
        (
            "a checkpoint of 16 EiB",
            vec![&length, text.as_bytes(), &log_file, &images, &[1], &nothing, &one, &huge],
            "--max-size",
        ),
        (
            "something behind the checkpoints",
            vec![&length, text.as_bytes(), &log_file, &images, &[0], &[0]],
            "something follows",
        ),
        ("no kernel", vec![&length, text.as_bytes(), &log_file], "is damaged"),
    ] {
        let error = read(&archive(&parts)).err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(error.exit_code() == 4 && error.to_string().contains(expected), "{what}: {error}");
    }
}
