//! Memory as instructions see it: effective addresses, segment checks, loads and stores through the TLB, and the slow
//! path. The slow path handles page walks, page crossings, device memory, watchpoints, and pages with code or page
//! tables.

use cpu_model::registers::{cr4, efer};
use guest_ram::{PAGE_SIZE, PageFlags};

use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::debug_points::{PageAccess, WatchKind};
use crate::exception::{AC, Exception, PF};
use crate::exception::{Break, Res};
use crate::mmu::paging::Access;
use crate::mmu::tlb::{Fill, Mmu};
use crate::mmu::walk::Findings;
use crate::op::Op;
use crate::slots::SEG_NONE;
use crate::state::CpuState;

const PAGE_MASK: u64 = !(PAGE_SIZE - 1);

/// The memory that one page's part of an access reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// RAM, at this offset.
    Ram(u64),
    /// A device, at this guest-physical address.
    Device(u64),
}

macro_rules! scalar_memory {
    ($load:ident, $store:ident, $update:ident, $ram_load:ident, $ram_store:ident, $type:ty) => {
        /// Loads a scalar at a linear address with the current privilege.
        #[inline(always)]
        pub fn $load(&mut self, bus: &mut dyn Bus, address: u64) -> Res<$type> {
            const SIZE: u64 = size_of::<$type>() as u64;
            let slot = self.mmu.read_slot(address);
            if slot.holds(address & PAGE_MASK) && fits_in_page(address, SIZE) {
                return Ok(self.ram.$ram_load(slot.ram_offset(&self.ram, address)));
            }
            let mut bytes = [0; SIZE as usize];
            self.load_slow(bus, address, &mut bytes, Access::Read)?;
            Ok(<$type>::from_le_bytes(bytes))
        }

        /// Stores a scalar at a linear address with the current privilege.
        #[inline(always)]
        pub fn $store(&mut self, bus: &mut dyn Bus, address: u64, value: $type) -> Res<()> {
            const SIZE: u64 = size_of::<$type>() as u64;
            let slot = self.mmu.write_slot(address);
            if slot.holds(address & PAGE_MASK) && fits_in_page(address, SIZE) {
                self.ram.$ram_store(slot.ram_offset(&self.ram, address), value);
                return Ok(());
            }
            self.store_slow(bus, address, &value.to_le_bytes())
        }

        /// Reads a scalar, changes it and writes it back. The given function computes the new value from the old
        /// one. This function is called only when the instruction can no longer fault, so it may change flags and
        /// registers.
        #[inline(always)]
        pub fn $update(
            &mut self,
            bus: &mut dyn Bus,
            address: u64,
            change: impl FnOnce(&mut Core, $type) -> $type,
        ) -> Res<()> {
            const SIZE: u64 = size_of::<$type>() as u64;
            let slot = self.mmu.write_slot(address);
            if slot.holds(address & PAGE_MASK) && fits_in_page(address, SIZE) {
                let offset = slot.ram_offset(&self.ram, address);
                let new = change(self, self.ram.$ram_load(offset));
                self.ram.$ram_store(offset, new);
                return Ok(());
            }
            let mut bytes = [0; SIZE as usize];
            self.load_for_update(bus, address, &mut bytes)?;
            let new = change(self, <$type>::from_le_bytes(bytes));
            // After the load, the TLB slot is usually valid for stores, so the store takes the fast path.
            self.$store(bus, address, new)
        }
    };
}

impl Core {
    scalar_memory!(load_u8, store_u8, update_u8, load_u8, store_u8, u8);
    scalar_memory!(load_u16, store_u16, update_u16, load_u16, store_u16, u16);
    scalar_memory!(load_u32, store_u32, update_u32, load_u32, store_u32, u32);
    scalar_memory!(load_u64, store_u64, update_u64, load_u64, store_u64, u64);
    scalar_memory!(load_u128, store_u128, update_u128, load_u128, store_u128, u128);

    /// The 16 bytes at a linear address, if the fast path can load 16 bytes there. Otherwise the caller must use
    /// [`Core::load_u128`].
    #[inline(always)]
    pub(crate) fn fast_vector(&self, address: u64) -> Option<[u8; 16]> {
        let slot = self.mmu.read_slot(address);
        (slot.holds(address & PAGE_MASK) && address & !PAGE_MASK <= PAGE_SIZE - 16)
            .then(|| self.ram.load_vector(slot.ram_offset(&self.ram, address)))
    }

    /// The effective address of the op's memory operand, without the segment's base (for LEA).
    #[inline(always)]
    pub fn effective_address(&self, op: &Op) -> u64 {
        let address =
            self.reg64(op.base).wrapping_add(self.reg64(op.index) << op.scale).wrapping_add(op.disp as u64);
        if op.flags & Op::LEGACY_EA == 0 { address } else { wrap(address, op.flags) }
    }

