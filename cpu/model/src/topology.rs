//! Sockets, cores and threads of a machine, and the leaves of CPUID that describe them.
//!
//! The manuals are APM vol. 3, appendix E; SDM vol. 2, CPUID; SDM vol. 3, 9.9.
//!
//! An APIC id has a bit field for the socket, the core and the thread. A field has as many bits as the number of
//! sockets, cores or threads needs:
//!
//! ```text
//! socket | core | thread        3 cores with 2 threads each: ids 0 1, 2 3, 4 5; the next socket begins at 8
//! ```
//!
//! The models belong to AMD's family 17h. Linux assumes that groups of eight ids on such a processor share a
//! third-level cache. So the ids of a socket begin at a multiple of eight, if there are few enough sockets.
//!
//! AMD's processors describe caches in leaf 8000_001Dh, and so do the models. Leaves 4 and 1Fh give the same facts
//! to programs that know only Intel's leaves.

use crate::description::Leaf;

/// The bit HTT of EDX in leaf 1. If the bit is set, EBX of this leaf has the number of processors in a socket.
const HTT: u32 = 1 << 28;
/// The bit CmpLegacy of ECX in leaf 8000_0001h. The bit is set if a socket has several processors.
const CMP_LEGACY: u32 = 1 << 1;
/// The bit TopologyExtensions of ECX in leaf 8000_0001h. The bit says that leaves 8000_001Dh and 8000_001Eh exist.
const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
/// The number of CPUID's highest basic leaf.
const HIGHEST_LEAF: u32 = 0x1f;

/// The number of low bits of an APIC id that differ between the processors of one third-level cache.
const CACHE_SHIFT: u32 = 3;
/// The largest number of sockets for which the ids of each socket can begin at a multiple of eight.
const MOST_WIDE_SOCKETS: u8 = 31;

/// Sockets, cores and threads of a machine. All sockets are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    sockets: u8,
    /// Cores of a socket.
    cores: u8,
    /// Threads of a core.
    threads: u8,
}

/// The fields of leaves 4 and 8000_001Dh that describe a cache: kind, level, ways and sets. All lines have 64
/// bytes.
struct Cache {
    kind: u32,
    level: u32,
    ways: u32,
    sets: u32,
}

/// The caches of leaves 8000_0005h and 8000_0006h, which are the same in all models.
const CACHES: [Cache; 4] = [
    Cache { kind: 1, level: 1, ways: 8, sets: 64 },
    Cache { kind: 2, level: 1, ways: 8, sets: 64 },
    Cache { kind: 3, level: 2, ways: 8, sets: 1024 },
    Cache { kind: 3, level: 3, ways: 16, sets: 4096 },
];

impl Topology {
    /// The topology of `processors` processors in `sockets` sockets, with `threads` threads in each core. `None` if the
    /// processors cannot be divided so.
    pub fn new(processors: u8, sockets: u8, threads: u8) -> Option<Topology> {
        let unit = sockets.checked_mul(threads)?;
        let is_possible = (1..=64).contains(&processors) && unit > 0 && processors.is_multiple_of(unit);
        is_possible.then(|| Topology { sockets, cores: processors / unit, threads })
    }

    /// Number of processors.
    pub fn processors(self) -> u8 {
        self.sockets * self.cores * self.threads
    }

    /// Number of sockets.
    pub fn sockets(self) -> u8 {
        self.sockets
    }

    /// Number of cores in a socket.
    pub fn cores(self) -> u8 {
        self.cores
    }

    /// Number of threads in a core.
    pub fn threads(self) -> u8 {
        self.threads
    }

    /// The APIC id of the processor with this number. The threads of a core have consecutive numbers, and so have
    /// the processors of a socket.
    pub fn apic_id(self, number: u8) -> u8 {
        let (core, thread) = (number / self.threads, number % self.threads);
        let (socket, core) = (core / self.cores, core % self.cores);
        socket << self.socket_shift() | core << self.core_shift() | thread
    }

    /// The number of low bits of an APIC id that differ between the threads of one core.
    fn core_shift(self) -> u32 {
        self.threads.next_power_of_two().ilog2()
    }

