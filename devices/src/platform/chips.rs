//! The chips of the board, for reading.

use super::Platform;
use super::bus::ExpansionBus;
use crate::acpi_pm::AcpiPm;
use crate::interrupt_message::InterruptMessage;
use crate::ioapic::IoApic;
use crate::lapic::LocalApic;
use crate::pic::PicPair;
use crate::pit::Pit;
use crate::rtc::Rtc;
use crate::uart::Uart;

impl<B: ExpansionBus> Platform<B> {
    /// The local APIC of each processor.
    pub fn lapics(&self) -> &[LocalApic] {
        &self.lapics
    }

    /// The I/O APIC.
    pub fn ioapic(&self) -> &IoApic {
        &self.ioapic
    }

    /// The 8259 pair.
    pub fn pic(&self) -> &PicPair {
        &self.pic
    }

    /// The timer.
    pub fn pit(&self) -> &Pit {
        &self.pit
    }

    /// The real-time clock.
    pub fn rtc(&self) -> &Rtc {
        &self.rtc
    }

    /// The ACPI fixed hardware.
    pub fn pm(&self) -> &AcpiPm {
        &self.pm
    }

    /// The serial port.
    pub fn uart(&self) -> &Uart {
        &self.uart
    }

    /// The numbers of the processors that a message addresses, in ascending order.
    pub fn receivers(&self, message: &InterruptMessage) -> impl Iterator<Item = usize> {
        let lapics = self.lapics.iter().enumerate();
        lapics.filter(|(_, lapic)| lapic.is_message_for_us(message)).map(|(processor, _)| processor)
    }
}