    /// The linear address of the op's memory operand of `size_bytes`, after segment checks.
    #[inline(always)]
    pub fn linear(&mut self, op: &Op, size_bytes: u64) -> Res<u64> {
        self.linear_for(op, size_bytes, false)
    }

    /// Does the same as [`Core::linear`] for an operand that is written: the segment must be writable.
    #[inline(always)]
    pub fn linear_write(&mut self, op: &Op, size_bytes: u64) -> Res<u64> {
        self.linear_for(op, size_bytes, true)
    }

    #[inline(always)]
    fn linear_for(&mut self, op: &Op, size_bytes: u64, write: bool) -> Res<u64> {
        let offset = self.effective_address(op);
        if op.flags & Op::CHECK_SEGMENT == 0 {
            return Ok(offset.wrapping_add(self.frame.seg_base[(op.seg & 7) as usize]));
        }
        self.checked_linear(op.seg, offset, size_bytes, write)
    }

    /// Linear address of an offset in a segment, with the checks of the current mode. Stack, string and far-pointer
    /// accesses use this function, because their addresses are not memory operands of an op.
    pub fn segment_linear(&mut self, seg: u8, offset: u64, size_bytes: u64, write: bool) -> Res<u64> {
        if self.is_64bit() || seg == SEG_NONE {
            return Ok(offset.wrapping_add(self.frame.seg_base[(seg & 7) as usize]));
        }
        self.checked_linear(seg, offset, size_bytes, write)
    }

    /// The linear address of an offset, after checks of the segment's rights and limit (SDM vol. 3, 5.3-5.4). The
    /// result wraps at 32 bits.
    fn checked_linear(&mut self, seg: u8, offset: u64, size_bytes: u64, write: bool) -> Res<u64> {
        let segment = self.state.segments[(seg as usize).min(5)];
        if !segment_allows(&segment, offset, size_bytes, write, self.protected_mode()) {
            let vector = if seg == 2 { crate::exception::SS } else { crate::exception::GP };
            return Err(self.fault_with_code(vector, 0));
        }
        Ok(segment.base.wrapping_add(offset) & 0xffff_ffff)
    }

    /// Pushes a value of 2, 4 or 8 bytes.
    #[inline]
    pub fn push(&mut self, bus: &mut dyn Bus, size_bytes: u64, value: u64) -> Res<()> {
        let sp = self.stack_pointer_minus(size_bytes);
        self.store_stack(bus, sp, size_bytes, value)?;
        self.set_stack_pointer(sp);
        Ok(())
    }

    /// Pops a value of 2, 4 or 8 bytes.
    #[inline]
    pub fn pop(&mut self, bus: &mut dyn Bus, size_bytes: u64) -> Res<u64> {
        let sp = self.frame.regs[4] & self.stack_mask;
        let value = self.load_stack(bus, sp, size_bytes)?;
        self.set_stack_pointer(sp.wrapping_add(size_bytes));
        Ok(value)
    }

    /// Returns the stack pointer minus a number of bytes, wrapped to the stack's width. RSP itself does not change.
    #[inline(always)]
    pub fn stack_pointer_minus(&self, size_bytes: u64) -> u64 {
        self.frame.regs[4].wrapping_sub(size_bytes) & self.stack_mask
    }

    /// Writes RSP, ESP or SP; the stack's width decides which.
    #[inline(always)]
    pub fn set_stack_pointer(&mut self, value: u64) {
        self.frame.regs[4] = match self.stack_mask {
            u64::MAX => value,
            0xffff_ffff => value & 0xffff_ffff,
            mask => self.frame.regs[4] & !mask | value & mask,
        };
    }

    /// Loads 2, 4 or 8 bytes at an offset in the stack segment.
    #[inline]
    pub fn load_stack(&mut self, bus: &mut dyn Bus, sp: u64, size_bytes: u64) -> Res<u64> {
        let address = self.segment_linear(2, sp, size_bytes, false)?;
        self.load_sized(bus, address, size_bytes).map_err(|b| self.as_stack_fault(b))
    }

    /// Stores 2, 4 or 8 bytes at an offset in the stack segment.
    #[inline]
    pub fn store_stack(&mut self, bus: &mut dyn Bus, sp: u64, size_bytes: u64, value: u64) -> Res<()> {
        let address = self.segment_linear(2, sp, size_bytes, true)?;
        self.store_sized(bus, address, size_bytes, value).map_err(|b| self.as_stack_fault(b))
    }

