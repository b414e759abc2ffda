//! Real devices of the host that the guest has for its own: what of them is a model here, and what has to be asked for
//! outside.
//!
//! ```text
//!  PciBus ── PassedFunction   configuration space, MSI, MSI-X, INTx; BARs are outside   (function.rs)
//!         ── PassedPorts      plain ports, all of it outside but for the interrupt line (ports.rs)
//!         ── Translation      the IOMMU's registers; its page tables are walked outside (translation.rs)
//! ```
//!
//! A model never waits for its device. Where the guest reads what only the device knows, the owner gets an [`AskV1`]
//! in place of the value, and hands in what came back, a [`DeviceInputV1`]. What the guest writes is collected as
//! asks too ([`PciBus::take_told`](crate::pci::PciBus::take_told)), counted and hashed: so equal machines have written
//! the same to their devices. Whether anything answers an ask, or a recording does, is not known here.
//!
//! What the device writes to memory is in the [`DeviceInputV1`] as well; the owner puts it into RAM before it hands in
//! the rest. See `vmm/host/PASSTHROUGH.md`.

mod ask;
pub(crate) mod function;
pub(crate) mod ports;
#[cfg(test)]
mod tests;
pub(crate) mod translation;
mod written;

pub use ask::{AskV1, DeviceInputV1, DmaV1, InterruptModeV1, InterruptV1, RegionV1};
pub use function::{BarDescriptionV1, MsixDescriptionV1, PciDescriptionV1};
pub use ports::FREE_ISA_IRQS;
pub use translation::{TRANSLATION_BASE, TranslationStateV1};
pub use written::WrittenV1;
