//! Near jumps, calls and returns, conditional branches, loops. Conditional branches are counted.

use iced_x86::{Mnemonic, OpKind};

use super::select::{by_condition, condition_number};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::Op;
use crate::ops::width::{W16, W32, W64, Width};

const BRANCH: u8 = Op::ENDS_BLOCK | Op::SETS_RIP;

impl Core {
    /// Sets RIP to a near branch target. The target must be canonical or, in legacy modes, within the limit of CS.
    /// Otherwise the branch itself raises #GP(0) (SDM vol. 2, JMP, CALL, RET).
    #[inline(always)]
    fn branch_to(&mut self, target: u64) -> Res<()> {
        self.check_near_target(target)?;
        self.rip = target;
        Ok(())
    }

    #[inline(always)]
    fn check_near_target(&mut self, target: u64) -> Res<()> {
        let allowed = if self.is_64bit() {
            crate::memory::canonical(target)
        } else {
            target <= u64::from(self.state.segments[1].limit)
        };
        if allowed { Ok(()) } else { Err(self.gp(0)) }
    }

    /// Target of a relative branch. The displacement in `imm` is relative to the block's start, and `disp` is the
    /// mask of the operand size.
    #[inline(always)]
    fn relative_target(&self, op: &Op) -> u64 {
        self.block_rip().wrapping_add(op.imm) & op.disp as u64
    }

    #[inline(always)]
    fn fall_through(&mut self, op: &Op) {
        self.rip = self.next_rip(self.block_rip(), op.next);
    }
}

fn jcc<const CC: u8>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    if core.flags.condition::<CC>() {
        let target = core.relative_target(op);
        core.branch_to(target)?;
        core.observe_jump(target);
    } else {
        core.fall_through(op);
    }
    core.branches += 1;
    Ok(())
}

fn jmp_relative(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    jmp(core, core.relative_target(op))
}

fn jmp(core: &mut Core, target: u64) -> Res<()> {
    core.branch_to(target)?;
    core.observe_jump(target);
    Ok(())
}

fn call_relative<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let target = core.relative_target(op);
    call::<W>(core, bus, op, target)
}

/// A near call. A fault changes no register. As on real processors, the limit of CS is checked before the return
/// address is stored. A non-canonical target is detected after this store.
#[inline(always)]
fn call<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op, target: u64) -> Res<()> {
    if !core.is_64bit() {
        core.check_near_target(target)?;
    }
    let back = core.next_rip(core.block_rip(), op.next);
    let sp = core.stack_pointer_minus(W::BYTES);
    core.store_stack(bus, sp, W::BYTES, back & W::MASK)?;
    core.branch_to(target)?;
    core.set_stack_pointer(sp);
    core.observe_call(target, back);
    Ok(())
}

fn jmp_reg<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    jmp(core, W::get(core, op.r0))
}

fn jmp_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let target = W::load(core, bus, address)?;
    jmp(core, target)
}

fn call_reg<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    call::<W>(core, bus, op, W::get(core, op.r0))
}

fn call_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let target = W::load(core, bus, address)?;
    call::<W>(core, bus, op, target)
}

/// RET and RET imm16. After the return address is popped, `imm` bytes of arguments are dropped from the stack.
fn ret<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let sp = core.frame.regs[4] & core.stack_mask;
    let target = core.load_stack(bus, sp, W::BYTES)?;
    core.branch_to(target)?;
    core.set_stack_pointer(sp.wrapping_add(W::BYTES + op.imm));
    core.observe_return(target);
    Ok(())
}

/// LOOP, LOOPE, LOOPNE and JrCXZ. `aux` selects the instruction, and `A` is the width of the counter.
fn loop_or_jcxz<A: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let count = A::get(core, 1);
    let left = if op.aux == JCXZ { count } else { count.wrapping_sub(1) & A::MASK };
    let taken = match op.aux {
        JCXZ => count == 0,
        LOOPE => left != 0 && core.flags.zf(),
        LOOPNE => left != 0 && !core.flags.zf(),
        _ => left != 0,
    };
    if taken {
        core.branch_to(core.relative_target(op))?;
    } else {
        core.fall_through(op);
    }
    if op.aux != JCXZ {
        A::set(core, 1, left);
    }
    core.branches += 1;
    Ok(())
}

const LOOP: u8 = 0;
const LOOPE: u8 = 1;
const LOOPNE: u8 = 2;
const JCXZ: u8 = 3;

