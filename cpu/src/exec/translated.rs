//! Runs translated code. The interpreter executes the instructions that translated code cannot execute.

use cpu_model::registers::{cr0, cr4};
use guest_ram::PAGE_SIZE;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use translator::{
    At, Entry, FlagImage, Guest, Left, Link, Miss, Source, TlbSlot, Translation, Translator, Undefined,
};

use super::Cpu;
use crate::bus::Bus;
use crate::code::BlockNumber;
use crate::core::Core;
use crate::flags::LazyFlags;
use crate::mmu::paging::Access;
use crate::op::Op;
use crate::state::SegReg;

/// With [`Undefined::Inverted`], a translation is also checked at the address that differs from RIP in these bits.
const ELSEWHERE: u64 = 0x2345_6000;

impl Cpu {
    /// The translated code of the block at RIP, if there is such code and the block has at most `limit` steps.
    /// Links the exit `link` to that code.
    #[inline]
    pub(super) fn translated(
        &mut self,
        number: BlockNumber,
        limit: u64,
        link: Option<Link>,
    ) -> Option<Entry> {
        self.code.translator.as_ref()?;
        let entry = match self.code.placed(number, self.core.rip) {
            Some(entry) => entry,
            None => self.translated_now(number)?,
        };
        self.follow(entry, link);
        (self.code.block(number).ops.len() as u64 <= limit).then_some(entry)
    }

    /// Does the same as [`Cpu::translated`], but finds only code in the translator's table of jump targets. Most
    /// exits lead to such code, even after a change of the address space.
    #[inline]
    pub(super) fn known_code(&mut self, limit: u64, link: Option<Link>) -> Option<Entry> {
        if self.code.translator.is_none() || !self.core.is_64bit() {
            return None;
        }
        let rip = self.core.rip;
        let page = self.core.mmu.executable(rip)?;
        let entry = self.code.translator.as_ref()?.find(rip, &page, limit)?;
        self.follow(entry, link);
        Some(entry)
    }

    /// Links the exit `link` directly to the code at RIP, and enters that code in the translator's table of jump
    /// targets.
    #[inline]
    fn follow(&mut self, entry: Entry, link: Option<Link>) {
        let page = self.core.mmu.executable(self.core.rip);
        if let (Some(translator), Some(page)) = (&mut self.code.translator, page) {
            if let Some(link) = link {
                translator.link(link, entry, &page);
            }
            translator.remember(entry, &page);
        }
    }

    /// Places code for the block at RIP, if the block has a translation or was executed often enough.
    fn translated_now(&mut self, number: BlockNumber) -> Option<Entry> {
        let has_translation = self.code.translation(number).is_some();
        let block = self.code.block_mut(number);
        if block.interpreted {
            return None;
        }
        if !has_translation && block.heat < self.translate_after {
            block.heat += 1;
            return None;
        }
        self.place(number)
    }

    /// Places code for the block at RIP. Translates the block if it has no translation that is valid there.
    #[cold]
    #[inline(never)]
    fn place(&mut self, number: BlockNumber) -> Option<Entry> {
        let rip = self.core.rip;
        let block = self.code.block(number);
        if block.check_first && self.breaks_always(rip, block.start()) {
            return None;
        }
        if let Some(translation) = self.code.translation(number).cloned()
            && let Some(entry) = self.code.place(number, rip, &translation)
        {
            return Some(entry);
        }
        if !self.core.is_64bit() {
            self.code.block_mut(number).interpreted = true;
            return None;
        }
        let (bytes, second_page) = self.bytes_of(number)?;
        let Some(translation) = self.translate(number, rip, &bytes, second_page) else {
            self.code.block_mut(number).interpreted = true;
            return None;
        };
        let translator = self.code.translator.as_ref();
        if !self.core.observing.depends_on_address()
            && translator.is_some_and(|translator| translator.is_movable(&translation))
        {
            self.code.keep(number, translation.clone());
        }
        self.code.place(number, rip, &translation)
    }

    /// The bytes of the block at RIP and, if the block crosses into a second page, the TLB slot of that page.
    fn bytes_of(&mut self, number: BlockNumber) -> Option<(Vec<u8>, Option<TlbSlot>)> {
        let (rip, block) = (self.core.rip, self.code.block(number));
        let start = block.start();
        let mut bytes = vec![0; usize::from(block.length)];
        let Some(second) = block.second_page else {
            self.core.ram.read_bytes(start, &mut bytes);
            return Some((bytes, None));
        };
        let in_first = (PAGE_SIZE - start % PAGE_SIZE) as usize;
        let next = rip.wrapping_add(in_first as u64);
        let slot = self.core.mmu.executable(next)?;
        if slot.ram_offset(&self.core.ram, next) != second * PAGE_SIZE {
            return None;
        }
        // A block with a second page can end in its first page: the decoder read the second page, and found that
        // the instruction is invalid.
        let (first, rest) = bytes.split_at_mut(in_first.min(usize::from(block.length)));
        self.core.ram.read_bytes(start, first);
        self.core.ram.read_bytes(second * PAGE_SIZE, rest);
        Some((bytes, Some(slot)))
    }

