//! FLDENV, FSTENV, FSAVE, FRSTOR: the four layouts of the environment (SDM vol. 1, figures 8-9 to 8-12).
//!
//! ```text
//!          protected, 32-bit   real, 32-bit          protected, 16-bit   real, 16-bit
//!  words   0, 4, 8             0, 4, 8               0, 2, 4             0, 2, 4      control, status, tags
//!          12 FIP              12 FIP 15:0           6 FIP               6 FIP 15:0
//!          16 FCS, FOP         16 FIP 31:16, FOP     8 FCS               8 FIP 19:16, FOP
//!          20 FDP              20 FDP 15:0           10 FDP              10 FDP 15:0
//!          24 FDS              24 FDP 31:16          12 FDS              12 FDP 19:16
//! ```
//!
//! Virtual-8086 mode uses the real-mode layouts. The 32-bit layouts fill unused words with ones. FCS and FDS are
//! deprecated: they are stored as zero and ignored when loaded (SDM vol. 1, 8.1.8). So the addresses in the
//! real-mode layouts are offsets only: no segment base is added.

use softfloat::x87::F80;

use super::unit::EXCEPTIONS;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::state::FpuState;

/// The longest image: a 32-bit environment and eight registers.
const IMAGE_BYTES: usize = 108;
const REGISTER_BYTES: usize = 10;

/// One of the four layouts.
#[derive(Clone, Copy)]
struct Layout {
    /// Whether the layout has 28 bytes. Otherwise the layout has 14 bytes.
    wide: bool,
    /// Whether the layout is for protected mode. Such layouts have selectors, and only the 32-bit layout has FOP.
    protected: bool,
}

impl Layout {
    fn of<const WIDE: bool>(core: &Core) -> Layout {
        Layout { wide: WIDE, protected: core.protected_mode() }
    }

    const fn environment_bytes(self) -> usize {
        if self.wide { 28 } else { 14 }
    }

    const fn image_bytes(self) -> usize {
        self.environment_bytes() + 8 * REGISTER_BYTES
    }

    /// The seven fields of the environment as 32-bit words, in memory order.
    fn fields(self, fpu: &FpuState) -> [u32; 7] {
        let ones = |word: u16| 0xffff_0000 | u32::from(word);
        let [ip, dp] = [fpu.instruction_pointer as u32, fpu.data_pointer as u32];
        let opcode = u32::from(fpu.opcode & 0x7ff);
        let [control, status, tags] = [fpu.control, fpu.status, fpu.tags()].map(ones);
        let [i0, i1, d0, d1] = match (self.protected, self.wide) {
            (true, true) => [ip, opcode << 16, dp, ones(0)],
            (true, false) => [ip, 0, dp, 0],
            (false, _) => [ones(ip as u16), ip >> 16 << 12 | opcode, ones(dp as u16), dp >> 16 << 12],
        };
        [control, status, tags, i0, i1, d0, d1]
    }

    /// Loads everything but the registers from the seven fields.
    fn set_fields(self, fpu: &mut FpuState, fields: [u32; 7]) {
        let [control, status, tags, i0, i1, d0, d1] = fields;
        fpu.status = status as u16;
        fpu.set_tags(tags as u16);
        (fpu.instruction_selector, fpu.data_selector) = (0, 0);
        if self.protected {
            (fpu.instruction_pointer, fpu.data_pointer) = (u64::from(i0), u64::from(d0));
            // The 16-bit layout has no opcode, so the opcode becomes zero.
            fpu.opcode = (i1 >> 16) as u16 & 0x7ff;
        } else {
            let pointer = |low: u32, high: u32| u64::from(low & 0xffff | (high >> 12 & 0xffff) << 16);
            (fpu.instruction_pointer, fpu.data_pointer) = (pointer(i0, i1), pointer(d0, d1));
            fpu.opcode = i1 as u16 & 0x7ff;
        }
        fpu.set_control(control as u16);
    }

    fn write(self, fpu: &FpuState, image: &mut [u8; IMAGE_BYTES]) {
        let size = self.environment_bytes() / 7;
        for (slot, field) in image.chunks_exact_mut(size).zip(self.fields(fpu)) {
            slot.copy_from_slice(&field.to_le_bytes()[..size]);
        }
    }

    fn read(self, fpu: &mut FpuState, image: &[u8; IMAGE_BYTES]) {
        let size = self.environment_bytes() / 7;
        let mut fields = [0; 7];
        for (field, slot) in fields.iter_mut().zip(image.chunks_exact(size)) {
            let mut bytes = [0; 4];
            bytes[..size].copy_from_slice(slot);
            *field = u32::from_le_bytes(bytes);
        }
        self.set_fields(fpu, fields);
    }
}

const EMPTY: u16 = 3;

impl FpuState {
    /// The full tag word: two bits per physical register.
    fn tags(&self) -> u16 {
        (0..8).fold(0, |tags, register| tags | self.tag(register) << (2 * register))
    }

