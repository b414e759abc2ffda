//! Page tables in memory, for 32-bit, PAE and 4-level paging (SDM vol. 3, chapter 4). This module finds the entries
//! that lead to a page, and the accesses that these entries allow. The module never writes to memory.

use cpu_model::PHYSICAL_BITS;
use cpu_model::registers::{cr0, cr4, efer};
use guest_ram::GuestRam;

use crate::state::CpuState;

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write, or the read of a read-modify-write.
    Write,
    /// Instruction fetch.
    Execute,
}

/// The privilege with which an access is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Privilege {
    pub user: bool,
    /// Whether supervisor accesses to user pages fault.
    pub smap: bool,
}

/// Error code of a page fault (SDM vol. 3, figure 4-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault(pub u32);

/// Where a linear address is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Guest-physical address.
    pub gpa: u64,
    /// Whether writing is allowed and the dirty bit is already set.
    pub(crate) writable: bool,
    /// Whether fetching is allowed at the given privilege.
    pub(crate) executable: bool,
    /// RAM offset of the last-level entry, `u64::MAX` without paging.
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

/// The format of entries in one paging mode.
struct Shape {
    narrow: bool,
    /// The number of address bits below the top level's index.
    top_shift: u32,
    index_bits: u32,
    root: u64,
}

/// One page-table entry that a walk read.
pub(super) struct Step {
    /// The entry's RAM offset.
    pub offset: u64,
    pub value: u64,
    /// The number of address bits below the index of the entry's level.
    pub shift: u32,
}

/// Whether error codes of page faults report instruction fetches.
pub(super) fn executes_checked(state: &CpuState) -> bool {
    state.cr4 & cr4::SMEP != 0 || (state.msrs.efer & efer::NXE != 0 && (state.cr4 & cr4::PAE != 0))
}

/// The entries that a walk read, from the root table down.
pub(super) struct Path {
    steps: [Step; 4],
    length: usize,
    /// Whether entries are 4 bytes wide (32-bit paging); otherwise entries are 8 bytes wide.
    pub narrow: bool,
    user: bool,
    writable: bool,
    no_execute: bool,
    page_base: u64,
    page_shift: u32,
}

impl Path {
    /// Reads the entries from the root table down to the page. The error has the bits P and RSVD of the page
    /// fault's error code.
    #[inline(always)]
    pub fn read(ram: &GuestRam, state: &CpuState, address: u64) -> Result<Path, u32> {
        Path::read_below(ram, state, Shape::of(state, address)?, address)
    }

    /// Does the same as [`Path::read`] with `cr3` in place of CR3.
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

    /// The entries that the walk read, from the root table down.
    pub fn steps(&self) -> &[Step] {
        &self.steps[..self.length]
    }

    /// Guest-physical address of a linear address in the page to which the entries lead.
    pub fn gpa(&self, address: u64) -> u64 {
        self.page_base | address & ((1 << self.page_shift) - 1)
    }

    /// Returns `Ok` if the entries allow an access.
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

    /// The translation for an access that [`Path::check`] allowed.
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

    /// Does the same as [`Shape::of`] with `cr3` in place of CR3. Reads the PDPTEs from memory, because the CPU has
    /// loaded no PDPTEs for this root.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A paging mode, the address shifts of its levels from the top, and an address with a different index in each
    /// level.
    struct Mode {
        cr4: u64,
        efer: u64,
        shifts: &'static [u32],
        narrow: bool,
        address: u64,
    }

    const OFFSET: u64 = 4 << 12 | 0x567;
    const LONG: Mode = Mode {
        cr4: cr4::PAE,
        efer: efer::LMA,
        shifts: &[39, 30, 21, 12],
        narrow: false,
        address: 1 << 39 | 2 << 30 | 3 << 21 | OFFSET,
    };
    const PAE: Mode = Mode {
        cr4: cr4::PAE,
        efer: 0,
        shifts: &[21, 12],
        narrow: false,
        address: 2 << 30 | 3 << 21 | OFFSET,
    };
    const NARROW: Mode =
        Mode { cr4: cr4::PSE, efer: 0, shifts: &[22, 12], narrow: true, address: 3 << 22 | OFFSET };
    const ALL: u64 = PRESENT | WRITABLE | USER;
    /// The address of the page to which the last-level entry leads.
    const PAGE: u64 = 0x1234_5000;
    const NXE: u64 = efer::NXE;

