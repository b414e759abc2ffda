//! Goes to a place in a recording, and shows registers and memory there:
//! `cargo run --package ttvm-history --example seek -- NAME.ttvm 50%`

use std::error::Error;
use std::path::Path;

use history::never;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, place] = arguments.as_slice() else { return Err("give NAME.ttvm and a place".into()) };
    println!("{}", seek(name.as_ref(), place)?);
    Ok(())
}

/// Describes the machine at a place like `end`, `37%`, `12.5s` or `insn:1000`.
pub fn seek(name: &Path, place: &str) -> Result<String, Box<dyn Error>> {
    // The timeline begins at the first instruction.
    let mut timeline = history::open(name)?;
    // `go_to` calls `never` to ask whether to stop, and `never` always answers no. Going back works like going forward.
    timeline.go_to(place.parse()?, &mut never)?;
    let (here, registers) = (timeline.position(), timeline.registers());
    let mut code = [0; 8];
    let count = timeline.read_memory(registers.rip, &mut code);
    // One instruction further, and back again.
    timeline.seek(here + 1, &mut never)?;
    let next = timeline.registers().rip;
    timeline.seek(here, &mut never)?;
    let code = &code[..count];
    Ok(format!("instruction {here}: rip {:#x}, code {code:02x?}, then rip {next:#x}", registers.rip))
}
