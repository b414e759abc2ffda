//! `ttvm symbols`: the guest kernel's own symbols as a file for gdb.

use std::path::PathBuf;

use vmm::error::{Error, exit_code};
use vmm::position::PositionSpec;
use vmm::symbols::{Symbols, elf};

use super::travel;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// When: modules are those that are loaded then. start, end, panic, event:N, insn:N, branch:N, syscall:N, 12.5s,
    /// 37%
    #[arg(long, value_name = "POS", default_value = "end")]
    at: PositionSpec,
    /// The ELF file to write, for gdb's symbol-file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = travel::open(&args.recording)?;
    let Some(timeline) = travel::open_at(&recording, args.at)? else { return Ok(exit_code::FAILED) };
    let symbols = Symbols::of_machine(timeline.machine())
        .map_err(|none| Error::Position(format!("{none} at instruction {}", timeline.position())))?;
    std::fs::write(&args.output, elf::file(&symbols)).map_err(Error::file("write", &args.output))?;
    if let Some(why) = symbols.without_modules() {
        eprintln!("ttvm: without the symbols of modules: {why}");
    }
    let (count, modules) = (symbols.all().len(), symbols.modules().len());
    eprintln!("ttvm: {count} symbols, of the kernel and {modules} modules, in {}", args.output.display());
    Ok(exit_code::DONE)
}