    /// A block's instructions, decoded at an address.
    fn decoded(&self, number: BlockNumber, rip: u64, bytes: &[u8]) -> Vec<Instruction> {
        let instructions = self.code.block(number).ops.iter().map(|op| decode(op, rip, bytes));
        let translatable = |instruction: Instruction| {
            if self.core.must_note(rip, &instruction) { Instruction::default() } else { instruction }
        };
        instructions.map(translatable).collect()
    }

    /// Translates a block for an address.
    fn translate(
        &mut self,
        number: BlockNumber,
        rip: u64,
        bytes: &[u8],
        second_page: Option<TlbSlot>,
    ) -> Option<Translation> {
        let instructions = self.decoded(number, rip, bytes);
        let source = Source { rip, instructions: &instructions, second_page };
        let translation = self.code.translator.as_mut()?.translate(&source)?;
        let is_checked = self.code.translator.as_ref()?.undefined() == Undefined::Inverted;
        if is_checked && !self.core.observing.depends_on_address() {
            let rip = rip ^ ELSEWHERE;
            let instructions = self.decoded(number, rip, bytes);
            let source = Source { rip, instructions: &instructions, second_page: None };
            let rightly = self.code.translator.as_mut()?.moves_rightly(&translation, &source);
            assert_ne!(rightly, Some(false), "the code of {bytes:x?} would be another at {rip:#x}");
        }
        Some(translation)
    }

    /// Whether a breakpoint is set at a linear address or at its physical address. The result is also true at the
    /// address where a run begins, although a breakpoint there does not stop the run.
    fn breaks_always(&self, rip: u64, ram_offset: u64) -> bool {
        self.core.debug.breaks_at(rip, self.core.ram.layout().gpa_of(ram_offset))
    }

    /// Runs translated code until something else must act: the interpreter or the run loop. Returns the exit that was
    /// taken, if it can be linked directly.
    pub(super) fn run_translated(&mut self, bus: &mut dyn Bus, entry: Entry) -> Option<Link> {
        let mut left = self.enter(|translator, guest, steps| translator.run(entry, guest, steps));
        while let Some(Left { steps, branches, shadow, at }) = left {
            self.core.block_steps += steps;
            self.core.branches += branches;
            match at {
                At::Block(rip) => {
                    self.core.rip = rip;
                    return None;
                }
                At::Edge(rip, link) => {
                    self.core.rip = rip;
                    return link;
                }
                At::Instruction { rip, token, number, .. } if shadow => {
                    self.core.rip = self.core.next_rip(rip, self.code.block(token).ops[number].start);
                    self.core.set_interrupt_shadow(false);
                    return None;
                }
                At::Instruction { rip, token, number, missed: Some(miss), .. } if self.fills(&miss) => {
                    self.core.rip = self.core.next_rip(rip, self.code.block(token).ops[number].start);
                    left = self.enter(|translator, guest, steps| translator.resume(miss.again, guest, steps));
                }
                // For a block in two pages, the exit may come from the check that the second page is still mapped
                // to the same RAM. A TLB miss of the instruction itself can occur only after this check, so the
                // check has succeeded then.
                At::Instruction { rip, token, missed: None, .. }
                    if self.code.block(token).second_page.is_some() =>
                {
                    self.core.rip = rip;
                    self.interpret_anew(bus);
                    return None;
                }
                At::Instruction { rip, token, number, resume, .. } => {
                    self.core.rip = rip;
                    // `run_block` expects the step count at the start of the block.
                    self.core.block_steps -= number as u64;
                    // The page walk may have set bits in page-table entries that are at the same time code of the
                    // next instructions. So drop that code after this instruction, which was fetched before the
                    // walk.
                    let is_stale = self.core.attention != 0;
                    let Some(resume) = resume.filter(|_| !is_stale) else {
                        let limit = self.core.budget_end - self.core.block_steps;
                        _ = self.run_block(
                            bus,
                            token,
                            number,
                            if is_stale { number as u64 + 1 } else { limit },
                        );
                        return None;
                    };
                    let ended = self.run_block(bus, token, number, number as u64 + 1);
                    if ended.is_err() || self.core.break_block || self.core.attention != 0 {
                        return None;
                    }
                    left = self.enter(|translator, guest, steps| translator.resume(resume, guest, steps));
                }
            }
        }
        None
    }

