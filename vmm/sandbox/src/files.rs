//! Landlock lets the process open only the named files. Under Landlock the process cannot use network addresses, or
//! send signals to other processes.
//!
//! See landlock(7). A descriptor that is already open keeps its rights.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use crate::error::Error;
use crate::needs::Needs;

/// The newest supported version of Landlock.
const KNOWN: ABI = ABI::V6;

/// The files that Landlock blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// Landlock blocks all files that were not named.
    All,
    /// Landlock blocks most access to files that were not named. This host has an old version of Landlock, which
    /// cannot block all access. The field is the version's number.
    Most(i32),
    /// Landlock blocks no files, for this reason.
    None(&'static str),
}

/// Restricts the calling thread, and threads that it starts later, to the files of `needs`.
pub(crate) fn restrict(needs: &Needs) -> Result<Files, Error> {
    ruled(needs).map_err(Error::failed("give up access to files"))
}

fn ruled(needs: &Needs) -> Result<Files, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rules(path_beneath_rules(needs.read.iter().chain(&needs.folders), readable()))?
        .add_rules(path_beneath_rules(&needs.written, readable() | changeable()))?
        .add_rules(path_beneath_rules(&needs.devices, device()))?;
    let status = ruleset.restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Files::All,
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            Files::Most(effective_abi as i32)
        }
        (_, LandlockStatus::NotEnabled) => Files::None("the kernel has Landlock, and it is switched off"),
        _ => Files::None("the kernel has no Landlock"),
    })
}

/// The rights to read files and folders. The process gets no right to execute files, not even files that it has
/// written.
fn readable() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// The rights to make, change, rename and remove files and folders, but not to make devices, sockets or links.
fn changeable() -> BitFlags<AccessFs> {
    AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer
}

fn device() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev
}
