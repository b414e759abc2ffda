//! Interfaces to a guest's network and passed-through devices, which are optional features.

use std::os::fd::BorrowedFd;

use devices::passthrough::{AskV1, DeviceInputV1};
use machine::inputs::Sent;

/// A network. A network never delays the machine. An error means that the network is gone.
pub(super) trait Network<C> {
    /// Restarts the machine's count from zero.
    fn count_anew(&mut self);
    /// The descriptor that is readable when frames have come. The next [`Network::receive`] checks for them.
    fn wakes(&mut self, now: C) -> BorrowedFd<'_>;
    /// Takes frames for a guest with this much room, unless it has just checked for them.
    fn receive(&mut self, now: C, room: Option<usize>) -> std::io::Result<Vec<Vec<u8>>>;
    /// Sends the guest's frames.
    fn send(&mut self, frames: Vec<Sent<C>>) -> std::io::Result<()>;
}

/// Passed-through devices of the host.
pub(super) trait Devices {
    /// The descriptors that are readable when a device has an event.
    fn wakes(&self) -> Vec<BorrowedFd<'_>>;
    /// Whether a device must be polled, because nothing reports its interrupts.
    fn are_watched(&self) -> bool;
    /// Polls such devices while the guest waits. Returns whether a device interrupts; the interrupt comes in
    /// next.
    fn look(&mut self) -> bool;
    /// Prepares for a wait of the guest: devices see the guest's writes, and are checked next.
    fn before_idle(&mut self);
    /// Takes unasked input from devices, unless they have just been checked.
    fn receive(&mut self) -> Option<DeviceInputV1>;
    /// Asks a device and returns its answer.
    fn ask(&mut self, ask: &AskV1) -> DeviceInputV1;
    /// Passes on a write or notice of the guest to a device.
    fn tell(&mut self, told: &AskV1);
}
