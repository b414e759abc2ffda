//! A guest that looks like Linux and allocates memory. The guest has an array of `struct page`, two caches of objects, and
//! the functions with which Linux allocates and frees objects and pages. Each function returns the object that its caller
//! wants.
//!
//! All code runs in ring 0. Instructions that a test looks for are named after their function: `kfree.returns`.

use super::*;

/// The array of `struct page`. The other constants here are the frames of some pages.
const PAGES: u64 = DIRECT_MAP + 0x20_0000;
const PAGE_STRUCTURE_BYTES: u64 = 64;
const DENTRIES: u64 = 0x300;
const FILES: u64 = 0x301;
const SHARED: u64 = 0x310;
const LARGE: u64 = 0x320;
const RESERVED: u64 = 0x330;
const ANONYMOUS: u64 = 0x331;
const FREE: u64 = 0x332;
const TABLE: u64 = 0x333;

/// The object of the cache `dentry` that the guest allocates and frees again and again.
pub const FIRST: u64 = address(DENTRIES) + DENTRY_BYTES;
/// Another object of this cache.
pub const SECOND: u64 = address(DENTRIES) + 5 * DENTRY_BYTES;
/// The number of bytes of an object of the cache `dentry`.
pub const DENTRY_BYTES: u64 = 0x40;
/// The first object of the cache `filp`, which has a red zone of [`RED_ZONE`] bytes before each object.
pub const FILE: u64 = address(FILES) + RED_ZONE;
/// The number of bytes of an object of the cache `filp`, with its red zones.
pub const FILE_BYTES: u64 = 0x50;
/// The number of bytes before each object of the cache `filp`.
pub const RED_ZONE: u64 = 8;
/// A page with a count of references.
pub const PAGE: u64 = address(SHARED);
/// An object of two pages.
pub const LARGE_OBJECT: u64 = address(LARGE);
/// The pages of other uses: the kernel's own, a program's, a free page, and a page table.
pub const OTHERS: [u64; 4] = [address(RESERVED), address(ANONYMOUS), address(FREE), address(TABLE)];

/// The address of a frame in the direct map.
const fn address(frame: u64) -> u64 {
    DIRECT_MAP + frame * 0x1000
}

/// The guest's variables: the caches, their names, a pointer to [`FIRST`], and an array of objects.
const OBJECTS: u64 = IMAGE + 0x15_1800;
const DENTRY_CACHE: u64 = OBJECTS;
const FILE_CACHE: u64 = OBJECTS + 0x80;
const NAMES: u64 = OBJECTS + 0x100;
const POINTER: u64 = OBJECTS + 0x140;
const BASE: u64 = OBJECTS + 0x148;
const ARRAY: u64 = OBJECTS + 0x180;
/// Offsets of fields.
const HEAD: i32 = 8;
const SLAB_CACHE: i32 = 0x10;
const MAPPING: i32 = 0x18;
const PAGE_TYPE: i32 = 0x30;
const REFERENCES: i32 = 0x34;
const CACHE_SIZE: u64 = 0x18;
const CACHE_LEFT: u64 = 0x20;
const CACHE_NAME: u64 = 0x60;
/// The numbers of the kinds of pages, and the bit of the flags for reserved pages.
const KIND_FREE: u32 = 0xf0;
const KIND_TABLE: u32 = 0xf2;
const KIND_SLAB: u32 = 0xf5;
const RESERVED_BIT: u32 = 11;

/// The address of the `struct page` of a frame.
const fn structure(frame: u64) -> u64 {
    PAGES + frame * PAGE_STRUCTURE_BYTES
}