    /// The path to the mode's address. All entries allow every access; only the level with `shift` has the given
    /// entry in place of such an entry.
    fn path(mode: &Mode, nxe: u64, shift: u32, entry: u64) -> Result<Path, u32> {
        let ram = GuestRam::new(16 << 12).unwrap();
        let mut state = CpuState::reset();
        (state.cr4, state.msrs.efer) = (mode.cr4, mode.efer | nxe);
        let root = 0x1000;
        state.cr3 = root;
        state.pdptes[2] = root | PRESENT;
        let (bits, bytes) = if mode.narrow { (10, 4) } else { (9, 8) };
        for (number, &this) in mode.shifts.iter().enumerate() {
            let table = root + 0x1000 * number as u64;
            let at = table + (mode.address >> this & ((1 << bits) - 1)) * bytes;
            let usual = if this == 12 { PAGE | ALL } else { table + 0x1000 | ALL };
            let value = if this == shift { entry } else { usual };
            if mode.narrow { ram.store_u32(at, value as u32) } else { ram.store_u64(at, value) }
        }
        Path::read(&ram, &state, mode.address)
    }

    /// SDM vol. 3, figures 4-4, 4-7 and 4-11, for 40 bits of a physical address.
    #[test]
    fn each_entry_has_its_reserved_bits() {
        const HIGH: u64 = 0x000f_ff00_0000_0000;
        const PAE_HIGH: u64 = 0x7fff_ff00_0000_0000;
        let table = 0x2000 | ALL;
        let cases = [
            (&LONG, 39, table, HIGH | LARGE),
            (&LONG, 30, 0x3000 | ALL, HIGH),
            (&LONG, 30, 0x4000_0000 | LARGE | ALL, HIGH | 0x3fff_e000),
            (&LONG, 21, 0x4000 | ALL, HIGH),
            (&LONG, 21, 0x0060_0000 | LARGE | ALL, HIGH | 0x001f_e000),
            (&LONG, 12, PAGE | ALL, HIGH),
            (&PAE, 21, table, PAE_HIGH),
            (&PAE, 21, 0x0060_0000 | LARGE | ALL, PAE_HIGH | 0x001f_e000),
            (&PAE, 12, PAGE | ALL, PAE_HIGH),
            (&NARROW, 22, table, 0),
            (&NARROW, 22, 0x0040_0000 | LARGE | ALL, 1 << 21),
            (&NARROW, 12, PAGE | ALL, 0),
        ];
        for (mode, shift, entry, reserved) in cases {
            assert!(path(mode, NXE, shift, entry).is_ok(), "{shift} {entry:#x}");
            for bit in (if mode.narrow { 0..32 } else { 0..64 }).map(|bit| 1_u64 << bit) {
                // The bits PRESENT and LARGE select the kind of an entry, so these bits are not reserved. But in
                // the top level, LARGE is reserved.
                if bit == PRESENT || (bit == LARGE && shift != 39) {
                    continue;
                }
                for nxe in [0, NXE] {
                    let fails = reserved & bit != 0 || (bit == NO_EXECUTE && nxe == 0);
                    let found = path(mode, nxe, shift, entry | bit).err() == Some(9);
                    assert_eq!(found, fails, "level {shift}, {entry:#x}, bit {bit:#x}, NXE {nxe:#x}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_present_or_leads_out_of_memory_is_not_found() {
        for mode in [&LONG, &PAE, &NARROW] {
            for &shift in mode.shifts {
                assert_eq!(path(mode, NXE, shift, 0x2000 | WRITABLE | USER).err(), Some(0), "level {shift}");
                if shift != 12 {
                    assert_eq!(path(mode, NXE, shift, 0x7000_0000 | ALL).err(), Some(0), "level {shift}");
                }
            }
        }
    }

    #[test]
    fn a_page_has_the_size_of_its_level() {
        let without_pse = Mode { cr4: 0, ..NARROW };
        let cases = [
            (&LONG, 30, 0x40_4000_0000 | LARGE, 0x40_4000_0000, 30),
            (&LONG, 21, 0x40_0060_0000 | LARGE, 0x40_0060_0000, 21),
            (&LONG, 12, 0x40_1234_5000, 0x40_1234_5000, 12),
            // In the last level, the bit LARGE selects the memory type (PAT) and not the page size.
            (&LONG, 12, 0x40_1234_5000 | LARGE, 0x40_1234_5000, 12),
            (&PAE, 21, 0x40_0060_0000 | LARGE, 0x40_0060_0000, 21),
            (&PAE, 12, 0x40_1234_5000, 0x40_1234_5000, 12),
            // PSE-36: address bits 32-39 are in bits 13-20.
            (&NARROW, 22, 0x1540_0000 | 0xa5 << 13 | LARGE, 0xa5_1540_0000, 22),
            (&NARROW, 12, 0xf234_5000 | LARGE, 0xf234_5000, 12),
            (&without_pse, 22, 0x2000 | LARGE, PAGE, 12),
        ];
        for (mode, shift, entry, base, size_bits) in cases {
            let path = path(mode, NXE, shift, entry | ALL).expect("it is present");
            let in_page = mode.address & ((1 << size_bits) - 1);
            assert_eq!(path.gpa(mode.address), base + in_page, "level {shift}, {entry:#x}");
        }
    }

    /// SDM vol. 3, section 4.6.1.
    #[test]
    fn entries_of_all_levels_together_allow_an_access() {
        for case in 0..1 << 10 {
            let is = |number: u32| case >> number & 1 != 0;
            let (user_page, writable, no_execute) = (is(0), is(1), is(2));
            let (wp, smep, nxe, in_upper_level) = (is(3), is(4), is(5), is(6));
            let (user, smap, dirty) = (is(7), is(8) && !is(7), is(9));
            if no_execute && !nxe {
                continue;
            }
            let bit = |set: bool, bit: u64| if set { bit } else { 0 };
            let rights =
                PRESENT | bit(user_page, USER) | bit(writable, WRITABLE) | bit(no_execute, NO_EXECUTE);
            // Only the dirty bit of the last-level entry makes a page dirty.
            let (shift, entry) =
                if in_upper_level { (39, 0x2000 | DIRTY) } else { (12, PAGE | bit(dirty, DIRTY)) };
            let dirty = dirty && !in_upper_level;
            let path = path(&LONG, bit(nxe, NXE), shift, entry | rights).expect("it is present");
            let mut state = CpuState::reset();
            state.cr0 = bit(wp, cr0::WP);
            state.cr4 = bit(smep, cr4::SMEP);
            state.msrs.efer = bit(nxe, NXE);

            let may_read = if user { user_page } else { !(user_page && smap) };
            let may_write = may_read && (writable || (!user && !wp));
            let may_execute = !no_execute && if user { user_page } else { !(user_page && smep) };
            let privilege = Privilege { user, smap };
            for (access, expected) in
                [(Access::Read, may_read), (Access::Write, may_write), (Access::Execute, may_execute)]
            {
                assert_eq!(path.check(&state, access, privilege).is_ok(), expected, "{access:?} {case:#x}");
                let found = path.translation(&state, LONG.address, access, privilege);
                let expected = Translation {
                    gpa: PAGE | 0x567,
                    writable: may_write && (dirty || access == Access::Write),
                    executable: may_execute,
                    entry_offset: 0x4000 + 8 * 4,
                };
                assert_eq!(found, expected, "{access:?} {case:#x}");
            }
        }
    }

    /// SDM vol. 3, section 4.7: the fetch bit of an error code.
    #[test]
    fn error_codes_tell_of_fetches_where_they_are_checked() {
        for (cr4, efer, expected) in [
            (0, 0, false),
            (cr4::SMEP, 0, true),
            (cr4::PAE, NXE, true),
            (0, NXE, false),
            (cr4::PAE, 0, false),
            (cr4::PAE | cr4::SMEP, NXE, true),
        ] {
            let mut state = CpuState::reset();
            (state.cr4, state.msrs.efer) = (cr4, efer);
            assert_eq!(executes_checked(&state), expected, "CR4 {cr4:#x}, EFER {efer:#x}");
        }
    }

    #[test]
    fn another_root_has_its_own_pointers() {
        let ram = GuestRam::new(16 << 12).unwrap();
        let mut state = CpuState::reset();
        state.cr4 = cr4::PAE;
        // The PDPTEs are at a multiple of 32, so the low five bits of CR3 are ignored.
        let root = 0x2fe0;
        ram.store_u64(root + 8 * 2, 0x4000 | PRESENT);
        ram.store_u64(0x4000 + 8 * 3, 0x0060_0000 | LARGE | ALL);
        let found = Path::read_in(&ram, &state, root | 0x1f, PAE.address).expect("it is present");
        assert_eq!(found.gpa(PAE.address), 0x0060_0000 | OFFSET);
        assert_eq!(Path::read_in(&ram, &state, root, 3 << 30 | OFFSET).err(), Some(0));
        assert_eq!(Path::read_in(&ram, &state, 0x7000_0000, PAE.address).err(), Some(0), "out of memory");
    }
}
