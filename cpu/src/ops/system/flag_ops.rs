//! Instructions on RFLAGS that depend on privilege or mode: CLI, STI, PUSHF, POPF, CLAC, STAC.

use iced_x86::Code;

use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags;
use crate::insn::Insn;
use crate::op::Op;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    Some(match insn.code() {
        Code::Cli => Op::new(cli),
        Code::Sti => Op::new(sti),
        Code::Clac => Op::new(clac),
        Code::Stac => Op::new(stac),
        Code::Pushfw => Op::new(pushf).aux(2),
        Code::Pushfd => Op::new(pushf).aux(4),
        Code::Pushfq => Op::new(pushf).aux(8),
        Code::Popfw => Op::new(popf).aux(2).with(Op::ENDS_BLOCK),
        Code::Popfd => Op::new(popf).aux(4).with(Op::ENDS_BLOCK),
        Code::Popfq => Op::new(popf).aux(8).with(Op::ENDS_BLOCK),
        _ => return None,
    })
}

impl Core {
    fn iopl(&self) -> u8 {
        ((self.rflags & flags::IOPL) >> 12) as u8
    }

    /// Whether the running code may change IF and use all ports: CPL must not exceed IOPL. The comparison is right
    /// in all modes, because CPL is 0 in real mode and 3 in virtual-8086 mode.
    pub(super) fn io_privileged(&self) -> bool {
        self.cpl <= self.iopl()
    }
}

/// CLI. Interrupts are sampled only between blocks, so clearing IF need not end the block.
fn cli(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    if !core.io_privileged() {
        return Err(core.gp(0));
    }
    core.rflags &= !flags::IF;
    Ok(())
}

fn sti(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    if !core.io_privileged() {
        return Err(core.gp(0));
    }
    if core.rflags & flags::IF == 0 {
        core.rflags |= flags::IF;
        core.attention |= attention::SIGNALS;
        core.set_interrupt_shadow(false);
    }
    Ok(())
}

fn set_ac(core: &mut Core, value: u64) -> Res<()> {
    if core.cpl != 0 {
        return Err(core.ud());
    }
    core.rflags = core.rflags & !flags::AC | value;
    core.update_mmu_index();
    Ok(())
}

fn clac(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    set_ac(core, 0)
}

fn stac(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    set_ac(core, flags::AC)
}

/// In virtual-8086 mode PUSHF and POPF need IOPL 3, because this model has no VME.
fn check_v86(core: &mut Core) -> Res<()> {
    let trapped = core.rflags & flags::VM != 0 && core.iopl() != 3;
    if trapped { Err(core.gp(0)) } else { Ok(()) }
}

fn pushf(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_v86(core)?;
    let image = core.rflags_bits() & !(flags::RF | flags::VM);
    core.push(bus, u64::from(op.aux), image)
}

fn popf(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_v86(core)?;
    let mut mask = flags::ARITHMETIC | flags::TF | flags::DF | flags::NT;
    if op.aux > 2 {
        mask |= flags::AC | flags::ID;
    }
    if core.io_privileged() {
        mask |= flags::IF;
    }
    if core.cpl == 0 {
        mask |= flags::IOPL;
    }
    let popped = core.pop(bus, u64::from(op.aux))?;
    core.set_rflags(core.rflags_bits() & !mask & !flags::RF | popped & mask);
    Ok(())
}
