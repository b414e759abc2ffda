//! The processor's answer to CPUID: the description of the [`CpuModel`], adjusted to the machine's state.

use cpu_model::registers::cr4;
use cpu_model::{CpuModel, Leaf, Topology};

use crate::bus::Bus;
use crate::core::Core;

/// The bit OSXSAVE of ECX in leaf 1.
const OSXSAVE: u32 = 1 << 27;
/// The bit APIC of EDX in leaf 1, and in leaf 8000_0001h, which copies leaf 1.
const APIC: u32 = 1 << 9;

/// The bit HTT of EDX in leaf 1. If the bit is set, EBX has the number of processors (APM vol. 3, E.3.2).
const HTT: u32 = 1 << 28;
/// The bit CmpLegacy of ECX in leaf 8000_0001h: the processors are cores, not threads (APM vol. 3, E.4.2).
const CMP_LEGACY: u32 = 1 << 1;

/// The facts about the machine on which CPUID's answers depend.
#[derive(Clone, Copy)]
struct Changing {
    /// CR4.OSXSAVE.
    osxsave: bool,
    /// IA32_APIC_BASE.EN. CPUID does not report a local APIC that is switched off (SDM vol. 3, 11.4.3; APM vol. 3,
    /// E.3.2 and E.4.2).
    apic: bool,
    /// The processor's number, and the number of processors.
    processor: (u32, u32),
    /// The sockets, cores and threads. With `None`, as in older recordings, CPUID reports only the number of
    /// processors.
    topology: Option<Topology>,
}

/// The processor's answer to CPUID. Leaves above the highest leaf of a range are zero, as on AMD's processors.
pub(crate) fn leaf(core: &Core, bus: &mut dyn Bus, leaf: u32, subleaf: u32) -> Leaf {
    let changing = Changing {
        osxsave: core.state.cr4 & cr4::OSXSAVE != 0,
        apic: bus.apic_enabled(),
        processor: (core.processor as u32, core.processors as u32),
        topology: core.topology,
    };
    leaf_of(core.model, changing, leaf, subleaf)
}

fn leaf_of(model: CpuModel, changing: Changing, leaf: u32, subleaf: u32) -> Leaf {
    let is_asked = |known: u32, part: Option<u32>| known == leaf && part.is_none_or(|part| part == subleaf);
    let found = model.leaves().iter().find(|&&(known, part, _)| is_asked(known, part));
    let [eax, mut ebx, mut ecx, mut edx] = found.map_or([0; 4], |(_, _, answer)| *answer);
    if leaf == 1 && changing.osxsave {
        ecx |= OSXSAVE;
    }
    if matches!(leaf, 1 | 0x8000_0001) && !changing.apic {
        edx &= !APIC;
    }
    let (processor, processors) = changing.processor;
    if let Some(topology) = changing.topology {
        return topology.answer(processor as u8, leaf, subleaf, [eax, ebx, ecx, edx]);
    }
    if processors > 1 {
        match leaf {
            1 => {
                ebx = ebx & 0xffff | processors.min(0xff) << 16 | processor << 24;
                edx |= HTT;
            }
            0x8000_0001 => ecx |= CMP_LEGACY,
            0x8000_0008 => {
                ecx = ecx & !0xf0ff | processors.next_power_of_two().ilog2() << 12 | (processors - 1)
            }
            _ => {}
        }
    }
    [eax, ebx, ecx, edx]
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const GOLDEN: &str = include_str!("../tests/golden/cpuid.txt");

    /// The facts about a machine with one processor and no topology.
    fn alone(osxsave: bool, apic: bool) -> Changing {
        Changing { osxsave, apic, processor: (0, 1), topology: None }
    }

    /// Describes a model's answers. Each leaf that is not zero has one line, and one more for each subleaf or
    /// machine state that changes the answer.
    fn described(model: CpuModel) -> String {
        let mut text = format!("{}\n", model.name());
        let leaves = (0..0x40).chain(0x4000_0000..0x4000_0010).chain(0x8000_0000..0x8000_0040);
        for leaf in leaves.chain([0x2000_0000, 0xc000_0000, u32::MAX]) {
            let usual = leaf_of(model, alone(false, true), leaf, 0);
            for (osxsave, apic) in [(false, true), (true, true), (false, false), (true, false)] {
                let first = leaf_of(model, alone(osxsave, apic), leaf, 0);
                let expected = if (osxsave, apic) == (false, true) { [0; 4] } else { usual };
                for (subleaf, expected) in [(0, expected), (1, first), (2, first), (u32::MAX, first)] {
                    let answer = leaf_of(model, alone(osxsave, apic), leaf, subleaf);
                    if answer != expected {
                        let line =
                            format!("{leaf:#x} {subleaf:#x} osxsave {osxsave} apic {apic}: {answer:08x?}\n");
                        text.push_str(&line);
                    }
                }
            }
        }
        for (leaf, subleaf, answer) in model.leaves() {
            writeln!(text, "of a processor: {leaf:#x} {subleaf:?}: {answer:08x?}").unwrap();
        }
        writeln!(text, "bits of CR4: {:#x}", model.description().cr4).unwrap();
        text
    }

    #[test]
    fn what_cpuid_says_of_a_model_never_changes() {
        let text: String = CpuModel::names().map(|name| described(CpuModel::named(name).unwrap())).collect();
        for (now, golden) in text.lines().zip(GOLDEN.lines()) {
            assert_eq!(now, golden);
        }
        assert_eq!(text.lines().count(), GOLDEN.lines().count());
    }
    #[test]
    fn a_topology_describes_several_processors_and_nothing_else() {
        let (model, topology) = (CpuModel::default(), Topology::new(8, 2, 2));
        let of = |changing, leaf, subleaf| leaf_of(model, changing, leaf, subleaf);
        let last = Changing { processor: (7, 8), topology, ..alone(true, false) };
        // With two sockets, two cores and two threads, the last thread of the last core has the APIC id 8 + 2 + 1.
        assert_eq!(of(last, 0xb, 0), [1, 2, 0x100, 11]);
        assert_eq!(of(last, 0xb, 1), [3, 4, 0x201, 11]);
        assert_eq!(of(last, 1, 0)[1] >> 16, 0x0b04);
        assert_eq!(of(last, 0x8000_001e, 0), [11, 0x101, 1, 0]);
        assert_eq!(of(last, 0x8000_0008, 0)[2], 0x3003);
        // The local APIC is off, and OSXSAVE is on.
        assert_eq!((of(last, 1, 0)[3] & APIC, of(last, 1, 0)[2] & OSXSAVE), (0, OSXSAVE));
        for leaf in [2, 5, 6, 7, 0xd, 0x4000_0000, 0x8000_0000, 0x8000_0002, 0x8000_0005, 0x8000_0021] {
            assert_eq!(of(last, leaf, 0), of(alone(true, false), leaf, 0), "{leaf:#x}");
        }
    }
}
