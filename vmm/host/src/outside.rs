//! Interfaces to a guest's network and passed-through devices, which are optional features.

use std::os::fd::BorrowedFd;

use devices::passthrough::{AskV1, DeviceInputV1};
use machine::inputs::Sent;

/// A network. A network never delays the machine. An error means that the network is gone.
pub(super) trait Network<C> {
    /// Notes that the machine counts from zero again.
    fn count_anew(&mut self);
    /// The descriptor that is readable when frames have come. The next [`Network::receive`] checks for them.
    fn wakes(&mut self, now: C) -> BorrowedFd<'_>;
    /// Takes frames for a guest with this much room. Takes none if the network was just checked.
    fn receive(&mut self, now: C, room: Option<usize>) -> std::io::Result<Vec<Vec<u8>>>;
    /// Sends the guest's frames.
    fn send(&mut self, frames: Vec<Sent<C>>) -> std::io::Result<()>;
}

/// Passed-through devices of the host.
pub(super) trait Devices {
    /// The descriptors that are readable when a device has an event.
    fn wakes(&self) -> Vec<BorrowedFd<'_>>;
    /// Whether a device must be polled, because the host does not report its interrupts.
    fn are_watched(&self) -> bool;
    /// Polls the watched devices while the guest waits. Returns whether a device interrupts. The next
    /// [`Devices::receive`] returns this interrupt.
    fn look(&mut self) -> bool;
    /// Prepares for a wait of the guest: shows the guest's writes to the devices, and makes the next check due at once.
    fn before_idle(&mut self);
    /// Takes input that devices send without a question of the guest. Takes none if the devices were just checked.
    fn receive(&mut self) -> Option<DeviceInputV1>;
    /// Asks a device and returns its answer.
    fn ask(&mut self, ask: &AskV1) -> DeviceInputV1;
    /// Passes on a write of the guest, or a notice, to a device.
    fn tell(&mut self, told: &AskV1);
}
