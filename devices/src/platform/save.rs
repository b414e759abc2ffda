//! Saving and restoring the whole board.

use super::Platform;
use super::bus::ExpansionBus;
use super::state::{OtherLapicV1, PlatformStateV1};
use crate::acpi_pm::AcpiPm;
use crate::ioapic::IoApic;
use crate::lapic::{LocalApic, StartupV1};
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
            lapic: self.lapics[0].save(),
            pm: self.pm.save(),
            misc_ports: self.misc_ports.save(),
            bus: self.bus.state(),
        }
    }

    /// The local APICs of all processors but the first, with their numbers in order.
    pub fn other_lapics(&self) -> Vec<OtherLapicV1> {
        let other = |lapic: &LocalApic| OtherLapicV1 { registers: lapic.save(), startup: lapic.startup() };
        self.lapics[1..].iter().map(other).collect()
    }

    /// Restores a state that was saved at `now_ns`. Drops output and requests that were not taken. An error changes
    /// nothing, except perhaps the bus.
    pub fn restore(
        &mut self,
        state: &PlatformStateV1<B::State>,
        others: &[OtherLapicV1],
        seat: usize,
        now_ns: u64,
    ) -> Result<(), RestoreError> {
        let count = others.len() + 1;
        RestoreError::unless(count == self.lapics.len(), "board", "another number of processors")?;
        RestoreError::unless(seat < count, "board", "a processor in the seat that does not exist")?;
        let uart = Uart::restore(&state.uart)?;
        let rtc = Rtc::restore(&state.rtc)?;
        let pit = Pit::restore(&state.pit)?;
        let mut lapics = vec![LocalApic::restore(0, &state.lapic, StartupV1::Done)?];
        for (lapic, other) in self.lapics[1..].iter().zip(others) {
            lapics.push(LocalApic::restore(lapic.id(), &other.registers, other.startup)?);
        }
        let pm = AcpiPm::restore(&state.pm)?;
        self.bus.restore(&state.bus)?;
        self.uart = uart;
        self.rtc = rtc;
        self.pit = pit;
        self.pic = PicPair::restore(&state.pic);
        self.ioapic = IoApic::restore(&state.ioapic);
        (self.lapics, self.seat) = (lapics, seat);
        self.pm = pm;
        self.misc_ports = MiscPorts::restore(&state.misc_ports);
        // The lines have their saved levels. Only the derived fields must be computed again.
        self.line_deadline_ns = self.next_line_change_ns(now_ns);
        self.route();
        Ok(())
    }
}
