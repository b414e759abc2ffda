//! Real devices of the host that are passed through to the guest: the emulated parts, and the questions to
//! the real device.
//!
//! ```text
//!  PciBus ── PassedFunction   configuration space, MSI, MSI-X, INTx; BARs are outside   (function.rs)
//!         ── PassedPorts      plain ports; all but the interrupt line is outside              (ports.rs)
//!         ── Translation      the IOMMU's registers; its page tables are walked outside (translation.rs)
//! ```
//!
//! A model never waits for its device. If the guest reads a value that only the real device can give, the owner gets an
//! [`AskV1`] in place of the value. The owner later hands in the answer, a [`DeviceInputV1`]. Guest writes are
//! collected as asks too ([`PciBus::take_told`](crate::pci::PciBus::take_told)). The writes are counted and hashed, so
//! machines with equal state have written the same to their devices. This module does not know whether a device or a
//! recording answers.
//!
//! The [`DeviceInputV1`] also holds the device's writes to memory. The owner puts these writes into RAM before it hands
//! in the interrupts and the value. See `vmm/host/PASSTHROUGH.md`.

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
