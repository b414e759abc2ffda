//! `ttvm relink`: tells a recording where its images lie now.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use recording::relink::{MovedImages, relink};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("images").required(true).multiple(true)))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The kernel image
    #[arg(long, value_name = "FILE", group = "images")]
    kernel: Option<PathBuf>,
    /// The initial RAM disk
    #[arg(long, value_name = "FILE", group = "images")]
    initrd: Option<PathBuf>,
    /// A boot module; if one is named, all are, in the order of the recording (repeatable)
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
