//! Errors of the host. Wrong behaviour of the guest is never an error.

/// Why KVM cannot run the guest, or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/kvm` does not exist, or this user may not open it.
    #[error("KVM cannot be used: /dev/kvm: {0}; {1}")]
    Device(std::io::Error, &'static str),
    /// This KVM lacks a capability.
    #[error("this host's KVM lacks {0}; use --engine soft")]
    Lacks(&'static str),
    /// This KVM is not the processor's own virtualisation.
    #[error("this host's KVM is an imitation in software ({0}); use --engine soft, and see ttvm doctor")]
    Imitation(String),
    /// A call of KVM failed.
    #[error("KVM failed to {0}: {1}")]
    Call(&'static str, std::io::Error),
    /// The vCPU cannot continue.
    #[error("the vCPU cannot go on at RIP {rip:#x}: {why}")]
    Stuck {
        /// The guest's RIP.
        rip: u64,
        /// KVM's reason.
        why: String,
    },
}

/// Turns an error number into an [`Error::Call`].
pub(crate) fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |error| Error::Call(what, std::io::Error::from_raw_os_error(error.errno()))
}