    fn tag(&self, register: usize) -> u16 {
        let exponent = self.sign_exponents[register] & 0x7fff;
        match self.mantissas[register] {
            _ if self.valid >> register & 1 == 0 => EMPTY,
            0 if exponent == 0 => 1,
            mantissa if exponent == 0 || exponent == 0x7fff || mantissa >> 63 == 0 => 2,
            _ => 0,
        }
    }

    /// Sets the tags from a full tag word. Only the difference between "empty" and the other tags is used.
    fn set_tags(&mut self, tags: u16) {
        self.valid = (0..8)
            .fold(0, |valid, register| valid | u8::from(tags >> (2 * register) & 3 != EMPTY) << register);
    }
}

/// Checks the address of an image that is written. Processors access the first field and the last byte before the
/// rest. If several pages are unmapped, this order decides the address of the page fault. The image must be as
/// aligned as its fields are wide (SDM vol. 3, table 6-7).
fn check_ends<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, address: u64, bytes: usize) -> Res<()> {
    core.check_writable(bus, address, if WIDE { 4 } else { 2 })?;
    core.check_writable(bus, address.wrapping_add(bytes as u64 - 1), 1)?;
    core.check_aligned_write(bus, address, bytes as u64, if WIDE { 4 } else { 2 })
}

/// Does the same as [`check_ends`] for an image that is read.
fn probe_ends<const WIDE: bool>(core: &mut Core, address: u64, bytes: usize) -> Res<()> {
    core.probe_read(address, if WIDE { 4 } else { 2 })?;
    core.probe_read(address.wrapping_add(bytes as u64 - 1), 1)?;
    core.check_aligned_read(address, bytes as u64, if WIDE { 4 } else { 2 })
}

/// FNSTENV. After the store, the instruction masks all exceptions.
fn fnstenv<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_available()?;
    let layout = Layout::of::<WIDE>(core);
    let address = core.linear_write(op, layout.environment_bytes() as u64)?;
    let mut image = [0; IMAGE_BYTES];
    layout.write(&core.state.fpu, &mut image);
    check_ends::<WIDE>(core, bus, address, layout.environment_bytes())?;
    core.store_bytes(bus, address, &image[..layout.environment_bytes()])?;
    let control = core.state.fpu.control | EXCEPTIONS;
    core.state.fpu.set_control(control);
    Ok(())
}

fn fldenv<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_waiting()?;
    let layout = Layout::of::<WIDE>(core);
    let address = core.linear(op, layout.environment_bytes() as u64)?;
    let mut image = [0; IMAGE_BYTES];
    probe_ends::<WIDE>(core, address, layout.environment_bytes())?;
    core.load_bytes(bus, address, &mut image[..layout.environment_bytes()])?;
    layout.read(&mut core.state.fpu, &image);
    Ok(())
}

/// FNSAVE. After the store, the instruction initialises the x87 unit.
fn fnsave<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_available()?;
    let layout = Layout::of::<WIDE>(core);
    let address = core.linear_write(op, layout.image_bytes() as u64)?;
    let mut image = [0; IMAGE_BYTES];
    let fpu = &core.state.fpu;
    layout.write(fpu, &mut image);
    let registers = image[layout.environment_bytes()..].chunks_exact_mut(REGISTER_BYTES);
    for (st, slot) in (0..8).zip(registers) {
        slot.copy_from_slice(&fpu.st(st).to_bytes());
    }
    check_ends::<WIDE>(core, bus, address, layout.image_bytes())?;
    core.store_bytes(bus, address, &image[..layout.image_bytes()])?;
    core.state.fpu.initialise();
    Ok(())
}

fn frstor<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_waiting()?;
    let layout = Layout::of::<WIDE>(core);
    let address = core.linear(op, layout.image_bytes() as u64)?;
    let mut image = [0; IMAGE_BYTES];
    probe_ends::<WIDE>(core, address, layout.image_bytes())?;
    core.load_bytes(bus, address, &mut image[..layout.image_bytes()])?;
    let fpu = &mut core.state.fpu;
    layout.read(fpu, &image);
    let valid = fpu.valid;
    let registers = image[layout.environment_bytes()..].chunks_exact(REGISTER_BYTES);
    for (st, slot) in (0..8).zip(registers) {
        fpu.set_st(st, F80::from_bytes(std::array::from_fn(|at| slot[at])));
    }
    fpu.valid = valid;
    Ok(())
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use iced_x86::Code::*;
    let handler: Handler = match insn.code() {
        Fnstenv_m14byte => fnstenv::<false>,
        Fnstenv_m28byte => fnstenv::<true>,
        Fldenv_m14byte => fldenv::<false>,
        Fldenv_m28byte => fldenv::<true>,
        Fnsave_m94byte => fnsave::<false>,
        Fnsave_m108byte => fnsave::<true>,
        Frstor_m94byte => frstor::<false>,
        Frstor_m108byte => frstor::<true>,
        _ => return None,
    };
    Some(Op::new(handler))
}
