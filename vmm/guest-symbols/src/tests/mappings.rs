//! Tests with made-up processes that have mapped files, in a tree and in a list.

use super::{BASE, DIRECT_MAP, Pages, Types, found};
use crate::Symbols;
use crate::mappings::{Mapping, Mappings};

const TYPES: u64 = BASE + 0x10_0000;
const TASK: u64 = DIRECT_MAP + 0x10_0000;
const MM: u64 = DIRECT_MAP + 0x11_0000;
const ROOT: u64 = DIRECT_MAP + 0x12_0000;
const LEAVES: [u64; 2] = [ROOT + 0x100, ROOT + 0x200];
const AREAS: u64 = DIRECT_MAP + 0x13_0000;
const FILE: u64 = DIRECT_MAP + 0x14_0000;
const ENTRIES: u64 = DIRECT_MAP + 0x15_0000;
const MOUNTS: u64 = DIRECT_MAP + 0x16_0000;
const NAMES: u64 = DIRECT_MAP + 0x17_0000;
/// The number of slots in a node of either kind. The nodes of Linux have more slots.
const SLOTS: u64 = 4;

fn types(with_tree: bool) -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let path = types.structure("path", 16, &[("mnt", 1, 0), ("dentry", 1, 8)]);
    types.structure("file", 0x40, &[("f_path", path, 0x10)]);
    let name = types.structure("qstr", 16, &[("name", 1, 8)]);
    types.structure("dentry", 0x40, &[("d_parent", 1, 0x18), ("d_name", name, 0x20)]);
    let inner = types.structure("vfsmount", 0x20, &[("mnt_root", 1, 0)]);
    let fields = [("mnt_parent", 1, 0x10), ("mnt_mountpoint", 1, 0x18), ("mnt", inner, 0x20)];
    types.structure("mount", 0x60, &fields);
    let area = [("vm_start", 1, 0), ("vm_end", 1, 8), ("vm_next", 1, 16), ("vm_flags", 1, 24)];
    let area = [area.as_slice(), &[("vm_pgoff", 1, 32), ("vm_file", 1, 40)]].concat();
    types.structure("vm_area_struct", 0x40, &area);
    types.structure("task_struct", 0x40, &[("mm", 1, 0x30)]);
    if with_tree {
        let pivots = types.record("", 3 << 24, 0, &[1, 1, SLOTS as u32 - 1]);
        let slots = types.record("", 3 << 24, 0, &[1, 1, SLOTS as u32]);
        for name in ["maple_range_64", "maple_arange_64"] {
            types.structure(name, 0x80, &[("pivot", pivots, 8), ("slot", slots, 0x28)]);
        }
        let tree = types.structure("maple_tree", 16, &[("ma_root", 1, 8)]);
        types.structure("mm_struct", 0x80, &[("mm_mt", tree, 0x40)]);
    } else {
        types.structure("mm_struct", 0x80, &[("mmap", 1, 0x48)]);
    }
    types
}

fn area(number: u64) -> u64 {
    AREAS + 0x100 * number
}

/// A pointer to a node of a kind.
fn entry(node: u64, kind: u64) -> u64 {
    node | kind << 3 | 6
}

fn write_node(memory: &mut Pages, at: u64, slots: &[(u64, u64)]) {
    for number in 0..SLOTS {
        let &(pivot, slot) = slots.get(number as usize).unwrap_or(&(0, 0));
        if number + 1 < SLOTS {
            memory.write_u64(at + 8 + 8 * number, pivot);
        }
        memory.write_u64(at + 0x28 + 8 * number, slot);
    }
}

/// A directory entry with a name, in another directory entry.
fn write_entry(memory: &mut Pages, number: u64, parent: u64, name: &[u8]) {
    let at = ENTRIES + 0x100 * number;
    memory.write_u64(at + 0x18, ENTRIES + 0x100 * parent);
    memory.write_u64(at + 0x28, NAMES + 0x100 * number);
    memory.write(NAMES + 0x100 * number, name);
}

