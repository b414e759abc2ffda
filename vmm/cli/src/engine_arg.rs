//! `--engine`: the engine that executes the guest.

use machine::engine::EngineKind;
use machine::error::Error;
use recording::Manifest;

/// The choice of the engine that executes the guest.
#[derive(Clone, Copy, clap::Args)]
pub struct EngineArgs {
    /// The engine that executes the guest; `ttvm doctor` shows which work here
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto)]
    engine: EngineChoice,
}

impl EngineArgs {
    /// The engine that executes a new run.
    pub fn for_new_run(&self) -> EngineKind {
        match self.engine {
            // `auto` does not choose KVM. KVM finds exact positions at full speed only with a hardware counter. ttvm's
            // use of this counter has not been tested on real processors yet.
            EngineChoice::Kvm => host::KVM,
            _ => self.soft(),
        }
    }

    /// The software CPU, with the tier that the user asked for.
    fn soft(&self) -> EngineKind {
        if self.engine == EngineChoice::Interpreter {
            machine::engine::soft::choose_tier(cpu::Tier::Interpreter);
        }
        EngineKind::SOFT
    }

    /// The engine that replays a recording.
    pub fn for_replay(&self, manifest: &Manifest) -> Result<EngineKind, Error> {
        if self.engine != EngineChoice::Kvm {
            return Ok(self.soft());
        }
        if !manifest.machine.profile().runs_on_kvm {
            let why = "this recording counts instructions, which KVM does not: use --engine soft";
            return Err(Error::Unsupported(why.to_string()));
        }
        let recorded = manifest.machine.model();
        let here = host::kvm_engine::model()?;
        if recorded != here {
            let why = format!(
                "this recording needs a processor like {}, and this host's is like {}: use --engine soft",
                recorded.name(),
                here.name()
            );
            return Err(Error::Unsupported(why));
        }
        Ok(host::KVM)
    }
}

/// Which engine executes the guest.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineChoice {
    /// The software CPU; KVM is experimental
    Auto,
    /// The software CPU: an interpreter, and a translator for code that runs often
    Soft,
    /// The software CPU's interpreter only; it is slower. TTVM_TIER=interpreter does the same
    #[value(name = "soft,interpreter")]
    Interpreter,
    /// Hardware virtualisation (experimental)
    Kvm,
}