    /// Turns a fault of a stack access into #SS(0) if a non-canonical address caused it.
    #[cold]
    pub fn as_stack_fault(&mut self, reason: Break) -> Break {
        if self.exception.vector == crate::exception::GP && !self.quirks.noncanonical_stack_raises_gp {
            self.exception.vector = crate::exception::SS;
        }
        reason
    }

    /// Loads 1, 2, 4 or 8 bytes, zero-extended.
    #[inline]
    pub fn load_sized(&mut self, bus: &mut dyn Bus, address: u64, size_bytes: u64) -> Res<u64> {
        match size_bytes {
            1 => self.load_u8(bus, address).map(u64::from),
            2 => self.load_u16(bus, address).map(u64::from),
            4 => self.load_u32(bus, address).map(u64::from),
            _ => self.load_u64(bus, address),
        }
    }

    /// Stores the low 1, 2, 4 or 8 bytes of a value.
    #[inline]
    pub fn store_sized(&mut self, bus: &mut dyn Bus, address: u64, size_bytes: u64, value: u64) -> Res<()> {
        match size_bytes {
            1 => self.store_u8(bus, address, value as u8),
            2 => self.store_u16(bus, address, value as u16),
            4 => self.store_u32(bus, address, value as u32),
            _ => self.store_u64(bus, address, value),
        }
    }

    /// Loads any number of bytes (FXRSTOR, FRSTOR, descriptor copies) with the current privilege, at any address.
    pub fn load_bytes(&mut self, bus: &mut dyn Bus, address: u64, bytes: &mut [u8]) -> Res<()> {
        for (at, chunk) in page_chunks(address, bytes.len()) {
            let range = chunk.0..chunk.1;
            self.load_aligned_to(bus, at, &mut bytes[range], Access::Read, 1)?;
        }
        Ok(())
    }

    /// Stores any number of bytes. Every page is checked before the first byte changes.
    pub fn store_bytes(&mut self, bus: &mut dyn Bus, address: u64, bytes: &[u8]) -> Res<()> {
        self.check_writable(bus, address, bytes.len() as u64)?;
        for (at, chunk) in page_chunks(address, bytes.len()) {
            self.store_aligned_to(bus, at, &bytes[chunk.0..chunk.1], 1)?;
        }
        Ok(())
    }

    /// Raises the fault that a store of `length` bytes would raise.
    pub fn check_writable(&mut self, _bus: &mut dyn Bus, address: u64, length: u64) -> Res<()> {
        let index = self.mmu.index();
        self.check_end(address, length as usize)?;
        for (at, _) in page_chunks(address, length as usize) {
            self.translate(at, Access::Write, index)?;
        }
        Ok(())
    }

    /// Loads 1 to 8 bytes as the implicit supervisor accesses to GDT, LDT, IDT and TSS do.
    pub fn load_system(&mut self, bus: &mut dyn Bus, address: u64, size_bytes: u64) -> Res<u64> {
        self.as_supervisor(|core| core.load_sized(bus, address, size_bytes))
    }

    /// Stores 1 to 8 bytes as the implicit supervisor accesses do.
    pub fn store_system(&mut self, bus: &mut dyn Bus, address: u64, size_bytes: u64, value: u64) -> Res<()> {
        self.as_supervisor(|core| core.store_sized(bus, address, size_bytes, value))
    }

    fn as_supervisor<T>(&mut self, access: impl FnOnce(&mut Core) -> T) -> T {
        self.mmu.set_index(false, self.state.cr4 & cr4::SMAP != 0, false);
        let result = access(self);
        self.update_mmu_index();
        result
    }

    /// Translates one address for an access. `index` is the number of the privilege, which selects the TLB's slots.
    /// Enters the translation in the TLB, unless the page must stay off the fast path.
    pub(crate) fn translate(&mut self, address: u64, access: Access, index: usize) -> Res<Target> {
        if self.long_mode() && !canonical(address) {
            return Err(self.not_canonical(address));
        }
        if let Some(slot) = self.mmu.held(index, address, access) {
            return Ok(Target::Ram(slot.ram_offset(&self.ram, address)));
        }
        let privilege = Mmu::privilege(index);
        let mut findings = Findings::default();
        let walked = self.mmu.walk(&self.ram, &self.state, address, access, privilege, &mut findings);
        for page in findings.tables {
            self.mmu.protect_page(&self.ram, page);
        }
        for entry in findings.code {
            self.code_written(entry / PAGE_SIZE, entry & !PAGE_MASK, 8);
        }
        let found = walked.map_err(|fault| {
            self.exception =
                Exception { vector: PF, error_code: Some(fault.0), cr2: Some(address), noncanonical: false };
            Break::Fault
        })?;
        let Some(offset) = self.ram.layout().offset_of(found.gpa) else {
            return Ok(Target::Device(found.gpa));
        };
        let page = offset / PAGE_SIZE;
        if access == Access::Write {
            self.ram.flags().set(page, PageFlags::DIRTY);
        }
        let checked = Mmu::checks_alignment(index);
        let reads_seen = checked || self.sees_page(address, found.gpa, WatchKind::Read);
        // A read-modify-write instruction uses the TLB slot for writes for its read too. So a page with watched
        // reads gets no slot for writes.
        let writes_seen = reads_seen || self.sees_page(address, found.gpa, WatchKind::Write);
        let flags = self.ram.flags().get(page);
        self.mmu.fill(
            &self.ram,
            index,
            address,
            access,
            &Fill {
                ram_page_offset: offset & PAGE_MASK,
                entry_offset: found.entry_offset,
                readable: access != Access::Execute && !reads_seen,
                writable: found.writable
                    && flags & PageFlags::DIRTY != 0
                    && flags & PageFlags::DERIVED == 0
                    && !writes_seen,
                executable: found.executable,
            },
        );
        Ok(Target::Ram(offset))
    }

