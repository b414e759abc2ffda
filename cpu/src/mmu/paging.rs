//! Page tables as they are in memory, for 32-bit, PAE and 4-level paging: which entries lead to a page, and what they
//! allow (SDM vol. 3, chapter 4). Reads only.

use guest_ram::GuestRam;

use crate::model::PHYSICAL_BITS;
use crate::registers::{cr0, cr4, efer};
use crate::state::CpuState;

/// Kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write, or the read of a read-modify-write.
    Write,
    /// Instruction fetch.
    Execute,
}

/// Privilege under which an access is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Privilege {
    pub user: bool,
    /// Supervisor accesses to user pages fault.
    pub smap: bool,
}

/// Error code of a page fault (SDM vol. 3, figure 4-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault(pub u32);

/// Where a linear address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Guest-physical address.
    pub gpa: u64,
    /// Writing is allowed and the dirty bit is set already.
    pub(crate) writable: bool,
    /// Fetching is allowed at the privilege asked for.
    pub(crate) executable: bool,
    /// RAM offset of the last entry, `u64::MAX` without paging.
    pub(crate) entry_offset: u64,
}

pub(super) const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;

pub(super) const ADDRESS: u64 = ((1 << PHYSICAL_BITS) - 1) & !0xfff;
const RESERVED_HIGH: u64 = 0x000f_ffff_ffff_ffff & !((1 << PHYSICAL_BITS) - 1);

/// How entries of one paging mode look.
struct Shape {
    narrow: bool,
    /// Address shift of the top level.
    top_shift: u32,
    index_bits: u32,
    root: u64,
}

/// One entry on the way.
pub(super) struct Step {
    /// Where it is in RAM.
    pub offset: u64,
    pub value: u64,
    /// Address shift of its level.
    pub shift: u32,
}

/// Whether error codes say that an access was an instruction fetch.
pub(super) fn executes_checked(state: &CpuState) -> bool {
    state.cr4 & cr4::SMEP != 0 || (state.msrs.efer & efer::NXE != 0 && (state.cr4 & cr4::PAE != 0))
}

/// The entries a walk read, from the top.
pub(super) struct Path {
    steps: [Step; 4],
    length: usize,
    /// Entries are 4 bytes wide (32-bit paging).
    pub narrow: bool,
    user: bool,
    writable: bool,
    no_execute: bool,
    page_base: u64,
    page_shift: u32,
}

impl Path {
    /// Reads entries down to the page. The error is the low bits of the error code (P, RSVD).
    #[inline(always)]
    pub fn read(ram: &GuestRam, state: &CpuState, address: u64) -> Result<Path, u32> {
        Path::read_below(ram, state, Shape::of(state, address)?, address)
    }

    /// As [`Path::read`], from another root than the one in CR3.
    pub fn read_in(ram: &GuestRam, state: &CpuState, cr3: u64, address: u64) -> Result<Path, u32> {
        Path::read_below(ram, state, Shape::of_root(ram, state, cr3, address)?, address)
    }

    #[inline(always)]
    fn read_below(ram: &GuestRam, state: &CpuState, shape: Shape, address: u64) -> Result<Path, u32> {
        let nxe = state.msrs.efer & efer::NXE != 0;
        const NONE: Step = Step { offset: 0, value: 0, shift: 0 };
        let mut path = Path {
            steps: [NONE; 4],
            length: 0,
            narrow: shape.narrow,
            user: true,
            writable: true,
            no_execute: false,
            page_base: 0,
            page_shift: 0,
        };
        let mut table = shape.root;
        let mut shift = shape.top_shift;
        loop {
            let index = address >> shift & ((1 << shape.index_bits) - 1);
            let gpa = table + index * if shape.narrow { 4 } else { 8 };
            let offset = ram.layout().offset_of(gpa).ok_or(0_u32)?;
            let value = if shape.narrow { u64::from(ram.load_u32(offset)) } else { ram.load_u64(offset) };
            if value & PRESENT == 0 {
                return Err(0);
            }
            path.steps[path.length] = Step { offset, value, shift };
            path.length += 1;
            path.user &= value & USER != 0;
            path.writable &= value & WRITABLE != 0;
            path.no_execute |= !shape.narrow && value & NO_EXECUTE != 0;
            let large = shift > 12 && value & LARGE != 0 && shape.large_allowed(state, shift);
            if shape.reserved(state, value, shift, large, nxe) {
                return Err(1 | 1 << 3);
            }
            if shift == 12 || large {
                path.page_shift = shift;
                path.page_base = shape.page_base(value, shift);
                return Ok(path);
            }
            table = if shape.narrow { value & 0xffff_f000 } else { value & ADDRESS };
            shift -= shape.index_bits;
        }
    }

