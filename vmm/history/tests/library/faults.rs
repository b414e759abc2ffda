//! Tests the position `fault`: the instruction whose exception led to a panic.

use history::timeline::Timeline;
use machine::notation::PositionSpec;
use machine::position::Instructions;
use tiny_guest::faulting::{Cause, record};

fn fault(cause: Cause) -> (Timeline, Result<Instructions, String>) {
    let directory = tempfile::tempdir().unwrap();
    let recording = record(directory.path(), "r", cause);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.seek(timeline.end(), &mut || false).unwrap();
    let found = timeline.resolve(PositionSpec::Fault, &mut || false).map_err(|error| error.to_string());
    (timeline, found)
}

#[test]
fn the_exception_whose_handler_reports_is_the_fault() {
    let (mut timeline, found) = fault(Cause::InvalidInstruction);
    timeline.seek(found.unwrap(), &mut || false).unwrap();
    let core = timeline.machine().cpu().core();
    let mut code = [0; 2];
    core.peek(core.rip, &mut code);
    assert_eq!(code, [0x0f, 0x0b], "UD2");
}

#[test]
fn an_exception_that_returned_is_no_fault_although_its_frame_is_still_on_the_stack() {
    let why = fault(Cause::Own).1.unwrap_err();
    assert!(why.contains("no exception in the kernel led to the panic"), "{why}");
}
