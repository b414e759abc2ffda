//! The saved form of the two interrupt controllers, version 1.

use serde::{Deserialize, Serialize};

use super::chip::{Expected, Registers};

/// The saved state of a [`PicPair`](super::PicPair), version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PicPairStateV1 {
    pub(super) master: Pic8259StateV1,
    pub(super) slave: Pic8259StateV1,
}

/// The saved registers of an 8259A, version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pic8259StateV1 {
    /// Levels of the inputs.
    inputs: u8,
    /// Edges seen and not yet taken into service (edge-triggered inputs only).
    edges: u8,
    in_service: u8,
    mask: u8,
    elcr: u8,
    /// ICW1 bit 3: every input is level triggered.
    all_level: bool,
    /// Bits 7:3 of the vectors.
    vector_base: u8,
    expected: ExpectedV1,
    icw1: u8,
    auto_eoi: bool,
    special_fully_nested: bool,
    special_mask: bool,
    rotate_on_auto_eoi: bool,
    /// Whether reads of the command port give ISR instead of IRR.
    read_in_service: bool,
    /// Whether the next read of either port is a poll.
    poll: bool,
    /// The input with the lowest priority. The input with the next number has the highest priority.
    lowest: u8,
    /// The bit of the input to which the slave is wired, while the slave requests an interrupt; otherwise 0.
    cascade: u8,
}

/// The initialisation word that the data port expects, version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ExpectedV1 {
    /// Nothing is expected: the data port is the mask register.
    Mask,
    Icw2,
    Icw3,
    Icw4,
}

impl From<Registers> for Pic8259StateV1 {
    fn from(registers: Registers) -> Pic8259StateV1 {
        Pic8259StateV1 {
            inputs: registers.inputs,
            edges: registers.edges,
            in_service: registers.in_service,
            mask: registers.mask,
            elcr: registers.elcr,
            all_level: registers.all_level,
            vector_base: registers.vector_base,
            expected: registers.expected.into(),
            icw1: registers.icw1,
            auto_eoi: registers.auto_eoi,
            special_fully_nested: registers.special_fully_nested,
            special_mask: registers.special_mask,
            rotate_on_auto_eoi: registers.rotate_on_auto_eoi,
            read_in_service: registers.read_in_service,
            poll: registers.poll,
            lowest: registers.lowest,
            cascade: registers.cascade,
        }
    }
}

impl From<&Pic8259StateV1> for Registers {
    fn from(state: &Pic8259StateV1) -> Registers {
        Registers {
            inputs: state.inputs,
            edges: state.edges,
            in_service: state.in_service,
            mask: state.mask,
            elcr: state.elcr,
            all_level: state.all_level,
            vector_base: state.vector_base,
            expected: state.expected.into(),
            icw1: state.icw1,
            auto_eoi: state.auto_eoi,
            special_fully_nested: state.special_fully_nested,
            special_mask: state.special_mask,
            rotate_on_auto_eoi: state.rotate_on_auto_eoi,
            read_in_service: state.read_in_service,
            poll: state.poll,
            lowest: state.lowest,
            cascade: state.cascade,
        }
    }
}

impl From<Expected> for ExpectedV1 {
    fn from(expected: Expected) -> ExpectedV1 {
        match expected {
            Expected::Mask => ExpectedV1::Mask,
            Expected::Icw2 => ExpectedV1::Icw2,
            Expected::Icw3 => ExpectedV1::Icw3,
            Expected::Icw4 => ExpectedV1::Icw4,
        }
    }
}

impl From<ExpectedV1> for Expected {
    fn from(expected: ExpectedV1) -> Expected {
        match expected {
            ExpectedV1::Mask => Expected::Mask,
            ExpectedV1::Icw2 => Expected::Icw2,
            ExpectedV1::Icw3 => Expected::Icw3,
            ExpectedV1::Icw4 => Expected::Icw4,
        }
    }
}
