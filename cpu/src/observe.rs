//! Notes the happenings of a step that the CPU's observer wants.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::attention;
use crate::core::Core;
use crate::debug_points::{PageAccess, WatchKind};
use crate::decode::MAX_LENGTH;
use crate::happening::{Bytes, Happening, Wants};
use crate::observing::Observing;
use crate::op::Op;

/// A branch that is about to be executed.
pub(crate) struct Branch {
    conditional: bool,
    behind: u64,
}

impl Core {
    /// Replaces the kinds of happenings that the observer wants.
    pub(crate) fn set_wants(&mut self, wants: Wants) {
        let before = std::mem::replace(&mut self.observing, Observing::of(wants));
        if !before.sees_no_access() || !self.observing.sees_no_access() {
            self.mmu.flush_all();
        }
        if self.observing.sees_every_instruction() {
            self.attention |= attention::OBSERVED;
        } else {
            self.attention &= !attention::OBSERVED;
        }
    }

    /// Notes a happening that the observer wants, and ends the block.
    fn happened(&mut self, happening: Happening) {
        self.observing.happened.push(happening);
        self.attention |= attention::HIT;
        self.break_block = true;
    }

    /// Whether the fetch of the instruction at RIP is wanted.
    pub(crate) fn sees_fetch_at_rip(&self) -> bool {
        if self.observing.fetches.is_everything() {
            return true;
        }
        let address = self.rip.wrapping_add(self.frame.seg_base[1]);
        let address = if self.is_64bit() { address } else { address & 0xffff_ffff };
        if self.observing.instructions.is_some() {
            let mut bytes = [0; MAX_LENGTH];
            let known = self.peek(address, &mut bytes);
            if self.selects(&bytes[..known], self.rip) {
                return true;
            }
        }
        self.observing.fetches.touches(address, self.peek_address(address).unwrap_or(u64::MAX), 1)
    }

    /// Whether the observer's filter selects the instruction that these bytes begin with.
    pub(crate) fn selects(&self, bytes: &[u8], rip: u64) -> bool {
        let Some(filter) = &self.observing.instructions else { return false };
        filter.selects(&Decoder::with_ip(self.code_size.bits(), bytes, rip, DecoderOptions::NONE).decode())
    }

    /// Notes an access, if it is wanted.
    pub(crate) fn observe_access(&mut self, access: &PageAccess<'_>) {
        let wanted =
            if access.kind == WatchKind::Write { &self.observing.stores } else { &self.observing.loads };
        if wanted.is_nothing() {
            return;
        }
        let parts = (0..access.bytes.len()).step_by(Bytes::MOST);
        for from in parts {
            let part = from..access.bytes.len().min(from + Bytes::MOST);
            let (address, physical) = (access.address + from as u64, access.gpa + from as u64);
            let bytes = Bytes::of(&access.bytes[part.clone()]);
            let wanted =
                if access.kind == WatchKind::Write { &self.observing.stores } else { &self.observing.loads };
            if !wanted.touches(address, physical, bytes.len() as u64) {
                continue;
            }
            self.happened(match access.kind {
                WatchKind::Write => {
                    let before = access.before.map(|before| Bytes::of(&before[part]));
                    Happening::Store { address, physical, before, after: bytes }
                }
                _ => Happening::Load { address, physical, value: bytes },
            });
        }
    }

    /// Notes a system call, if it is wanted.
    pub(crate) fn observe_system_call(&mut self, number: u64) {
        if self.observing.system_calls.contains(number) {
            self.happened(Happening::SystemCall { number });
        }
    }

    /// Notes a delivery, if it is wanted.
    pub(crate) fn observe_delivery(&mut self, vector: u8, error_code: Option<u32>) {
        if self.observing.deliveries.contain(vector) {
            self.happened(Happening::Delivery { vector, error_code });
        }
    }

    /// Notes a near call, if it is wanted.
    #[inline]
    pub(crate) fn observe_call(&mut self, to: u64, back: u64) {
        if self.observing.calls.contain(self.block_rip()) {
            self.happened(Happening::Call { to, back });
        }
    }

    /// Notes a near return, if it is wanted.
    #[inline]
    pub(crate) fn observe_return(&mut self, to: u64) {
        if self.observing.calls.contain(self.block_rip()) {
            self.happened(Happening::Return { to });
        }
    }

    /// Notes a near jump, if it is wanted.
    #[inline]
    pub(crate) fn observe_jump(&mut self, to: u64) {
        if !self.observing.jumps_to.is_empty() && self.observing.jumps_to.contains(&to) {
            self.happened(Happening::Jump { to });
        }
    }

    /// Whether the interpreter must execute an instruction of the block at an address, because the observer may want it.
    pub(crate) fn must_note(&self, block_rip: u64, instruction: &Instruction) -> bool {
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return => {
                self.observing.calls.contain(block_rip)
            }
            FlowControl::IndirectBranch => !self.observing.jumps_to.is_empty(),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                self.observing.jumps_to.contains(&instruction.near_branch_target())
            }
            _ => false,
        }
    }

    /// Describes the branch at RIP, if the op is a branch and the observer wants branches.
    pub(crate) fn branch_ahead(&self, op: &Op) -> Option<Branch> {
        if !self.observing.branches || op.flags & Op::SETS_RIP == 0 {
            return None;
        }
        let mut bytes = [0; MAX_LENGTH];
        let address = self.rip.wrapping_add(self.frame.seg_base[1]);
        let known = self.peek(address, &mut bytes);
        let bits = self.code_size.bits();
        let instruction = Decoder::with_ip(bits, &bytes[..known], self.rip, DecoderOptions::NONE).decode();
        let conditional = match instruction.flow_control() {
            FlowControl::ConditionalBranch => true,
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Call
            | FlowControl::IndirectCall => false,
            _ => return None,
        };
        Some(Branch { conditional, behind: self.next_rip(self.rip, op.next) })
    }

    /// Notes that a branch completed.
    pub(crate) fn observe_branch(&mut self, branch: &Branch) {
        let taken = !branch.conditional || self.rip != branch.behind;
        self.happened(Happening::Branch { to: self.rip, conditional: branch.conditional, taken });
    }
}
