//! Landlock allows only the named files. Landlock allows no network addresses and no other processes.
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
    /// Landlock blocks most files that were not named, but this host has an old version of Landlock. The field is the
    /// version's number.
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
        .add_rules(path_beneath_rules(&needs.read, readable()))?
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

/// The right to read. Executing is never allowed, not even for files that the process has written.
fn readable() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// The right to change files and folders, but no devices, sockets or links.
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
