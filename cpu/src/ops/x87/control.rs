//! FINIT, FCLEX, FLDCW, FSTCW, FSTSW, FINCSTP, FDECSTP, FFREE, FFREEP, FNOP and FWAIT (SDM vol. 2 under those names).
//! Also instructions of older coprocessors that do nothing today: FENI, FDISI, FSETPM.

use cpu_model::registers::cr0;
use softfloat::x87::C1;

use super::unit::{BUSY, ES, EXCEPTIONS, SF};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::state::FpuState;

/// Bits of the control word that exist; bit 6 is always set.
const CONTROL_BITS: u16 = 0x1f3f;

impl FpuState {
    /// Loads the control word. Exceptions that the new word unmasks become pending.
    pub(super) fn set_control(&mut self, control: u16) {
        self.control = control & CONTROL_BITS | 0x40;
        self.update_summary();
    }

    /// FNINIT. The instruction keeps the contents of the data registers, which [`FpuState::initial`] clears.
    pub(super) fn initialise(&mut self) {
        let (mantissas, sign_exponents) = (self.mantissas, self.sign_exponents);
        *self = FpuState { mantissas, sign_exponents, ..FpuState::initial() };
    }
}

fn fninit(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    core.x87_available()?;
    core.state.fpu.initialise();
    Ok(())
}

fn fnclex(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    core.x87_available()?;
    core.state.fpu.status &= !(EXCEPTIONS | SF | ES | BUSY);
    Ok(())
}

fn no_operation(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    core.x87_available()
}

fn fwait(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    const MONITORED: u64 = cr0::MP | cr0::TS;
    if core.state.cr0 & MONITORED == MONITORED {
        return Err(core.fault(exception::NM));
    }
    if core.state.fpu.exception_pending() { core.x87_report() } else { Ok(()) }
}

fn fldcw(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_waiting()?;
    let address = core.linear(op, 2)?;
    let control = core.load_u16(bus, address)?;
    core.state.fpu.set_control(control);
    Ok(())
}

fn store_word(core: &mut Core, bus: &mut dyn Bus, op: &Op, word: fn(&FpuState) -> u16) -> Res<()> {
    core.x87_available()?;
    let address = core.linear_write(op, 2)?;
    core.store_u16(bus, address, word(&core.state.fpu))
}

fn fnstsw_ax(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    core.x87_available()?;
    core.set_reg16(0, core.state.fpu.status);
    Ok(())
}

/// FINCSTP, FDECSTP: `aux` is added to TOP.
fn rotate(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        core.state.fpu.set_codes(C1, 0);
        core.state.fpu.rotate(u16::from(op.aux));
    })
}

/// FFREE, and FFREEP if `aux` is 1. FFREEP also adds 1 to TOP, even if ST(0) is empty.
fn ffree(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        core.state.fpu.set_codes(C1, 0);
        core.state.fpu.free(op.r0);
        core.state.fpu.pop(op.aux);
    })
}

fn fnop(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |_| ())
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use iced_x86::Code::*;
    let handler: Handler = match insn.code() {
        Wait => fwait,
        Fninit => fninit,
        Fnclex => fnclex,
        Fneni | Fndisi | Fnsetpm => no_operation,
        Fnop => fnop,
        Fldcw_m2byte => fldcw,
        Fnstcw_m2byte => |core, bus, op| store_word(core, bus, op, |fpu| fpu.control),
        Fnstsw_m2byte => |core, bus, op| store_word(core, bus, op, |fpu| fpu.status),
        Fnstsw_AX => fnstsw_ax,
        Fincstp => return Some(Op::new(rotate).aux(1)),
        Fdecstp => return Some(Op::new(rotate).aux(7)),
        Ffree_sti => return Some(Op::new(ffree).r0(insn.register(0))),
        Ffreep_sti => return Some(Op::new(ffree).r0(insn.register(0)).aux(1)),
        _ => return None,
    };
    Some(Op::new(handler))
}
