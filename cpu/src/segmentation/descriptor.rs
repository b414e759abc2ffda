//! Segment and gate descriptors (SDM vol. 3, 3.4.5 and 3.5).

use crate::state::Segment;

/// System descriptor types (SDM vol. 3, table 3-2).
pub(crate) mod system_type {
    pub const TSS16_AVAILABLE: u8 = 1;
    pub const LDT: u8 = 2;
    pub const TSS16_BUSY: u8 = 3;
    pub const CALL_GATE16: u8 = 4;
    pub const TASK_GATE: u8 = 5;
    pub const INTERRUPT_GATE16: u8 = 6;
    pub const TRAP_GATE16: u8 = 7;
    pub const TSS32_AVAILABLE: u8 = 9;
    pub const TSS32_BUSY: u8 = 11;
    pub const CALL_GATE32: u8 = 12;
    pub const INTERRUPT_GATE32: u8 = 14;
    pub const TRAP_GATE32: u8 = 15;
}

/// The eight bytes of a descriptor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor(pub u64);

impl Descriptor {
    /// The four-bit type field.
    pub fn kind(self) -> u8 {
        (self.0 >> 40 & 0xf) as u8
    }
    /// Whether the descriptor is for a system segment or a gate (S is clear).
    pub fn is_system(self) -> bool {
        self.0 & 1 << 44 == 0
    }
    pub fn is_code(self) -> bool {
        !self.is_system() && self.kind() & 8 != 0
    }
    pub fn is_conforming(self) -> bool {
        self.is_code() && self.kind() & 4 != 0
    }
    pub fn is_writable_data(self) -> bool {
        !self.is_system() && self.kind() & 0b1010 == 0b0010
    }
    /// Whether the segment may be read: a data segment, or a readable code segment.
    pub fn is_readable(self) -> bool {
        !self.is_system() && (self.kind() & 8 == 0 || self.kind() & 2 != 0)
    }
    pub fn dpl(self) -> u8 {
        (self.0 >> 45 & 3) as u8
    }
    pub fn present(self) -> bool {
        self.0 & 1 << 47 != 0
    }
    /// The L bit.
    pub fn long(self) -> bool {
        self.0 & 1 << 53 != 0
    }
    /// The D/B bit.
    pub fn big(self) -> bool {
        self.0 & 1 << 54 != 0
    }
    pub fn base(self) -> u64 {
        self.0 >> 16 & 0xff_ffff | self.0 >> 32 & 0xff00_0000
    }
    /// The segment's limit in bytes.
    pub fn limit(self) -> u32 {
        let raw = (self.0 & 0xffff | self.0 >> 32 & 0xf_0000) as u32;
        if self.0 & 1 << 55 != 0 { raw << 12 | 0xfff } else { raw }
    }
    /// The segment register, with its hidden part, after `selector` loaded this descriptor.
    pub fn segment(self, selector: u16) -> Segment {
        let attributes = (self.0 >> 40) as u16 & 0xf0ff;
        Segment { selector, base: self.base(), limit: self.limit(), attributes }
    }
    /// The selector in a gate.
    pub fn gate_selector(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// The offset in a gate, without the upper half that 64-bit gates have.
    pub fn gate_offset(self) -> u64 {
        self.0 & 0xffff | self.0 >> 32 & 0xffff_0000
    }
}

/// A descriptor, and the linear address from which it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    pub descriptor: Descriptor,
    pub address: u64,
}

/// The unusable segment that a null selector loads. In 64-bit mode, a null SS still holds the privilege level
/// `dpl`.
pub(crate) fn null_segment(selector: u16, dpl: u8) -> Segment {
    Segment { selector, base: 0, limit: 0, attributes: u16::from(dpl) << 5 }
}
