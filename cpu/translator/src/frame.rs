//! State that generated code and the interpreter share: the registers and the slots of the software TLB.

use guest_ram::{GuestRam, PAGE_SIZE};

/// Number of entries of [`Frame::expected`], which all blocks share. Accesses beyond that number share entries.
pub(crate) const EXPECTED: usize = 64;

/// Number of entries of [`Frame::addends`]: the most pages that a block can have checked for later accesses at one
/// time.
pub(crate) const ADDENDS: usize = 4;

/// Index in [`Frame::regs`] of a saved value: the operand of a shift whose flags have not been written.
pub(crate) const KEPT: u8 = 31;

/// The part of a CPU that generated code reads and writes. Generated code contains the offset of each field, so the
/// layout is fixed. A displacement of one byte from [`Frame::ANCHOR`] reaches the most used fields.
#[repr(C)]
#[derive(Clone)]
pub struct Frame {
    /// The value of the counter before generated code runs, and after generated code has run. The upper 40 bits are
    /// the remaining steps, and the lower 24 bits count conditional branches.
    pub(crate) counter: i64,
    /// The arithmetic flags while generated code runs: a [`FlagImage`], or the recipe that computes them from
    /// registers.
    pub(crate) flags: u32,
    /// Not zero if instructions on XMM registers fault.
    pub(crate) vectors_blocked: u32,
    /// The TLB slots of the current privilege.
    pub(crate) slots: *const TlbSlots,
    /// The table in which indirect branches look up their targets.
    pub(crate) jumps: *const crate::jumps::JumpSlot,
    /// A value that generated code saves during a second memory access.
    pub(crate) spare: u64,
    /// The bits of RFLAGS that are not arithmetic flags.
    pub(crate) system_flags: u64,
    /// The value that SWAPGS exchanges with the base of GS.
    pub(crate) kernel_gs_base: u64,
    /// The TLB slots of privileged code while RFLAGS.AC is clear, and while it is set.
    pub(crate) slots_by_ac: [*const TlbSlots; 2],
    /// Not zero while code of privilege level 0 runs.
    pub(crate) privileged: u32,
    /// Not zero if an interrupt is pending until RFLAGS.IF is set.
    pub(crate) interrupts_wait: u32,
    /// Not zero between an STI that has set RFLAGS.IF and the end of the next instruction.
    pub(crate) shadow: u32,
    unused: u32,
    /// Host address minus guest address of pages that were checked for later accesses of the block.
    pub(crate) addends: [u64; ADDENDS],
    /// General registers 0 to 15, then the interpreter's extra registers; at [`KEPT`], the saved operand of a shift.
    pub regs: [u64; 32],
    /// The bases of the segments, indexed by the number of the segment register.
    pub seg_base: [u64; 8],
    /// The selectors of the segment registers, indexed in the same way as `seg_base`.
    pub selectors: [u16; 8],
    /// The address that missed in the TLB, if generated code exited for that reason: `missed[0]` for a read,
    /// `missed[1]` for a write. Zero means no such address.
    pub(crate) missed: [u64; 2],
    /// The XMM registers.
    pub xmm: [u128; 16],
    /// The TLB addends (host address minus guest address) that loads in small loops expect. A load expects the
    /// addend that it found in the loop's previous round.
    pub(crate) expected: [u64; EXPECTED],
}

// SAFETY: the pointers are set from references at each entry to generated code, and not used outside it.
unsafe impl Send for Frame {}

impl Frame {
    /// Distance of the frame pointer from the start of the frame.
    pub(crate) const ANCHOR: usize = 128;
}

impl Default for Frame {
    fn default() -> Frame {
        Frame {
            counter: 0,
            flags: 0,
            vectors_blocked: 0,
            slots: std::ptr::null(),
            jumps: std::ptr::null(),
            spare: 0,
            system_flags: 0,
            kernel_gs_base: 0,
            slots_by_ac: [std::ptr::null(); 2],
            privileged: 0,
            interrupts_wait: 0,
            shadow: 0,
            unused: 0,
            addends: [0; ADDENDS],
            regs: [0; 32],
            seg_base: [0; 8],
            selectors: [0; 8],
            missed: [0; 2],
            xmm: [0; 16],
            expected: [0; EXPECTED],
        }
    }
}

/// The six arithmetic flags as generated code keeps them in memory. The second byte comes from LAHF, the first from
/// SETO.
///
/// ```text
/// bit 0      OF                     bits 8-15  SF ZF - AF - PF - CF, as in RFLAGS
/// bit 1      AF is zero, whatever bit 12 says
/// bits 2-7   zero                   bits 16-   anything
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagImage(pub u32);

