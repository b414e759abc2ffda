//! The registers of an IOMMU, by which a guest chooses the memory that passed-through devices may use.
//!
//! The IOMMU has second-level translation of 39 bits, registers for invalidation, and caching mode. In
//! caching mode a driver reports new mappings as well as removed ones. There is no queued invalidation and no
//! interrupt remapping. Nothing passes through untranslated: while translation is off, devices reach no
//! memory at all. Faults are not reported.
//!
//! The tables are in guest memory; the code on the host walks the tables (see [`crate::passthrough`]).
//!
//! Intel Virtualization Technology for Directed I/O, revision 3.3, chapters 9 and 11.

use serde::{Deserialize, Serialize};

use super::ask::AskV1;
use crate::pci::error::StateError;

/// The address of the registers: one page outside of the PCI bus's window.
pub const TRANSLATION_BASE: u64 = 0xFED9_0000;
const PAGE_BYTES: u64 = 0x1000;

const VERSION: u32 = 0x10;
/// Capabilities: 256 domains, caching mode, three levels, 39 bits, zero-length reads, fault record at 0x200, draining.
/// Pages can be invalidated, up to 2^18 at once.
const CAPABILITY: u64 = 2 | 1 << 7 | 2 << 8 | 38 << 16 | 1 << 22 | 0x20 << 24 | 1 << 39 | 18 << 48 | 3 << 54;
/// Extended capabilities: the tables are coherent with the CPU's caches, and the invalidation registers are at
/// 0xF0.
const EXTENDED: u64 = 1 | 0xF << 8;

const STATUS_ENABLED: u32 = 1 << 31;
const STATUS_ROOT: u32 = 1 << 30;
const GO: u64 = 1 << 63;
const GRANULARITY_SHIFT: u32 = 60;
const GRANULARITY_PAGES: u64 = 3;
const MAX_MASK: u64 = 18;

/// The saved registers, version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranslationStateV1 {
    /// Global status.
    pub status: u32,
    /// Root table address register.
    pub root: u64,
    /// The root table in use.
    pub root_in_use: u64,
    /// Context command, with its start bit clear.
    pub context: u64,
    /// Address to invalidate.
    pub address: u64,
    /// Invalidation command, with its start bit clear.
    pub invalidate: u64,
    /// The fault event's control, data and address registers.
    pub fault_event: [u32; 4],
}

/// The registers of the IOMMU.
#[derive(Default)]
pub(crate) struct Translation {
    state: TranslationStateV1,
}

impl Translation {
    /// Whether the whole access lies in the page of these registers.
    pub fn has(gpa: u64, size: usize) -> bool {
        offset(gpa, size).is_some()
    }

    /// Reads a register for the guest. Returns false if the address is not one of these registers.
    pub fn read(&self, gpa: u64, data: &mut [u8]) -> bool {
        let Some(offset) = offset(gpa, data.len()) else { return false };
        for (at, byte) in (offset..).zip(data) {
            *byte = self.dword(at & !3).to_le_bytes()[at & 3];
        }
        true
    }

    /// Writes a register for the guest. Returns false if the address is not one of these registers. Software uses
    /// aligned dwords and qwords.
    pub fn write(&mut self, gpa: u64, data: &[u8], told: &mut Vec<AskV1>) -> bool {
        let Some(offset) = offset(gpa, data.len()) else { return false };
        if !matches!(data.len(), 4 | 8) || !offset.is_multiple_of(4) {
            return true;
        }
        for (at, dword) in (offset..).step_by(4).zip(data.chunks_exact(4)) {
            self.write_dword(at, u32::from_le_bytes([dword[0], dword[1], dword[2], dword[3]]), told);
        }
        true
    }

    /// The saved state.
    pub fn state(&self) -> TranslationStateV1 {
        self.state
    }

