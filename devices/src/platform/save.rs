//! Saving and restoring the whole board.

use super::Platform;
use super::bus::ExpansionBus;
use super::state::PlatformStateV1;
use crate::acpi_pm::AcpiPm;
use crate::ioapic::IoApic;
use crate::lapic::LocalApic;
use crate::misc_ports::MiscPorts;
use crate::pic::PicPair;
use crate::pit::Pit;
use crate::restore::RestoreError;
use crate::rtc::Rtc;
use crate::uart::Uart;

impl<B: ExpansionBus> Platform<B> {
    /// The state of all chips. Equal machines have equal states if they have been advanced to the present; see
    /// [`crate::platform`].
    pub fn state(&self) -> PlatformStateV1<B::State> {
        PlatformStateV1 {
            uart: self.uart.save(),
            rtc: self.rtc.save(),
            pit: self.pit.save(),
            pic: self.pic.save(),
            ioapic: self.ioapic.save(),
            lapic: self.lapic.save(),
            pm: self.pm.save(),
            misc_ports: self.misc_ports.save(),
            bus: self.bus.state(),
        }
    }

    /// Restores a state that was saved at `now_ns`. Drops output and requests that were not taken. An error changes
    /// nothing, except perhaps the bus.
    pub fn restore(&mut self, state: &PlatformStateV1<B::State>, now_ns: u64) -> Result<(), RestoreError> {
        let uart = Uart::restore(&state.uart)?;
        let rtc = Rtc::restore(&state.rtc)?;
        let pit = Pit::restore(&state.pit)?;
        let lapic = LocalApic::restore(&state.lapic)?;
        let pm = AcpiPm::restore(&state.pm)?;
        self.bus.restore(&state.bus)?;
        self.uart = uart;
        self.rtc = rtc;
        self.pit = pit;
        self.pic = PicPair::restore(&state.pic);
        self.ioapic = IoApic::restore(&state.ioapic);
        self.lapic = lapic;
        self.pm = pm;
        self.misc_ports = MiscPorts::restore(&state.misc_ports);
        // The lines have their saved levels. Only the derived fields must be computed again.
        self.line_deadline_ns = self.next_line_change_ns(now_ns);
        self.route();
        Ok(())
    }
}
