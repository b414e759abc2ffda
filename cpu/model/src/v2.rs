//! The descriptions of `ttvm-v2` and of its two variants for KVM, with the answers to CPUID (APM vol. 3, appendix
//! E; SDM vol. 2, CPUID).
//!
//! The values in this file must not change any more, because recordings name these models.

use iced_x86::CpuidFeature as F;

use crate::description::{Description, HINTS, Leaf, NumberedLeaf, bits, brand, vendor, word};
use crate::features::Features;
use crate::registers::cr4;

/// Family, model and stepping as CPUID leaf 1 reports them in EAX.
pub(crate) const SIGNATURE: u32 = 0x00b0_0f21;
/// The number of bits in a physical address.
pub(crate) const PHYSICAL_BITS: u32 = 40;

/// The description of `ttvm-v2`.
pub(crate) const V2: Description = Description {
    features: V2_INSTRUCTIONS,
    cpuid: &[
        (0, None, vendor(0xd)),
        // ECX: SSE3 PCLMULQDQ SSSE3 CX16 PCID SSE4.1 SSE4.2 x2APIC MOVBE POPCNT TSC-deadline AES XSAVE,
        // hypervisor. EDX: FPU DE PSE TSC MSR PAE CX8 APIC SEP MTRR PGE CMOV PAT PSE36 CLFLUSH MMX FXSR SSE
        // SSE2.
        (
            1,
            None,
            [
                SIGNATURE,
                V2_LEAF1_EBX,
                bits(&[0, 1, 9, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 31]),
                bits(&[0, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 15, 16, 17, 19, 23, 24, 25, 26]),
            ],
        ),
        (6, None, V2_POWER),
        // FSGSBASE TSC_ADJUST BMI1 FDP_EXCPTN_ONLY SMEP BMI2 ERMS INVPCID ZERO_FCS_FDS SMAP CLFLUSHOPT CLWB; UMIP;
        // FSRM.
        (7, Some(0), [0, bits(&[0, 1, 3, 6, 7, 8, 9, 10, 13, 20, 23, 24]), bits(&[2]), bits(&[4])]),
        // XSAVE of x87 and SSE state only: 512 bytes of legacy area and the 64-byte header.
        (0xd, Some(0), [3, 576, 576, 0]),
        (0x4000_0000, None, V2_HYPERVISOR),
        (0x8000_0000, None, vendor(0x8000_0021)),
        // LAHF, ABM (LZCNT), PREFETCHW; the AMD copies of leaf 1, SYSCALL NX FXSR PDPE1GB RDTSCP LM.
        (
            0x8000_0001,
            None,
            [
                SIGNATURE,
                0,
                bits(&[0, 5, 8]),
                bits(&[0, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 15, 16, 17, 20, 23, 24, 26, 27, 29]),
            ],
        ),
        (0x8000_0002, None, brand(b"ttvm-v2 determin")),
        (0x8000_0003, None, brand(b"istic x86-64 CPU")),
        (0x8000_0005, None, V2_L1),
        (0x8000_0006, None, V2_L2_AND_L3),
        // Invariant TSC.
        (0x8000_0007, None, [0, 0, 0, 1 << 8]),
        (0x8000_0008, None, V2_ADDRESSES),
        (0x8000_0021, None, V2_EXTENDED_2),
    ],
    cr4: cr4::TSD
        | cr4::DE
        | cr4::PSE
        | cr4::PAE
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
    inert_msrs: &[],
};

/// The description of `ttvm-v2-kvm`. CPUID reports only features that all real processors have in common under KVM.
/// The processor also executes instructions that CPUID hides.
pub(crate) const V2_KVM: Description =
    Description { features: V2_KVM_INSTRUCTIONS, cpuid: V2_KVM_CPUID, cr4: V2_KVM_CR4, inert_msrs: &[] };

/// The description of `ttvm-v2-kvm-tcg`, for a KVM that runs inside an emulator. The description equals [`V2_KVM`];
/// only the [quirks](crate::Quirks) of the two models differ.
pub(crate) const V2_KVM_TCG: Description =
    Description { features: V2_KVM_INSTRUCTIONS, cpuid: V2_KVM_CPUID, cr4: V2_KVM_CR4, inert_msrs: &[] };

