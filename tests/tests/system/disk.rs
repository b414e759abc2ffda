//! Tests `ttvm disk` with a real kernel that changes an ext4 file system. The second opinions are e2fsprogs and qemu-img on
//! exported images, and the guest's own view of its partitions.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use history::timeline::Timeline;
use machine::config::MachineOptions;
use machine::script::Script;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use recording::pace::CheckpointOptions;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options, repository};
use tests::program::{json, missing, run, ttvm};
use tests::record::{open, record_with_checkpoints};

/// Where the partition begins.
const START_BYTES: u64 = 1 << 20;
const PARTITION_MIB: u64 = 16;
/// The commands that the guest runs before each mark on its console. The shell shows the typed line, too, so the line has the mark in
/// two parts.
const STEPS: [&str; 3] = [
    "echo first > /mnt/log; mkdir /mnt/d; echo old > /mnt/d/gone; sync; echo MA''RK-0",
    // A file with reserved blocks, links, a device, and blocks that were folders before and have data now.
    "fallocate -l 300000 /mnt/reserved; echo middle | dd of=/mnt/reserved bs=1 seek=100000 conv=notrunc 2>/dev/null; \
     for n in 1 2 3 4 5 6 7 8; do mkdir /mnt/f$n; touch /mnt/f$n/a; sync; rm -r /mnt/f$n; sync; \
     dd if=/dev/urandom of=/mnt/r$n bs=4096 count=3 2>/dev/null; sync; done; rm /mnt/d/gone; ln -s ../log /mnt/d/link; \
     mknod /mnt/d/tty c 4 65; chmod 4751 /mnt/r1; sync; echo MA''RK-1",
    "echo second >> /mnt/log; mv /mnt/r2 /mnt/d/moved; sync; cat /proc/partitions; echo MA''RK-2",
];

