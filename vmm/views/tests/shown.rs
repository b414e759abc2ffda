//! Tests the views of the tiny guest, and the program in `examples`.

// The example has its own `main`.
#[allow(dead_code)]
#[path = "../examples/state.rs"]
mod state;

use history::never;
use history::timeline::Direction;
use machine::position::Instructions;
use tiny_guest::{STIRRED, record, typed};
use views::filters::Filters;
use views::hits::{Search, Wanted};

#[test]
fn a_state_is_data_and_text() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 10_000, typed(&[(5_000, "h")]));
    let state = state::state(&recording.path, "end").unwrap();
    assert_eq!((state.console.as_slice(), state.code.len()), (["h".to_string()].as_slice(), 4));
    assert!(state.registers.values["rip"].starts_with("0x100") && state.processes.is_none());
    let text = state.to_string();
    assert!(text.starts_with(&format!("instruction {}, branch ", state.instruction)), "{text}");
    assert!(text.contains("\n\ncode\n  0x100") && text.ends_with("\n\nconsole\n  h"), "{text}");
}

#[test]
fn the_last_of_all_places_is_the_one_before_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 10_000, Vec::new());
    let mut timeline = history::open(&recording.path).unwrap();
    let (from, to) = (Instructions(0), timeline.end());
    let condition = &format!("write:{STIRRED:#x}+16384");
    let filters = Filters::default();
    let mut found = |wanted| {
        Search { condition, filters: &filters, wanted, backtrace: false }
            .run(&mut timeline, &mut never)
            .unwrap()
    };
    let all = found(Wanted::All { from, to, limit: 10_000 });
    let last = found(Wanted::One { from: to, direction: Direction::Backward });
    assert!(all.hits.len() > 3 && last.hits.len() == 1 && !all.interrupted);
    assert_eq!(last.hits[0].instruction, all.hits.last().unwrap().instruction);
    assert!(last.to_string().contains("  rip 0x100"), "{last}");
    // Each write to a place finds the value of the previous write.
    let places = |at: u64| all.hits.iter().filter(move |hit| hit.what == format!("write to {at:#x}"));
    let mut pairs = 0;
    for at in (STIRRED..STIRRED + 16384).step_by(4) {
        let written: Vec<_> = places(at).collect();
        for two in written.windows(2) {
            pairs += usize::from(two[0].new.is_some());
            assert_eq!(two[0].new, two[1].old, "{at:#x}");
        }
    }
    assert!(
        all.hits.iter().all(|hit| hit.old.is_some() && hit.new.is_some() && hit.old != hit.new),
        "{pairs}"
    );
    assert_eq!(
        (&last.hits[0].old, &last.hits[0].new),
        (&all.hits.last().unwrap().old, &all.hits.last().unwrap().new)
    );
    let none = found(Wanted::One { from, direction: Direction::Backward });
    assert_eq!(none.to_string(), "nowhere in that part of the recording");
}
