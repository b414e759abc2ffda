//! Interfaces to a guest's network and passed-through devices, which are optional features.

use std::os::fd::BorrowedFd;

use devices::passthrough::{AskV1, DeviceInputV1};
use machine::inputs::Sent;

/// A network. A network never delays the machine. An error of a call means that the network can no longer be used.
pub(super) trait Network<C> {
    /// Notes that the machine counts from zero again.
    fn count_anew(&mut self);
    /// The descriptor that is readable when frames have come in. After a call, the next [`Network::receive`] checks for
    /// frames.
    fn wakes(&mut self, now: C) -> BorrowedFd<'_>;
    /// Returns frames for the guest. `room` is the number of frames that the card accepts, or `None` if no driver has
    /// started the card. Returns no frames if the network was checked shortly before.
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
    /// Polls the devices that must be polled, while the guest waits. Returns whether a device has an interrupt. The
    /// next [`Devices::receive`] returns this interrupt.
    fn look(&mut self) -> bool;
    /// Prepares for a wait of the guest: shows the guest's writes to the devices, and makes the next check due at once.
    fn before_idle(&mut self);
    /// Returns input that does not answer a read of the guest: interrupts, and the devices' writes to memory.
    /// Returns `None` if there is none, or if the devices were checked shortly before.
    fn receive(&mut self) -> Option<DeviceInputV1>;
    /// Passes a read of the guest, or a change of the guest's IOMMU tables, to a device. Returns the device's
    /// answer.
    fn ask(&mut self, ask: &AskV1) -> DeviceInputV1;
    /// Passes a write of the guest, or the guest's choice of an interrupt mode, to a device.
    fn tell(&mut self, told: &AskV1);
}
