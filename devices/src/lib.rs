//! Deterministic device models of a small PC: pure state machines without a clock of their own.
//!
//! ```
//! use devices::uart::Uart;
//!
//! let mut uart = Uart::new();
//! uart.write(0, b'A');
//! assert_eq!(uart.take_output(), b"A");
//! uart.push_input(b'z');
//!
//! // The state is plain data. A restored device behaves like the original.
//! let mut again = Uart::restore(&uart.save())?;
//! assert_eq!((uart.read(0), again.read(0)), (b'z', b'z'));
//! # Ok::<(), devices::restore::RestoreError>(())
//! ```
//!
//! A chip changes by guest accesses, by inputs that its *owner* hands in, and by virtual time. The owner is the code
//! that holds the chip or the whole board. Each call that needs the time takes it as `now_ns`, in nanoseconds since
//! power-on. [`platform::Platform`] wires the chips together; [`layout`] has the addresses.
//!
//! The function `summary` of a chip decodes the chip's registers for people.
//!
//! The chips are written by hand, because their whole state must be plain data, and the time must be an argument.
//! The virtio queues use the crate `virtio-queue`.

#![forbid(unsafe_code)]

pub mod acpi_pm;
mod clock;
pub mod interrupt_message;
pub mod ioapic;
pub mod lapic;
pub mod layout;
pub mod misc_ports;
pub mod passthrough;
pub mod pci;
pub mod pic;
pub mod pit;
pub mod platform;
pub mod restore;
pub mod rtc;
pub mod uart;
pub mod virtio;

pub use misc_ports::{DebugPorts, DebugPortsV1, PanicKind, Request};
