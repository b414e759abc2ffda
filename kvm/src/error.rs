//! What can go wrong on the host's side. What the guest does wrong is never an error.

/// Why KVM cannot run the guest, or go on with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/kvm` is not there, or this user may not open it.
    #[error("KVM cannot be used: /dev/kvm: {0}; {1}")]
    Device(std::io::Error, &'static str),
    /// This KVM lacks something.
    #[error("this host's KVM lacks {0}; use --engine soft")]
    Lacks(&'static str),
    /// It is not the processor's own virtualisation.
    #[error("this host's KVM is an imitation in software ({0}); use --engine soft, and see ttvm doctor")]
    Imitation(String),
    /// A call failed.
    #[error("KVM failed to {0}: {1}")]
    Call(&'static str, std::io::Error),
    /// The vCPU cannot go on.
    #[error("the vCPU cannot go on at RIP {rip:#x}: {why}")]
    Stuck {
        /// Where.
        rip: u64,
        /// What KVM says.
        why: String,
    },
}

/// Turns an error number into an [`Error::Call`].
pub(crate) fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |error| Error::Call(what, std::io::Error::from_raw_os_error(error.errno()))
}
