//! What a guest can have outside beside its console: a network, and devices of the host. Features bring them.

use std::os::fd::BorrowedFd;

use devices::passthrough::{AskV1, DeviceInputV1};
use machine::inputs::Sent;

/// A network outside. It never holds up the machine. An error means that the network is gone.
pub(super) trait Network<C> {
    /// The machine's count is zero from here on.
    fn count_anew(&mut self);
    /// What can be read when frames have come. They are looked at next.
    fn wakes(&mut self, now: C) -> BorrowedFd<'_>;
    /// Takes frames for a guest with this much room, unless it was looked for them a moment ago.
    fn receive(&mut self, now: C, room: Option<usize>) -> std::io::Result<Vec<Vec<u8>>>;
    /// Sends the guest's frames.
    fn send(&mut self, frames: Vec<Sent<C>>) -> std::io::Result<()>;
}

/// Devices of the host that are passed through.
pub(super) trait Devices {
    /// What can be read when a device wants something.
    fn wakes(&self) -> Vec<BorrowedFd<'_>>;
    /// Whether a device may interrupt that nothing tells of, so that it must be looked at.
    fn are_watched(&self) -> bool;
    /// Looks at devices that nothing tells of while the guest waits. What interrupts comes in next.
    fn look(&mut self) -> bool;
    /// The guest is about to wait: devices see what it wrote, and are looked at next.
    fn before_idle(&mut self);
    /// What comes from devices unasked, unless they were looked at a moment ago.
    fn receive(&mut self) -> Option<DeviceInputV1>;
    /// What comes back for an ask.
    fn ask(&mut self, ask: &AskV1) -> DeviceInputV1;
    /// Tells a device what the guest told it.
    fn tell(&mut self, told: &AskV1);
}