/// The types with which the kernel describes its pages and caches, and the prototypes of some functions.
pub(super) fn write_types(types: &mut Types) {
    let fields = [
        ("flags", 1, 0),
        ("compound_head", 1, HEAD as u32),
        ("mapping", 1, MAPPING as u32),
        ("page_type", 1, PAGE_TYPE as u32),
        ("_refcount", 1, REFERENCES as u32),
    ];
    types.structure("page", PAGE_STRUCTURE_BYTES as u32, &fields);
    types.structure("slab", PAGE_STRUCTURE_BYTES as u32, &[("slab_cache", 1, SLAB_CACHE as u32)]);
    let fields = [
        ("size", 1, CACHE_SIZE as u32),
        ("red_left_pad", 1, CACHE_LEFT as u32),
        ("name", 1, CACHE_NAME as u32),
    ];
    let cache = types.structure("kmem_cache", 0x80, &fields);
    types.enumeration("pageflags", &[("PG_reserved", RESERVED_BIT)]);
    let kinds = [("PGTY_buddy", KIND_FREE), ("PGTY_table", KIND_TABLE), ("PGTY_slab", KIND_SLAB)];
    types.enumeration("pagetype", &kinds);
    let (number, long) = (types.integer("s32", 4), types.integer("long", 8));
    let pair = types.structure("pair", 16, &[("first", long, 0), ("second", number, 8)]);
    let large = types.structure("large", 24, &[("one", long, 0), ("two", long, 8), ("three", long, 16)]);
    let letter = types.record("char", 1 << 24, 1, &[8]);
    let (to_cache, to_nothing, to_text) = (types.pointer(cache), types.pointer(0), types.pointer(letter));
    for (name, result, parameters) in [
        ("kmem_cache_alloc_noprof", to_nothing, &[("cache", to_cache), ("flags", number)][..]),
        ("kfree", 0, &[("object", to_nothing)]),
        (
            "takes_all",
            number,
            &[
                ("number", number),
                ("pair", pair),
                ("large", large),
                ("a", long),
                ("b", long),
                // Only one register is left for this structure of two words.
                ("other", pair),
                ("c", long),
                ("d", long),
            ],
        ),
        ("prints", number, &[("format", to_text), ("", 0)]),
    ] {
        types.function(name, result, parameters);
    }
}

/// Records the guest. Returns the recording, its kernel, and the addresses of functions and instructions.
pub fn record(directory: &Path, name: &str) -> (Recording<Instructions>, Kernel, Places) {
    let (code, labels) = kernel_code().expect("the program is a constant that can be assembled");
    let places: Places = labels.iter().cloned().collect();
    let mut kernel = Kernel::of((code, labels), false, &[("start_kernel", super::call(8))]);
    // A part of a function that lies elsewhere is no global function.
    kernel.symbol("alloc_slowly", 't', places["alloc_slowly"]);
    for (cache, name, text, bytes, left) in [
        (DENTRY_CACHE, NAMES, "dentry", DENTRY_BYTES, 0),
        (FILE_CACHE, NAMES + 0x20, "filp", FILE_BYTES, RED_ZONE),
    ] {
        kernel.put(name - IMAGE, text.as_bytes());
        for (field, value) in [(CACHE_SIZE, bytes), (CACHE_LEFT, left), (CACHE_NAME, name)] {
            kernel.put_u64(cache - IMAGE + field, value);
        }
    }
    for (name, address, value) in [("first_object", POINTER, FIRST), ("vmemmap_base", BASE, PAGES)] {
        kernel.put_u64(address - IMAGE, value);
        kernel.symbol(name, 'D', address);
    }
    for (place, object) in [(ARRAY, SECOND), (ARRAY + 8, FIRST)] {
        kernel.put_u64(place - IMAGE, object);
    }
    kernel.write_symbols();
    let path = kernel.write(directory, &format!("{name}-kernel"));
    let (recording, _) = record_kernel(directory, name, path, DENSE, Script(Vec::new()), None);
    (recording, kernel, places)
}

/// The functions that the kernel calls, in order. A name with `|` names the place after the call, too.
const CALLS: [&str; 24] = [
    "grows",
    "opens|opened",
    "writes|written",
    "closes|closed",
    "copies|copied",
    "drops|dropped",
    "opens_second",
    "drops_second",
    "opens_file|opened_file",
    "fills|filled",
    "drains",
    "opens_slowly|opened_slowly",
    "drops_deeply",
    "recycles|recycled",
    "takes|taken",
    "shares",
    "releases|shared",
    "releases|released",
    "takes",
    "opens_large|opened_large",
    "drops_large",
    "calls_with_all",
    "prints_number",
    "unused",
];

fn kernel_code() -> Assembled {
    let mut code = Code::new()?;
    start(&mut code)?;
    code.at("start_kernel")?.nop()?;
    for call in CALLS {
        let (function, place) = call.split_once('|').unwrap_or((call, ""));
        code.call(function)?;
        if !place.is_empty() {
            code.at(&format!("start_kernel.{place}"))?.nop()?;
        }
    }
    code.a.ret()?;
    allocators(&mut code)?;
    users(&mut code)?;
    of_pages(&mut code)?;
    with_prototypes(&mut code)?;
    code.assemble(IMAGE + CODE)
}

