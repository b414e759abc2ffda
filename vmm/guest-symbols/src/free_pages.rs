//! The free pages of the guest's kernel, read from its current memory.
//!
//! Linux keeps free memory in blocks of 2^n pages. Each zone of each node has a list of the blocks of every size and
//! kind. A list links the first `struct page` of each block to the next. These structures lie in one large table
//! (`vmemmap`), in the order of the pages. Pages in the per-CPU lists are free too, but this module leaves them out,
//! because they are few.
//!
//! Follows Linux 5.10 to 7.2: `include/linux/mmzone.h`, `mm/page_alloc.c`, `arch/x86/include/asm/page_types.h`. Guest
//! memory is not trusted: circular lists are detected, and every list has a limit.

use std::collections::BTreeSet;
use std::ops::Range;

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{Missing, types};
use super::symbols::Symbols;
use super::tasks::{NoTasks, field};

/// `MAX_NUMNODES` of the largest usual kernels.
const MAX_NODES: u64 = 1024;
/// The largest number of blocks and lists that are read.
const MAX_BLOCKS: usize = 1 << 22;
/// The largest length of the arrays of zones, block sizes and kinds.
const MAX_ELEMENTS: u64 = 64;
/// No block has more than 2^MAX_ORDER pages.
const MAX_ORDER: u32 = 20;
/// `__VMEMMAP_BASE_L4`: the address of the array of `struct page` in kernels that do not move it.
const FIXED_TABLE: u64 = 0xffff_ea00_0000_0000;

/// The location of a kernel's lists of free memory.
struct Lists {
    /// The addresses of the structures of the memory nodes (NUMA).
    nodes: Vec<u64>,
    /// The start of the table of pages, and the size of an entry.
    table: u64,
    page_bytes: u64,
    /// Offset of the link to the next block in `struct page`.
    link: u64,
    /// The zones, in `struct pglist_data`.
    zones: Array,
    /// The lists by block size, in `struct zone`.
    areas: Array,
    /// The lists by kind, in `struct free_area`.
    kinds: Array,
}

/// An array in a structure.
struct Array {
    offset: u64,
    count: u64,
    element_bytes: u64,
}

impl Array {
    fn places(&self, structure: u64) -> impl Iterator<Item = u64> {
        let first = structure.wrapping_add(self.offset);
        let bytes = self.element_bytes;
        (0..self.count.min(MAX_ELEMENTS)).map(move |number| first.wrapping_add(number * bytes))
    }
}

/// The guest's free pages now, as ranges of page numbers in any order. Page 0 is at physical address 0. The guest's
/// data may be wrong: a page may be listed twice, or may not exist.
pub fn free_pages(guest: &dyn GuestView) -> Result<Vec<Range<u64>>, NoTasks> {
    let symbols = Symbols::of_guest(guest)?;
    Ok(KernelView::first_with(guest, |view| find(view, &|name| symbols.address_of(name)))?)
}

pub(super) fn find(
    memory: KernelView<'_>,
    address_of: &dyn Fn(&'static str) -> Option<u64>,
) -> Result<Vec<Range<u64>>, Missing> {
    let bytes = types(memory, address_of)?;
    let btf = Btf::parse(&bytes).ok_or(Missing::Types)?;
    let lists = Lists::of(memory, address_of, &btf)?;
    let (mut free, mut room) = (Vec::new(), MAX_BLOCKS);
    for zone in lists.nodes.iter().flat_map(|&node| lists.zones.places(node)) {
        for (order, area) in (0..MAX_ORDER).zip(lists.areas.places(zone)) {
            for head in lists.kinds.places(area) {
                let blocks = lists.blocks(memory, head, &mut room);
                free.extend(blocks.into_iter().map(|first| block(first, order)));
            }
        }
    }
    Ok(free)
}

/// The pages of a block.
fn block(first: u64, order: u32) -> Range<u64> {
    first..first.saturating_add(1 << order)
}

impl Lists {
    fn of(
        memory: KernelView<'_>,
        address_of: &dyn Fn(&'static str) -> Option<u64>,
        btf: &Btf<'_>,
    ) -> Result<Lists, Missing> {
        let page_bytes = size(btf, "page")?;
        let table = address_of("vmemmap_base").and_then(|place| memory.number::<8>(place));
        Ok(Lists {
            nodes: nodes(memory, address_of)?,
            table: table.unwrap_or(FIXED_TABLE),
            page_bytes,
            link: field(btf, "page", "lru")?,
            zones: array(btf, "pglist_data", "node_zones")?,
            areas: array(btf, "zone", "free_area")?,
            kinds: array(btf, "free_area", "free_list")?,
        })
    }

    /// The numbers of the first pages of a list's blocks, as far as the list can be followed. `room` is the number of
    /// blocks that may still be read, and is reduced.
    fn blocks(&self, memory: KernelView<'_>, head: u64, room: &mut usize) -> Vec<u64> {
        let (mut found, mut seen, mut at) = (Vec::new(), BTreeSet::new(), head);
        while *room > 0
            && let Some(next) = memory.number::<8>(at).filter(|&next| next != head && seen.insert(next))
        {
            *room -= 1;
            let entry = next.wrapping_sub(self.link).wrapping_sub(self.table);
            if entry % self.page_bytes != 0 {
                break;
            }
            found.push(entry / self.page_bytes);
            at = next;
        }
        found
    }
}

/// The addresses of the structures of the memory nodes (NUMA). Kernels for machines with several nodes have a table
/// of pointers. Other kernels have one node.
fn nodes(
    memory: KernelView<'_>,
    address_of: &dyn Fn(&'static str) -> Option<u64>,
) -> Result<Vec<u64>, Missing> {
    if let Some(only) = address_of("contig_page_data") {
        return Ok(vec![only]);
    }
    let table = address_of("node_data").ok_or(Missing::Symbol("node_data"))?;
    let nodes = (0..MAX_NODES).map_while(|number| memory.number::<8>(table.wrapping_add(8 * number)));
    Ok(nodes.take_while(|&node| node != 0).collect())
}

fn size(btf: &Btf<'_>, structure: &'static str) -> Result<u64, Missing> {
    let size = btf.structure(structure).and_then(|number| btf.size(number)).filter(|&size| size > 0);
    size.ok_or(Missing::Field { structure, field: "size" })
}

/// The location of an array field, whose elements are structures or arrays of list heads.
fn array(btf: &Btf<'_>, structure: &'static str, name: &'static str) -> Result<Array, Missing> {
    let missing = Missing::Field { structure, field: name };
    let found = || {
        let field = btf.field(btf.structure(structure)?, name)?;
        let (element, count) = btf.array(field.kind)?;
        let element_bytes = btf.size(element)?;
        Some(Array { offset: field.offset, count: u64::from(count), element_bytes })
    };
    found().ok_or(missing)
}
