//! Records a guest from its first instruction to its end:
//! `cargo run --package ttvm-history --example record -- KERNEL NAME.ttvm`

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use history::machine::config::MachineOptions;
use history::machine::inputs::PowerOn;
use history::machine::script::Script;
use history::recording::Recordable;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, name] = arguments.as_slice() else { return Err("give a kernel and NAME.ttvm".into()) };
    println!("{}", record(kernel.as_ref(), name.as_ref())?);
    Ok(())
}

/// Records the guest in the new folder `name`, and says how the run ended.
pub fn record(kernel: &Path, name: &Path) -> Result<String, Box<dyn Error>> {
    let options = MachineOptions {
        kernel: kernel.to_path_buf(),
        memory_bytes: 64 << 20,
        // The guest ends the run by writing to this port.
        debug_exit: Some(0x501),
        ..MachineOptions::default()
    };
    // The default date and seed are fixed, so each run of this example records the same guest run.
    let mut guest = Recordable::new(&options, PowerOn::default())?;
    // The script types the text as soon as the guest reads the console. A real console is `host::LiveInputs`. Any type
    // can implement `Inputs`.
    let mut console = Script::new(&[("", "hello")]);
    // Checkpoints make travelling fast. Checkpoints are files in the recording.
    let recording = guest.record_in(name)?.checkpoint_every(Duration::from_millis(100));
    let end = recording.run(&mut console)?;
    Ok(format!("{} after {} instructions; console: {}", end.outcome, end.at.count, console.text()))
}
