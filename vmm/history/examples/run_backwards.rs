//! Finds out who wrote to a place in memory, by running backwards from the end of a recording:
//! `cargo run --package ttvm-history --example run_backwards -- NAME.ttvm write:0x200000+4`

use std::error::Error;
use std::path::Path;

use history::machine::notation::PositionSpec;
use history::never;
use history::timeline::TravelStop;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, condition] = arguments.as_slice() else { return Err("give NAME.ttvm and a condition".into()) };
    for line in run_backwards(name.as_ref(), condition)? {
        println!("{line}");
    }
    Ok(())
}

/// Describes the last three places where a condition was true, the latest first.
pub fn run_backwards(name: &Path, condition: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut timeline = history::open(name)?;
    timeline.go_to(PositionSpec::End, &mut never)?;
    // `history::timeline::CONDITIONS` lists the conditions: breakpoints, watchpoints, system calls, console text.
    timeline.stop_at(condition)?;
    let mut found = Vec::new();
    while found.len() < 3 {
        // `run_backward` stops before the instruction that makes the condition true. `run_forward` would stop after
        // this instruction.
        let TravelStop::Hit(cause) = timeline.run_backward(&mut never)? else { break };
        let (here, rip) = (timeline.position(), timeline.registers().rip);
        found.push(format!("instruction {here} at {rip:#x}: {}", cause.told(None)));
    }
    Ok(found)
}
