//! `ttvm record`: a guest, recorded.

use std::path::PathBuf;

use vmm::error::Error;
use vmm::host::{LiveConsole, RawTerminal};
use vmm::machine::{Machine, RunStop};
use vmm::recorder::Recorder;
use vmm::recording::Recording;

use super::machine_args::MachineArgs;

#[derive(clap::Args)]
pub struct Args {
    /// The recording to make: a directory NAME.ttvm that does not exist yet
    #[arg(short, long, value_name = "NAME.ttvm")]
    output: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let (config, images) = args.machine.config()?;
    let power_on = args.machine.power_on()?;
    let mut machine = Machine::new(&config, &images, &power_on)?;
    drop(images);
    let live = LiveConsole::new(args.machine.live())?;
    let log = Recording::create(&args.output, &config)?;
    let mut recorder = Recorder::new(live, log, power_on);
    let terminal = RawTerminal::enter()?;
    let stop = machine.run(u64::MAX, &mut recorder);
    drop(terminal);
    let RunStop::Ended(outcome) = stop? else { unreachable!("nothing else ends a run without limits") };
    recorder.finish(&mut machine)?;
    let code = super::report_outcome(&machine, &outcome);
    eprintln!("ttvm: recorded in {}", args.output.display());
    Ok(code)
}
