//! The debugged machine as the `gdbstub` crate needs it: the register file and its description.

use std::sync::LazyLock;

use gdbstub::arch;

use crate::description;
use crate::registers::{RegisterNumber, Registers};

static DESCRIPTION: LazyLock<String> = LazyLock::new(description::target_xml);

/// x86-64 with this crate's registers.
#[derive(Debug)]
pub(crate) enum X86_64 {}

impl arch::Arch for X86_64 {
    type Usize = u64;
    type Registers = Registers;
    type RegId = RegisterNumber;
    type BreakpointKind = usize;

    fn target_description_xml() -> Option<&'static str> {
        Some(&DESCRIPTION)
    }
}
