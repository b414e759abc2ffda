//! Tests `who-set` and `where-to` with a real kernel. Values must be followed back to a sector of the disk or to a typed
//! key, and forward to all their copies.

use history::timeline::Timeline;
use machine::Machine;
use machine::config::MachineOptions;
use machine::position::Instructions;
use machine::script::Script;
use origins::{Answer, EndKind, Location, Onward, OnwardEnd, PassageKind, WhereTo, WhoSet};
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options};
use tests::record::{open, record};

const MEMORY_MIB: u64 = 128;
/// The contents of a sector of the disk, and the sector's number.
const ON_DISK: &[u8] = b"only-on-the-disk";
const SECTOR: usize = 100;
/// The sector to which the guest writes the same bytes.
const WRITTEN: usize = 300;
/// The typed text.
const TYPED: &str = "hellofromthekeyboard";

/// Returns the physical addresses at which RAM has these bytes.
fn places(machine: &Machine<Instructions>, text: &[u8]) -> Vec<u64> {
    let mut ram = vec![0; (MEMORY_MIB << 20) as usize];
    let count = machine.read_physical(0, &mut ram);
    let found = ram[..count].windows(text.len()).enumerate().filter(|(_, window)| *window == text);
    found.map(|(address, _)| address as u64).collect()
}

fn who_set(timeline: &mut Timeline, address: u64, bytes: u64) -> Answer {
    let location: Location = format!("phys:{address:#x}:{bytes}").parse().expect("it is a location");
    let question = WhoSet { location: &location, processor: None, at: timeline.end(), limit: 200 };
    question.run(timeline, &mut || false).unwrap_or_else(|error| panic!("{error}"))
}

/// Where the bytes went that a device wrote, as an answer of `who-set` says.
fn where_to(timeline: &mut Timeline, answer: &Answer) -> Onward {
    let device = answer.links.last().expect("a device wrote the bytes");
    let address = device.to.physical.as_ref().expect("the device wrote memory");
    let location: Location = format!("phys:{address}:8").parse().expect("it is a location");
    let question = WhereTo {
        location: &location,
        processor: None,
        at: Instructions(device.instruction + 1),
        until: timeline.end(),
        through_computations: false,
        with_registers: true,
        limit: 200,
    };
    question.run(timeline, &mut || false).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_sector_and_a_key_are_found_through_pipes_and_processes() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let disk = directory.path().join("disk");
    let mut contents = vec![0; 1 << 20];
    contents[SECTOR * 512..][..ON_DISK.len()].copy_from_slice(ON_DISK);
    std::fs::write(&disk, contents).expect("the folder is ours");
    let options = MachineOptions { disk: Some(disk), ..linux_options(&CLOUD, &BUSYBOX, "", MEMORY_MIB) };
    let path = directory.path().join("r.ttvm");
    let read = format!("dd if=/dev/vda bs=512 skip={SECTOR} count=1 2>/dev/null | cat > /tmp/x");
    let write = format!("dd if=/tmp/x of=/dev/vda bs=512 seek={WRITTEN} 2>/dev/null; sync");
    let mut script = Script::shell(&[&read, &write, &format!("echo {TYPED} > /tmp/y"), "poweroff -f"]);
    record(&Guest::new(&options), &path, &mut script);
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.end();
    timeline.seek(end, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let (sectors, keys) = (places(timeline.machine(), ON_DISK), places(timeline.machine(), TYPED.as_bytes()));
    assert!(!sectors.is_empty() && !keys.is_empty(), "{}", script.text());

    let answers: Vec<Answer> = sectors.iter().map(|address| who_set(&mut timeline, *address, 8)).collect();
    let is_from_disk = |answer: &&Answer| {
        let is_sector = answer.end.text.contains(&format!("byte 0 of sector {SECTOR} of the disk"));
        answer.end.kind == EndKind::Outside && is_sector && answer.links.len() > 3
    };
    let shown = |answers: &[Answer]| answers.iter().map(|answer| format!("{answer}\n\n")).collect::<String>();
    assert!(answers.iter().any(|answer| is_from_disk(&answer)), "{}", shown(&answers));

    // The answer must have all places in RAM with these bytes at the end, and the write to the disk.
    let onward = where_to(&mut timeline, answers.iter().find(is_from_disk).expect("one is from the disk"));
    let is_left = |address: &u64| {
        onward
            .left
            .iter()
            .any(|span| span.physical.as_deref() == Some(&format!("{address:#x}")) && span.bytes == 8)
    };
    assert!(onward.end == OnwardEnd::Searched && sectors.iter().all(is_left), "{sectors:x?}\n{onward}");
    let written = format!("byte 0 of sector {WRITTEN} of the disk");
    let is_sent = |device: &Option<String>| device.as_ref() == Some(&written);
    let sent = onward.passages.iter().filter(|passage| passage.kind == PassageKind::Sent);
    assert_eq!(sent.filter(|passage| is_sent(&passage.device)).count(), 1, "{onward}");
    // The way forward has all steps of the ways back. A repeated move takes up to eight steps.
    for answer in answers.iter().filter(is_from_disk) {
        let copies = &answer.links[..answer.links.len() - 1];
        let is_there = |at: u64| {
            let begins = onward.passages.iter().map(|passage| passage.moment.instruction);
            begins.filter(|begin| *begin <= at).any(|begin| at - begin < 8)
        };
        assert!(copies.iter().all(|link| is_there(link.instruction)), "{answer}\n{onward}");
    }

    let answers: Vec<Answer> = keys.iter().map(|address| who_set(&mut timeline, *address, 1)).collect();
    let is_typed =
        |answer: &Answer| answer.end.text.contains("'h' typed at event") && answer.end.event.is_some();
    assert!(answers.iter().any(is_typed), "{}", shown(&answers));
    assert!(answers.iter().all(|answer| answer.end.kind != EndKind::Unexplained), "{}", shown(&answers));
}