const V2_KVM_CPUID: &[NumberedLeaf] = &[
    (0, None, vendor(0xd)),
    // ECX: SSE3 PCLMULQDQ SSSE3 CX16 SSE4.1 SSE4.2 MOVBE POPCNT AES, hypervisor. EDX: FPU DE PSE MSR PAE CX8
    // APIC SEP MTRR PGE CMOV PAT PSE36 CLFLUSH MMX FXSR SSE SSE2.
    (
        1,
        None,
        [
            SIGNATURE,
            V2_LEAF1_EBX,
            bits(&[0, 1, 9, 13, 19, 20, 22, 23, 25, 31]),
            bits(&[0, 2, 3, 5, 6, 8, 9, 11, 12, 13, 15, 16, 17, 19, 23, 24, 25, 26]),
        ],
    ),
    (6, None, V2_POWER),
    // FSGSBASE BMI1 FDP_EXCPTN_ONLY SMEP BMI2 ERMS ZERO_FCS_FDS SMAP.
    (7, Some(0), [0, bits(&[0, 3, 6, 7, 8, 9, 13, 20]), 0, 0]),
    // Leaf 0Dh is the highest basic leaf, and its answer is all zeroes.
    (0xd, Some(0), [0; 4]),
    (0x4000_0000, None, V2_HYPERVISOR),
    (0x8000_0000, None, vendor(0x8000_0021)),
    // LAHF, ABM (LZCNT), PREFETCHW; the AMD copies of leaf 1, SYSCALL NX FXSR LM.
    (
        0x8000_0001,
        None,
        [
            SIGNATURE,
            0,
            bits(&[0, 5, 8]),
            bits(&[0, 2, 3, 5, 6, 8, 9, 11, 12, 13, 15, 16, 17, 20, 23, 24, 29]),
        ],
    ),
    (0x8000_0002, None, brand(b"ttvm-v2-kvm x86-")),
    (0x8000_0003, None, brand(b"64 CPU\0\0\0\0\0\0\0\0\0\0")),
    (0x8000_0005, None, V2_L1),
    (0x8000_0006, None, V2_L2_AND_L3),
    (0x8000_0008, None, V2_ADDRESSES),
    (0x8000_0021, None, V2_EXTENDED_2),
];

const V2_KVM_CR4: u64 = cr4::TSD
    | cr4::DE
    | cr4::PSE
    | cr4::PAE
    | cr4::PGE
    | cr4::PCE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::FSGSBASE
    | cr4::SMEP
    | cr4::SMAP;

/// EBX of leaf 1: CLFLUSH lines of 8 quadwords, one logical processor, APIC id 0.
const V2_LEAF1_EBX: u32 = 1 << 16 | 8 << 8;
/// ARAT: the local APIC's timer never stops.
const V2_POWER: Leaf = [1 << 2, 0, 0, 0];
const V2_HYPERVISOR: Leaf =
    [0x4000_0000, word(b"TTVMTTVMTTVM", 0), word(b"TTVMTTVMTTVM", 4), word(b"TTVMTTVMTTVM", 8)];
/// L1: 64 (4K pages) and 32 (large) entry TLBs, 32 KiB 8-way data and instruction caches.
const V2_L1: Leaf = [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140];
/// L2: 512 KiB 8-way; L3: 4 MiB 16-way; 64-byte lines.
const V2_L2_AND_L3: Leaf = [0x6400_6400, 0x6400_6400, 0x0200_6140, 0x0020_8140];
/// 40 physical and 48 linear address bits; one core.
const V2_ADDRESSES: Leaf = [48 << 8 | PHYSICAL_BITS, 0, 0, 0];
/// LFENCE is always serializing; a null selector clears the segment's base.
const V2_EXTENDED_2: Leaf = [1 << 2 | 1 << 6, 0, 0, 0];

/// The instructions of the models for KVM: `V2_INSTRUCTIONS` and `HINTS`. Under KVM the host's processor executes
/// the hints, whatever CPUID says.
const V2_KVM_INSTRUCTIONS: Features = V2_INSTRUCTIONS.with(HINTS);

/// The instructions of `ttvm-v2`. By mistake, this model raises #UD for the hints of newer processors.
const V2_INSTRUCTIONS: Features = Features::of(&[
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
    // BEXTR with an immediate, which CPUID does not announce. This BEXTR extracts no bits, whatever the immediate.
    F::TBM,
    F::TSC,
    F::XSAVE,
]);
