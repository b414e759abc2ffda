//! Capabilities: a process that root started gives them up, and programs that it executes gain none.
//!
//! See capabilities(7) and Linux's Documentation/userspace-api/no_new_privs.rst.

use std::path::PathBuf;

use caps::{CapSet, Capability, CapsHashSet};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

use crate::error::Error;
use crate::needs::Needs;

/// Gives up all capabilities that `needs` does not require.
pub(crate) fn give_up(needs: &Needs) -> Result<(), Error> {
    nix::sys::prctl::set_no_new_privs().map_err(Error::failed("rule out new privileges"))?;
    let read = |set| caps::read(None, set).map_err(Error::failed("read the capabilities"));
    let had = read(CapSet::Permitted)?;
    if had.contains(&Capability::CAP_SETPCAP) {
        for capability in read(CapSet::Bounding)? {
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
    let nothing = CapsHashSet::new();
    // The call fails on kernels older than 4.3, which have no ambient set. The failure does no harm.
    let _ = caps::clear(None, CapSet::Ambient);
    set(CapSet::Inheritable, &nothing)?;
    let reached = reached(needs);
    set(CapSet::Effective, &nothing)?;
    let mut kept = wanted(needs);
    if !reached.iter().all(can_access) {
        // A process of root keeps this capability if it cannot use its files otherwise, for example if the
        // recording belongs to another user.
        kept.insert(Capability::CAP_DAC_OVERRIDE);
    }
    let kept = &kept & &had;
    set(CapSet::Effective, &kept)?;
    set(CapSet::Permitted, &kept)
}

fn set(set: CapSet, capabilities: &CapsHashSet) -> Result<(), Error> {
    caps::set(None, set, capabilities).map_err(Error::failed("give up capabilities"))
}

/// The capabilities that the process still needs after it has opened its devices.
fn wanted(needs: &Needs) -> CapsHashSet {
    let mut wanted = CapsHashSet::new();
    if needs.vfio {
        // While the guest runs, more memory is mapped for devices than users may lock.
        wanted.insert(Capability::CAP_IPC_LOCK);
    }
    if !needs.folders.is_empty() {
        // A server of files that root started shows all files to the guest.
        wanted.insert(Capability::CAP_DAC_READ_SEARCH);
    }
    if needs.kvm {
        // Each new vCPU opens its own performance counter, and the process may make vCPUs at any time.
        wanted.insert(Capability::CAP_PERFMON);
    }
    wanted
}

/// The paths of `needs` that the process can access now, with the kind of access.
fn reached(needs: &Needs) -> Vec<(PathBuf, AccessFlags)> {
    let both = AccessFlags::R_OK | AccessFlags::W_OK;
    let read = needs.read.iter().map(|path| (path, AccessFlags::R_OK));
    let written = needs.written.iter().chain(&needs.devices).map(|path| (path, both));
    let all = read.chain(written).map(|(path, access)| (path.clone(), access));
    all.filter(can_access).collect()
}

/// Whether the process can access a path with its effective capabilities. The C library's `eaccess` is not used,
/// because it may check the permitted capabilities instead.
fn can_access((path, access): &(PathBuf, AccessFlags)) -> bool {
    faccessat(AT_FDCWD, path, *access, AtFlags::AT_EACCESS).is_ok()
}
