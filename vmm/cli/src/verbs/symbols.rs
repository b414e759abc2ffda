//! `ttvm symbols`: writes the guest kernel's own symbols, types and frames to a file for gdb. With `--like`, finds the
//! address at which gdb must load a vmlinux with debug information.

use std::io::Write;
use std::path::{Path, PathBuf};

use guest_symbols::dwarf::DebugInfo;
use guest_symbols::vmlinux::{Match, Unusable, compare};
use guest_symbols::{Symbols, elf};
use machine::engine::EngineKind;
use machine::error::{Error, exit_code};
use machine::new_file::NewFile;
use machine::notation::PositionSpec;

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::{self, PartArgs};

/// Write the guest kernel's own symbols to a file for gdb
///
/// `ttvm debug --gdb` loads these symbols by itself. Use this verb for a gdb that you start.
///
/// Examples:
///   ttvm symbols R.ttvm -o kernel.symbols
///   ttvm symbols R.ttvm --like vmlinux
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// Position, like panic, 12.5s or insn:1e9; the file has the modules that are loaded there
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    at: PositionSpec,
    /// The new ELF file to write, for gdb's symbol-file.
    ///
    /// With --like, the file has the modules only, for gdb's add-symbol-file.
    #[arg(short, long, value_name = "FILE", required_unless_present = "like")]
    output: Option<PathBuf>,
    /// Print the gdb command that loads this vmlinux at the kernel's address in the guest.
    ///
    /// The file must be of the same kernel. Debian's package linux-image-RELEASE-dbg has a vmlinux with debug information.
    #[arg(long, value_name = "VMLINUX")]
    like: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = args.part.open(&args.recording)?;
    let timeline = travel::open_at(&recording, args.at, EngineKind::SOFT)?;
    let symbols = Symbols::of_guest(timeline.machine())
        .map_err(|none| Error::Position(format!("{none} at instruction {}", timeline.position())))?;
    if let Some(file) = &args.like {
        crate::output::print(&load_like(file, &symbols)?)?;
    }
    if let Some(output) = &args.output {
        let (symbols, debug) = match &args.like {
            Some(_) => (&symbols.of_modules(), DebugInfo::of_modules(timeline.machine(), &symbols)),
            None => (&symbols, DebugInfo::of_kernel(timeline.machine(), &symbols)),
        };
        write(output, symbols, &debug)?;
    }
    Ok(exit_code::DONE)
}

fn load_like(file: &Path, symbols: &Symbols) -> Result<String, Error> {
    let file = &std::path::absolute(file).map_err(Error::file("find", file))?;
    match compare(file, symbols) {
        Ok(Match::Kernel(placement)) => Ok(placement.load_command(file)),
        Ok(Match::NoKernel) => {
            Err(Error::Position(format!("{} is no kernel with symbols: give a vmlinux", file.display())))
        }
        Err(Unusable::Unreadable { path, source }) => {
            Err(Error::File { action: "use the symbols of", path, source })
        }
        Err(other @ Unusable::OtherKernel { .. }) => Err(Error::Position(other.to_string())),
    }
}

fn write(output: &Path, symbols: &Symbols, debug: &DebugInfo) -> Result<(), Error> {
    let mut file = NewFile::begin(output)?;
    file.file().write_all(&elf::with_debug_info(symbols, debug)).map_err(Error::file("write", output))?;
    file.finish()?;
    if let Some(why) = symbols.without_modules() {
        say(&format!("ttvm: the symbols of modules are missing: {why}"));
    }
    for why in debug.missing() {
        say(&format!("ttvm: {why}"));
    }
    let (count, modules) = (symbols.all().len(), symbols.modules().len());
    let kernel =
        if symbols.all().iter().any(|symbol| symbol.module.is_none()) { "the kernel and " } else { "" };
    say(&format!("ttvm: {count} symbols, of {kernel}{modules} modules, in {}", output.display()));
    Ok(())
}
