//! `ttvm pack`: packs a recording into one file for another host.

use std::path::{Path, PathBuf};

use history::cut::{CutOut, cut_out_end};
use machine::error::{Error, exit_code};
use machine::new_file::NewFile;
use machine::notation;
use machine::position::Instructions;
use recording::pack::pack;
use recording::{Opened, Recording, with_recording};

use crate::interrupt::Interrupt;
use crate::output::say;
use crate::progress;

/// Pack a recording and its images into one file
///
/// `ttvm unpack` makes a recording from this file, on this host or another.
///
/// Examples:
///   ttvm pack R.ttvm -o R.packed
///   ttvm pack R.ttvm --last 2s -o end.packed
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The new file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Pack no checkpoints: the file is smaller, and going to a position takes longer
    #[arg(long)]
    no_checkpoints: bool,
    /// Pack only the last part of the run, like 2s of guest time.
    ///
    /// The packed recording starts from a state of the machine and needs no images. ttvm leaves out free memory that nothing uses,
    /// and disk blocks that the guest does not read. So it replays exactly, but cannot go on live.
    #[arg(long, value_name = "TIME", value_parser = notation::time)]
    last: Option<u64>,
    /// With --last: keep free memory too, to look for data that was freed
    #[arg(long, requires = "last")]
    free_memory: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let opened = Opened::open(&args.recording)?;
    let bytes = match args.last {
        Some(last_ns) => pack_end(args, opened, last_ns)?,
        None => with_recording!(opened, recording => pack(&recording, &args.output, !args.no_checkpoints))?,
    };
    say(&format!("ttvm: packed into {}, {bytes} bytes", args.output.display()));
    Ok(exit_code::DONE)
}

/// Packs a recording's end. Until the packed file is written, the cut recording is in a temporary folder beside this
/// file.
fn pack_end(args: &Args, opened: Opened, last_ns: u64) -> Result<u64, Error> {
    let Opened::ByInstructions(recording) = opened else {
        let why =
            "--last needs a recording that counts instructions, and this one counts exits: leave --last out";
        return Err(Error::Unsupported(why.to_string()));
    };
    // Tests now whether the packed file can be written, because making the cut recording takes long.
    drop(NewFile::begin(&args.output)?);
    let beside = args.output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new().prefix(".ttvm-pack-").tempdir_in(beside);
    let temporary = temporary.map_err(Error::file("make a folder in", beside))?;
    let folder = temporary.path().join("end.ttvm");
    say("ttvm: replaying the end twice, to find the memory that it needs and to record it; ^C stops this");
    say(
        "ttvm: then compressing the memory, which takes a third of a second for each megabyte; ^C stops this, too",
    );
    let CutOut { cut, length, disk_blocks } = cut_out(args, &recording, last_ns, &folder)?;
    say(&if cut.instructions == 0 {
        "ttvm: the run is shorter than --last, so the whole run is packed".to_string()
    } else {
        format!(
            "ttvm: packing the run's last {length} instructions, from instruction {} on",
            cut.instructions
        )
    });
    if cut.free_pages > 0 {
        say(&format!(
            "ttvm: {} pages of memory are left out, because the guest's kernel does not use them",
            cut.free_pages
        ));
    }
    if disk_blocks > 0 {
        say(&format!("ttvm: packing the {disk_blocks} blocks of the disk that the guest reads"));
    }
    let Opened::ByInstructions(end) = Opened::open(&folder)? else {
        unreachable!("what was cut out counts as the whole does");
    };
    pack(&end, &args.output, !args.no_checkpoints)
}

fn cut_out(
    args: &Args,
    recording: &Recording<Instructions>,
    last_ns: u64,
    folder: &Path,
) -> Result<CutOut, Error> {
    let interrupt = Interrupt::catch()?;
    let mut bar = None;
    let mut compressing = |done_bytes, total_bytes| {
        let bar = bar.get_or_insert_with(|| progress::bytes_bar("compressing memory", total_bytes));
        progress::show(bar, done_bytes);
        interrupt.poll()
    };
    let cut =
        cut_out_end(recording, last_ns, args.free_memory, folder, &mut || interrupt.poll(), &mut compressing);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    cut
}
