//! `ttvm drgn`: runs drgn on the machine at one position. drgn reads a core file that exists only in memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use machine::error::Error;
use nix::sys::memfd::{MFdFlags, memfd_create};
use views::core_file;

use crate::help::POSITIONS;
use crate::travel::PlaceArgs;

/// Start drgn on the machine at a position
///
/// drgn knows types and variables only with the kernel's debug information.
///
/// Examples:
///   ttvm drgn R.ttvm --at panic
///   ttvm drgn R.ttvm --at panic -- -s vmlinux script.py
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Arguments for drgn, such as a script, or -s VMLINUX for debug information
    #[arg(last = true, value_name = "DRGN ARGUMENTS")]
    drgn_arguments: Vec<String>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let timeline = args.place.open()?;
    let host = |what: &str| {
        let what = what.to_string();
        move |source| Error::Host { what, source }
    };
    let core = memfd_create("ttvm-core", MFdFlags::empty());
    let mut core = File::from(core.map_err(|errno| host("cannot make a file in memory")(errno.into()))?);
    let written = core_file::write_to(timeline.machine(), &mut core);
    let written = written.map_err(host("cannot write the machine's memory into a file in memory"))?;
    if written.kernel.is_none() {
        let why = "the memory here has no VMCOREINFO note, and drgn needs one: choose a later position";
        return Err(Error::Position(why.to_string()));
    }
    // This process becomes drgn, and still has the file open.
    let path = format!("/proc/self/fd/{}", core.as_raw_fd());
    let error = Command::new("drgn").args(["-c", &path]).args(&args.drgn_arguments).exec();
    Err(Error::Unsupported(format!("cannot start drgn: {error}; `pip install drgn` installs it")))
}
