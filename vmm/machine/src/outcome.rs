//! The reasons why runs end.

/// The reason why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The guest switched itself off.
    PowerOff,
    /// The guest reset itself.
    Reset,
    /// The guest's kernel panicked.
    Panic,
    /// A triple fault shut down the CPU.
    TripleFault {
        /// RIP when the CPU shut down.
        rip: u64,
    },
    /// The guest wrote to the debug-exit port.
    DebugExit {
        /// Exit code for the host.
        code: u32,
    },
    /// The guest is idle and nothing can ever wake it.
    IdleForever,
    /// The user ended the run, or a program that controls the run ended it.
    Ended,
    /// A signal to this process ended the run.
    Interrupted,
    /// The run reached a limit that the user had set.
    Limit,
    /// The console showed the text at which the user wanted the run to end.
    TextShown,
}

impl Outcome {
    /// Whether the run was ended from outside: the guest itself could have continued.
    pub fn is_from_outside(&self) -> bool {
        matches!(self, Outcome::Ended | Outcome::Interrupted | Outcome::Limit | Outcome::TextShown)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::PowerOff => f.write_str("the guest powered off"),
            Outcome::Reset => f.write_str("the guest reset itself"),
            Outcome::Panic => f.write_str("the guest's kernel panicked"),
            Outcome::TripleFault { rip } => write!(f, "triple fault at {rip:#x}"),
            Outcome::DebugExit { code } => write!(f, "the guest ended the run with code {code}"),
            Outcome::IdleForever => f.write_str("the guest is halted for good"),
            Outcome::Ended => f.write_str("ended by the user"),
            Outcome::Interrupted => f.write_str("interrupted by a signal"),
            Outcome::Limit => f.write_str("ended at the limit that was set"),
            Outcome::TextShown => f.write_str("ended when the console showed the text that was set"),
        }
    }
}