    /// The entries from the top.
    pub fn steps(&self) -> &[Step] {
        &self.steps[..self.length]
    }

    /// Where a linear address of this page lies.
    pub fn gpa(&self, address: u64) -> u64 {
        self.page_base | address & ((1 << self.page_shift) - 1)
    }

    /// Whether the entries allow an access.
    pub fn check(&self, state: &CpuState, access: Access, privilege: Privilege) -> Result<(), ()> {
        let allowed = match access {
            Access::Read => self.may_read(privilege),
            Access::Write => self.may_read(privilege) && self.may_write(state, privilege),
            Access::Execute => self.may_execute(state, privilege),
        };
        if allowed { Ok(()) } else { Err(()) }
    }

    fn may_read(&self, privilege: Privilege) -> bool {
        if privilege.user { self.user } else { !(self.user && privilege.smap) }
    }

    fn may_write(&self, state: &CpuState, privilege: Privilege) -> bool {
        self.writable || (!privilege.user && state.cr0 & cr0::WP == 0)
    }

    fn may_execute(&self, state: &CpuState, privilege: Privilege) -> bool {
        let smep = !privilege.user && self.user && state.cr4 & cr4::SMEP != 0;
        let nx = self.no_execute && state.msrs.efer & efer::NXE != 0;
        let user_ok = self.user || !privilege.user;
        user_ok && !smep && !nx
    }

    /// What an access that was allowed found.
    pub fn translation(
        &self,
        state: &CpuState,
        address: u64,
        access: Access,
        privilege: Privilege,
    ) -> Translation {
        let last = &self.steps[self.length - 1];
        let dirty = last.value & DIRTY != 0 || access == Access::Write;
        Translation {
            gpa: self.gpa(address),
            writable: dirty && self.may_read(privilege) && self.may_write(state, privilege),
            executable: self.may_execute(state, privilege),
            entry_offset: last.offset,
        }
    }
}

impl Shape {
    fn of(state: &CpuState, address: u64) -> Result<Shape, u32> {
        Shape::with(state, state.cr3, || state.pdptes[(address >> 30 & 3) as usize])
    }

    /// As [`Shape::of`], with another root than the one in CR3, whose PDPTEs are in memory only.
    fn of_root(ram: &GuestRam, state: &CpuState, cr3: u64, address: u64) -> Result<Shape, u32> {
        Shape::with(state, cr3, || {
            let gpa = (cr3 & 0xffff_ffe0) + (address >> 30 & 3) * 8;
            ram.layout().offset_of(gpa).map_or(0, |offset| ram.load_u64(offset))
        })
    }

    #[inline(always)]
    fn with(state: &CpuState, cr3: u64, pdpte: impl FnOnce() -> u64) -> Result<Shape, u32> {
        if state.cr4 & cr4::PAE == 0 {
            return Ok(Shape { narrow: true, top_shift: 22, index_bits: 10, root: cr3 & 0xffff_f000 });
        }
        if state.msrs.efer & efer::LMA != 0 {
            return Ok(Shape { narrow: false, top_shift: 39, index_bits: 9, root: cr3 & ADDRESS });
        }
        let pdpte = pdpte();
        if pdpte & PRESENT == 0 {
            return Err(0);
        }
        Ok(Shape { narrow: false, top_shift: 21, index_bits: 9, root: pdpte & ADDRESS })
    }

    fn large_allowed(&self, state: &CpuState, shift: u32) -> bool {
        if self.narrow { state.cr4 & cr4::PSE != 0 } else { shift == 21 || shift == 30 }
    }

    fn reserved(&self, state: &CpuState, value: u64, shift: u32, large: bool, nxe: bool) -> bool {
        if self.narrow {
            // PSE-36: bits 13-20 hold address bits 32-39; bit 21 is reserved.
            return large && value & 1 << 21 != 0;
        }
        let long = state.msrs.efer & efer::LMA != 0;
        let mut reserved = RESERVED_HIGH;
        if !nxe {
            reserved |= NO_EXECUTE;
        }
        if !long {
            reserved |= 0x7ff0_0000_0000_0000;
        }
        if shift == 39 {
            reserved |= LARGE;
        }
        if large {
            reserved |= ((1_u64 << shift) - 1) & !0x1fff;
        }
        value & reserved != 0
    }

    fn page_base(&self, value: u64, shift: u32) -> u64 {
        if !self.narrow {
            return value & ADDRESS & !((1 << shift) - 1);
        }
        if shift == 12 {
            return value & 0xffff_f000;
        }
        value & 0xffc0_0000 | (value >> 13 & 0xff) << 32
    }
}
