//! The functions of the guest's kernel that allocate and free objects and pages.
//!
//! An allocation is found at the return instruction of a function that allocates, because RAX has the object there. The
//! return instructions are found by decoding the functions. A free is found at the first instruction of a function that
//! frees, because a register has the object there. Functions for many objects get the address of an array.
//!
//! Follows Linux 6.1 to 7.2: `mm/slub.c`, `mm/slab_common.c`, `mm/page_alloc.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use guest_symbols::{Symbol, Symbols};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use machine::Processor;
use machine::position::Instructions;

/// The functions that return an object, without the ending [`PROFILED`].
const ALLOCATE: [&str; 22] = [
    "kmem_cache_alloc",
    "kmem_cache_alloc_lru",
    "kmem_cache_alloc_node",
    "kmem_cache_alloc_trace",
    "kmem_cache_alloc_node_trace",
    "kmem_cache_alloc_from_sheaf",
    "__kmem_cache_alloc_node",
    "__kmem_cache_alloc_lru",
    "kmalloc_trace",
    "kmalloc_node_trace",
    "kmalloc_large",
    "kmalloc_large_node",
    "kmalloc_nolock",
    "__kmalloc",
    "__kmalloc_node",
    "__kmalloc_track_caller",
    "__kmalloc_node_track_caller",
    "__kmalloc_cache",
    "__kmalloc_cache_node",
    "__kmalloc_large",
    "__kmalloc_large_node",
    "_kmalloc_nolock",
];
/// The function that fills an array with objects: its arguments are cache, flags, size and array.
const ALLOCATE_BULK: &str = "kmem_cache_alloc_bulk";
/// The ending of functions whose callers are counted (`CONFIG_MEM_ALLOC_PROFILING`, Linux 6.10).
const PROFILED: &str = "_noprof";
/// The beginnings of the names of functions that return the `struct page` of new pages.
const ALLOCATE_PAGES: [&str; 5] =
    ["__alloc_pages", "alloc_pages", "__alloc_frozen_pages", "alloc_frozen_pages", "alloc_slab_page"];
/// The functions that free an object, and the register that has the object.
const FREE: [(&str, u8); 5] = [
    ("kfree", RDI),
    ("kmem_cache_free", RSI),
    ("kfree_nolock", RDI),
    // The object goes to a list, from which it can be allocated after a grace period without another call.
    ("__kfree_rcu_sheaf", RSI),
    ("___cache_free", RSI),
];
/// The function that frees all objects of an array: its arguments are cache, size and array.
const FREE_BULK: &str = "kmem_cache_free_bulk";
/// The ending of the names of thunks that replace return instructions.
const RETURN_THUNK: &str = "return_thunk";
/// The largest size of a function that is decoded.
const MOST_CODE_BYTES: u64 = 1 << 16;
/// The largest number of functions that are decoded, with the functions to which they jump.
const MOST_DECODED: usize = 200;

/// The numbers of registers.
pub(super) const RAX: u8 = 0;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// The meaning of an instruction of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A function returns the object that RAX points to.
    Returned,
    /// A function frees the object to which this register points.
    Freed(u8),
    /// A function fills an array with objects of a cache.
    BulkAllocated,
    /// A function frees the objects of an array.
    BulkFreed,
    /// A function returns the `struct page` of new pages.
    Pages,
}

/// The instructions at which objects are allocated and freed.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocators {
    /// The meaning of each instruction, by address.
    pub places: BTreeMap<u64, Meaning>,
    /// The code of the functions that allocate objects. A function that returns to this code is not the outermost one.
    pub code: Vec<Range<u64>>,
}

impl Allocators {
    /// Finds the instructions in the code of the kernel with these symbols.
    pub fn of_kernel(processor: &Processor<'_, Instructions>, symbols: &Symbols) -> Allocators {
        let mut found = Allocators::default();
        let named = |wanted: &dyn Fn(&str) -> bool| -> Vec<&Symbol> {
            let is_wanted =
                |symbol: &&Symbol| symbol.is_code() && symbol.module.is_none() && wanted(&symbol.name);
            symbols.all().iter().filter(is_wanted).collect()
        };
        let pages = named(&|name| ALLOCATE_PAGES.iter().any(|begin| name.starts_with(begin)));
        found.add_returns(processor, symbols, pages, Meaning::Pages);
        let plain = |name: &str| name.strip_suffix(PROFILED).unwrap_or(name).to_string();
        let objects = named(&|name| ALLOCATE.contains(&plain(name).as_str()));
        found.code = found.add_returns(processor, symbols, objects, Meaning::Returned);
        let entries = FREE.map(|(name, register)| (name, Meaning::Freed(register)));
        let bulk = [(ALLOCATE_BULK, Meaning::BulkAllocated), (FREE_BULK, Meaning::BulkFreed)];
        for (wanted, meaning) in entries.into_iter().chain(bulk) {
            let functions = named(&|name| plain(name) == wanted);
            found.places.extend(functions.iter().map(|symbol| (symbol.address, meaning)));
        }
        found
    }

    /// Adds the return instructions of functions, and of the functions to which they jump. Returns the code of all these
    /// functions.
    fn add_returns(
        &mut self,
        processor: &Processor<'_, Instructions>,
        symbols: &Symbols,
        functions: Vec<&Symbol>,
        meaning: Meaning,
    ) -> Vec<Range<u64>> {
        let mut to_do: Vec<(u64, u64)> =
            functions.iter().map(|symbol| (symbol.address, symbol.size)).collect();
        let mut seen: BTreeSet<u64> = to_do.iter().map(|&(address, _)| address).collect();
        let mut code = Vec::new();
        while let Some((start, size)) = to_do.pop() {
            let mut bytes = vec![0; size.min(MOST_CODE_BYTES) as usize];
            let count = processor.peek(start, &mut bytes);
            let range = start..start.wrapping_add(size);
            let decoder = Decoder::with_ip(64, &bytes[..count], start, DecoderOptions::NONE);
            for instruction in decoder {
                match way(&instruction, &range, symbols) {
                    Way::Stays => {}
                    Way::Returns => {
                        self.places.insert(instruction.ip(), meaning);
                    }
                    Way::To(symbol) if seen.len() < MOST_DECODED && seen.insert(symbol.address) => {
                        to_do.push((symbol.address, symbol.size));
                    }
                    Way::To(_) => {}
                }
            }
            code.push(range);
        }
        code
    }
}

/// Where an instruction leads.
enum Way<'a> {
    /// To the same function, or back to this function.
    Stays,
    /// To the function's caller.
    Returns,
    /// To a part of the function that lies elsewhere, or to a function that returns to this function's caller.
    To(&'a Symbol),
}

fn way<'a>(instruction: &Instruction, function: &Range<u64>, symbols: &'a Symbols) -> Way<'a> {
    let is_jump = match instruction.flow_control() {
        FlowControl::Return => return Way::Returns,
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => true,
        _ => false,
    };
    let target = instruction.near_branch_target();
    if !is_jump || function.contains(&target) {
        return Way::Stays;
    }
    match symbols.at(target) {
        Some((symbol, 0)) if symbol.name.ends_with(RETURN_THUNK) => Way::Returns,
        // A global function that is no allocator itself may return another pointer to the object.
        Some((symbol, _)) if !symbol.is_global() => Way::To(symbol),
        _ => Way::Stays,
    }
}