    /// The number of low bits of an APIC id that differ between the processors of one socket.
    fn socket_shift(self) -> u32 {
        let bits = self.core_shift() + self.cores.next_power_of_two().ilog2();
        if (2..=MOST_WIDE_SOCKETS).contains(&self.sockets) { bits.max(CACHE_SHIFT) } else { bits }
    }

    /// The answer of processor `number` to CPUID. `answer` is the answer that the CPU model gives for a machine
    /// with one processor.
    pub fn answer(self, number: u8, leaf: u32, subleaf: u32, answer: Leaf) -> Leaf {
        let [eax, ebx, ecx, edx] = answer;
        let (in_socket, id) = (u32::from(self.cores * self.threads), u32::from(self.apic_id(number)));
        let are_several = in_socket > 1;
        match leaf {
            0 => [HIGHEST_LEAF, ebx, ecx, edx],
            1 => {
                let htt = if are_several { HTT } else { 0 };
                [eax, ebx & 0xffff | in_socket << 16 | id << 24, ecx, edx | htt]
            }
            4 => {
                let core_ids = 1 << (self.socket_shift() - self.core_shift());
                let [eax, ebx, ecx, edx] = self.cache(subleaf);
                [if eax == 0 { 0 } else { eax | (core_ids - 1) << 26 }, ebx, ecx, edx]
            }
            0xb | 0x1f => self.level(subleaf, id),
            0x8000_0001 => {
                let legacy = if are_several { CMP_LEGACY } else { 0 };
                [eax, ebx, ecx | legacy | TOPOLOGY_EXTENSIONS, edx]
            }
            0x8000_0008 => [eax, ebx, ecx & !0xf0ff | self.socket_shift() << 12 | (in_socket - 1), edx],
            0x8000_001d => self.cache(subleaf),
            0x8000_001e => {
                let core = id >> self.core_shift() & ((1 << (self.socket_shift() - self.core_shift())) - 1);
                let socket = id >> self.socket_shift();
                [id, core | u32::from(self.threads - 1) << 8, socket, 0]
            }
            _ => answer,
        }
    }

    /// The answer to a subleaf of leaf 0Bh or 1Fh, for the processor with this APIC id. Subleaf 0 describes the
    /// threads of a core, subleaf 1 the processors of a socket.
    fn level(self, subleaf: u32, id: u32) -> Leaf {
        const THREAD: u32 = 1 << 8;
        const CORE: u32 = 2 << 8;
        let [shift, count, kind] = match subleaf {
            0 => [self.core_shift(), u32::from(self.threads), THREAD],
            1 => [self.socket_shift(), u32::from(self.cores * self.threads), CORE],
            _ => [0, 0, 0],
        };
        [shift, count, kind | subleaf & 0xff, id]
    }

