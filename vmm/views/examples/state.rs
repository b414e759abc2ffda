//! Shows the machine at a place of a recording, like `ttvm state`:
//! `cargo run --package ttvm-views --example state -- NAME.ttvm 50%`

use std::error::Error;
use std::path::Path;

use history::never;
use views::state::{State, StateOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, place] = arguments.as_slice() else { return Err("give NAME.ttvm and a place".into()) };
    println!("{}", state(name.as_ref(), place)?);
    Ok(())
}

/// The machine at a place, as plain data. Any serde format can write this data, and its `Display` is for people.
pub fn state(name: &Path, place: &str) -> Result<State, Box<dyn Error>> {
    let mut timeline = history::open(name)?;
    timeline.go_to(place.parse()?, &mut never)?;
    // For a Linux guest, the options `processes`, `backtrace` and `dmesg` add more parts.
    let options = StateOptions { instructions: 4, console_lines: 10, ..StateOptions::default() };
    Ok(State::of(timeline.machine(), &options)?)
}
