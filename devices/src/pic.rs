//! The pair of 8259A interrupt controllers of a PC (Intel 8259A datasheet; ELCR as in the 82371 datasheet).
//!
//! The slave is wired to input 2 of the master. Modelled: initialisation and operation command words, automatic and
//! rotating end of interrupt, special mask, polling, spurious interrupts, and the edge/level control registers. Not
//! modelled: buffered mode and MCS-80 call instructions (their bits are ignored).

mod chip;
mod state;

use chip::{Pic8259, Registers};
pub use state::{Pic8259StateV1, PicPairStateV1};

const CASCADE: u8 = 2;

/// The inputs that can be level triggered: all but inputs 0, 1, 2, 8 and 13, which a PC uses for its own chips.
const ELCR_MASK: [u8; 2] = [0xF8, 0xDE];

/// Which of the two chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PicChip {
    /// Interrupt lines 0 to 7.
    Master,
    /// Interrupt lines 8 to 15.
    Slave,
}

/// The registers of one of the two chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PicSummary {
    /// The inputs that request an interrupt (IRR).
    pub requested: u8,
    /// The inputs in service (ISR).
    pub in_service: u8,
    /// The masked inputs (IMR).
    pub masked: u8,
    /// The level-triggered inputs (ELCR).
    pub level_triggered: u8,
    /// The vector of input 0.
    pub first_vector: u8,
}

/// The master and the slave controller.
#[derive(Clone, Debug)]
pub struct PicPair {
    master: Pic8259,
    slave: Pic8259,
}

impl Default for PicPair {
    fn default() -> PicPair {
        PicPair::new(0)
    }
}

impl PicPair {
    /// Makes the pair as firmware leaves it: initialised with vectors 0x08 and 0x70, and everything masked. The lines
    /// in `level_lines` (bit n is line n) are level triggered.
    pub fn new(level_lines: u16) -> PicPair {
        let [low, high] = level_lines.to_le_bytes();
        PicPair {
            master: Pic8259::new(0x08, low & ELCR_MASK[0]),
            slave: Pic8259::new(0x70, high & ELCR_MASK[1]),
        }
    }

    /// Reads the command (`offset` 0) or data (1) port of a chip.
    pub fn read(&mut self, which: PicChip, offset: u16) -> u8 {
        let value = self.chip(which).read(offset);
        self.update_cascade();
        value
    }

    /// Writes the command (`offset` 0) or data (1) port of a chip.
    pub fn write(&mut self, which: PicChip, offset: u16, value: u8) {
        self.chip(which).write(offset, value);
        self.update_cascade();
    }

    /// Reads a chip's edge/level control register.
    pub fn read_elcr(&self, which: PicChip) -> u8 {
        match which {
            PicChip::Master => self.master.elcr(),
            PicChip::Slave => self.slave.elcr(),
        }
    }

    /// Writes a chip's edge/level control register: a set bit makes the input level triggered.
    pub fn write_elcr(&mut self, which: PicChip, value: u8) {
        match which {
            PicChip::Master => self.master.set_elcr(value & ELCR_MASK[0]),
            PicChip::Slave => self.slave.set_elcr(value & ELCR_MASK[1]),
        }
        self.update_cascade();
    }

    /// Drives interrupt lines 0 to 15 (bit n is line n; line 2 does not exist and is ignored).
    pub fn set_lines(&mut self, lines: u16) {
        let [low, high] = lines.to_le_bytes();
        self.master.set_inputs(low & !(1 << CASCADE));
        self.slave.set_inputs(high);
        self.update_cascade();
    }

    /// Level of the INT output to the CPU.
    pub fn interrupt_pending(&self) -> bool {
        self.master.request().is_some()
    }

    /// Runs the two INTA cycles: takes the highest request into service and returns its vector. Without a request,
    /// returns the vector of the spurious interrupt, which is input 7 of the acknowledged chip.
    pub fn acknowledge(&mut self) -> u8 {
        let vector = match self.master.acknowledge() {
            (Some(CASCADE), _) => self.slave.acknowledge().1,
            (_, vector) => vector,
        };
        self.update_cascade();
        vector
    }

    /// The registers of master and slave.
    pub fn summary(&self) -> [PicSummary; 2] {
        [&self.master, &self.slave].map(|chip| {
            let registers = chip.registers();
            PicSummary {
                requested: chip.requests(),
                in_service: registers.in_service,
                masked: registers.mask,
                level_triggered: chip.level_inputs(),
                first_vector: registers.vector_base,
            }
        })
    }

    /// The chips' state.
    pub fn save(&self) -> PicPairStateV1 {
        PicPairStateV1 { master: self.master.registers().into(), slave: self.slave.registers().into() }
    }

    /// Builds the chips from a saved state. Every state is possible.
    pub fn restore(state: &PicPairStateV1) -> PicPair {
        let chip = |state| Pic8259::with_registers(Registers::from(state));
        PicPair { master: chip(&state.master), slave: chip(&state.slave) }
    }

    fn chip(&mut self, which: PicChip) -> &mut Pic8259 {
        match which {
            PicChip::Master => &mut self.master,
            PicChip::Slave => &mut self.slave,
        }
    }

    fn update_cascade(&mut self) {
        self.master.set_cascade(CASCADE, self.slave.request().is_some());
    }
}

#[cfg(test)]
mod tests;