    /// The answer to a subleaf of leaf 8000_001Dh, which describes one cache. The processors of a core share the first
    /// two levels, and up to eight processors of a socket share the third level.
    fn cache(self, subleaf: u32) -> Leaf {
        let Some(cache) = CACHES.get(subleaf as usize) else { return [0; 4] };
        let sharing =
            1 << if cache.level < 3 { self.core_shift() } else { self.socket_shift().min(CACHE_SHIFT) };
        const INITIALIZES_ITSELF: u32 = 1 << 8;
        let eax = cache.kind | cache.level << 5 | INITIALIZES_ITSELF | (sharing - 1) << 14;
        [eax, (cache.ways - 1) << 22 | 63, cache.sets - 1, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(processors: u8, sockets: u8, threads: u8) -> Topology {
        Topology::new(processors, sockets, threads).unwrap()
    }

    fn ids(topology: Topology) -> Vec<u8> {
        (0..topology.processors()).map(|number| topology.apic_id(number)).collect()
    }

    /// The answers of processor `number` to the leaves that describe the topology, each with its leaf and subleaf.
    fn leaves(topology: Topology, number: u8) -> Vec<(u32, u32, Leaf)> {
        let asked = [
            (0, 0),
            (1, 0),
            (4, 0),
            (4, 3),
            (4, 4),
            (0xb, 0),
            (0xb, 1),
            (0xb, 2),
            (0x1f, 1),
            (0x8000_0001, 0),
            (0x8000_0008, 0),
            (0x8000_001d, 2),
            (0x8000_001e, 0),
        ];
        asked.map(|(leaf, part)| (leaf, part, topology.answer(number, leaf, part, [0, 0x800, 0, 0]))).to_vec()
    }

    #[test]
    fn the_fields_of_an_id_are_whole_bits() {
        assert_eq!(ids(topology(4, 1, 1)), [0, 1, 2, 3]);
        assert_eq!(ids(topology(8, 2, 2)), [0, 1, 2, 3, 8, 9, 10, 11]);
        assert_eq!(ids(topology(16, 1, 2)), (0..16).collect::<Vec<_>>());
        assert_eq!(ids(topology(12, 2, 2)), [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
        assert_eq!(ids(topology(6, 1, 3)), [0, 1, 2, 4, 5, 6]);
        assert_eq!(ids(topology(3, 3, 1)), [0, 8, 16]);
        assert_eq!(ids(topology(64, 64, 1)), (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn every_processor_has_an_id_of_its_own_that_no_broadcast_has() {
        for processors in 1..=64 {
            for sockets in 1..=processors {
                for threads in 1..=processors {
                    let Some(topology) = Topology::new(processors, sockets, threads) else { continue };
                    let ids = ids(topology);
                    assert!(ids.is_sorted_by(|a, b| a < b) && ids.len() == usize::from(processors));
                    assert!(ids.iter().all(|&id| id < 0xff), "{topology:?}: {ids:?}");
                }
            }
        }
        for (processors, sockets, threads) in
            [(8, 3, 1), (8, 2, 3), (8, 16, 1), (0, 1, 1), (8, 0, 1), (65, 1, 1)]
        {
            assert_eq!(Topology::new(processors, sockets, threads), None);
        }
    }

    #[test]
    fn leaves_say_sockets_cores_and_threads() {
        // The second thread of the third core of the second socket: its id is 8 + 4 + 1.
        let found = leaves(topology(12, 2, 2), 11);
        let expected: Vec<(u32, u32, Leaf)> = vec![
            (0, 0, [0x1f, 0x800, 0, 0]),
            (1, 0, [0, 0x0d06_0800, 0, HTT]),
            // EAX says that two APIC ids share this cache, and that the socket has room for four cores.
            (4, 0, [0x0c00_4121, 0x01c0_003f, 63, 0]),
            (4, 3, [0x0c01_c163, 0x03c0_003f, 4095, 0]),
            (4, 4, [0; 4]),
            (0xb, 0, [1, 2, 0x100, 13]),
            (0xb, 1, [3, 6, 0x201, 13]),
            (0xb, 2, [0, 0, 2, 13]),
            (0x1f, 1, [3, 6, 0x201, 13]),
            (0x8000_0001, 0, [0, 0x800, CMP_LEGACY | TOPOLOGY_EXTENSIONS, 0]),
            (0x8000_0008, 0, [0, 0x800, 0x3005, 0]),
            (0x8000_001d, 2, [0x4143, 0x01c0_003f, 1023, 0]),
            (0x8000_001e, 0, [13, 0x102, 1, 0]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_socket_with_one_processor_has_no_siblings() {
        let found = leaves(topology(4, 4, 1), 3);
        let of = |leaf, part| found.iter().find(|found| (found.0, found.1) == (leaf, part)).unwrap().2;
        assert_eq!(of(1, 0), [0, 0x1801_0800, 0, 0]);
        assert_eq!(of(0xb, 1), [3, 1, 0x201, 24]);
        assert_eq!(of(0x8000_0001, 0), [0, 0x800, TOPOLOGY_EXTENSIONS, 0]);
        assert_eq!(of(0x8000_0008, 0), [0, 0x800, 0x3000, 0]);
        assert_eq!(of(0x8000_001e, 0), [24, 0, 3, 0]);
    }
}
