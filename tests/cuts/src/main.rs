//! `cuts`: the cut fuzzer's command line.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::Parser;
use cuts::campaign::{self, Difference, Kind, News, Options};
use cuts::tier::{Interpreted, Inverted, Tier, Translated};
use cuts::{digests, explain};

/// Runs random small guests in several ways: uncut, cut and restored. Compares the guests wherever two runs pass
/// the same step.
#[derive(Parser)]
struct Arguments {
    /// Number of steps after which no new program begins. A step counts once, although it runs in several ways.
    #[arg(long, default_value_t = 10_000_000)]
    steps: u64,
    /// The seed that determines the programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only the program of this number.
    #[arg(long)]
    program: Option<u64>,
    /// Programs of hot loops, which take many more steps in the same time.
    #[arg(long)]
    loops: bool,
    /// Programs of several processors that take turns.
    #[arg(long, conflicts_with = "loops")]
    several: bool,
    /// Tests the interpreter instead of the translator. The fuzzer compares each of the two with the interpreter's
    /// single steps.
    #[arg(long, conflicts_with = "inverted")]
    interpreter: bool,
    /// The translator, with every undefined result of the host's instructions inverted.
    #[arg(long)]
    inverted: bool,
    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Runs the programs of `tests/cuts/golden` and prints a digest of each program's result. With a number N, runs
    /// every Nth program.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1")]
    digests: Option<NonZeroUsize>,
    /// Number of differences after which to stop.
    #[arg(long, default_value_t = 5)]
    differences: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match (arguments.interpreter, arguments.inverted) {
        (true, _) => by_tier::<Interpreted>(&arguments),
        (_, true) => by_tier::<Inverted>(&arguments),
        _ => by_tier::<Translated>(&arguments),
    }
}

fn by_tier<T: Tier>(arguments: &Arguments) -> ExitCode {
    if let Some(distance) = arguments.digests {
        print!("{}", digests::every::<T>(distance));
        return ExitCode::SUCCESS;
    }
    fuzz::<T>(arguments)
}

fn fuzz<T: Tier>(arguments: &Arguments) -> ExitCode {
    let options = Options {
        kind: match (arguments.loops, arguments.several) {
            (true, _) => Kind::Loops,
            (_, true) => Kind::Several,
            _ => Kind::Anything,
        },
        seed: arguments.seed,
        first: arguments.program.unwrap_or(0),
        steps: if arguments.program.is_some() { 1 } else { arguments.steps },
        jobs: if arguments.program.is_some() { 1 } else { arguments.jobs },
        differences: arguments.differences,
    };
    let summary = campaign::run::<T>(&options, |news| match news {
        News::Steps(steps) => eprint!("\r{steps} of {} steps", options.steps),
        News::Found(difference) => {
            eprintln!();
            print!("{}", explain::difference::<T>(options.kind, options.seed, &difference));
            println!("  again: {}", again(arguments, &difference));
        }
    });
    eprintln!();
    summary.modes.iter().for_each(|(mode, count)| println!("{count:9} programs: {mode}"));
    println!(
        "{} steps of {} programs, {} differences",
        summary.steps,
        summary.programs,
        summary.differences.len()
    );
    if summary.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the command that runs only the program in which a difference was found.
fn again(arguments: &Arguments, found: &Difference) -> String {
    let flags = [
        (arguments.loops, " --loops"),
        (arguments.several, " --several"),
        (arguments.interpreter, " --interpreter"),
        (arguments.inverted, " --inverted"),
    ];
    let flags: String = flags.iter().filter_map(|&(is_set, flag)| is_set.then_some(flag)).collect();
    format!("cargo run --release -p cuts -- --seed {} --program {}{flags}", arguments.seed, found.program)
}