    /// Linear address of the code at `rip`. Outside 64-bit mode, raises #GP(0) if `rip` is beyond the limit of CS.
    pub(crate) fn code_linear(&mut self, rip: u64) -> Res<u64> {
        if self.is_64bit() {
            return Ok(rip);
        }
        let cs = self.state.segments[1];
        if rip > u64::from(cs.limit) {
            return Err(self.gp(0));
        }
        Ok(cs.base.wrapping_add(rip) & 0xffff_ffff)
    }

    /// Bytes from an instruction pointer to the end of the code segment.
    pub(crate) fn code_room(&self, rip: u64) -> u64 {
        if self.is_64bit() {
            u64::MAX
        } else {
            (u64::from(self.state.segments[1].limit) + 1).saturating_sub(rip)
        }
    }

    /// The RAM offset or the device address from which the code at a linear address is fetched.
    #[inline(always)]
    pub(crate) fn fetch_target(&mut self, address: u64) -> Res<Target> {
        if let Some(slot) = self.mmu.executable(address) {
            return Ok(Target::Ram(slot.ram_offset(&self.ram, address)));
        }
        let index = self.mmu.index();
        self.translate(address, Access::Execute, index)
    }

    /// Executes the read of a read-modify-write. On real processors this read raises the faults that a write would
    /// raise.
    #[cold]
    #[inline(never)]
    fn load_for_update(&mut self, bus: &mut dyn Bus, address: u64, bytes: &mut [u8]) -> Res<()> {
        if self.quirks.update_reads_first {
            self.probe_read(address, bytes.len() as u64)?;
        }
        self.load_slow(bus, address, bytes, Access::Write)
    }

    /// Loads a scalar if the fast path cannot load it.
    #[cold]
    #[inline(never)]
    fn load_slow(&mut self, bus: &mut dyn Bus, address: u64, bytes: &mut [u8], access: Access) -> Res<()> {
        self.load_aligned_to(bus, address, bytes, access, bytes.len() as u64)
    }

    /// Loads an operand that must have this alignment if alignment checks are on.
    fn load_aligned_to(
        &mut self,
        bus: &mut dyn Bus,
        address: u64,
        bytes: &mut [u8],
        access: Access,
        alignment: u64,
    ) -> Res<()> {
        let index = self.mmu.index();
        let in_first = first_part(address, bytes.len());
        self.check_end(address, bytes.len())?;
        let first = self.translate(address, access, index)?;
        let second = if in_first < bytes.len() {
            Some(self.translate(self.wrapped(address, in_first), access, index)?)
        } else {
            None
        };
        self.check_alignment(address, alignment)?;
        let (head, tail) = bytes.split_at_mut(in_first);
        self.load_part(bus, first, head);
        if let Some(target) = second {
            self.load_part(bus, target, tail);
        }
        if !self.sees_no_access() {
            self.note_part(address, first, WatchKind::Read, head, None);
            if let Some(target) = second {
                self.note_part(self.wrapped(address, in_first), target, WatchKind::Read, tail, None);
            }
            self.note_for_guest(address, bytes.len() as u64, WatchKind::Read);
        }
        Ok(())
    }

    /// Stores a scalar if the fast path cannot store it.
    #[cold]
    #[inline(never)]
    fn store_slow(&mut self, bus: &mut dyn Bus, address: u64, bytes: &[u8]) -> Res<()> {
        self.store_aligned_to(bus, address, bytes, bytes.len() as u64)
    }