    /// Looks up the block at RIP again, because the page tables or the code may have changed. Then executes the
    /// block with the interpreter.
    fn interpret_anew(&mut self, bus: &mut dyn Bus) {
        match self.find_block_slow(self.core.rip) {
            Ok(number) => {
                let limit = self.core.budget_end - self.core.block_steps;
                _ = self.run_block(bus, number, 0, limit);
            }
            Err(_) => self.deliver_fault(bus),
        }
    }

    /// Fills the TLB for an access that missed. Returns `false` if the interpreter must make the access, for example
    /// because it faults or crosses a page.
    fn fills(&mut self, miss: &Miss) -> bool {
        let access = if miss.writes { Access::Write } else { Access::Read };
        let index = self.core.mmu.index();
        if self.core.mmu.held(index, miss.address, access).is_some() {
            // The access crosses pages.
            return false;
        }
        if self.core.translate(miss.address, access, index).is_err() {
            // The interpreter will raise the fault.
            return false;
        }
        self.core.attention == 0 && self.core.mmu.held(index, miss.address, access).is_some()
    }

    /// Enters translated code with the registers and all other state that it uses.
    fn enter(&mut self, run: impl FnOnce(&mut Translator, Guest<'_>, u64) -> Option<Left>) -> Option<Left> {
        let vectors_blocked = vectors_blocked(&self.core);
        let core = &mut self.core;
        let mut flags = FlagImage::from_rflags(core.flags.bits());
        let guest = Guest {
            frame: &mut core.frame,
            flags: &mut flags,
            system_flags: &mut core.rflags,
            kernel_gs_base: &mut core.state.msrs.kernel_gs_base,
            slots: core.mmu.slots(),
            slots_by_ac: core.mmu.slots_by_ac(core.state.cr4 & cr4::SMAP != 0),
            privileged: core.cpl == 0,
            interrupts_wait: core.interrupts_wait,
            vectors_blocked,
        };
        let steps = core.budget_end - core.block_steps;
        let left = run(self.code.translator.as_mut()?, guest, steps);
        core.flags = LazyFlags::from_bits(flags.rflags());
        core.state.segments[SegReg::Gs as usize].base = core.frame.seg_base[SegReg::Gs as usize];
        if core.cpl == 0 {
            core.update_mmu_index();
        }
        left
    }
}

/// Whether CR0 and CR4 make all instructions on XMM registers fault (SDM vol. 3, table 14-1).
fn vectors_blocked(core: &Core) -> bool {
    core.state.cr0 & (cr0::EM | cr0::TS) != 0 || core.state.cr4 & cr4::OSFXSR == 0
}

/// The instruction of an op. Returns an invalid instruction if the op raises an exception in its place, or changes
/// a mode.
fn decode(op: &Op, rip: u64, bytes: &[u8]) -> Instruction {
    let start = usize::from(op.start);
    let at = rip.wrapping_add(start as u64);
    let mut decoder = Decoder::with_ip(64, &bytes[start..], at, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let branch = op.flags & Op::SETS_RIP != 0;
    let undefined = op.flags & Op::ENDS_BLOCK != 0 && !branch;
    let other = instruction.len() as u64 != op.length();
    if undefined || other { Instruction::default() } else { instruction }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, CpuidFeature};

    use super::*;
    use crate::core::CodeSize;
    use crate::decode::{self, Decoded};
    use crate::insn::Mode;
    use cpu_model::CpuModel;
    use cpu_model::Features;

    /// A list of fewer features than any CPU model has.
    const FEW: Features = Features::of(&[CpuidFeature::INTEL8086]);

    #[test]
    fn an_instruction_whose_features_are_missing_is_invalid_for_the_translator() {
        let (padding, popcnt_eax_ebx) = ([0x90; 3], [0xf3, 0x0f, 0xb8, 0xc3]);
        let bytes = [&padding[..], &popcnt_eax_ebx].concat();
        for (features, code) in
            [(&CpuModel::V2.description().features, Code::Popcnt_r32_rm32), (&FEW, Code::INVALID)]
        {
            let mode = Mode { code_size: CodeSize::Bits64, features, yields: false };
            let Decoded::Op(op) = decode::decode(&popcnt_eax_ebx, 0x1003, 3, mode) else {
                panic!("the instruction is complete")
            };
            assert_eq!(decode(&op, 0x1000, &bytes).code(), code);
        }
    }
}
