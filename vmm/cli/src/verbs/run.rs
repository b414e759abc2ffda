//! `ttvm run`: a guest without recording.

use vmm::engine::EngineKind;
use vmm::error::Error;
use vmm::live::{LiveClock, LiveConsole, RawTerminal};
use vmm::machine::inputs::Inputs;
use vmm::machine::{Machine, RunStop};

use crate::machine_args::MachineArgs;
use crate::stats::{StatsArgs, WithStats};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    stats: StatsArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let power_on = args.machine.power_on()?;
    let (_, mut machine) = args.machine.build(&power_on)?;
    let live = LiveConsole::new(args.machine.live())?;
    match args.machine.engine() {
        EngineKind::Soft => run_live(args, &mut machine, live),
        EngineKind::Kvm => run_live(args, &mut machine, LiveClock::new(live, args.machine.clock())),
    }
}

fn run_live(args: &Args, machine: &mut Machine, live: impl Inputs) -> Result<i32, Error> {
    if !args.stats.wanted() {
        let mut live = live;
        return run_to_end(machine, &mut live);
    }
    let mut inputs = WithStats::new(live);
    let code = run_to_end(machine, &mut inputs)?;
    args.stats.write(Some(inputs.marks()), machine)?;
    Ok(code)
}

/// Runs a machine to its end on the user's terminal.
pub fn run_to_end(machine: &mut Machine, inputs: &mut dyn Inputs) -> Result<i32, Error> {
    let terminal = RawTerminal::enter()?;
    let stop = machine.run(u64::MAX, inputs);
    drop(terminal);
    match stop? {
        RunStop::Ended(outcome) => Ok(crate::output::report_outcome(machine, &outcome)),
        other => unreachable!("nothing else ends a run without limits: {other:?}"),
    }
}