    /// Stores an operand that must have this alignment if alignment checks are on.
    fn store_aligned_to(&mut self, bus: &mut dyn Bus, address: u64, bytes: &[u8], alignment: u64) -> Res<()> {
        let index = self.mmu.index();
        let in_first = first_part(address, bytes.len());
        self.check_end(address, bytes.len())?;
        let first = self.translate(address, Access::Write, index)?;
        let second = if in_first < bytes.len() {
            Some(self.translate(self.wrapped(address, in_first), Access::Write, index)?)
        } else {
            None
        };
        self.check_alignment(address, alignment)?;
        let (head, tail) = bytes.split_at(in_first);
        if self.sees_no_access() {
            self.store_part(bus, first, head);
            if let Some(target) = second {
                self.store_part(bus, target, tail);
            }
            return Ok(());
        }
        self.store_watched(bus, address, first, head);
        if let Some(target) = second {
            self.store_watched(bus, self.wrapped(address, in_first), target, tail);
        }
        self.note_for_guest(address, bytes.len() as u64, WatchKind::Write);
        Ok(())
    }

    /// Raises #AC(0) for a misaligned operand, if CR0.AM and EFLAGS.AC are set and the privilege level is 3. #AC is
    /// the last fault that an access can raise (SDM vol. 3, table 6-2), so the caller has already translated the
    /// address. An operand must be aligned to its size; SDM vol. 3, table 6-7 lists the exceptions.
    pub(crate) fn check_alignment(&mut self, address: u64, alignment: u64) -> Res<()> {
        if Mmu::checks_alignment(self.mmu.index()) && address & (alignment - 1) != 0 {
            return Err(self.fault_with_code(AC, 0));
        }
        Ok(())
    }

    /// Raises the faults, including #AC, that a read of an operand with several fields can raise.
    pub(crate) fn check_aligned_read(&mut self, address: u64, length: u64, alignment: u64) -> Res<()> {
        if !Mmu::checks_alignment(self.mmu.index()) {
            return Ok(());
        }
        self.probe_read(address, length)?;
        self.check_alignment(address, alignment)
    }

    /// Raises the faults, including #AC, that a write of an operand with several fields can raise.
    pub(crate) fn check_aligned_write(
        &mut self,
        bus: &mut dyn Bus,
        address: u64,
        length: u64,
        alignment: u64,
    ) -> Res<()> {
        if !Mmu::checks_alignment(self.mmu.index()) {
            return Ok(());
        }
        self.check_writable(bus, address, length)?;
        self.check_alignment(address, alignment)
    }

    /// Checks that an access's last byte is canonical. If the last byte is not canonical, the access raises #GP
    /// even if its first byte would raise #PF.
    fn check_end(&mut self, address: u64, length: usize) -> Res<()> {
        let end = address.wrapping_add(length as u64 - 1);
        if !self.long_mode() || canonical(end) {
            return Ok(());
        }
        let first = if canonical(address) { end & PAGE_MASK } else { address };
        Err(self.not_canonical(first))
    }

    /// Raises #GP(0) for a non-canonical address. A mark in the exception makes a stack access raise #SS(0) in its
    /// place.
    #[cold]
    fn not_canonical(&mut self, address: u64) -> Break {
        let reason = self.gp(0);
        if self.quirks.noncanonical_address_in_cr2 {
            self.exception.cr2 = Some(address);
        }
        if !self.quirks.noncanonical_stack_raises_gp {
            self.exception.noncanonical = true;
        }
        reason
    }

    /// Turns #GP into #SS if the op's memory operand uses RSP or RBP and its address is not canonical.
    #[cold]
    pub(crate) fn noncanonical_stack_fault(&mut self) {
        if self.is_64bit() && self.exception.noncanonical {
            self.exception.vector = crate::exception::SS;
        }
    }

    /// Raises #GP(0) for an operand at a non-canonical address, for instructions that check this before alignment.
    pub(crate) fn require_canonical(&mut self, address: u64) -> Res<()> {
        if self.long_mode() && !canonical(address) { Err(self.not_canonical(address)) } else { Ok(()) }
    }

    /// Raises the fault that reading `length` bytes would raise.
    pub(crate) fn probe_read(&mut self, address: u64, length: u64) -> Res<()> {
        let index = self.mmu.index();
        self.check_end(address, length as usize)?;
        for (at, _) in page_chunks(address, length as usize) {
            self.translate(at, Access::Read, index)?;
        }
        Ok(())
    }

    /// The address `distance` bytes after `address`; addresses wrap at 32 bits outside long mode.
    fn wrapped(&self, address: u64, distance: usize) -> u64 {
        let next = address.wrapping_add(distance as u64);
        if self.long_mode() { next } else { next & 0xffff_ffff }
    }

    fn load_part(&mut self, bus: &mut dyn Bus, target: Target, bytes: &mut [u8]) {
        match target {
            Target::Ram(offset) => self.ram.read_bytes(offset, bytes),
            Target::Device(gpa) => {
                bus.mmio_read(self.steps(), gpa, bytes);
                self.bus_was_used();
            }
        }
    }

