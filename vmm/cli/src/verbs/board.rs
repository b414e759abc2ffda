//! `ttvm board`: shows the board's chips and devices at one position.

use machine::error::{Error, exit_code};
use views::board::Board;

use crate::help::POSITIONS;
use crate::travel::PlaceArgs;

/// Show the chips and devices at a position: interrupts, timers, PCI, virtio queues
///
/// The last part of the answer lists the next events.
/// If the kernel's symbols and types are known, interrupt vectors have the kernel's names.
///
/// Examples:
///   ttvm board R.ttvm --at 12.5s
///   ttvm board R.ttvm --at panic --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let board = Board::of(&args.place.open()?)?;
    crate::output::print_answer(&board, args.json)?;
    Ok(exit_code::DONE)
}
