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
    // A file that may not grow is to be an error of writing, which can be said in a sentence.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default())
        .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
    let log = Recording::create(&args.output, &config)?;
    let mut recorder = Recorder::new(live, log, power_on);
    let terminal = RawTerminal::enter()?;
    let stop = machine.run(u64::MAX, &mut recorder);
    drop(terminal);
    let kept = |error| cut_off(error, args, &machine);
    let RunStop::Ended(outcome) = stop.map_err(kept)? else {
        unreachable!("nothing else ends a run without limits")
    };
    if let Err(error) = recorder.finish(&mut machine) {
        return Err(cut_off(error, args, &machine));
    }
    let code = super::report_outcome(&machine, &outcome);
    eprintln!("ttvm: recorded in {}", args.output.display());
    Ok(code)
}

/// What to say when the recording could not be carried on: what is there is not lost.
fn cut_off(error: Error, args: &Args, machine: &Machine) -> Error {
    match error {
        Error::File { action, path, source } if path.starts_with(&args.output) => Error::CutOff {
            action,
            path,
            recording: args.output.clone(),
            steps: machine.moment().steps,
            source,
        },
        other => other,
    }
}
