//! Deterministic device models of a small PC.
//!
//! Every chip is a state machine without a clock of its own: it changes by guest accesses, by inputs that its
//! owner hands it, and by the virtual time (`now_ns`, nanoseconds since power-on) that comes with each call.
//! [`platform::Platform`] wires the chips together; [`layout`] says where everything is.

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