    /// Builds the registers from saved contents.
    pub fn restored(&self, state: &TranslationStateV1) -> Result<Translation, StateError> {
        let impossible = state.status & !(STATUS_ENABLED | STATUS_ROOT) != 0
            || (state.context | state.invalidate) & GO != 0;
        if impossible {
            Err(StateError::new("the IOMMU's registers cannot hold this"))
        } else {
            Ok(Translation { state: *state })
        }
    }

    fn dword(&self, offset: usize) -> u32 {
        let state = &self.state;
        let half = |value: u64, at: usize| if offset == at { value as u32 } else { (value >> 32) as u32 };
        match offset {
            0x00 => VERSION,
            0x08 | 0x0C => half(CAPABILITY, 0x08),
            0x10 | 0x14 => half(EXTENDED, 0x10),
            0x1C => state.status,
            0x20 | 0x24 => half(state.root, 0x20),
            0x28 | 0x2C => half(state.context, 0x28),
            0x38..=0x44 => state.fault_event[(offset - 0x38) / 4],
            0xF0 | 0xF4 => half(state.address, 0xF0),
            0xF8 | 0xFC => half(state.invalidate, 0xF8),
            _ => 0,
        }
    }

    fn write_dword(&mut self, offset: usize, value: u32, told: &mut Vec<AskV1>) {
        let put = |register: &mut u64, low: usize| {
            let shift = if offset == low { 0 } else { 32 };
            *register = *register & !(0xFFFF_FFFF << shift) | u64::from(value) << shift;
        };
        match offset {
            0x18 => self.command(value, told),
            0x20 | 0x24 => put(&mut self.state.root, 0x20),
            0x28 | 0x2C => {
                put(&mut self.state.context, 0x28);
                if self.state.context & GO != 0 {
                    // The invalidation takes effect at once, with the granularity that the guest asked for.
                    self.state.context &= !GO;
                    let asked = self.state.context >> 61 & 3;
                    self.state.context = self.state.context & !(3 << 59) | asked << 59;
                    self.tell(0, 0, told);
                }
            }
            0x38..=0x44 => self.state.fault_event[(offset - 0x38) / 4] = value,
            0xF0 | 0xF4 => put(&mut self.state.address, 0xF0),
            0xF8 | 0xFC => {
                put(&mut self.state.invalidate, 0xF8);
                if self.state.invalidate & GO != 0 {
                    self.invalidate(told);
                }
            }
            _ => log::debug!("IOMMU: ignored {value:#x} written to register {offset:#x}"),
        }
    }

    fn command(&mut self, value: u32, told: &mut Vec<AskV1>) {
        if value & STATUS_ROOT != 0 {
            self.state.root_in_use = self.state.root & !(PAGE_BYTES - 1);
            self.state.status |= STATUS_ROOT;
        }
        self.state.status = self.state.status & !STATUS_ENABLED | value & STATUS_ENABLED;
        self.tell(0, 0, told);
    }

    fn invalidate(&mut self, told: &mut Vec<AskV1>) {
        self.state.invalidate &= !GO;
        let asked = self.state.invalidate >> GRANULARITY_SHIFT & 3;
        self.state.invalidate = self.state.invalidate & !(3 << 57) | asked << 57;
        if asked == GRANULARITY_PAGES {
            let pages = 1 << (self.state.address & 0x3F).min(MAX_MASK);
            self.tell(self.state.address & !(pages * PAGE_BYTES - 1), pages, told);
        } else {
            self.tell(0, 0, told);
        }
    }

    fn tell(&self, first: u64, pages: u64, told: &mut Vec<AskV1>) {
        let on = self.state.status & (STATUS_ENABLED | STATUS_ROOT) == STATUS_ENABLED | STATUS_ROOT;
        let root = on.then_some(self.state.root_in_use);
        told.push(AskV1::Translate { root, first, pages });
    }
}

fn offset(gpa: u64, length: usize) -> Option<usize> {
    let offset = gpa.checked_sub(TRANSLATION_BASE)?;
    (offset + length as u64 <= PAGE_BYTES).then_some(offset as usize)
}
