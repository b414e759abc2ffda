//! PCI bus 0 behind a host bridge, reached by configuration mechanism 1, with virtio functions and passed-through
//! functions.
//!
//! The bus is a pure state machine. The bus changes only by guest accesses and by the owner's inputs. The bus
//! collects its outputs (messages for the local APIC, interrupt levels); the owner reads them after each
//! call. Not modelled: bridges, other buses, expansion ROMs and bus errors. Only passed-through functions
//! have I/O port BARs.
//!
//! There is no firmware, so [`PciBus::add`] assigns the BARs and enables their decoding before boot. The guest may move
//! BARs to any address that neither RAM nor a chip has ([`PciRevision`]).
//!
//! PCI Local Bus Specification 3.0, section 3.2.2.3.2 (mechanism 1) and chapter 6.

mod bus;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod msix;
mod passed;
mod state;
mod summary;

pub use bus::{PciBus, PciRevision, SLOTS};
pub use error::StateError;
pub use msix::{MessageSummary, MessagesSummary, Msi, MsixEntryV1, MsixStateV1};
pub use state::PciBusStateV1;
pub use summary::{BarSummary, FunctionSummary};
