//! IN and OUT, and the check whether the running code may use a port (SDM vol. 1, 19.5). INS and OUTS are with the
//! string instructions.

use iced_x86::Code;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::Op;
use crate::segmentation::descriptor::system_type;

/// Flag of an op whose port number is the immediate, and not in DX.
const IMMEDIATE: u8 = Op::FAMILY;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let (size, write, immediate) = match insn.code() {
        Code::In_AL_imm8 => (1, false, Some(1)),
        Code::In_AX_imm8 => (2, false, Some(1)),
        Code::In_EAX_imm8 => (4, false, Some(1)),
        Code::In_AL_DX => (1, false, None),
        Code::In_AX_DX => (2, false, None),
        Code::In_EAX_DX => (4, false, None),
        Code::Out_imm8_AL => (1, true, Some(0)),
        Code::Out_imm8_AX => (2, true, Some(0)),
        Code::Out_imm8_EAX => (4, true, Some(0)),
        Code::Out_DX_AL => (1, true, None),
        Code::Out_DX_AX => (2, true, None),
        Code::Out_DX_EAX => (4, true, None),
        _ => return None,
    };
    let op = Op::new(if write { output } else { input }).aux(size).with(Op::ENDS_BLOCK);
    Some(match immediate {
        Some(n) => op.imm(insn.immediate(n) & 0xff).with(IMMEDIATE),
        None => op,
    })
}

impl Core {
    /// Raises #GP(0) unless the running code may use the `size_bytes` ports from `port` on. Either IOPL allows all
    /// ports, or the I/O permission bitmap of a 32- or 64-bit TSS must allow these ports.
    pub(crate) fn check_io(&mut self, bus: &mut dyn Bus, port: u16, size_bytes: u8) -> Res<()> {
        // In virtual-8086 mode, IOPL does not matter: only the bitmap can allow the port.
        if self.io_privileged() && self.rflags & crate::flags::VM == 0 {
            return Ok(());
        }
        let tr = self.state.tr;
        let wide = tr.present() && tr.kind() | 2 == system_type::TSS32_BUSY;
        if !wide || tr.limit < 103 {
            return Err(self.gp(0));
        }
        let map = self.tss_field(bus, 102, 2)?;
        let at = map + u64::from(port / 8);
        // Always read two bytes of the bitmap, because the bits of several ports may be in two bytes.
        if at + 1 > u64::from(tr.limit) {
            return Err(self.gp(0));
        }
        let bits = self.tss_field(bus, at, 2)? >> (port % 8);
        if bits & ((1 << size_bytes) - 1) != 0 { Err(self.gp(0)) } else { Ok(()) }
    }
}

fn port_of(core: &Core, op: &Op) -> u16 {
    if op.flags & IMMEDIATE != 0 { op.imm as u16 } else { core.reg16(2) }
}

fn input(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let port = port_of(core, op);
    core.check_io(bus, port, op.aux)?;
    let value = bus.port_read(core.steps(), port, op.aux);
    match op.aux {
        1 => core.set_reg8(0, value as u8),
        2 => core.set_reg16(0, value as u16),
        _ => core.set_reg32(0, value),
    }
    core.bus_was_used();
    Ok(())
}

fn output(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let port = port_of(core, op);
    core.check_io(bus, port, op.aux)?;
    let value = core.reg32(0) & (u32::MAX >> (32 - 8 * u32::from(op.aux)));
    bus.port_write(core.steps(), port, op.aux, value);
    core.bus_was_used();
    Ok(())
}
