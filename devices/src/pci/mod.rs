//! PCI bus 0 behind a host bridge, reached by configuration mechanism 1, with virtio functions on it.
//!
//! The bus is a pure state machine. It changes only by guest accesses and by what the owner hands in; what it
//! wants from the owner (messages for the local APIC, interrupt levels) is collected and asked for after
//! each call. It does not model bridges, other buses, expansion ROMs, I/O BARs or bus errors.
//!
//! There is no firmware, so [`PciBus::add`] does its work: BARs are placed and decoding before boot. The
//! guest may move them to any address that is neither RAM nor a chip's ([`PciRevision`]).
//!
//! PCI Local Bus Specification 3.0, section 3.2.2.3.2 (mechanism 1) and chapter 6.

mod bus;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod msix;
mod passed;
mod state;

pub use bus::{PciBus, PciRevision, SLOTS};
pub use error::StateError;
pub use msix::{Msi, MsixEntryV1, MsixStateV1};
pub use state::PciBusStateV1;
