//! What CPUID says of each [`CpuModel`] (APM vol. 3, appendix E; SDM vol. 2, CPUID).
//!
//! A feature of `ttvm-v2` is listed here exactly when its instructions and registers exist.

use crate::bus::Bus;
use crate::core::Core;
use crate::model::{CpuModel, PHYSICAL_BITS, SIGNATURE};
use crate::registers::cr4;

impl CpuModel {
    /// Bits of CR4 that are reserved because CPUID hides the features that they switch on.
    pub(crate) fn hidden_cr4(self) -> u64 {
        let hidden = self.hidden();
        let leaf1 = |number: u32, bit: u64| if hidden.leaf1_ecx >> number & 1 != 0 { bit } else { 0 };
        let umip = if hidden.leaf7_ecx & LEAF7_ECX_UMIP != 0 { cr4::UMIP } else { 0 };
        leaf1(17, cr4::PCIDE) | leaf1(26, cr4::OSXSAVE) | umip
    }

    /// Bits of each feature word that the model does not show.
    fn hidden(self) -> Hidden {
        match self {
            CpuModel::V2 => Hidden::default(),
            CpuModel::V2Kvm | CpuModel::V2KvmTcg => Hidden {
                leaf1_ecx: bits(&[17, 21, 24, 26]),
                leaf1_edx: bits(&[4]),
                leaf7_ebx: bits(&[1, 10, 23, 24]),
                leaf7_ecx: u32::MAX,
                leaf7_edx: u32::MAX,
                extended_edx: bits(&[4, 26, 27]),
            },
        }
    }

    fn brand(self) -> &'static [u8; 48] {
        match self {
            CpuModel::V2 => BRAND,
            CpuModel::V2Kvm | CpuModel::V2KvmTcg => BRAND_KVM,
        }
    }

    /// Every leaf with something in it: leaf, subleaf (where the leaf has several), and EAX, EBX, ECX, EDX. For an engine
    /// that lets a processor answer CPUID, which fills in OSXSAVE and APIC.
    pub fn leaves(self) -> Vec<(u32, Option<u32>, [u32; 4])> {
        let basic = 0..=MAX_BASIC;
        let all = basic.chain([0x4000_0000]).chain(0x8000_0000..=MAX_EXTENDED);
        all.map(|number| {
            let subleaf = matches!(number, 7 | 0xd).then_some(0);
            (number, subleaf, leaf_of(self, Changing { osxsave: false, apic: true }, number, 0))
        })
        .filter(|(number, _, words)| *words != [0; 4] || *number == MAX_BASIC)
        .collect()
    }
}

/// Feature bits that a model does not show.
#[derive(Clone, Copy, Default)]
struct Hidden {
    leaf1_ecx: u32,
    leaf1_edx: u32,
    leaf7_ebx: u32,
    leaf7_ecx: u32,
    leaf7_edx: u32,
    extended_edx: u32,
}

/// Highest basic, extended and hypervisor leaf.
const MAX_BASIC: u32 = 0xd;
const MAX_EXTENDED: u32 = 0x8000_0021;
const MAX_HYPERVISOR: u32 = 0x4000_0000;

const VENDOR: &[u8; 12] = b"AuthenticAMD";
const HYPERVISOR: &[u8; 12] = b"TTVMTTVMTTVM";
const BRAND: &[u8; 48] = b"ttvm-v2 deterministic x86-64 CPU\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

const BRAND_KVM: &[u8; 48] = b"ttvm-v2-kvm x86-64 CPU\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

const fn bits(numbers: &[u32]) -> u32 {
    let mut value = 0;
    let mut index = 0;
    while index < numbers.len() {
        value |= 1 << numbers[index];
        index += 1;
    }
    value
}

/// Leaf 1 ECX: SSE3 PCLMULQDQ SSSE3 CX16 SSE4.1 SSE4.2 x2APIC MOVBE POPCNT TSC-deadline AES XSAVE, hypervisor.
/// OSXSAVE (27) follows CR4.
const LEAF1_ECX: u32 = bits(&[0, 1, 9, 13, 19, 20, 21, 22, 23, 24, 25, 26, 31]);
/// Leaf 1 EDX: FPU DE PSE TSC MSR PAE CX8 APIC (which follows IA32_APIC_BASE) SEP MTRR PGE CMOV PAT PSE36 CLFLUSH MMX FXSR SSE SSE2.
const LEAF1_EDX: u32 = bits(&[0, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 15, 16, 17, 19, 23, 24, 25, 26]);
/// PCID, leaf 1 ECX.
const PCID: u32 = 1 << 17;
/// Leaf 7 EBX: FSGSBASE TSC_ADJUST BMI1 SMEP BMI2 ERMS INVPCID SMAP CLFLUSHOPT CLWB.
const LEAF7_EBX: u32 = bits(&[0, 1, 3, 6, 7, 8, 9, 10, 13, 20, 23, 24]);
const LEAF7_ECX_UMIP: u32 = 1 << 2;
/// Leaf 7 ECX.
const LEAF7_ECX: u32 = LEAF7_ECX_UMIP;
/// Leaf 7 EDX: FSRM.
const LEAF7_EDX: u32 = bits(&[4]);
/// Leaf 0x80000001 ECX: LAHF, ABM (LZCNT), PREFETCHW.
const EXTENDED_ECX: u32 = bits(&[0, 5, 8]);
/// Leaf 0x80000001 EDX: the AMD copies of leaf 1, SYSCALL NX FXSR PDPE1GB RDTSCP LM.
const EXTENDED_EDX: u32 = bits(&[0, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 15, 16, 17, 20, 23, 24, 26, 27, 29]);

