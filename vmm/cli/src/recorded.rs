//! The code that all recorded runs share, whether they are recorded from the first instruction or later.

use std::path::Path;

use checkpoint::Policy;
use host::RawTerminal;
use machine::error::Error;
use machine::inputs::Inputs;
use machine::notation;
use machine::unit::Unit;
use machine::{Format, Machine, Outcome};
use recording::pace::CheckpointOptions;
use recording::{NewRecording, checkpointer, write_panic_note};

use crate::keep_on::{self, KeepOn};
use crate::output::say;
use crate::panic_watch::PanicWatch;

/// Which checkpoints are taken and kept.
#[derive(clap::Args)]
pub struct CheckpointArgs {
    /// Guest time between two checkpoints, like 1s or 250ms; 0 for no checkpoints.
    ///
    /// The default is 250ms, and more while the guest writes a lot. A value that you give holds whatever it costs, unless you also
    /// give --checkpoint-overhead. An idle guest gets fewer checkpoints.
    #[arg(long, help_heading = "Checkpoints", value_name = "TIME", value_parser = notation::time, requires = "output")]
    checkpoint_interval: Option<u64>,
    /// Maximum share of the run's time for storing checkpoints [default: 4%]
    #[arg(long, help_heading = "Checkpoints", value_name = "PERCENT", value_parser = percent, requires = "output")]
    checkpoint_overhead: Option<f64>,
    /// Maximum disk space for checkpoints. ttvm removes older checkpoints to stay below it
    #[arg(long, help_heading = "Checkpoints", value_name = "SIZE", default_value = "8G", value_parser = notation::bytes, requires = "output")]
    max_size: u64,
    /// Keep only checkpoints of the last guest time, like 10s, and one checkpoint before it
    #[arg(long, help_heading = "Checkpoints", value_name = "TIME", value_parser = notation::time, requires = "output")]
    last: Option<u64>,
}

/// Parses a percentage, like 5% or 2.5.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|percent| (0.01..=100.0).contains(percent))
        .ok_or_else(|| format!("'{text}' is no share like 5%, from 0.01% to 100%"))
}

impl CheckpointArgs {
    /// The options for a recording's checkpoints; `None` for a recording without checkpoints.
    fn options(&self) -> Option<CheckpointOptions> {
        let interval_ns = self.checkpoint_interval.unwrap_or(CheckpointOptions::INTERVAL_NS);
        let usual = CheckpointOptions::default();
        let usual = match (self.checkpoint_overhead, self.checkpoint_interval) {
            (Some(percent), _) => usual.with_overhead(percent),
            (None, Some(_)) => usual.at_any_cost(),
            (None, None) => usual,
        };
        (interval_ns > 0).then(|| CheckpointOptions {
            interval_ns,
            // A busy guest executes one instruction per nanosecond.
            min_steps: usual.min_steps.min(interval_ns / 4),
            slice_steps: usual.slice_steps.min(interval_ns.max(1_000_000)),
            policy: Policy { max_bytes: Some(self.max_size), keep_last_ns: self.last, ..Policy::default() },
            ..usual
        })
    }

    /// Warns if `--max-size` is too small.
    fn say_when_too_small<U: Unit>(&self, machine: &Machine<U>, format: Format) {
        let (max, memory) = (self.max_size, machine.ram().size_bytes());
        let least = checkpointer::least_bytes(machine, format);
        if self.checkpoint_interval == Some(0) || max >= memory.max(least) {
            return;
        }
        say(&if max < least {
            format!(
                "ttvm: --max-size of {max} bytes is too small: a checkpoint takes more than {least} bytes, so there \
                 will be none; raise --max-size\r"
            )
        } else {
            format!(
                "ttvm: --max-size of {max} bytes is less than the guest's memory of {memory}: checkpoints stop when \
                 one does not fit; raise --max-size\r"
            )
        });
    }
}

/// Records a machine to its end, on the user's terminal.
pub fn record_to_end<U: Unit>(
    args: &CheckpointArgs,
    recording: NewRecording<'_, U>,
    inputs: impl Inputs<U>,
) -> Result<(), Error> {
    args.say_when_too_small(recording.machine(), recording.format());
    let _terminal = RawTerminal::enter()?;
    recording.checkpoints(args.options()).run(inputs).map(drop)
}

/// Reports how a recorded run ended, and returns the exit code. If the run went on after a panic, writes a note about
/// the panic into the recording. Removes the recording if `--keep-on` says so.
pub fn report<U: Unit>(
    machine: &Machine<U>,
    output: &Path,
    watch: &PanicWatch,
    keep_on: KeepOn,
) -> Result<i32, Error> {
    let outcome = machine.outcome().expect("a recording ends with the run");
    let panic = watch.panic(machine, outcome).filter(|_| *outcome != Outcome::Panic);
    panic.iter().for_each(|line| write_panic_note(output, line));
    let code = crate::output::report_outcome(machine, outcome, panic.is_some());
    let name = output.display();
    if keep_on.keeps(outcome, panic.is_some()) {
        say(&format!("ttvm: recorded in {name}"));
    } else if machine.asked_to_be_kept() {
        say(&format!("ttvm: recorded in {name}; the guest asked to keep the recording"));
    } else {
        keep_on::remove(output)?;
        say(&format!("ttvm: the guest ended its run without a panic, so --keep-on fail removed {name}"));
    }
    Ok(code)
}