    fn store_part(&mut self, bus: &mut dyn Bus, target: Target, bytes: &[u8]) {
        match target {
            Target::Ram(offset) => self.store_ram(offset, bytes),
            Target::Device(gpa) => {
                bus.mmio_write(self.steps(), gpa, bytes);
                self.bus_was_used();
            }
        }
    }

    /// Writes RAM inside one page. Drops the translations and the decoded code that were derived from the old
    /// contents.
    pub(crate) fn store_ram(&mut self, offset: u64, bytes: &[u8]) {
        let page = offset / PAGE_SIZE;
        let flags = self.ram.flags().get(page);
        if flags & PageFlags::PAGE_TABLE != 0 {
            self.store_table(offset, bytes);
        } else {
            self.ram.write_bytes(offset, bytes);
        }
        if flags & PageFlags::CODE != 0 {
            self.code_written(page, offset & !PAGE_MASK, bytes.len() as u64);
        }
    }

    /// Writes into a page-table page, one aligned 8-byte group after the other.
    fn store_table(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut group = offset & !7;
        let mut groups = Vec::with_capacity(3);
        while group < end {
            groups.push((group, self.ram.load_u64(group)));
            group += 8;
        }
        self.ram.write_bytes(offset, bytes);
        for (group, old) in groups {
            // If translations were dropped, the next instruction may be at another RAM address, so end the block.
            self.break_block |= self.mmu.table_written(&self.ram, group, old, self.ram.load_u64(group));
        }
    }

    /// Notes that the page's decoded code must be dropped, if code was decoded from the written lines.
    fn code_written(&mut self, page: u64, offset: u64, length: u64) {
        if self.code_lines.touches(page, offset, length) {
            self.stale_code.push(page);
            self.attention |= attention::STALE_CODE;
            self.break_block = true;
        }
    }

    /// Stores one page's part of an access, and notes the store if it is watched.
    fn store_watched(&mut self, bus: &mut dyn Bus, address: u64, target: Target, bytes: &[u8]) {
        let old = match target {
            // Find out whether the page is watched: most accesses on this path missed the fast path for another
            // reason.
            Target::Ram(offset)
                if self.sees_page(address, self.ram.layout().gpa_of(offset), WatchKind::Write) =>
            {
                let mut old = vec![0; bytes.len()];
                self.ram.read_bytes(offset, &mut old);
                Some(old)
            }
            Target::Ram(_) => return self.store_part(bus, target, bytes),
            Target::Device(_) => None,
        };
        self.store_part(bus, target, bytes);
        self.note_part(address, target, WatchKind::Write, bytes, old.as_deref());
    }

    /// Checks one page's part of an access against the debugger's watchpoints and the observer's wants. The access
    /// missed the fast path.
    fn note_part(
        &mut self,
        address: u64,
        target: Target,
        kind: WatchKind,
        bytes: &[u8],
        before: Option<&[u8]>,
    ) {
        let gpa = match target {
            Target::Ram(offset) => self.ram.layout().gpa_of(offset),
            Target::Device(gpa) => gpa,
        };
        self.note_access(&PageAccess { address, gpa, kind, bytes, before });
    }

    /// Checks an access that missed the fast path against the data breakpoints in the guest's debug registers.
    fn note_for_guest(&mut self, address: u64, length: u64, kind: WatchKind) {
        let traps = self.guest_data_breakpoints(address, length, kind);
        if traps != 0 {
            self.state.pending_debug |= traps;
            self.update_debug_attention();
        }
    }

    /// RAM offset and length of a bulk operation that starts at `address`. The range ends at the end of the page.
    /// `None` if the page needs the slow path.
    pub(crate) fn bulk_page(&mut self, address: u64, write: bool) -> Option<(u64, u64)> {
        let slot = if write { self.mmu.write_slot(address) } else { self.mmu.read_slot(address) };
        slot.holds(address & PAGE_MASK)
            .then(|| (slot.ram_offset(&self.ram, address), PAGE_SIZE - (address & !PAGE_MASK)))
    }

