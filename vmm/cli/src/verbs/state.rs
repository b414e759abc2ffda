//! `ttvm state`: shows the machine at one position.

use history::timeline::number;
use machine::error::{Error, exit_code};
use views::memory::Range;
use views::state::{State, StateOptions};

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::PlaceArgs;

/// Largest number of bytes of memory that are printed at once.
const MAX_MEMORY_BYTES: u64 = 1 << 20;

/// Show the machine at a position: registers, code, memory, processes, console
///
/// Examples:
///   ttvm state R.ttvm --at panic --backtrace
///   ttvm state R.ttvm --at 12.5s --processes --dmesg
///   ttvm state R.ttvm --at 37% --cpu 2 --backtrace
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Show this processor, by its number, instead of the running one
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Show memory at a virtual address, as ADDR:LEN (repeatable)
    #[arg(long, value_name = "ADDR:LEN", value_parser = parse_range)]
    memory: Vec<Range>,
    /// Show memory at a physical address, as ADDR:LEN (repeatable)
    #[arg(long, value_name = "ADDR:LEN", value_parser = parse_range)]
    physical: Vec<Range>,
    /// Show the guest's processes
    #[arg(long)]
    processes: bool,
    /// Show the kernel's call stack, from the kernel's own unwind tables (ORC)
    #[arg(long)]
    backtrace: bool,
    /// Show the kernel's messages, as dmesg does
    #[arg(long)]
    dmesg: bool,
    /// Number of instructions to disassemble, from RIP on
    #[arg(long, value_name = "N", default_value_t = 8)]
    instructions: usize,
    /// Number of console lines to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    console: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_range(text: &str) -> Result<Range, String> {
    let parsed = text
        .split_once(':')
        .and_then(|(address, length)| Some(Range { address: number(address)?, length: number(length)? }));
    let is_range = |range: &Range| {
        let last = range.length.checked_sub(1).and_then(|last| range.address.checked_add(last));
        range.length <= MAX_MEMORY_BYTES && last.is_some()
    };
    parsed
        .filter(is_range)
        .ok_or_else(|| format!("'{text}' is no range: write ADDR:LEN, 1 to {MAX_MEMORY_BYTES} bytes"))
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let timeline = args.place.open()?;
    let state = State::of(timeline.machine(), &args.options())?;
    if let Some(damage) = state.processes.as_ref().and_then(|processes| processes.damage.as_ref()) {
        say(&format!("ttvm: the list of processes is incomplete: {damage}"));
    }
    crate::output::print_answer(&state, args.json)?;
    Ok(exit_code::DONE)
}

impl Args {
    fn options(&self) -> StateOptions {
        StateOptions {
            processor: self.cpu,
            memory: self.memory.clone(),
            physical: self.physical.clone(),
            processes: self.processes,
            backtrace: self.backtrace,
            dmesg: self.dmesg,
            instructions: self.instructions,
            console_lines: self.console,
        }
    }
}
