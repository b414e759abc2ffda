//! `ttvm dump`: writes the guest's memory and registers at one position to a core file.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use machine::new_file::NewFile;
use machine::position::Count;
use serde::Serialize;
use views::core_file::{self, Written};

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::PlaceArgs;

/// Write memory and registers at a position to a core file for crash or drgn
///
/// Both programs need the kernel's debug information, for example from Debian's package linux-image-RELEASE-dbg.
///
/// Examples:
///   ttvm dump R.ttvm --at panic -o vmcore
///   crash vmlinux vmcore
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The new ELF core file to write.
    ///
    /// Zeroes take no space on the disk.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Print the report as JSON
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
    // Tests now whether the file can be made, because going to the position may take long.
    drop(NewFile::begin(&args.output)?);
    let timeline = args.place.open()?;
    let written = core_file::write(timeline.machine(), &args.output)?;
    if written.kernel.is_none() {
        say(
            "ttvm: the memory here has no VMCOREINFO note, so crash and drgn cannot open the file; choose a later \
             position",
        );
    }
    let now = timeline.machine().moment();
    let (instruction, guest_seconds) = (now.count.number(), now.time_ns as f64 / 1e9);
    crate::output::print(&if args.json {
        let report = Report { file: &args.output, instruction, guest_seconds, written };
        serde_json::to_string_pretty(&report).expect("plain data always serializes")
    } else {
        let kernel = written.kernel.as_deref().unwrap_or("unknown");
        format!(
            "{}: {} bytes of memory at insn:{instruction}, {guest_seconds:.9} s, kernel {kernel}; {} bytes on the disk",
            args.output.display(),
            written.memory_bytes,
            written.disk_bytes
        )
    })?;
    Ok(exit_code::DONE)
}