/// Four areas; the third has no file. The file is `/mnt/a b/run`, and `/mnt` is a mount point.
fn kernel(with_tree: bool) -> (Pages, Symbols) {
    let mut memory = Pages::default();
    let bytes = types(with_tree).bytes();
    memory.write(TYPES, &bytes);
    memory.write_u64(TASK + 0x30, MM);
    let starts = [0x40_0000, 0x40_1000, 0x60_0000, 0x7fff_0000_0000_u64];
    for (number, start) in (0..).zip(starts) {
        let flags = [0x1_u64, 0x75, 0x3, 0x87][number as usize];
        let file = if number == 2 { 0 } else { FILE };
        let next = if number == 3 { 0 } else { area(number + 1) };
        for (word, value) in (0..).zip([start, start + 0x1000, next, flags, number, file]) {
            memory.write_u64(area(number) + 8 * word, value);
        }
    }
    if with_tree {
        memory.write_u64(MM + 0x48, entry(ROOT, 3));
        let [first, second] = LEAVES.map(|leaf| entry(leaf, 1));
        write_node(&mut memory, ROOT, &[(0x5f_ffff, first), (u64::MAX, second)]);
        write_node(&mut memory, LEAVES[0], &[(0x3f_ffff, 0), (0x40_0fff, area(0)), (0x5f_ffff, area(1))]);
        // The last slot has one of the tree's own marks, after the end of the node.
        let slots = [(0x60_0fff, area(2)), (0x7fff_0000_0fff, area(3)), (0, 0), (0, 0x10)];
        write_node(&mut memory, LEAVES[1], &slots);
    } else {
        memory.write_u64(MM + 0x48, area(0));
    }
    let [outer, inner] = [MOUNTS, MOUNTS + 0x100];
    memory.write_u64(FILE + 0x10, inner + 0x20);
    memory.write_u64(FILE + 0x18, ENTRIES + 0x400);
    for (mount, parent, point, root) in [(outer, outer, 0, 0), (inner, outer, 1, 2)] {
        memory.write_u64(mount + 0x10, parent);
        memory.write_u64(mount + 0x18, ENTRIES + 0x100 * point);
        memory.write_u64(mount + 0x20, ENTRIES + 0x100 * root);
    }
    write_entry(&mut memory, 0, 0, b"/\0");
    write_entry(&mut memory, 1, 0, b"mnt\0");
    write_entry(&mut memory, 2, 2, b"/\0");
    write_entry(&mut memory, 3, 2, b"a b\0");
    write_entry(&mut memory, 4, 3, b"r\nn\0");
    let end = TYPES + bytes.len() as u64;
    let symbols = vec![found(TYPES, 'R', "__start_BTF"), found(end, 'R', "__stop_BTF")];
    (memory, Symbols::new(symbols, Vec::new()))
}

fn mappings(memory: &Pages, symbols: &Symbols) -> Vec<Mapping> {
    Mappings::find(memory.view(), symbols).expect("all is there").in_view(memory.view(), TASK)
}

#[test]
fn areas_with_files_are_found_in_trees_and_lists() {
    for with_tree in [true, false] {
        let (memory, symbols) = kernel(with_tree);
        let lines: Vec<String> = mappings(&memory, &symbols).iter().map(Mapping::to_string).collect();
        let expected = [
            "000000400000-000000401000 r--p 00000000 /mnt/a b/r?n",
            "000000401000-000000402000 r-xp 00001000 /mnt/a b/r?n",
            "7fff00000000-7fff00001000 rwxs 00003000 /mnt/a b/r?n",
        ];
        assert_eq!(lines, expected, "{with_tree}");
    }
}

#[test]
fn a_kernel_thread_has_none() {
    let (mut memory, symbols) = kernel(true);
    memory.write_u64(TASK + 0x30, 0);
    assert_eq!(mappings(&memory, &symbols), []);
}

#[test]
fn trees_lists_and_paths_that_lead_in_circles_end() {
    let (mut memory, symbols) = kernel(true);
    let all = entry(ROOT, 3);
    write_node(&mut memory, ROOT, &[(1, all), (2, all), (3, all), (4, all)]);
    assert_eq!(mappings(&memory, &symbols), []);
    let (mut memory, symbols) = kernel(false);
    memory.write_u64(area(0) + 16, area(0));
    assert_eq!(mappings(&memory, &symbols).len(), 1 << 16);
    let (mut memory, symbols) = kernel(false);
    // Each mount is mounted at the root of the other.
    memory.write_u64(MOUNTS + 0x10, MOUNTS + 0x100);
    memory.write_u64(MOUNTS + 0x18, ENTRIES + 0x200);
    memory.write_u64(MOUNTS + 0x118, ENTRIES);
    assert!(mappings(&memory, &symbols).iter().all(|mapping| mapping.path == "/a b/r?n"));
    memory.write_u64(ENTRIES + 0x318, ENTRIES + 0x400);
    assert!(mappings(&memory, &symbols).iter().all(|mapping| mapping.path.len() <= 4096));
}