/// Writes a disk with one partition, which has an empty ext4 file system.
fn write_disk(path: &Path) {
    let file = std::fs::File::create(path).expect("the folder is ours");
    file.set_len(START_BYTES + (PARTITION_MIB << 20)).expect("it is ours");
    let mut sector = [0; 512];
    let (start, sectors) = ((START_BYTES / 512) as u32, (PARTITION_MIB << 20) as u32 / 512);
    sector[446 + 4] = 0x83;
    sector[446 + 8..446 + 12].copy_from_slice(&start.to_le_bytes());
    sector[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&sector, 0).expect("it is ours");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-L", "logs", "-b", "4096", "-E"])
        .arg(format!("offset={START_BYTES}"));
    let made = make.arg(path).arg(format!("{PARTITION_MIB}M")).output().expect("it is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The bytes that debugfs reads from a file of an image.
fn by_debugfs(image: &Path, request: &str) -> Vec<u8> {
    let output = Command::new("debugfs").args(["-R", request]).arg(image).output().expect("it is installed");
    output.stdout
}

/// Runs `ttvm disk` at a position. Returns the output's bytes.
fn disk(folder: &Path, at: &str, arguments: &[&str]) -> Vec<u8> {
    let mut program = Command::new(ttvm());
    program.current_dir(folder).args(["disk", "r.ttvm", "--partition", "1", "--at", at]).args(arguments);
    let output = program.stdin(Stdio::null()).output().expect("ttvm can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The files of a folder and of the folders in it, with their kinds and numbers. debugfs is asked for each file.
fn compare(folder: &Path, at: &str, image: &Path, path: &str) -> usize {
    let listed = json(folder, &["disk", "r.ttvm", "--partition", "1", "--at", at, "ls", path, "--json"]);
    let entries = listed["entries"].as_array().expect("a list");
    let theirs = String::from_utf8(by_debugfs(image, &format!("ls -p {path}"))).expect("our names are text");
    let mut count = 0;
    for entry in entries {
        let name = entry["name"].as_str().expect("a name");
        let (mode, uid) = (entry["mode"].as_u64().expect("a number"), entry["uid"].as_u64());
        // /inode/mode/uid/gid/name/size/
        let is_same = theirs.lines().any(|line| {
            let parts: Vec<&str> = line.split('/').collect();
            let their_mode = parts.get(2).and_then(|mode| u64::from_str_radix(mode, 8).ok());
            parts.get(5) == Some(&name)
                && their_mode.map(|mode| mode & 0o7777) == Some(mode)
                && parts[3].parse().ok() == uid
        });
        assert!(is_same, "{path} {name}: {entry} {theirs}");
        let whole = format!("{}/{name}", path.trim_end_matches('/'));
        match entry["kind"].as_str() {
            Some("regular") => {
                let (ours, theirs) =
                    (disk(folder, at, &["cat", &whole]), by_debugfs(image, &format!("cat {whole}")));
                assert!(ours == theirs, "{at} {whole}: {} and {} bytes", ours.len(), theirs.len());
            }
            Some("folder") => count += compare(folder, at, image, &whole),
            _ => {}
        }
        count += 1;
    }
    // debugfs also lists ".", ".." and unused entries, whose inode is 0.
    let lines = theirs.lines().filter(|line| line.starts_with('/') && !line.starts_with("/0/")).count();
    assert_eq!(entries.len() + 2, lines, "{path}: {theirs}");
    count
}

/// Serves the partition at the recording's end by NBD, and reads it with qemu-img. The result must be `expected`.
fn read_by_nbd(folder: &Path, expected: &[u8]) {
    if let Some(why) = missing(&["qemu-img"]) {
        return skip::test(why);
    }
    let mut program = Command::new(ttvm());
    program.current_dir(folder).args([
        "disk",
        "r.ttvm",
        "--partition",
        "1",
        "mount",
        "--listen",
        "unix:disk.socket",
    ]);
    let mut server = program.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ttvm can be run");
    let mut said = BufReader::new(server.stdout.take().expect("it was asked for"));
    let mut first = String::new();
    said.read_line(&mut first).expect("it says what it does");
    assert!(first.starts_with("serving 16777216 bytes"), "{first}");
    let mut copy = Command::new("qemu-img");
    let copy = copy.current_dir(folder).args(["convert", "-f", "raw", "-O", "raw"]);
    let copied = copy.args(["nbd+unix:///?socket=disk.socket", "nbd.img"]).output().expect("it is installed");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    assert!(std::fs::read(folder.join("nbd.img")).expect("it was written") == expected);
    kill(Pid::from_raw(server.id() as i32), Signal::SIGINT).expect("it is ours");
    assert!(server.wait().expect("it is ours").success());
    said.read_to_string(&mut first).expect("it has ended");
    assert!(!folder.join("disk.socket").exists());
}

#[test]
fn files_and_images_at_each_position_are_as_other_programs_read_them() {
    if let Some(why) = missing(&["mke2fs", "debugfs", "e2fsck"]) {
        return skip::test(why);
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let folder = directory.path();
    let image = folder.join("disk");
    write_disk(&image);
    let before = std::fs::read(&image).expect("it was written");
    let options = MachineOptions { disk: Some(image.clone()), ..linux_options(&CLOUD, &BUSYBOX, "", 128) };
    let mut commands = vec!["mount -t ext4 /dev/vda1 /mnt && echo MOUN''TED"];
    commands.extend(STEPS);
    commands.push("poweroff -f");
    let mut script = Script::shell(&commands);
    // With many checkpoints, the disk's blocks come from the image, from checkpoints and from the replay.
    let dense = CheckpointOptions { interval_ns: 0, min_steps: 40_000_000, ..CheckpointOptions::default() };
    record_with_checkpoints(&Guest::new(&options), &folder.join("r.ttvm"), &mut script, dense);
    let console = script.text();
    assert!(console.contains("MOUNTED") && console.contains("MARK-2"), "{console}");
    assert!(std::fs::read(&image).expect("it is there") == before, "the image was written");

    let info = json(folder, &["disk", "r.ttvm", "info", "--json"]);
    let partition = &info["partitions"][0];
    let kib = partition["size_bytes"].as_u64().expect("a number") / 1024;
    assert!(console.lines().any(|line| line.contains(&format!("{kib} vda1"))), "{info} {console}");
    assert_eq!((&info["table"], &partition["start_bytes"]), (&"mbr".into(), &START_BYTES.into()));
    assert_eq!(partition["file_system"]["label"], "logs");
    assert_eq!(partition["file_system"]["journal_in_use"], true);

    let start = json(folder, &["disk", "r.ttvm", "--at", "start", "--partition", "1", "ls", "--json"]);
    assert_eq!(start["entries"].as_array().map(Vec::len), Some(1), "{start}");
    let mut last = Vec::new();
    for (step, log) in ["first\n", "first\n", "first\nsecond\n"].into_iter().enumerate() {
        let found =
            json(folder, &["search", "r.ttvm", &format!("console:MARK-{step}"), "--forward", "--json"]);
        let at = found["hits"][0]["instruction"].as_u64().unwrap_or_else(|| panic!("{found}"));
        let at = format!("insn:{at}");
        assert_eq!(String::from_utf8_lossy(&disk(folder, &at, &["cat", "/log"])), log);
        let exported = folder.join(format!("{step}.img"));
        disk(folder, &at, &["export", "-o", exported.to_str().expect("text")]);
        // e2fsck applies the journal, and must find no damage.
        let mut check = Command::new("e2fsck");
        let checked =
            check.args(["-E", "journal_only", "-p"]).arg(&exported).output().expect("it is installed");
        assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
        let checked =
            Command::new("e2fsck").args(["-f", "-n"]).arg(&exported).output().expect("it is installed");
        assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stdout));
        let files = compare(folder, &at, &exported, "/");
        assert!(files > if step == 0 { 3 } else { 11 }, "{files} files");
        last = disk(folder, &at, &["ls", "/d"]);
    }
    let text = String::from_utf8_lossy(&last).into_owned();
    assert!(
        text.contains(" link -> ../log") && text.contains(" 4, 65 ") && text.contains(" moved"),
        "{text}"
    );
    assert_eq!(disk(folder, "end", &["cat", "/d/link"]), b"first\nsecond\n");

    disk(folder, "end", &["export", "-o", "end.img"]);
    read_by_nbd(folder, &std::fs::read(folder.join("end.img")).expect("it was written"));
    refusals(folder);
    gdb_shows_the_same(folder);
}

/// gdb's `tt disk` shows the disk at gdb's position, here the start and the end.
fn gdb_shows_the_same(folder: &Path) {
    let commands = [
        format!("source {}", repository().join("gdb/commands/tt.py").display()),
        "tt disk info".to_string(),
        "tt disk cat /log partition:1".to_string(),
        "tt disk ls /d partition:1".to_string(),
        "tt disk ls".to_string(),
        "tt disk cat /reserved partition:1".to_string(),
        "tt goto start".to_string(),
        "tt disk cat /log partition:1".to_string(),
    ];
    let mut timeline =
        Timeline::open(&open(&folder.join("r.ttvm"))).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.end();
    timeline.seek(end, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let said = batch::serve(&mut timeline, folder, |socket| {
        let mut gdb = batch::gdb();
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    for text in [
        "1 partitions (mbr)",
        "first\nsecond\n",
        " link -> ../log\n",
        "the disk has partitions; choose one with --partition N, or partition:N in gdb: 1",
        "these are the first 65536 of 300000 bytes",
        "/log: there is no such file at this position",
    ] {
        assert!(said.contains(text), "{text:?} is not in {said}");
    }
}

/// Requests that do not fit the disk get one sentence.
fn refusals(folder: &Path) {
    for (arguments, expected) in [
        (
            &["ls"][..],
            "ttvm: the disk has partitions; choose one with --partition N, or partition:N in gdb: 1\n",
        ),
        (&["--partition", "2", "ls"], "ttvm: the disk has no partition 2 at this position; it has 1\n"),
        (&["--partition", "1", "cat", "/none"], "ttvm: /none: there is no such file at this position\n"),
        (&["--partition", "1", "cat", "/d"], "ttvm: /d: it is a folder; give a file with contents\n"),
    ] {
        let (code, out, said) = run(folder, &[&["disk", "r.ttvm"], arguments].concat());
        assert_eq!((code, &*out, &*said), (Some(2), "", expected));
    }
}