/// APIC, in leaf 1 EDX and its copy.
const APIC: u32 = 1 << 9;

/// What of CPUID's answers follows the machine's state.
#[derive(Clone, Copy)]
struct Changing {
    /// CR4.OSXSAVE.
    osxsave: bool,
    /// IA32_APIC_BASE.EN. A local APIC that is switched off is not there (SDM vol. 3, 11.4.3; APM vol. 3, E.3.2 and E.4.2).
    apic: bool,
}

impl Changing {
    fn without_apic(self) -> u32 {
        if self.apic { 0 } else { APIC }
    }
}

/// EAX, EBX, ECX, EDX.
pub(crate) type Leaf = [u32; 4];

fn word(bytes: &[u8], number: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[number * 4..number * 4 + 4]);
    u32::from_le_bytes(word)
}

/// The processor's answer to CPUID. Leaves beyond a range's maximum are zero, as on AMD.
pub(crate) fn leaf(core: &Core, bus: &mut dyn Bus, leaf: u32, subleaf: u32) -> Leaf {
    let changing = Changing { osxsave: core.state.cr4 & cr4::OSXSAVE != 0, apic: bus.apic_enabled() };
    leaf_of(core.model, changing, leaf, subleaf)
}

fn leaf_of(model: CpuModel, changing: Changing, leaf: u32, subleaf: u32) -> Leaf {
    let hidden = model.hidden();
    match leaf {
        0 => [MAX_BASIC, word(VENDOR, 0), word(VENDOR, 2), word(VENDOR, 1)],
        1 => features(hidden, changing),
        // Nothing to say about C-states; MONITOR does not exist.
        5 => [0; 4],
        // ARAT: the local APIC's timer never stops.
        6 => [1 << 2, 0, 0, 0],
        7 if subleaf == 0 => {
            [0, LEAF7_EBX & !hidden.leaf7_ebx, LEAF7_ECX & !hidden.leaf7_ecx, LEAF7_EDX & !hidden.leaf7_edx]
        }
        0xd if model == CpuModel::V2 => xsave(subleaf),
        0x4000_0000 => [MAX_HYPERVISOR, word(HYPERVISOR, 0), word(HYPERVISOR, 1), word(HYPERVISOR, 2)],
        0x8000_0000 => [MAX_EXTENDED, word(VENDOR, 0), word(VENDOR, 2), word(VENDOR, 1)],
        0x8000_0001 => {
            [SIGNATURE, 0, EXTENDED_ECX, EXTENDED_EDX & !hidden.extended_edx & !changing.without_apic()]
        }
        0x8000_0002..=0x8000_0004 => {
            let first = (leaf - 0x8000_0002) as usize * 4;
            [0, 1, 2, 3].map(|n| word(model.brand(), first + n))
        }
        // L1: 64 (4K pages) and 32 (large) entry TLBs, 32 KiB 8-way data and instruction caches.
        0x8000_0005 => [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140],
        // L2: 512 KiB 8-way; L3: 4 MiB 16-way; 64-byte lines.
        0x8000_0006 => [0x6400_6400, 0x6400_6400, 0x0200_6140, 0x0020_8140],
        // Invariant TSC.
        0x8000_0007 if model == CpuModel::V2 => [0, 0, 0, 1 << 8],
        // 40 physical and 48 linear address bits; one core.
        0x8000_0008 => [48 << 8 | PHYSICAL_BITS, 0, 0, 0],
        // LFENCE is always serializing; a null selector clears the segment's base.
        0x8000_0021 => [1 << 2 | 1 << 6, 0, 0, 0],
        _ => [0; 4],
    }
}

fn features(hidden: Hidden, changing: Changing) -> Leaf {
    let mut ecx = (LEAF1_ECX | PCID) & !hidden.leaf1_ecx;
    if changing.osxsave {
        ecx |= 1 << 27;
    }
    // CLFLUSH lines of 8 quadwords, one logical processor, APIC id 0.
    [SIGNATURE, 1 << 16 | 8 << 8, ecx, LEAF1_EDX & !hidden.leaf1_edx & !changing.without_apic()]
}

/// x87 and SSE state only: 512 bytes of legacy area and the 64-byte header.
fn xsave(subleaf: u32) -> Leaf {
    match subleaf {
        0 => [3, 576, 576, 0],
        _ => [0; 4],
    }
}
