//! Saving and restoring the whole board.

use serde::{Deserialize, Serialize};

use super::{ExpansionBus, Platform};
use crate::acpi_pm::{AcpiPm, AcpiPmStateV1};
use crate::board::{Board, BoardStateV1};
use crate::ioapic::{IoApic, IoApicStateV1};
use crate::lapic::{LapicStateV1, LocalApic};
use crate::pic::{PicPair, PicPairStateV1};
use crate::pit::{Pit, PitStateV1};
use crate::restore::RestoreError;
use crate::rtc::{Rtc, RtcStateV1};
use crate::uart::{Uart, UartStateV1};

/// Everything a [`Platform`] remembers, version 1. `S` is the state of the expansion bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformStateV1<S> {
    uart: UartStateV1,
    rtc: RtcStateV1,
    pit: PitStateV1,
    pic: PicPairStateV1,
    ioapic: IoApicStateV1,
    lapic: LapicStateV1,
    pm: AcpiPmStateV1,
    board: BoardStateV1,
    bus: S,
}

impl<B: ExpansionBus> Platform<B> {
    /// The state of all chips. Equal machines have equal states if they have been advanced to the present;
    /// see the module documentation.
    pub fn state(&self) -> PlatformStateV1<B::State> {
        PlatformStateV1 {
            uart: self.uart.save(),
            rtc: self.rtc.save(),
            pit: self.pit.save(),
            pic: self.pic.save(),
            ioapic: self.ioapic.save(),
            lapic: self.lapic.save(),
            pm: self.pm.save(),
            board: self.board.save(),
            bus: self.bus.state(),
        }
    }

    /// Goes back to a state that was saved at `now_ns`. Output and requests not taken yet are dropped. On an
    /// error nothing has changed, except perhaps in the bus.
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
        self.board = Board::restore(&state.board);
        // The lines are what they were; only what follows from the chips has to be worked out again.
        self.line_deadline_ns = self.next_line_change_ns(now_ns);
        self.route();
        Ok(())
    }
}
