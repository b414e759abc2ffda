//! `ttvm relink`: changes the paths of a recording's images, for images that the user has moved.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use recording::relink::{MovedImages, relink};

/// Tell a recording where its images are now
///
/// Use this after you have moved a disk image or a kernel. The images must have the same contents as before.
///
/// Examples:
///   ttvm relink R.ttvm --disk /images/disk.img
///   ttvm relink R.ttvm --kernel vmlinuz --initrd initrd.gz
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(group(clap::ArgGroup::new("images").required(true).multiple(true)))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The kernel
    #[arg(long, value_name = "FILE", group = "images")]
    kernel: Option<PathBuf>,
    /// The initial RAM disk
    #[arg(long, value_name = "FILE", group = "images")]
    initrd: Option<PathBuf>,
    /// A boot module (repeatable). Give all modules, in the order of the recording
    #[arg(long, value_name = "FILE", group = "images")]
    module: Vec<PathBuf>,
    /// The disk image
    #[arg(long, value_name = "FILE", group = "images")]
    disk: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let Args { recording, kernel, initrd, module, disk } = args;
    let moved = MovedImages {
        kernel: kernel.clone(),
        initrd: initrd.clone(),
        modules: module.clone(),
        disk: disk.clone(),
    };
    relink(recording, &moved)?;
    Ok(exit_code::DONE)
}
