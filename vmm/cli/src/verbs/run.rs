//! `ttvm run`: a guest without recording.

use vmm::engine::EngineKind;
use vmm::error::Error;
use vmm::live::{LiveClock, LiveInputs, RawTerminal};
use vmm::machine::inputs::{Inputs, PowerOn};
use vmm::machine::unit::Unit;
use vmm::machine::{Machine, RunStop};
use vmm::position::{Exits, Instructions};

use crate::machine_args::MachineArgs;
use crate::output::say;
use crate::sandbox_arg::{self, SandboxArgs};
use crate::stats::{Marks, StatsArgs, WithStats};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    stats: StatsArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let power_on = args.machine.power_on()?;
    let marks = args.stats.marks()?;
    match args.machine.engine() {
        EngineKind::Soft => {
            let (mut machine, live) = machine_and_inputs::<Instructions>(args, &power_on)?;
            run_live(args, &mut machine, live, &marks)
        }
        EngineKind::Kvm => {
            let (mut machine, live) = machine_and_inputs::<Exits>(args, &power_on)?;
            run_live(args, &mut machine, LiveClock::new(live, args.machine.clock()), &marks)
        }
    }
}

/// The machine and the inputs of a run that begins.
fn machine_and_inputs<U: Unit>(
    args: &Args,
    power_on: &PowerOn,
) -> Result<(Machine<U>, LiveInputs<U>), Error> {
    let built = args.machine.build(power_on)?;
    let needs = sandbox_arg::of_machine(&built.config, args.machine.engine());
    let (machine, live) = args.machine.live(built)?;
    args.sandbox.lock_in(&needs)?;
    say(&format!("ttvm: {}", live.pacing()));
    Ok((machine, live))
}

fn run_live<U: Unit>(
    args: &Args,
    machine: &mut Machine<U>,
    live: impl Inputs<U>,
    marks: &Marks,
) -> Result<i32, Error> {
    let code = run_to_end(machine, &mut WithStats::new(live, marks.clone()))?;
    args.stats.write(marks, machine)?;
    Ok(code)
}

/// Runs a machine to its end on the user's terminal.
fn run_to_end<U: Unit>(machine: &mut Machine<U>, inputs: &mut dyn Inputs<U>) -> Result<i32, Error> {
    let terminal = RawTerminal::enter()?;
    let stop = machine.run(U::MAX, inputs);
    drop(terminal);
    match stop? {
        RunStop::Ended(outcome) => Ok(crate::output::report_outcome(machine, &outcome)),
        other => unreachable!("nothing else ends a run without limits: {other:?}"),
    }
}
