//! `ttvm dump`: writes the guest's memory and registers at one position to a core file.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use machine::position::Count;
use serde::Serialize;
use views::core_file::{self, Written};

use crate::output::say;
use crate::travel::PlaceArgs;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The file to make, which must not exist yet: an ELF core file for crash, drgn and the like, which want the kernel's
    /// debug information beside it, such as that of Debian's -dbg package. Zeroes take no room on the disk
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Print as JSON what was written
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    file: &'a PathBuf,
    instruction: u64,
    guest_seconds: f64,
    #[serde(flatten)]
    written: Written,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let timeline = args.place.open()?;
    let written = core_file::write(timeline.machine(), &args.output)?;
    if written.kernel.is_none() {
        say(
            "ttvm: there is no VMCOREINFO note in memory here: crash and drgn will not open this without one",
        );
    }
    let now = timeline.machine().moment();
    let (instruction, guest_seconds) = (now.count.number(), now.time_ns as f64 / 1e9);
    crate::output::print(&if args.json {
        let report = Report { file: &args.output, instruction, guest_seconds, written };
        serde_json::to_string_pretty(&report).expect("plain data always serializes")
    } else {
        let kernel = written.kernel.as_deref().unwrap_or("none that says so");
        format!(
            "{}: {} bytes of memory at insn:{instruction}, {guest_seconds:.9} s, kernel {kernel}; {} bytes on the disk",
            args.output.display(),
            written.memory_bytes,
            written.disk_bytes
        )
    })?;
    Ok(exit_code::DONE)
}
