//! `ttvm object`: shows which object of the guest's kernel is at an address, who allocated it, and who freed it.

use machine::error::{Error, exit_code};
use views::object::Question;

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::PlaceArgs;
use crate::wait::Wait;

/// Show which object of the kernel is at an address, who allocated it, and who freed it
///
/// The kernel uses the same memory for one object after another. The answer has the object at the position, the object
/// before it and the object after it. An object has a name that lasts, such as dentry@insn:123456. The name has the cache
/// and the position of the allocation. For pages without objects, the answer shows who took the first reference, and who
/// dropped the last.
///
/// Examples:
///   ttvm object R.ttvm 0xffff888003a41018 --at fault
///   ttvm object R.ttvm rdi --at panic
///   ttvm object R.ttvm '*waiting+8' --at 12.5s --earlier 10
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// An address, a register or a symbol, with +OFFSET or -OFFSET; * before it means the pointer there
    address: String,
    /// Take the registers of this processor, by its number, instead of the running one
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Number of earlier objects at this address to find
    #[arg(long, value_name = "N", default_value = "1")]
    earlier: usize,
    /// Also number the objects of the same cache at this address, from the start of the recording on
    #[arg(long)]
    count: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let mut timeline = args.place.open()?;
    let mut wait = Wait::on(&timeline)?;
    let question =
        Question { address: &args.address, processor: args.cpu, earlier: args.earlier, count: args.count };
    let object = question.answer(&mut timeline, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&object, args.json)?;
    if !args.json {
        let billions = object.replayed as f64 / 1e9;
        say(&format!("ttvm: {} objects found, {billions:.3}e9 instructions replayed", object.lives.len()));
    }
    Ok(if object.interrupted { exit_code::INTERRUPTED } else { exit_code::DONE })
}
