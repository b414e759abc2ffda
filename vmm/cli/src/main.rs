//! `ttvm`: the command line of the time-travelling virtual machine monitor.
//!
//! Each verb has a file in `verbs/`. The other files of this package are shared by several verbs. Results go to
//! standard output, and all other messages go to standard error. Other packages do the work. This package has the
//! arguments and the messages.

#![forbid(unsafe_code)]
// Printed text may contain text from strangers. The module `output` replaces its control characters.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod beginning;
mod branching;
mod companion;
mod disk_arg;
mod disk_server;
mod engine_arg;
mod file_server;
mod folder_disk;
mod go_live;
mod help;
mod here;
mod inherited;
mod interrupt;
mod keep_on;
mod last_words;
mod machine_args;
mod network_arg;
mod new_folder;
mod output;
mod panic_watch;
mod passthrough_arg;
mod progress;
mod questions;
mod recorded;
mod run_listener;
mod sandbox_arg;
mod stats;
mod travel;
mod verbs;
mod wait;
mod watch;

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, Parser, Subcommand};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use recording::{NEWEST_FORMAT, OLDEST_FORMAT};
use refused_memory::SpokenRefusals;
use views::visible::visible;

use crate::verbs::{
    board, calls, checkpoints, completions, control, debug, diff, disk, doctor, drgn, dump, export_pcap,
    info, log, ls, man, object, origin, pack, profile, record, relink, replay, reports, rm, run, schema,
    search, state, symbols, trace, tree, unpack, values, verify, where_to, who_set,
};

#[global_allocator]
static ALLOCATOR: SpokenRefusals = SpokenRefusals;

/// The text of `ttvm --version`. By this text a user sees whether one version of ttvm can read another version's
/// recordings.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let models: Vec<&str> = cpu::CpuModel::names().collect();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{version}\nrecordings: formats {OLDEST_FORMAT} and {NEWEST_FORMAT}\nCPU models: {}",
        models.join(", ")
    )
});

/// Record an operating system in a virtual machine, and debug the recording forwards and backwards
///
/// Examples:
///   ttvm record -o R.ttvm --kernel vmlinuz --initrd initrd.gz --cmdline console=ttyS0
///   ttvm debug R.ttvm --gdb
///
/// `ttvm VERB --help` explains a verb.
#[derive(Parser)]
#[command(name = "ttvm", version, long_version = LONG_VERSION.as_str(), max_term_width = 100, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

// The help text of each verb is the doc comment of its `Args`.
#[derive(Subcommand)]
enum Verb {
    Run(run::Args),
    Record(record::Args),
    Here(verbs::here::Args),
    Control(control::Args),
    Replay(replay::Args),
    Debug(debug::Args),
    Ls(ls::Args),
    Rm(rm::Args),
    Relink(relink::Args),
    Info(info::Args),
    State(state::Args),
    Board(board::Args),
    Symbols(symbols::Args),
    Search(search::Args),
    WhoSet(who_set::Args),
    Profile(profile::Args),
    WhereTo(where_to::Args),
    Origin(origin::Args),
    Calls(calls::Args),
    Values(values::Args),
    Diff(diff::Args),
    Disk(disk::Args),
    Object(object::Args),
    Tree(tree::Args),
    Reports(reports::Args),
    Checkpoints(checkpoints::Args),
    Verify(verify::Args),
    Log(log::Args),
    ExportPcap(export_pcap::Args),
    Dump(dump::Args),
    Trace(trace::Args),
    Drgn(drgn::Args),
    Doctor(doctor::Args),
    Pack(pack::Args),
    Unpack(unpack::Args),
    Schema(schema::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    DebugCompanion(companion::Args),
    #[command(hide = true)]
    FileServer(file_server::Args),
}

/// Raises the limit on open files as far as it is allowed without privileges. A long recording has a file for each
/// checkpoint. With a lower limit, ttvm must close and open these files again and again.
fn may_open_many_files() {
    const ENOUGH: u64 = 8192;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = soft.max(hard.min(ENOUGH));
    let may = if setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() { wanted } else { soft };
    checkpoint::hold_open_at_most(usize::try_from(may / 8).unwrap_or(usize::MAX));
}

/// Reports what is wrong with the command line, or prints the requested help, and ends. The message may contain file
/// names that a stranger chose, so control characters in it are made visible.
fn refuse(error: &clap::Error) -> ! {
    let text = error.to_string();
    if matches!(visible(&text), Cow::Borrowed(_)) {
        error.exit();
    }
    output::say(text.trim_end());
    std::process::exit(error.exit_code())
}

/// Parses the command line and runs its verb.
fn main() -> ExitCode {
    inherited::close_all_unnamed(&std::env::args_os().collect::<Vec<_>>());
    last_words::speak_of_refusals();
    output::log_in_one_style();
    // Recordings, packed files and sockets give access to a guest's memory and to all typed text. So only the user may
    // access new files.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    may_open_many_files();
    output::say_when_files_may_not_grow();
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    let result = match &cli.verb {
        Verb::Run(args) => run::run(args),
        Verb::Record(args) => record::run(args),
        Verb::Here(args) => verbs::here::run(args),
        Verb::Control(args) => control::run(args),
        Verb::Replay(args) => replay::run(args),
        Verb::Debug(args) => debug::run(args),
        Verb::Ls(args) => ls::run(args),
        Verb::Rm(args) => rm::run(args),
        Verb::Relink(args) => relink::run(args),
        Verb::Info(args) => info::run(args),
        Verb::State(args) => state::run(args),
        Verb::Board(args) => board::run(args),
        Verb::Symbols(args) => symbols::run(args),
        Verb::Search(args) => search::run(args),
        Verb::WhoSet(args) => who_set::run(args),
        Verb::Profile(args) => profile::run(args),
        Verb::WhereTo(args) => where_to::run(args),
        Verb::Origin(args) => origin::run(args),
        Verb::Calls(args) => calls::run(args),
        Verb::Values(args) => values::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Disk(args) => disk::run(args),
        Verb::Object(args) => object::run(args),
        Verb::Tree(args) => tree::run(args),
        Verb::Reports(args) => reports::run(args),
        Verb::Checkpoints(args) => checkpoints::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Log(args) => log::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Drgn(args) => drgn::run(args),
        Verb::Dump(args) => dump::run(args),
        Verb::ExportPcap(args) => export_pcap::run(args),
        Verb::Pack(args) => pack::run(args),
        Verb::Trace(args) => trace::run(args),
        Verb::Unpack(args) => unpack::run(args),
        Verb::Schema(args) => schema::run(args),
        Verb::Completions(args) => completions::run(args, Cli::command()),
        Verb::Man(args) => man::run(args, Cli::command()),
        Verb::DebugCompanion(args) => companion::run(args),
        Verb::FileServer(args) => file_server::run(args),
    };
    match result {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            output::say(&format!("ttvm: {error}"));
            ExitCode::from(error.exit_code() as u8)
        }
    }
}
