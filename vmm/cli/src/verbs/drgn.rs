//! `ttvm drgn`: runs drgn on the machine at one position. drgn reads a core file without a name, which takes no disk
//! space.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use machine::error::Error;
use nix::sys::memfd::{MFdFlags, memfd_create};
use views::core_file;

use crate::travel::PlaceArgs;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// drgn's arguments, such as a script and its own. Without the kernel's debug information (Debian's -dbg package, or
    /// -s VMLINUX) drgn reads memory, and knows no types and variables
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
        let why =
            "there is no VMCOREINFO note in memory here, by which drgn knows a kernel: go to a later place";
        return Err(Error::Position(why.to_string()));
    }
    // This process becomes drgn, and still has the file open.
    let path = format!("/proc/self/fd/{}", core.as_raw_fd());
    let error = Command::new("drgn").args(["-c", &path]).args(&args.drgn_arguments).exec();
    Err(Error::Unsupported(format!("cannot start drgn: {error}; `pip install drgn` installs it")))
}
