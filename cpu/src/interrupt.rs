//! Delivery of exceptions and interrupts.

use crate::bus::Bus;
use crate::core::Core;
use crate::exec::Delivery;

/// The CPU cannot go on: triple fault.
pub(crate) struct Shutdown;

impl Core {
    /// Delivers an exception or interrupt through the IDT.
    pub(crate) fn deliver(&mut self, _bus: &mut dyn Bus, _delivery: Delivery) -> Result<(), Shutdown> {
        Err(Shutdown)
    }
}
