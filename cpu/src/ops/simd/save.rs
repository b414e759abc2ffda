//! MXCSR, EMMS, and the saving and restoring of x87 and SSE state (SDM vol. 1, 10.5 and chapter 13).
//!
//! Components: x87 (bit 0) and SSE (bit 1), in the standard format only. The choices that the manual leaves open:
//!
//! - XINUSE is all ones: every component is treated as in use, so XSAVE sets every requested XSTATE_BV bit.
//! - FXSAVE and FXRSTOR always transfer the XMM registers, regardless of CR4.OSFXSR.
//! - The forms without REX.W store and load FCS and FDS.
//! - Bytes that belong to no register or to reserved fields of the image (XMM8 to XMM15 outside 64-bit mode,
//!   416 to 511) are not written.

use std::ops::Range;

use cpu_model::Quirks;
use cpu_model::registers::{cr0, cr4};
use iced_x86::Code;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception;
use crate::exception::Res;
use crate::fpu::IMAGE_BYTES;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::state::FpuState;

/// The bits of MXCSR that software can set. Images have this value in the field MXCSR_MASK.
const MXCSR_MASK: u32 = 0xffff;
/// Size of the FXSAVE image.
const FXSAVE_BYTES: u64 = 512;
/// Size of the XSAVE image: the FXSAVE image and the header.
const XSAVE_BYTES: u64 = 576;
/// Offset of the XMM registers in an image.
const XMM_OFFSET: u64 = 160;
/// Offset of the XSAVE header.
const HEADER_OFFSET: u64 = 512;
/// State component x87.
const X87: u64 = 1;
/// State component SSE.
const SSE: u64 = 2;
/// State component AVX, which shares MXCSR with SSE.
const AVX: u64 = 4;

/// Lowers the instructions that save and restore state.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let handler: Handler = match insn.code() {
        Code::Ldmxcsr_m32 => ldmxcsr,
        Code::Stmxcsr_m32 => stmxcsr,
        Code::Emms => return Some(Op::new(emms)),
        Code::Fxsave_m512byte => fxsave::<false>,
        Code::Fxsave64_m512byte => fxsave::<true>,
        Code::Fxrstor_m512byte => fxrstor::<false>,
        Code::Fxrstor64_m512byte => fxrstor::<true>,
        Code::Xsave_mem => xsave::<false>,
        Code::Xsave64_mem => xsave::<true>,
        Code::Xrstor_mem => xrstor::<false>,
        Code::Xrstor64_mem => xrstor::<true>,
        _ => return None,
    };
    Some(insn.address(Op::new(handler)))
}

fn ldmxcsr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let value = core.load_double(bus, op)?;
    require_valid_mxcsr(core, value)?;
    core.state.mxcsr = value;
    Ok(())
}

fn require_valid_mxcsr(core: &mut Core, value: u32) -> Res<()> {
    if value & !MXCSR_MASK == 0 { Ok(()) } else { Err(core.gp(0)) }
}

fn stmxcsr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    core.store_double(bus, op, core.state.mxcsr)
}

fn emms(core: &mut Core, _bus: &mut dyn Bus, _op: &Op) -> Res<()> {
    core.require_mmx()?;
    core.state.fpu.leave_mmx();
    Ok(())
}

fn fxsave<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    require_fx(core)?;
    let address = core.linear_write(op, FXSAVE_BYTES)?;
    core.require_canonical(address)?;
    core.require_aligned(address, 16)?;
    // Check the last byte first: if both pages of the image are unmapped, the page fault is for the second page.
    core.check_writable(bus, address.wrapping_add(FXSAVE_BYTES - 1), 1)?;
    core.check_writable(bus, address, FXSAVE_BYTES)?;
    save_legacy(core, bus, address, X87 | SSE, WIDE)
}

fn fxrstor<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    require_fx(core)?;
    let address = core.linear(op, FXSAVE_BYTES)?;
    core.require_canonical(address)?;
    core.require_aligned(address, 16)?;
    let mut image = [0; FXSAVE_BYTES as usize];
    core.load_bytes(bus, address, &mut image)?;
    let mxcsr = mxcsr_of(&image);
    require_valid_mxcsr(core, mxcsr)?;
    core.state.mxcsr = mxcsr;
    core.state.fpu = FpuState::from_image(first_part(&image), WIDE);
    restore_xmm(core, Some(&image));
    Ok(())
}

/// Raises #NM for CR0.EM as well as CR0.TS.
fn require_fx(core: &mut Core) -> Res<()> {
    if core.state.cr0 & (cr0::EM | cr0::TS) == 0 { Ok(()) } else { Err(core.fault(exception::NM)) }
}