fn start(code: &mut Code) -> Done {
    let kernel = code.to("start_kernel");
    let a = code.at("startup_64")?;
    a.mov(rsp, IMAGE + STACK)?;
    let kind = |frame: u64, kind: u32| (structure(frame) + PAGE_TYPE as u64, u64::from(kind << 24));
    let (files_kind, files_cache) = (kind(FILES, KIND_SLAB), structure(FILES) + SLAB_CACHE as u64);
    for (place, value) in [
        files_kind,
        (files_cache, FILE_CACHE),
        (structure(LARGE + 1) + HEAD as u64, structure(LARGE) | 1),
        (structure(RESERVED), 1 << RESERVED_BIT),
        (structure(ANONYMOUS) + MAPPING as u64, 0x1001),
        kind(FREE, KIND_FREE),
        kind(TABLE, KIND_TABLE),
    ] {
        a.mov(rcx, place)?;
        a.mov(rax, value)?;
        a.mov(qword_ptr(rcx), rax)?;
    }
    a.call(kernel)?;
    crate::end_the_run(a)?;
    for name in ["entry_SYSCALL_64", "do_syscall_64", "__switch_to", "asm_exc_int3", "start_secondary"] {
        code.at(name)?.hlt()?;
    }
    for name in ["entry_SYSCALL_64_after_hwframe", "entry_SYSCALL_64_before_call", "do_syscall_64_body"] {
        code.at(name)?.hlt()?;
    }
    code.at("asm_exc_page_fault")?.hlt()
}

/// Names the next instruction, which ends a function, after the function.
fn returns(code: &mut Code, function: &str) -> Done {
    code.at(&format!("{function}.returns"))?.ret()
}

/// The kernel's functions for objects. RDX has the wanted object.
fn allocators(code: &mut Code) -> Done {
    code.at("kmem_cache_alloc_noprof")?.mov(rax, rdx)?;
    returns(code, "kmem_cache_alloc_noprof")?;
    // This function is the outermost one, so its return is the allocation.
    code.at("__kmalloc_noprof")?.nop()?;
    code.call("kmem_cache_alloc_noprof")?;
    returns(code, "__kmalloc_noprof")?;
    // The function's slow part lies elsewhere.
    let slowly = code.to("alloc_slowly");
    let a = code.at("kmem_cache_alloc_node_noprof")?;
    a.test(rsi, rsi)?;
    a.je(slowly)?;
    a.mov(rax, rdx)?;
    returns(code, "kmem_cache_alloc_node_noprof")?;
    code.at("alloc_slowly")?.mov(rax, rdx)?;
    returns(code, "alloc_slowly")?;
    // The return is a jump to a thunk.
    let thunk = code.to("__x86_return_thunk");
    code.at("__kmalloc_large_noprof")?.mov(rax, rdx)?;
    code.at("__kmalloc_large_noprof.returns")?.jmp(thunk)?;
    code.at("__x86_return_thunk")?.ret()?;
    // RCX has the array, which has the objects already. R8 has the object that replaces the second one.
    let a = code.at("kmem_cache_alloc_bulk_noprof")?;
    a.mov(qword_ptr(rcx + 8), r8)?;
    a.mov(eax, edx)?;
    returns(code, "kmem_cache_alloc_bulk_noprof")?;
    for name in ["kfree", "kmem_cache_free", "kmem_cache_free_bulk"] {
        code.at(name)?.nop()?;
        returns(code, name)?;
    }
    Ok(())
}

/// A function that loads registers and calls another function.
fn calls(code: &mut Code, name: &str, registers: &[(AsmRegister64, u64)], function: &str) -> Done {
    code.at(name)?.nop()?;
    for (register, value) in registers {
        code.a.mov(*register, *value)?;
    }
    code.call(function)?;
    code.a.ret()
}

