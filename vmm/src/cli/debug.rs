//! `ttvm debug`: gdb on a recording.

use std::path::PathBuf;

use vmm::debug::GdbTarget;
use vmm::error::{Error, exit_code};
use vmm::position::PositionSpec;
use vmm::recording::Recording;
use vmm::timeline::Timeline;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Where to wait for gdb: 127.0.0.1:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:1234")]
    listen: String,
    /// Where to begin: start, end, panic, event:N, insn:N, branch:N, syscall:N, 12.5s, 37%
    #[arg(long, value_name = "POS", default_value = "end")]
    at: PositionSpec,
    /// End when the first gdb has left, instead of waiting for the next one
    #[arg(long)]
    once: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    let host = |error: gdb::ListenError| Error::Unsupported(error.to_string());
    // A wrong address is said at once, not after the replay; gdb finds the door open when it may come in.
    drop(gdb::Listener::bind(&args.listen).map_err(host)?);
    let mut timeline = Timeline::open(&recording)?;
    eprintln!("ttvm: replaying to where gdb begins");
    let target = timeline.resolve(args.at, &mut || false)?;
    timeline.seek(target, &mut || false)?;
    timeline.settle(&mut || false)?;
    let listener = gdb::Listener::bind(&args.listen).map_err(host)?;
    eprintln!("ttvm: ready; in gdb: target remote {}", listener.gdb_address());
    let once = args.once;
    gdb::serve(&listener, &mut GdbTarget::new(&mut timeline), |end| {
        eprintln!("ttvm: gdb: {end:?}");
        !once
    })
    .map_err(host)?;
    Ok(exit_code::DONE)
}
