//! `ttvm`: the command line of the time-travelling virtual machine monitor.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