impl FlagImage {
    /// Converts from RFLAGS bits.
    pub fn from_rflags(bits: u64) -> FlagImage {
        FlagImage((bits as u32 & 0xd5) << 8 | (bits >> 11 & 1) as u32)
    }

    /// The flags as RFLAGS bits.
    pub fn rflags(self) -> u64 {
        let no_adjust = self.0 >> 1 & 1;
        let low = self.0 >> 8 & 0xd5 & !(no_adjust << 4);
        u64::from(low) | u64::from(self.0 & 1) << 11
    }
}

/// A tag that no page address equals.
const NO_PAGE: u64 = 1;

/// A slot of the software TLB: a virtual page that may be accessed without a page walk, and the distance to its host
/// address.
///
/// Only [`TlbSlot::map`] makes a slot that maps a page, and `map` checks that the page lies in RAM. RAM must outlive
/// every user of the slot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TlbSlot {
    /// Address of the virtual page.
    page: u64,
    /// Host address minus virtual address.
    addend: u64,
}

impl TlbSlot {
    /// An empty slot.
    pub const EMPTY: TlbSlot = TlbSlot { page: NO_PAGE, addend: 0 };

    /// Maps the virtual page at address `page` to the RAM page at `ram_offset`. Panics if RAM has no page at
    /// `ram_offset`.
    pub fn map(ram: &GuestRam, page: u64, ram_offset: u64) -> TlbSlot {
        assert!(
            ram_offset.is_multiple_of(PAGE_SIZE) && page.is_multiple_of(PAGE_SIZE),
            "pages begin at multiples of their size"
        );
        TlbSlot { page, addend: ram.host_address(ram_offset).wrapping_sub(page) }
    }

    /// Whether the slot holds the virtual page at address `page`.
    #[inline(always)]
    pub fn holds(&self, page: u64) -> bool {
        self.page == page
    }

    /// The virtual page that the slot holds. `None` if the slot is empty.
    #[inline(always)]
    pub fn page(&self) -> Option<u64> {
        (self.page != NO_PAGE).then_some(self.page)
    }

    /// RAM offset of a virtual address in the slot's page.
    #[inline(always)]
    pub fn ram_offset(&self, ram: &GuestRam, address: u64) -> u64 {
        ram.offset_of_host(address.wrapping_add(self.addend))
    }

    /// Host address minus virtual address for the slot's page.
    pub(crate) fn addend(&self) -> u64 {
        self.addend
    }

    pub(crate) const PAGE: i32 = std::mem::offset_of!(TlbSlot, page) as i32;
    pub(crate) const ADDEND: i32 = std::mem::offset_of!(TlbSlot, addend) as i32;
}

/// The slots of one privilege. Each kind of access has its own slots, so the two pages of a copy never compete for one
/// slot. Arrays of slots are aligned to their size. So generated code finds a page's second slot by changing one bit of
/// the first slot's address.
#[repr(C, align(16384))]
#[derive(Clone)]
pub struct TlbSlots {
    /// Data reads.
    pub read: [TlbSlot; SLOTS],
    /// Data writes to pages whose writes the CPU need not track.
    pub write: [TlbSlot; SLOTS],
    /// Instruction fetches.
    pub exec: [TlbSlot; SLOTS],
}

impl TlbSlots {
    /// Empty slots.
    pub const EMPTY: TlbSlots = TlbSlots {
        read: [TlbSlot::EMPTY; SLOTS],
        write: [TlbSlot::EMPTY; SLOTS],
        exec: [TlbSlot::EMPTY; SLOTS],
    };

    pub(crate) const READ: i32 = std::mem::offset_of!(TlbSlots, read) as i32;
    pub(crate) const WRITE: i32 = std::mem::offset_of!(TlbSlots, write) as i32;
    pub(crate) const EXEC: i32 = std::mem::offset_of!(TlbSlots, exec) as i32;
}

/// Number of slots of one privilege and kind of access. A virtual page's number, modulo `SLOTS`, is the number of the
/// page's first slot.
pub const SLOTS: usize = 1024;

/// The bit in which a page's first and second slot numbers differ.
pub const SECOND_SLOT: usize = SLOTS / 2;

const _: () = assert!(
    align_of::<TlbSlots>() == SLOTS * size_of::<TlbSlot>(),
    "arrays of slots are aligned to their size"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_their_image() {
        for bits in (0..0x1000).filter(|bits| bits & !0x8d5 == 0) {
            assert_eq!(FlagImage::from_rflags(bits).rflags(), bits);
            assert_eq!(FlagImage(FlagImage::from_rflags(bits).0 | 2).rflags(), bits & !0x10);
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_page_outside_ram_cannot_be_mapped() {
        let ram = GuestRam::new(PAGE_SIZE).unwrap();
        TlbSlot::map(&ram, 0, PAGE_SIZE);
    }
}
