//! Lists the places in a recording where something happens, on all cores:
//! `cargo run --package ttvm-history --example search -- NAME.ttvm console:login:`

use std::error::Error;
use std::path::Path;

use history::machine::position::Instructions;
use history::never;

/// The largest number of places that the example lists.
const MOST: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, condition] = arguments.as_slice() else { return Err("give NAME.ttvm and a condition".into()) };
    for line in search(name.as_ref(), condition)? {
        println!("{line}");
    }
    Ok(())
}

/// Describes the places where a condition is true, in the order of the run.
pub fn search(name: &Path, condition: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut timeline = history::open(name)?;
    timeline.stop_at(condition)?;
    let (first, last) = (Instructions(0), timeline.end());
    // The search calls `look` at each place, with the machine at this place. Here `look` returns the time and a
    // register.
    let look = |machine: &history::machine::Machine<Instructions>, hit: history::timeline::Hit| {
        let (ns, rax) = (machine.moment().time_ns, machine.cpu().state().gpr[0]);
        format!("instruction {} after {ns} ns: {}, rax {rax:#x}", hit.before, hit.cause.told(None))
    };
    Ok(timeline.hits_seen(first, last, MOST, &look, &mut never)?.found)
}
