//! `--no-sandbox`, and the access that each verb still needs in the sandbox.

use std::path::{Path, PathBuf};

use machine::config::MachineConfig;
use machine::engine::EngineKind;
use machine::error::Error;
use recording::Opened;
use sandbox::Needs;

/// Whether the process enters its sandbox.
#[derive(Clone, Copy, clap::Args)]
pub struct SandboxArgs {
    /// Do not start the sandbox.
    ///
    /// In the sandbox, ttvm has no access to other files, the network and programs while the guest runs. So a guest gains little
    /// from a bug in ttvm. `ttvm doctor` shows what this host offers for the sandbox.
    #[arg(long)]
    no_sandbox: bool,
}

impl SandboxArgs {
    /// The arguments that give another process of this program the same choice.
    pub fn as_arguments(self) -> Option<&'static str> {
        self.no_sandbox.then_some("--no-sandbox")
    }

    /// Gives up all access that is not in `needs`, unless the user gave `--no-sandbox`. No other thread may run yet.
    pub fn lock_in(self, needs: &Needs) -> Result<(), Error> {
        if self.no_sandbox {
            return Ok(());
        }
        // Read the number of cores now, because the process cannot read it in the sandbox.
        history::timeline::cores();
        match sandbox::lock_in(needs) {
            Ok(locked) => log::debug!("locked in: {locked:?}"),
            Err(error) => {
                let why = format!("ttvm cannot start its sandbox: {error}; use --no-sandbox to run without");
                return Err(Error::Unsupported(why));
            }
        }
        Ok(())
    }
}

/// The access that a running machine needs: only the devices that are open already.
pub fn of_machine(machine: &MachineConfig, engine: EngineKind) -> Needs {
    Needs { kvm: engine == host::KVM, vfio: !machine.passthrough.is_empty(), ..Needs::default() }
}

/// The access that a replay needs: the images and the recording itself. If the recording counts exits, the replay
/// also adds a log with instruction counts to the recording.
pub fn of_replay(opened: &Opened, folder: &Path, engine: EngineKind) -> Needs {
    let mut needs = Needs { read: images(opened), kvm: engine == host::KVM, ..Needs::default() };
    if needs.kvm {
        needs.devices.push("/dev/kvm".into());
    }
    match opened {
        Opened::ByInstructions(_) => needs.read.push(folder.to_path_buf()),
        Opened::ByExits(_) => needs.written.push(folder.to_path_buf()),
    }
    needs
}

/// The access that a debugger needs. Like a replay, the debugger reads the recording, and it also adds checkpoints when
/// gdb's user asks for them. The companion, which starts gdb, is outside the sandbox.
pub fn of_debug(opened: &Opened, folder: &Path, engine: EngineKind) -> Needs {
    let needs = of_replay(opened, folder, engine);
    Needs { written: vec![folder.to_path_buf()], clients: true, helper: true, ..needs }
}

/// The access that a server of the guest's disk needs: the access of a replay, and clients on a bound socket. The
/// companion, which removes the socket, is outside the sandbox.
pub fn of_disk_server(opened: &Opened, folder: &Path, engine: EngineKind) -> Needs {
    Needs { clients: true, helper: true, ..of_replay(opened, folder, engine) }
}

fn images(opened: &Opened) -> Vec<PathBuf> {
    opened.manifest().machine.images().map(|(_, file)| file.path.clone()).collect()
}
