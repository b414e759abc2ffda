//! `ttvm-v2.1`: the instructions of `ttvm-v2`, with an identity that newer kernels accept without a warning.
//!
//! Linux 6.12 and later mistake `ttvm-v2` for a Zen 5 without microcode and without a machine-check architecture. This
//! model identifies itself as a Zen 1, as QEMU's `EPYC` does. CPUID says that the processor does not have two known
//! speculation bugs (BTC_NO, SRSO_NO). The model has a machine-check architecture without banks, because the
//! machine's hardware never fails.
//!
//! The values in this file must not change any more, because recordings name this model.

use iced_x86::CpuidFeature as F;

use crate::description::{Description, HINTS, bits, brand, vendor, word};
use crate::features::Features;
use crate::registers::cr4;

/// Family 17h, model 1, stepping 2, as CPUID leaf 1 reports them in EAX.
const SIGNATURE: u32 = 0x0080_0f12;
const PHYSICAL_BITS: u32 = 40;
const MCG_STATUS: u32 = 0x17a;

/// The description of `ttvm-v2.1`.
pub(crate) const V2_1: Description = Description {
    features: INSTRUCTIONS,
    cpuid: &[
        (0, None, vendor(0xd)),
        // EBX: CLFLUSH lines of 8 quadwords, one logical processor, APIC id 0. ECX: SSE3 PCLMULQDQ SSSE3 CX16 PCID
        // SSE4.1 SSE4.2 x2APIC MOVBE POPCNT TSC-deadline AES XSAVE, hypervisor. EDX: FPU DE PSE TSC MSR PAE MCE CX8
        // APIC SEP MTRR PGE MCA CMOV PAT PSE36 CLFLUSH MMX FXSR SSE SSE2.
        (
            1,
            None,
            [
                SIGNATURE,
                1 << 16 | 8 << 8,
                bits(&[0, 1, 9, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 31]),
                bits(&[0, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26]),
            ],
        ),
        // ARAT: the local APIC's timer never stops.
        (6, None, [1 << 2, 0, 0, 0]),
        // FSGSBASE TSC_ADJUST BMI1 FDP_EXCPTN_ONLY SMEP BMI2 ERMS INVPCID ZERO_FCS_FDS SMAP CLFLUSHOPT CLWB; UMIP;
        // FSRM.
        (7, Some(0), [0, bits(&[0, 1, 3, 6, 7, 8, 9, 10, 13, 20, 23, 24]), bits(&[2]), bits(&[4])]),
        // XSAVE of x87 and SSE state only: 512 bytes of legacy area and the 64-byte header.
        (0xd, Some(0), [3, 576, 576, 0]),
        (
            0x4000_0000,
            None,
            [0x4000_0000, word(b"TTVMTTVMTTVM", 0), word(b"TTVMTTVMTTVM", 4), word(b"TTVMTTVMTTVM", 8)],
        ),
        (0x8000_0000, None, vendor(0x8000_0021)),
        // LAHF, ABM (LZCNT), PREFETCHW; the AMD copies of leaf 1, SYSCALL NX FXSR PDPE1GB RDTSCP LM.
        (
            0x8000_0001,
            None,
            [
                SIGNATURE,
                0,
                bits(&[0, 5, 8]),
                bits(&[0, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 20, 23, 24, 26, 27, 29]),
            ],
        ),
        (0x8000_0002, None, brand(b"ttvm-v2.1 determ")),
        (0x8000_0003, None, brand(b"inistic x86-64 C")),
        (0x8000_0004, None, brand(b"PU\0\0\0\0\0\0\0\0\0\0\0\0\0\0")),
        // L1: 64 (4K pages) and 32 (large) entry TLBs, 32 KiB 8-way data and instruction caches.
        (0x8000_0005, None, [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140]),
        // L2: 512 KiB 8-way; L3: 4 MiB 16-way; 64-byte lines.
        (0x8000_0006, None, [0x6400_6400, 0x6400_6400, 0x0200_6140, 0x0020_8140]),
        // Invariant TSC.
        (0x8000_0007, None, [0, 0, 0, 1 << 8]),
        // 40 physical and 48 linear address bits; BTC_NO: no branch is predicted as a branch of another kind;
        // one core.
        (0x8000_0008, None, [48 << 8 | PHYSICAL_BITS, 1 << 29, 0, 0]),
        // LFENCE is always serializing; a null selector clears the segment's base; SRSO_NO: no return is predicted.
        (0x8000_0021, None, [1 << 2 | 1 << 6 | 1 << 29, 0, 0, 0]),
    ],
    cr4: cr4::TSD
        | cr4::DE
        | cr4::PSE
        | cr4::PAE
        | cr4::MCE
        | cr4::PGE
        | cr4::PCE
        | cr4::OSFXSR
        | cr4::OSXMMEXCPT
        | cr4::UMIP
        | cr4::FSGSBASE
        | cr4::PCIDE
        | cr4::OSXSAVE
        | cr4::SMEP
        | cr4::SMAP,
    inert_msrs: &[MCG_STATUS],
};

const INSTRUCTIONS: Features = Features::of(&[
    F::INTEL8086,
    F::INTEL186,
    F::INTEL286,
    F::INTEL386,
    F::INTEL486,
    F::X64,
    F::AES,
    F::BMI1,
    F::BMI2,
    // ENDBR32 and ENDBR64, which do nothing.
    F::CET_IBT,
    F::CLFLUSHOPT,
    F::CLFSH,
    F::CLWB,
    F::CMOV,
    F::CMPXCHG16B,
    F::CPUID,
    F::CX8,
    F::FPU,
    F::FPU287,
    F::FPU387,
    F::FSGSBASE,
    F::FXSR,
    F::INVPCID,
    F::LZCNT,
    F::MMX,
    F::MOVBE,
    F::MSR,
    F::MULTIBYTENOP,
    F::PAUSE,
    F::PCLMULQDQ,
    F::POPCNT,
    F::PREFETCHW,
    F::PREFETCHWT1,
    F::RDPMC,
    F::RDTSCP,
    F::SEP,
    F::SMAP,
    F::SSE,
    F::SSE2,
    F::SSE3,
    F::SSE4_1,
    F::SSE4_2,
    F::SSSE3,
    F::SYSCALL,
    F::TSC,
    F::XSAVE,
])
.with(HINTS);
