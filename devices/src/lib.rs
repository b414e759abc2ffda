//! Deterministic device models of a small PC.

#![forbid(unsafe_code)]

pub mod layout;
pub mod pci;
pub mod virtio;
