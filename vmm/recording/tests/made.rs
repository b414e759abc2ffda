//! Tests of the recording builder: which machines can be recorded, and which files stay on the disk.

use machine::Outcome;
use machine::inputs::PowerOn;
use machine::script::Script;
use recording::{CHECKPOINTS, Opened, Recordable};
use tiny_guest::{options, write_kernel};

fn guest(directory: &std::path::Path) -> Recordable<machine::position::Instructions> {
    Recordable::new(&options(write_kernel(directory, 10_000)), PowerOn::default()).unwrap()
}

#[test]
fn a_machine_is_recorded_once_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("1.ttvm"), directory.path().join("2.ttvm"));
    let mut guest = guest(directory.path());
    let recording = guest.record_in(&first).unwrap().checkpoints(None);
    let end = recording.run(Script::silent()).unwrap();
    assert_eq!(
        (guest.machine.outcome(), &end.outcome),
        (Some(&end.outcome), &Outcome::DebugExit { code: 1 })
    );
    assert!(matches!(Opened::open(&first).unwrap(), Opened::ByInstructions(_)));
    assert!(!first.join(CHECKPOINTS).exists());
    let error = guest.record_in(&second).err().unwrap().to_string();
    assert!(error.contains("record from here") && !second.exists(), "{error}");
}

#[test]
fn a_machine_whose_beginning_was_forgotten_cannot_be_recorded_from_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut guest = guest(directory.path());
    guest.forget_beginning();
    assert!(guest.record_in(directory.path().join("1.ttvm")).is_err());
}

#[test]
fn a_recording_is_never_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("1.ttvm");
    std::fs::create_dir(&name).unwrap();
    let mut guest = guest(directory.path());
    assert!(guest.record_in(&name).err().unwrap().to_string().contains("never overwrites"));
    // The folder of the failed recording is empty, so the caller can use the folder for another recording.
    guest.record_in_empty(&name).unwrap().run(Script::silent()).unwrap();
}
