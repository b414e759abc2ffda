//! Virtio devices on PCI, as stock kernels' `virtio_pci` drives them: modern only, split rings.
//!
//! ```text
//!  PciBus ── VirtioFunction   configuration space, BARs, MSI-X, INTx   (function.rs)
//!              └ Transport    common registers, status, features       (transport.rs)
//!                  ├ VirtQueue  rings, chains, notification rules      (queue.rs, chain.rs)
//!                  └ VirtioDevice  block, console, ...                 (device_model.rs, device.rs, one file each)
//! ```
//!
//! Devices do all their work inside the notifying access. When the guest's write returns, the device has used every
//! available buffer that it can use. No time passes during this access, so nothing depends on the host's speed. If a
//! ring breaks the rules, the device requests a reset (`DEVICE_NEEDS_RESET`) and does nothing until then.
//!
//! Virtual I/O Device (VIRTIO) 1.2, chapters 2 to 5.

mod block;
pub(crate) mod block_backend;
mod chain;
mod console;
pub(crate) mod device;
mod device_model;
mod feature;
pub(crate) mod function;
mod net;
mod queue;
pub(crate) mod rng;
mod sent_frame;
pub(crate) mod state;
mod summary;
#[cfg(test)]
mod tests;
mod transport;

pub use block::Block;
pub use block_backend::{BlockBackend, BlockError, SECTOR_BYTES};
pub use console::Console;
pub use device::VirtioDevice;
pub use function::{ConsolePort, NetworkPort};
pub use net::Net;
pub use rng::Rng;
pub use sent_frame::{HEADER_BYTES, SentFrame};
pub use state::{DeviceStateV1, QueueStateV1, TransportStateV1, VirtioFunctionStateV1};
pub use summary::{QueueSummary, RingSummary, VirtioSummary};
