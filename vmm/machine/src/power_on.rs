//! The machine at the guest's first instruction.

use boot::{CpuEntry, SegmentState};
use cpu::{CpuState, SegReg, Segment};
use devices::pci::PciBus;
use devices::platform::Platform;
use guest_ram::GuestRam;

/// Starts the PIT's first channel as firmware does: mode 2, the longest period. Without a TSC, Linux takes early
/// randomness from this channel, and waits for ever if the channel does not run.
pub(super) fn start_pit(platform: &mut Platform<PciBus>, ram: &GuestRam) {
    for (port, value) in [(0x43, 0x34), (0x40, 0), (0x40, 0)] {
        platform.pio_write(ram.memory(), 0, port, 1, value);
    }
}

/// The kernel's seed, made from the seed of the run. The guest must not be able to compute the entropy device's data
/// from the kernel's seed.
pub(super) fn kernel_seed(seed: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("ttvm kernel seed", seed)
}

pub(super) fn entropy_seed(seed: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("ttvm entropy device", seed)
}

/// The CPU at the guest's first instruction.
pub(super) fn entry_state(entry: &CpuEntry) -> CpuState {
    let mut state = CpuState::reset();
    let segment = |s: &SegmentState| Segment {
        selector: s.selector,
        base: s.base,
        limit: s.limit,
        attributes: s.attributes,
    };
    state.gpr = [0; 16];
    (state.gpr[0], state.gpr[3], state.gpr[4], state.gpr[6]) = (entry.rax, entry.rbx, entry.rsp, entry.rsi);
    state.rip = entry.rip;
    state.rflags = entry.rflags;
    state.segments = [segment(&entry.data); 6];
    state.segments[SegReg::Cs as usize] = segment(&entry.cs);
    state.tr = segment(&entry.tr);
    state.gdtr = cpu::TableRegister { base: entry.gdt.base, limit: entry.gdt.limit };
    state.idtr = cpu::TableRegister { base: entry.idt.base, limit: entry.idt.limit };
    state.cr0 = entry.cr0;
    state.cr3 = entry.cr3;
    state.cr4 = entry.cr4;
    state.msrs.efer = entry.efer;
    // Firmware turns the MTRRs on and makes all memory write-back. Without this value Linux does not set up PAT.
    state.msrs.mtrr_def_type = 0xc06;
    state
}