    /// Reads memory for a debugger through the current page tables, without side effects or access checks. Returns the
    /// number of bytes read.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.peek_by(address, bytes, |at| self.peek_address(at))
    }

    /// Does the same as [`Core::peek`] in the address space with the root `cr3`; see [`Core::peek_address_in`].
    pub fn peek_in(&self, cr3: u64, address: u64, bytes: &mut [u8]) -> usize {
        self.peek_by(address, bytes, |at| self.peek_address_in(cr3, at))
    }

    /// Does the same as [`Core::peek_in`] for a processor with another state; see [`Core::peek_address_as`].
    pub fn peek_as(&self, state: &CpuState, cr3: u64, address: u64, bytes: &mut [u8]) -> usize {
        self.peek_by(address, bytes, |at| self.peek_address_as(state, cr3, at))
    }

    fn peek_by(&self, address: u64, bytes: &mut [u8], translated: impl Fn(u64) -> Option<u64>) -> usize {
        let mut done = 0;
        for (at, (from, to)) in page_chunks(address, bytes.len()) {
            let Some(offset) = translated(at).and_then(|gpa| self.ram.layout().offset_of(gpa)) else {
                break;
            };
            self.ram.read_bytes(offset, &mut bytes[from..to]);
            done = to;
        }
        done
    }

    /// Guest-physical address of a linear address under the current tables, without side effects.
    pub fn peek_address(&self, address: u64) -> Option<u64> {
        if self.long_mode() && !canonical(address) {
            return None;
        }
        Mmu::peek(&self.ram, &self.state, address)
    }

    /// Guest-physical address of a linear address in the address space with the root `cr3`, which need not be the
    /// current one. Nothing changes: no accessed or dirty bits, no registers, no TLB.
    ///
    /// The current control registers decide the format of the tables: 32-bit, PAE or 4-level paging, and the
    /// reserved bits. With PAE paging the four entries of the topmost table are read from memory. The
    /// function reads memory even if `cr3` is the current root, although the CPU itself uses the entries that
    /// it loaded with CR3. Without paging, every root gives the address itself.
    pub fn peek_address_in(&self, cr3: u64, address: u64) -> Option<u64> {
        if self.long_mode() && !canonical(address) {
            return None;
        }
        Mmu::peek_in(&self.ram, &self.state, cr3, address)
    }

    /// Does the same as [`Core::peek_address_in`], with the control registers of `state`. If `cr3` is the root in
    /// `state`, the result is the address that a processor with this state would access.
    pub fn peek_address_as(&self, state: &CpuState, cr3: u64, address: u64) -> Option<u64> {
        if state.msrs.efer & efer::LMA != 0 && !canonical(address) {
            return None;
        }
        if cr3 == state.cr3 {
            Mmu::peek(&self.ram, state, address)
        } else {
            Mmu::peek_in(&self.ram, state, cr3, address)
        }
    }
}

/// Whether a 64-bit address is canonical for 48-bit linear addresses.
#[inline(always)]
pub fn canonical(address: u64) -> bool {
    ((address as i64) << 16 >> 16) as u64 == address
}

/// Whether an access stays inside the page where it begins.
#[inline(always)]
fn fits_in_page(address: u64, size_bytes: u64) -> bool {
    (address & !PAGE_MASK) + size_bytes <= PAGE_SIZE
}

fn wrap(address: u64, op_flags: u8) -> u64 {
    if op_flags & Op::ADDR16 != 0 {
        address & 0xffff
    } else if op_flags & Op::ADDR32 != 0 {
        address & 0xffff_ffff
    } else {
        address
    }
}

fn first_part(address: u64, length: usize) -> usize {
    length.min((PAGE_SIZE - (address & !PAGE_MASK)) as usize)
}

/// Splits a range at page boundaries. Each item is the address of a part, and the offsets in the range at which the
/// part begins and ends.
fn page_chunks(address: u64, length: usize) -> impl Iterator<Item = (u64, (usize, usize))> {
    let mut from = 0;
    std::iter::from_fn(move || {
        if from >= length {
            return None;
        }
        let at = address.wrapping_add(from as u64);
        let to = from + first_part(at, length - from);
        let chunk = (at, (from, to));
        from = to;
        Some(chunk)
    })
}