fn users(code: &mut Code) -> Done {
    let cache = (rdi, DENTRY_CACHE);
    let alloc = "kmem_cache_alloc_noprof";
    calls(code, "opens", &[cache, (rsi, 0xcc0), (rdx, FIRST)], alloc)?;
    calls(code, "opens_second", &[cache, (rsi, 0xcc0), (rdx, SECOND)], alloc)?;
    calls(code, "opens_file", &[(rdi, FILE_CACHE), (rsi, 0xcc0), (rdx, FILE)], alloc)?;
    calls(code, "closes", &[cache, (rsi, FIRST)], "kmem_cache_free")?;
    calls(code, "copies", &[(rdi, 0x40), (rdx, FIRST)], "__kmalloc_noprof")?;
    code.at("writes")?.mov(eax, 0x77)?;
    for place in [FIRST, FIRST + 0x38, SECOND + 8, PAGE] {
        code.a.mov(rcx, place)?;
        code.a.mov(qword_ptr(rcx), rax)?;
    }
    code.a.ret()?;
    calls(code, "drops", &[(rdi, FIRST)], "kfree")?;
    calls(code, "drops_second", &[(rdi, SECOND)], "kfree")?;
    let array = (rcx, ARRAY);
    // The first call gets another object in place of the wanted one.
    code.at("fills")?.nop()?;
    for object in [SECOND + DENTRY_BYTES, FIRST] {
        for (register, value) in [cache, (rsi, 0xcc0), (rdx, 2), array, (r8, object)] {
            code.a.mov(register, value)?;
        }
        code.call("kmem_cache_alloc_bulk_noprof")?;
    }
    code.at("fills.filled")?.nop()?;
    code.a.ret()?;
    calls(code, "drains", &[cache, (rsi, 2), (rdx, ARRAY)], "kmem_cache_free_bulk")?;
    calls(code, "opens_slowly", &[cache, (rsi, 0), (rdx, FIRST)], "kmem_cache_alloc_node_noprof")?;
    // More functions than are shown.
    let depths = ["drops_deeply", "depth_1", "depth_2", "depth_3", "depth_4", "drops"];
    for pair in depths.windows(2) {
        calls(code, pair[0], &[], pair[1])?;
    }
    calls(code, "opens_large", &[(rdi, 0x2000), (rdx, LARGE_OBJECT)], "__kmalloc_large_noprof")?;
    calls(code, "drops_large", &[(rdi, LARGE_OBJECT)], "kfree")?;
    code.at("unused")?.nop()?;
    code.a.ret()
}

/// The kernel's functions for pages, and their callers.
fn of_pages(code: &mut Code) -> Done {
    let a = code.at("__alloc_pages_noprof")?;
    a.mov(rax, rdx)?;
    code.at("__alloc_pages_noprof.counts")?.mov(dword_ptr(rax + REFERENCES), 1)?;
    returns(code, "__alloc_pages_noprof")?;
    code.at("folio_get")?.nop()?;
    code.a.inc(dword_ptr(rdi + REFERENCES))?;
    code.a.ret()?;
    code.at("folio_put")?.nop()?;
    code.at("folio_put.counts")?.dec(dword_ptr(rdi + REFERENCES))?;
    code.a.ret()?;
    for (name, kind, cache) in [("grows", KIND_SLAB, DENTRY_CACHE), ("recycles", KIND_TABLE, 0)] {
        code.at(name)?.mov(rdx, structure(DENTRIES))?;
        code.call("__alloc_pages_noprof")?;
        let a = &mut code.a;
        a.mov(dword_ptr(rax + PAGE_TYPE), (kind << 24) as i32)?;
        a.mov(rcx, cache)?;
        a.mov(qword_ptr(rax + SLAB_CACHE), rcx)?;
        a.ret()?;
    }
    calls(code, "takes", &[(rdx, structure(SHARED))], "__alloc_pages_noprof")?;
    calls(code, "shares", &[(rdi, structure(SHARED))], "folio_get")?;
    calls(code, "releases", &[(rdi, structure(SHARED))], "folio_put")
}

/// Functions with prototypes of all kinds. One function returns an error.
fn with_prototypes(code: &mut Code) -> Done {
    code.at("calls_with_all")?.nop()?;
    let a = &mut code.a;
    a.sub(rsp, 0x40)?;
    // The structure of three words, the structure of two words, and the last argument are on the stack.
    for (offset, value) in [(0, 11), (8, 12), (16, 13), (24, 21), (32, 22), (40, 32)] {
        a.mov(qword_ptr(rsp + offset), value)?;
    }
    let registers = [(rdi, -5_i64 as u64), (rsi, 7), (rdx, 8), (rcx, 9), (r8, 10), (r9, 31)];
    for (register, value) in registers {
        a.mov(register, value)?;
    }
    code.call("takes_all")?;
    code.a.add(rsp, 0x40)?;
    code.a.ret()?;
    code.at("takes_all")?.mov(eax, -22_i32 as u32)?;
    code.a.ret()?;
    calls(code, "prints_number", &[(rdi, TEXT)], "prints")?;
    code.at("prints")?.mov(eax, 6)?;
    code.a.ret()
}