fn relative(insn: &Insn<'_>, handler: crate::op::Handler) -> Op {
    let mut op = Op::new(handler).imm(insn.relative_to_block(insn.raw.near_branch_target())).with(BRANCH);
    op.disp = match insn.raw.op_kind(0) {
        OpKind::NearBranch16 => 0xffff,
        OpKind::NearBranch32 => 0xffff_ffff,
        _ => -1,
    };
    op
}

fn is_near_branch(insn: &Insn<'_>) -> bool {
    matches!(insn.raw.op_kind(0), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

fn lower_loop(insn: &Insn<'_>, kind: u8) -> Op {
    let raw = insn.raw;
    use iced_x86::Code::*;
    let handler = match raw.code() {
        Loop_rel8_16_CX | Loop_rel8_32_CX | Loope_rel8_16_CX | Loope_rel8_32_CX | Loopne_rel8_16_CX
        | Loopne_rel8_32_CX | Jcxz_rel8_16 | Jcxz_rel8_32 => loop_or_jcxz::<W16> as crate::op::Handler,
        Loop_rel8_16_ECX | Loop_rel8_32_ECX | Loop_rel8_64_ECX | Loope_rel8_16_ECX | Loope_rel8_32_ECX
        | Loope_rel8_64_ECX | Loopne_rel8_16_ECX | Loopne_rel8_32_ECX | Loopne_rel8_64_ECX
        | Jecxz_rel8_16 | Jecxz_rel8_32 | Jecxz_rel8_64 => loop_or_jcxz::<W32>,
        _ => loop_or_jcxz::<W64>,
    };
    relative(insn, handler).aux(kind)
}

/// Lowers indirect near jumps and calls. `ops/system` lowers far jumps and calls.
fn lower_indirect(insn: &Insn<'_>, call: bool) -> Option<Op> {
    if insn.raw.is_jmp_far_indirect() || insn.raw.is_call_far_indirect() {
        return None;
    }
    if insn.raw.is_jmp_far() || insn.raw.is_call_far() {
        return None;
    }
    macro_rules! pick {
        ($function:ident) => {
            match insn.size(0) {
                2 => $function::<W16> as crate::op::Handler,
                4 => $function::<W32>,
                _ => $function::<W64>,
            }
        };
    }
    let handler = match (insn.is_memory(0), call) {
        (true, true) => pick!(call_mem),
        (true, false) => pick!(jmp_mem),
        (false, true) => pick!(call_reg),
        (false, false) => pick!(jmp_reg),
    };
    let op = Op::new(handler).with(BRANCH);
    Some(if insn.is_memory(0) { insn.address(op) } else { op.r0(insn.register(0)) })
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    match insn.mnemonic() {
        Mnemonic::Jmp if is_near_branch(insn) => Some(relative(insn, jmp_relative)),
        Mnemonic::Call if is_near_branch(insn) => Some(relative(
            insn,
            match insn.raw.op_kind(0) {
                OpKind::NearBranch16 => call_relative::<W16>,
                OpKind::NearBranch32 => call_relative::<W32>,
                _ => call_relative::<W64>,
            },
        )),
        Mnemonic::Jmp => lower_indirect(insn, false),
        Mnemonic::Call => lower_indirect(insn, true),
        Mnemonic::Ret => {
            let handler = match insn.raw.code() {
                iced_x86::Code::Retnw | iced_x86::Code::Retnw_imm16 => ret::<W16> as crate::op::Handler,
                iced_x86::Code::Retnd | iced_x86::Code::Retnd_imm16 => ret::<W32>,
                _ => ret::<W64>,
            };
            let bytes = if insn.raw.op_count() == 1 { insn.immediate(0) & 0xffff } else { 0 };
            Some(Op::new(handler).imm(bytes).with(BRANCH))
        }
        Mnemonic::Loop => Some(lower_loop(insn, LOOP)),
        Mnemonic::Loope => Some(lower_loop(insn, LOOPE)),
        Mnemonic::Loopne => Some(lower_loop(insn, LOOPNE)),
        Mnemonic::Jcxz | Mnemonic::Jecxz | Mnemonic::Jrcxz => Some(lower_loop(insn, JCXZ)),
        _ if insn.raw.is_jcc_short_or_near() => {
            let cc = condition_number(insn)?;
            Some(relative(insn, by_condition!(cc, jcc)))
        }
        _ => None,
    }
}