pub(crate) fn segment_allows(
    segment: &crate::state::Segment,
    offset: u64,
    size_bytes: u64,
    write: bool,
    protected: bool,
) -> bool {
    let last = offset.wrapping_add(size_bytes - 1);
    let code = segment.kind() & 8 != 0;
    let expand_down = !code && segment.kind() & 4 != 0;
    if protected {
        let readable = !code || segment.kind() & 2 != 0;
        let writable = !code && segment.kind() & 2 != 0;
        if !segment.present() || (write && !writable) || (!write && !readable) {
            return false;
        }
    }
    if expand_down {
        let top = if segment.big() { 0xffff_ffff } else { 0xffff };
        return offset > u64::from(segment.limit) && last <= top && last >= offset;
    }
    last <= u64::from(segment.limit) && last >= offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Segment;

    /// SDM vol. 3, sections 5.3 and 5.4: limits, expand-down segments, and what descriptor types allow.
    #[test]
    fn segments_allow_what_their_descriptors_say() {
        const DATA: u16 = 0x90;
        const WRITABLE: u16 = 2;
        const DOWN: u16 = 4;
        const CODE: u16 = 0x98;
        const READABLE: u16 = 2;
        const BIG: u16 = 1 << 14;
        const ABSENT: u16 = 0x80;
        // Attributes, limit, offset and size; whether reads and writes are allowed.
        let cases = [
            (DATA | WRITABLE, 0xfff, 0xffc, 4, true, true),
            (DATA | WRITABLE, 0xfff, 0xffd, 4, false, false),
            (DATA | WRITABLE, 0xfff, 0x1000, 1, false, false),
            (DATA | WRITABLE, u32::MAX, 0xffff_fffc, 4, true, true),
            (DATA | WRITABLE, u32::MAX, u64::MAX, 2, false, false),
            (DATA, 0xfff, 0, 4, true, false),
            ((DATA | WRITABLE) & !ABSENT, 0xfff, 0, 4, false, false),
            (CODE | READABLE, 0xfff, 0, 4, true, false),
            (CODE, 0xfff, 0, 4, false, false),
            // For code, the bit `DOWN` (expand-down) means "conforming".
            (CODE | READABLE | DOWN, 0xfff, 0, 4, true, false),
            (CODE | READABLE | DOWN, 0xfff, 0x1000, 4, false, false),
            (DATA | WRITABLE | DOWN, 0xfff, 0xfff, 1, false, false),
            (DATA | WRITABLE | DOWN, 0xfff, 0x1000, 1, true, true),
            (DATA | WRITABLE | DOWN, 0xfff, 0xfffc, 4, true, true),
            (DATA | WRITABLE | DOWN, 0xfff, 0xfffd, 4, false, false),
            (DATA | WRITABLE | DOWN | BIG, 0xfff, 0xfffd, 4, true, true),
            (DATA | WRITABLE | DOWN | BIG, 0xfff, 0xffff_fffc, 4, true, true),
            (DATA | WRITABLE | DOWN | BIG, 0xfff, 0xffff_fffd, 4, false, false),
            (DATA | WRITABLE | DOWN | BIG, 0xfff, u64::MAX, 2, false, false),
            (DATA | DOWN, 0xfff, 0x1000, 1, true, false),
        ];
        for (attributes, limit, offset, size_bytes, readable, writable) in cases {
            let segment = Segment { selector: 0, base: 0, limit, attributes };
            let allows = |write, protected| segment_allows(&segment, offset, size_bytes, write, protected);
            let what = format!("{attributes:#x}, limit {limit:#x}, {size_bytes} bytes at {offset:#x}");
            assert_eq!(allows(false, true), readable, "{what}");
            assert_eq!(allows(true, true), writable, "{what}");
            // In real mode only the limit is checked.
            let in_limit = if attributes & 0xc == DOWN {
                offset > u64::from(limit) && offset < 1 << 33 && writable | readable
            } else {
                offset < 1 << 33 && offset + size_bytes - 1 <= u64::from(limit)
            };
            assert_eq!([allows(false, false), allows(true, false)], [in_limit; 2], "{what}, real mode");
        }
    }

    #[test]
    fn ranges_are_split_where_pages_begin() {
        let chunks = |address, length| page_chunks(address, length).collect::<Vec<_>>();
        assert_eq!(chunks(0x1000, 0), []);
        assert_eq!(chunks(0x1ffe, 2), [(0x1ffe, (0, 2))]);
        assert_eq!(chunks(0x1ffe, 3), [(0x1ffe, (0, 2)), (0x2000, (2, 3))]);
        let long = [(0x1fff, (0, 1)), (0x2000, (1, 0x1001)), (0x3000, (0x1001, 0x1002))];
        assert_eq!(chunks(0x1fff, 0x1002), long);
        assert_eq!(chunks(u64::MAX, 2), [(u64::MAX, (0, 1)), (0, (1, 2))]);
        for (address, size_bytes, fits) in [
            (0x1000, 16, true),
            (0x1ff0, 16, true),
            (0x1ff1, 16, false),
            (0x1fff, 1, true),
            (0x1fff, 2, false),
        ] {
            assert_eq!(fits_in_page(address, size_bytes), fits, "{address:#x}");
            assert_eq!(first_part(address, size_bytes as usize) as u64 == size_bytes, fits, "{address:#x}");
        }
    }

    #[test]
    fn canonical_addresses_repeat_bit_47() {
        for (address, expected) in [
            (0, true),
            ((1 << 47) - 1, true),
            (1 << 47, false),
            (0xffff_7fff_ffff_ffff, false),
            (0xffff_8000_0000_0000, true),
            (u64::MAX, true),
            (1 << 63, false),
            (1 << 48, false),
        ] {
            assert_eq!(canonical(address), expected, "{address:#x}");
        }
    }
}