fn xsave<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    require_xsave(core)?;
    let address = core.linear_write(op, XSAVE_BYTES)?;
    core.require_aligned(address, 64)?;
    let requested = requested(core);
    core.check_writable(bus, address, XSAVE_BYTES)?;
    let header = address.wrapping_add(HEADER_OFFSET);
    let saved = core.load_u64(bus, header)?;
    save_legacy(core, bus, address, requested, WIDE)?;
    core.store_u64(bus, header, saved | requested)
}

fn xrstor<const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    require_xsave(core)?;
    let address = core.linear(op, XSAVE_BYTES)?;
    core.require_aligned(address, 64)?;
    let mut image = [0; XSAVE_BYTES as usize];
    core.load_bytes(bus, address, &mut image)?;
    let requested = requested(core);
    let (legacy, header) = image.split_at(FXSAVE_BYTES as usize);
    let saved = u64::from_le_bytes(*header.first_chunk().expect("the header has 64 bytes"));
    // Bytes 8 to 15 select the compacted format, which this CPU model lacks.
    if saved & !core.state.xcr0 != 0 || header[8..24].iter().any(|&byte| byte != 0) {
        return Err(core.gp(0));
    }
    if requested & (SSE | AVX) != 0 {
        let mxcsr = mxcsr_of(legacy);
        require_valid_mxcsr(core, mxcsr)?;
        core.state.mxcsr = mxcsr;
    }
    if requested & X87 != 0 {
        let in_image = saved & X87 != 0;
        core.state.fpu =
            if in_image { FpuState::from_image(first_part(legacy), WIDE) } else { FpuState::initial() };
    }
    if requested & SSE != 0 {
        restore_xmm(core, (saved & SSE != 0).then_some(legacy));
    }
    Ok(())
}

fn require_xsave(core: &mut Core) -> Res<()> {
    if core.state.cr4 & cr4::OSXSAVE == 0 {
        return Err(core.ud());
    }
    if core.state.cr0 & cr0::TS != 0 {
        return Err(core.fault(exception::NM));
    }
    Ok(())
}

/// RFBM: the components requested in EDX:EAX and enabled in XCR0.
fn requested(core: &Core) -> u64 {
    core.state.xcr0 & (u64::from(core.reg32(0)) | u64::from(core.reg32(2)) << 32)
}

/// Stores the requested parts of the 512-byte legacy region. The caller must have checked that the region is
/// writable.
fn save_legacy(core: &mut Core, bus: &mut dyn Bus, address: u64, parts: u64, wide: bool) -> Res<()> {
    let mut image = [0; IMAGE_BYTES];
    core.state.fpu.write_image(&mut image, wide);
    if parts & X87 != 0 {
        for part in x87_parts(core.quirks, &mut image) {
            core.store_bytes(bus, address.wrapping_add(part.start as u64), &image[part])?;
        }
    }
    if parts & (SSE | AVX) != 0 {
        let both = u64::from(core.state.mxcsr) | u64::from(MXCSR_MASK) << 32;
        core.store_u64(bus, address.wrapping_add(24), both)?;
    }
    if parts & SSE != 0 {
        for register in 0..xmm_count(core) {
            let at = address.wrapping_add(XMM_OFFSET + 16 * u64::from(register));
            core.store_u128(bus, at, core.xmm(register))?;
        }
    }
    Ok(())
}

/// The ranges of an image that a save of the x87 component writes.
fn x87_parts(quirks: Quirks, image: &mut [u8; IMAGE_BYTES]) -> Vec<Range<usize>> {
    if !quirks.fxsave_leaves_gaps {
        return vec![0..24, 32..IMAGE_BYTES];
    }
    image[8..24].fill(0);
    [0..6, 8..24].into_iter().chain((32..IMAGE_BYTES).step_by(16).map(|at| at..at + 10)).collect()
}

/// Loads the XMM registers of the current mode from an image, or clears them.
fn restore_xmm(core: &mut Core, image: Option<&[u8]>) {
    for register in 0..xmm_count(core) {
        let at = XMM_OFFSET as usize + 16 * usize::from(register);
        let value = image.and_then(|image| image[at..].first_chunk()).map_or(0, |&b| u128::from_le_bytes(b));
        core.set_xmm(register, value);
    }
}

fn xmm_count(core: &Core) -> u8 {
    if core.is_64bit() { 16 } else { 8 }
}

fn mxcsr_of(image: &[u8]) -> u32 {
    u32::from_le_bytes([image[24], image[25], image[26], image[27]])
}

fn first_part(image: &[u8]) -> &[u8; IMAGE_BYTES] {
    image.first_chunk().expect("images are longer than their x87 part")
}
