//! Tests with made-up lists of free memory, whose structures have other offsets than Linux's.

use std::ops::Range;

use super::{BASE, DIRECT_MAP, Pages, Types};
use crate::free_pages::find;
use crate::modules::Missing;

const TYPES: u64 = BASE + 0x10_0000;
const NODES: u64 = BASE + 0x2_0000;
const TABLE_VARIABLE: u64 = BASE + 0x2_1000;
const NODE: u64 = DIRECT_MAP + 0x10_0000;
const TABLE: u64 = 0xffff_eb12_0000_0000;

const PAGE_BYTES: u32 = 0x40;
const LINK: u64 = 8;
const ZONES: u64 = 0x20;
const ZONE_BYTES: u64 = 0x100;
/// This offset puts the first list's head where a block of the list could be: a whole number of entries from the table.
const AREAS: u64 = 0x28;
const AREA_BYTES: u64 = 0x28;
const HEAD_BYTES: u64 = 0x10;

/// The types of a kernel with two zones, three sizes of blocks, and two kinds of blocks.
fn types() -> Vec<u8> {
    types_with_pages_of(PAGE_BYTES)
}

/// The types of [`types`], with another size of `struct page`.
fn types_with_pages_of(page_bytes: u32) -> Vec<u8> {
    let mut types = Types::new();
    let int = types.record("int", 1 << 24, 4, &[0]);
    let head = types.structure("list_head", HEAD_BYTES as u32, &[("next", int, 0), ("prev", int, 8)]);
    let array = |types: &mut Types, of: u32, count: u32| types.record("", 3 << 24, 0, &[of, int, count]);
    let hidden = types.structure("", 0x10, &[("lru", head, 0)]);
    types.structure("page", page_bytes, &[("flags", int, 0), ("", hidden, LINK as u32)]);
    let kinds = array(&mut types, head, 2);
    let area =
        types.structure("free_area", AREA_BYTES as u32, &[("free_list", kinds, 0), ("nr_free", int, 0x20)]);
    let areas = array(&mut types, area, 3);
    let zone = types.structure("zone", ZONE_BYTES as u32, &[("free_area", areas, AREAS as u32)]);
    let zones = array(&mut types, zone, 2);
    types.structure("pglist_data", 0x400, &[("node_zones", zones, ZONES as u32)]);
    types.bytes()
}

fn entry(page: u64) -> u64 {
    TABLE + page * u64::from(PAGE_BYTES) + LINK
}

fn head(zone: u64, order: u64, kind: u64) -> u64 {
    NODE + ZONES + zone * ZONE_BYTES + AREAS + order * AREA_BYTES + kind * HEAD_BYTES
}

/// A kernel with only empty lists.
fn kernel() -> Pages {
    let mut memory = Pages::default();
    memory.write(TYPES, &types());
    memory.write_u64(TABLE_VARIABLE, TABLE);
    memory.write_u64(NODES, NODE);
    memory.write_u64(NODES + 8, 0);
    for (zone, order, kind) in
        [0, 1].map(|zone| [0, 1, 2].map(|order| [0, 1].map(|kind| (zone, order, kind)))).concat().concat()
    {
        memory.write_u64(head(zone, order, kind), head(zone, order, kind));
    }
    memory
}

fn list(memory: &mut Pages, head: u64, pages: &[u64]) {
    let places: Vec<u64> = [head].into_iter().chain(pages.iter().map(|&page| entry(page))).collect();
    for (number, place) in places.iter().enumerate() {
        memory.write_u64(*place, places[(number + 1) % places.len()]);
    }
}

fn found(memory: &Pages, with_node_table: bool) -> Result<Vec<Range<u64>>, Missing> {
    let end = TYPES + types().len() as u64;
    let address_of = |name: &'static str| match name {
        "__start_BTF" => Some(TYPES),
        "__stop_BTF" => Some(end),
        "vmemmap_base" => Some(TABLE_VARIABLE),
        "node_data" if with_node_table => Some(NODES),
        "contig_page_data" if !with_node_table => Some(NODE),
        _ => None,
    };
    find(memory.view(), &address_of)
}

#[test]
fn blocks_of_all_zones_sizes_and_kinds_are_found() {
    for with_node_table in [true, false] {
        let mut memory = kernel();
        assert_eq!(found(&memory, with_node_table), Ok(Vec::new()));
        list(&mut memory, head(0, 0, 0), &[7, 3]);
        list(&mut memory, head(0, 2, 1), &[8]);
        list(&mut memory, head(1, 1, 0), &[100, 104]);
        assert_eq!(found(&memory, with_node_table), Ok(vec![7..8, 3..4, 8..12, 100..102, 104..106]));
    }
}

#[test]
fn lists_that_lead_astray_end() {
    let mut memory = kernel();
    list(&mut memory, head(0, 0, 0), &[7, 3]);
    // One list points back to its first block, one to a place between two entries, one to unmapped memory.
    memory.write_u64(entry(3), entry(7));
    list(&mut memory, head(0, 1, 0), &[20]);
    memory.write_u64(entry(20), entry(22) + 8);
    list(&mut memory, head(0, 2, 0), &[40]);
    memory.write_u64(entry(40), 0x1000);
    assert_eq!(found(&memory, true), Ok(vec![7..8, 3..4, 20..22, 40..44]));
}

#[test]
fn blocks_of_all_nodes_are_found() {
    let mut memory = kernel();
    const SECOND: u64 = NODE + 0x1000;
    memory.write_u64(NODES + 8, SECOND);
    memory.write_u64(NODES + 16, 0);
    list(&mut memory, head(0, 0, 0), &[7]);
    list(&mut memory, head(0, 1, 1) + (SECOND - NODE), &[300]);
    assert_eq!(found(&memory, true), Ok(vec![7..8, 300..302]));
    assert_eq!(found(&memory, false), Ok(std::iter::once(7..8).collect()), "there is one node");
}

#[test]
fn the_table_of_pages_has_a_place_where_kernels_do_not_move_it() {
    const FIXED: u64 = 0xffff_ea00_0000_0000;
    let mut memory = kernel();
    let place = |page: u64| FIXED + page * u64::from(PAGE_BYTES) + LINK;
    for (at, next) in [(head(0, 0, 0), place(5)), (place(5), place(9)), (place(9), head(0, 0, 0))] {
        memory.write_u64(at, next);
    }
    let end = TYPES + types().len() as u64;
    let address_of = |name: &'static str| match name {
        "__start_BTF" => Some(TYPES),
        "__stop_BTF" => Some(end),
        "contig_page_data" => Some(NODE),
        _ => None,
    };
    assert_eq!(find(memory.view(), &address_of), Ok(vec![5..6, 9..10]));
}

#[test]
fn pages_without_a_size_are_refused() {
    let mut memory = kernel();
    memory.write(TYPES, &types_with_pages_of(0));
    assert_eq!(found(&memory, true), Err(Missing::Field { structure: "page", field: "size" }));
}

#[test]
fn a_kernel_without_nodes_or_types_has_none() {
    let memory = kernel();
    let nothing = find(memory.view(), &|_| None);
    assert_eq!(nothing, Err(Missing::Symbol("__start_BTF")));
}
