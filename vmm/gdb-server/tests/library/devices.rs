//! Commands about the guest's disk, and about the board.

use gdb_server::GdbTarget;
use history::never;
use history::timeline::Timeline;
use machine::position::Instructions;
use tiny_guest::disk;

use crate::guest::{Asked, tiny};

#[test]
fn the_disk_is_read_at_the_present_position() {
    let directory = tempfile::tempdir().unwrap();
    let Some(bytes) = disk::make(directory.path()) else {
        return skip::test("there is no mke2fs: install e2fsprogs");
    };
    let recording = disk::record(directory.path(), "r.ttvm", &bytes);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.seek(Instructions(500), &mut never).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    let info = target.ask("disk info");
    assert!(info.starts_with(&format!("disk      {:>12} bytes (", disk::DISK_BYTES)), "{info}");
    assert!(info.contains(", 1 partitions (mbr)\npartition 1 ") && info.ends_with('\n'), "{info}");
    let names = |list: String| -> Vec<String> {
        list.lines().map(|line| line.split_whitespace().nth(6).unwrap().to_string()).collect()
    };
    let root = ["escape", "folder", "link", "long", "lost+found"];
    assert_eq!(names(target.ask("disk ls partition:1")), root);
    assert_eq!(names(target.ask("disk ls / partition:1")), root);
    assert_eq!(names(target.ask("disk ls /folder partition:1")), ["text"]);
    assert_eq!(target.ask("disk cat /link partition:1"), disk::TEXT);
    // Control characters are shown as escapes, and the text gets a line feed.
    assert_eq!(target.ask("disk cat /escape partition:1"), "red \\u001b[31m\u{fffd}\\u0000\n");
    let long = target.ask("disk cat /long partition:1");
    let (shown, rest) = long.split_once('\n').unwrap();
    assert_eq!(shown, "x".repeat(1 << 16));
    assert_eq!(rest, "these are the first 65536 of 100000 bytes; `ttvm disk R cat` writes the whole file\n");
    for (command, why) in [
        ("disk ls", "the disk has partitions; choose one with --partition N, or partition:N in gdb: 1"),
        ("disk ls partition:x", "'partition:x' is no partition: write partition:N"),
        ("disk cat /none partition:1", "/none: there is no such file at this position"),
        ("disk", "write: monitor disk info, disk ls [PATH] or disk cat PATH"),
        ("disk erase", "write: monitor disk info, disk ls [PATH] or disk cat PATH"),
    ] {
        assert_eq!(target.ask(command), format!("error: {why}\n"), "{command}");
    }
    assert_eq!(target.position(), 500);
}

#[test]
fn a_machine_without_a_disk_says_so_and_shows_its_board() {
    let (_directory, mut timeline) = tiny(1000);
    timeline.seek(Instructions(500), &mut never).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    let none = "error: the machine of this recording has no disk; record with --disk\n";
    assert_eq!(target.ask("disk info"), none);
    let board = target.ask("board");
    assert!(
        board.starts_with("instruction 500, ")
            && board.contains("\nprocessor 0, running")
            && board.ends_with('\n'),
        "{board}"
    );
}