#[test]
fn anything_in_memory_does_no_harm() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for with_tree in [true, false] {
        let (memory, symbols) = kernel(with_tree);
        let places: Vec<u64> = memory.0.keys().map(|page| page * 4096).filter(|&at| at < BASE).collect();
        for _ in 0..300 {
            let (mut damaged, _) = kernel(with_tree);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = places[(random >> 40) as usize % places.len()] + (random >> 20) % 0x500 / 8 * 8;
            let value = [random, random >> 32, u64::MAX, area(0), entry(ROOT, 3), FILE, ENTRIES];
            damaged.write_u64(at, value[(random >> 10) as usize % value.len()]);
            mappings(&damaged, &symbols);
        }
    }
}

/// The starts of the mapped areas.
fn starts(memory: &Pages, symbols: &Symbols) -> Vec<u64> {
    mappings(memory, symbols).iter().map(|mapping| mapping.range.start).collect()
}

#[test]
fn a_full_node_has_an_area_in_its_last_slot() {
    let (mut memory, symbols) = kernel(true);
    let slots = [(1, area(0)), (2, area(1)), (3, area(3)), (0, area(0))];
    write_node(&mut memory, LEAVES[0], &slots);
    // The words after the node look like more pivots and more areas.
    memory.write_u64(LEAVES[0] + 0x28 + 8 * SLOTS, area(3));
    write_node(&mut memory, ROOT, &[(u64::MAX, entry(LEAVES[0], 1))]);
    let [first, second, third] = [0x40_0000, 0x40_1000, 0x7fff_0000_0000];
    assert_eq!(starts(&memory, &symbols), [first, second, third, first]);
    // The parent limits the node's range to addresses up to 2, so the node's last slots are ignored.
    write_node(&mut memory, ROOT, &[(2, entry(LEAVES[0], 1)), (u64::MAX, 0)]);
    assert_eq!(starts(&memory, &symbols), [first, second]);
}

#[test]
fn marks_in_leaves_and_entries_of_other_kinds_are_no_areas() {
    let (mut memory, symbols) = kernel(true);
    for mark in [1, 2, 3] {
        let slots = [(1, area(0) | mark), (2, area(1)), (u64::MAX, 0)];
        write_node(&mut memory, LEAVES[0], &slots);
        write_node(&mut memory, ROOT, &[(u64::MAX, entry(LEAVES[0], 1))]);
        assert_eq!(starts(&memory, &symbols), [0x40_1000], "{mark}");
    }
    // A node of an unknown kind, and a root that is an area and not a node.
    for root in [entry(ROOT, 4), entry(ROOT, 0), area(0), 2, 4096 + 2, 0] {
        memory.write_u64(MM + 0x48, root);
        assert_eq!(starts(&memory, &symbols), [0; 0], "{root:#x}");
    }
    // Both kinds of inner nodes lead to their children.
    for kind in [2, 3] {
        memory.write_u64(MM + 0x48, entry(ROOT, kind));
        assert_eq!(starts(&memory, &symbols), [0x40_1000], "{kind}");
    }
}

#[test]
fn the_last_child_of_a_full_node_ends_where_the_node_ends() {
    let (mut memory, symbols) = kernel(true);
    let [first, second] = LEAVES.map(|leaf| entry(leaf, 1));
    write_node(&mut memory, ROOT, &[(1, 0), (2, first), (3, 0), (0, second)]);
    // The word after the pivots is not a pivot.
    memory.write_u64(ROOT + 8 + 8 * (SLOTS - 1), 1);
    write_node(&mut memory, LEAVES[0], &[(1, 0), (2, area(0)), (3, area(3))]);
    write_node(&mut memory, LEAVES[1], &[(4, area(1)), (5, area(3))]);
    // The first leaf's range ends at 2, so the third slot is ignored.
    assert_eq!(starts(&memory, &symbols), [0x40_0000, 0x40_1000, 0x7fff_0000_0000]);
}
