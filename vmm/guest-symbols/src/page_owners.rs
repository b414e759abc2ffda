//! The use of a page of physical memory, and the block of pages to which it belongs, by the kernel's array of `struct page`.
//!
//! Follows Linux 6.1 to 7.2: `include/linux/page-flags.h`, `include/linux/mm_types.h`, `mm/slab.h`. Since Linux 6.12 the
//! kinds of pages are numbers (`enum pagetype`), and the kernel's type information names them. Before, they are bits.

use std::fmt::{self, Display, Formatter};

use super::GuestView;
use super::btf::{Btf, Shape};
use super::guest_view::KernelView;
use super::modules::{self, Missing};
use super::symbols::Symbols;

const PAGE_BYTES: u64 = 4096;
/// The longest name of a cache or file that is read.
const MOST_NAME_BYTES: usize = 64;
/// `PAGE_TYPE_BASE` before Linux 6.12. The bit of a kind is clear if the page is of this kind.
const TYPE_BASE: u64 = 0xf000_0000;
const BUDDY_BIT: u64 = 0x80;
const TABLE_BIT: u64 = 0x200;
/// `__PAGE_OFFSET_BASE_L4`: the start of the direct map in kernels that do not move it.
const FIXED_DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// No compound page has more than 2^MOST_ORDER pages.
const MOST_ORDER: u32 = 20;
/// The bits of `mapping` that say that a page is no page of a file: `PAGE_MAPPING_FLAGS`.
const MAPPING_BITS: u64 = 3;
const ANONYMOUS_BIT: u64 = 1;

/// The use of a page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The page is free.
    Free,
    /// The page belongs to a cache of objects.
    Slab(Slab),
    /// A page of a program's own memory.
    Anonymous,
    /// A page of a file's contents.
    File {
        /// The file's name without its folders, if known.
        name: Option<String>,
        /// The file system's type, such as `ext4`.
        system: String,
        /// The number of the file's inode.
        inode: u64,
    },
    /// A page table.
    PageTable,
    /// The kernel's image, or memory that the kernel reserved when it booted.
    Reserved,
    /// Another use, for example a stack of the kernel or a buffer of a driver.
    Other,
}

/// The use in words.
impl Display for Owner {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Free => f.write_str("free memory"),
            Owner::Slab(slab) => write!(f, "objects of {}", slab.cache),
            Owner::Anonymous => f.write_str("programs' own memory"),
            Owner::File { name, system, inode } => {
                let name = name.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
                write!(f, "file {name}inode {inode} of {system}")
            }
            Owner::PageTable => f.write_str("page tables"),
            Owner::Reserved => f.write_str("the kernel's image and reserved memory"),
            Owner::Other => f.write_str("other memory of the kernel"),
        }
    }
}

/// A part of a cache of objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slab {
    /// The cache's name, such as `dentry`.
    pub cache: String,
    /// The physical address of the slab's first object.
    pub start: u64,
    /// The distance between two objects in bytes.
    pub object_bytes: u64,
    /// The bytes of an object's place before the object itself. Not 0 if the kernel surrounds objects with red zones.
    pub left_bytes: u64,
    /// The virtual address of the cache's `struct kmem_cache`.
    pub cache_address: u64,
}

/// The pages that the kernel allocates and frees together with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The physical address of the first page.
    pub start: u64,
    /// The block has 2^order pages. 0 also for a larger block that is no compound page, because the kernel does not
    /// store the order of such a block.
    pub order: u32,
    /// The virtual address of the first page's `struct page`.
    pub structure: u64,
    /// The virtual address of the block's count of references, which has four bytes.
    pub references_at: u64,
    /// The number of references. 0 for a free page, and for a page whose user does not count references.
    pub references: u64,
}

/// How to find the use of a page.
#[derive(Clone, Debug)]
pub struct PageOwners {
    /// The address of the first `struct page`.
    pages: u64,
    /// The virtual address at which the kernel maps physical address 0.
    direct_map: u64,
    layout: Layout,
}

#[derive(Clone, Debug)]
struct Layout {
    page_bytes: u64,
    flags: u64,
    mapping: u64,
    compound_head: u64,
    page_type: Option<u64>,
    references: u64,
    reserved_bit: u64,
    slab: SlabKind,
    /// The numbers of free pages and page tables, if kinds are numbers.
    kinds: Option<(u64, u64)>,
    slab_cache: u64,
    cache_name: u64,
    cache_size: u64,
    cache_left: Option<u64>,
    file: Option<FileLayout>,
}

/// How a page says that it belongs to a cache.
#[derive(Clone, Copy, Debug)]
enum SlabKind {
    /// This bit of the flags is set.
    Bit(u64),
    /// The kind has this number.
    Number(u64),
}

#[derive(Clone, Debug)]
struct FileLayout {
    host: u64,
    inode_number: u64,
    super_block: u64,
    system_type: u64,
    system_name: u64,
    dentries: u64,
    alias: u64,
    name: u64,
}

impl PageOwners {
    /// Finds the array of pages of the kernel with these symbols, and the layout of its structures.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<PageOwners, Missing> {
        KernelView::first_with(guest, |view| {
            let base = symbols.address_of("vmemmap_base").ok_or(Missing::Symbol("vmemmap_base"))?;
            let pages = view.number::<8>(base).ok_or(Missing::Symbol("vmemmap_base"))?;
            let bytes = modules::types(view, &|name| symbols.address_of(name))?;
            let layout = Layout::of(&Btf::parse(&bytes).ok_or(Missing::Types)?)?;
            let direct_map = symbols.address_of("page_offset_base").and_then(|at| view.number::<8>(at));
            Ok(PageOwners { pages, direct_map: direct_map.unwrap_or(FIXED_DIRECT_MAP), layout })
        })
    }

    /// The virtual address at which the kernel uses memory at a physical address.
    pub fn direct_address(&self, physical: u64) -> u64 {
        self.direct_map.wrapping_add(physical)
    }

    /// The block of the page at a physical address. `None` if the kernel has no `struct page` for this address.
    pub fn block(&self, guest: &dyn GuestView, address: u64) -> Option<Block> {
        KernelView::all(guest).find_map(|view| self.block_in(view, address / PAGE_BYTES))
    }

    fn block_in(&self, view: KernelView<'_>, frame: u64) -> Option<Block> {
        let structure = self.head(view, self.structure(frame)?)?;
        let is_tail = |order: &u32| {
            let page = structure.wrapping_add(self.layout.page_bytes << order);
            self.head(view, page) == Some(structure)
        };
        let order = (0..MOST_ORDER).take_while(is_tail).count() as u32;
        let references_at = structure.wrapping_add(self.layout.references);
        Some(Block {
            start: self.physical(structure),
            order,
            structure,
            references_at,
            references: view.number::<4>(references_at)?,
        })
    }

    /// The address of the `struct page` of a page.
    fn structure(&self, frame: u64) -> Option<u64> {
        Some(self.pages.wrapping_add(frame.checked_mul(self.layout.page_bytes)?))
    }

    /// The physical address of the page with a `struct page`.
    fn physical(&self, structure: u64) -> u64 {
        (structure.wrapping_sub(self.pages) / self.layout.page_bytes).wrapping_mul(PAGE_BYTES)
    }

    /// The `struct page` of the first page of a page's block. All other pages of a larger block refer to it.
    fn head(&self, view: KernelView<'_>, page: u64) -> Option<u64> {
        let head = view.number::<8>(page.wrapping_add(self.layout.compound_head))?;
        Some(if head & 1 != 0 { head - 1 } else { page })
    }

    /// The use of the page at a physical address. `None` if the kernel has no `struct page` for this address.
    pub fn owner(&self, guest: &dyn GuestView, address: u64) -> Option<Owner> {
        KernelView::all(guest).find_map(|view| self.owner_in(view, address / PAGE_BYTES))
    }

    fn owner_in(&self, view: KernelView<'_>, frame: u64) -> Option<Owner> {
        let layout = &self.layout;
        let word = |page: u64, offset: u64| view.number::<8>(page.wrapping_add(offset));
        let page = self.head(view, self.structure(frame)?)?;
        let kind = layout.page_type.and_then(|offset| view.number::<4>(page.wrapping_add(offset)));
        let flags = word(page, layout.flags)?;
        let is_numbered = |number: u64| kind.is_some_and(|kind| kind >> 24 == number);
        let is_slab = match layout.slab {
            SlabKind::Bit(bit) => flags >> bit & 1 != 0,
            SlabKind::Number(number) => is_numbered(number),
        };
        if is_slab {
            return Some(self.slab(view, page).map_or(Owner::Other, Owner::Slab));
        }
        let is_old_kind = |bit: u64| kind.is_some_and(|kind| kind & (TYPE_BASE | bit) == TYPE_BASE);
        let (is_free, is_table) = match layout.kinds {
            Some((free, table)) => (is_numbered(free), is_numbered(table)),
            None => (is_old_kind(BUDDY_BIT), is_old_kind(TABLE_BIT)),
        };
        if is_free || is_table {
            return Some(if is_free { Owner::Free } else { Owner::PageTable });
        }
        if flags >> layout.reserved_bit & 1 != 0 {
            return Some(Owner::Reserved);
        }
        Some(match word(page, layout.mapping)? {
            0 => Owner::Other,
            mapping if mapping & ANONYMOUS_BIT != 0 => Owner::Anonymous,
            mapping if mapping & MAPPING_BITS == 0 => self.file(view, mapping).unwrap_or(Owner::Other),
            _ => Owner::Other,
        })
    }

    fn slab(&self, view: KernelView<'_>, page: u64) -> Option<Slab> {
        let layout = &self.layout;
        let cache = view.number::<8>(page.wrapping_add(layout.slab_cache))?;
        let name = view.number::<8>(cache.wrapping_add(layout.cache_name))?;
        Some(Slab {
            cache: view.text(name, MOST_NAME_BYTES)?,
            start: self.physical(page),
            object_bytes: view.number::<4>(cache.wrapping_add(layout.cache_size)).filter(|&size| size > 0)?,
            left_bytes: layout
                .cache_left
                .and_then(|offset| view.number::<4>(cache.wrapping_add(offset)))
                .unwrap_or(0),
            cache_address: cache,
        })
    }

    fn file(&self, view: KernelView<'_>, mapping: u64) -> Option<Owner> {
        let layout = self.layout.file.as_ref()?;
        let word = |address: u64, offset: u64| view.number::<8>(address.wrapping_add(offset));
        let inode = word(mapping, layout.host)?;
        let system = word(inode, layout.super_block)?;
        let system =
            view.text(word(word(system, layout.system_type)?, layout.system_name)?, MOST_NAME_BYTES)?;
        let name = || {
            let first = word(inode, layout.dentries).filter(|&first| first != 0)?;
            view.text(word(first.wrapping_sub(layout.alias), layout.name)?, MOST_NAME_BYTES)
        };
        Some(Owner::File { name: name(), system, inode: word(inode, layout.inode_number)? })
    }
}

impl Layout {
    fn of(btf: &Btf<'_>) -> Result<Layout, Missing> {
        let field = |structure: &'static str, name: &'static str| {
            let missing = Missing::Field { structure, field: name };
            let found = btf.structure(structure).and_then(|number| btf.field(number, name));
            found.map(|field| field.offset).ok_or(missing)
        };
        let page = btf.structure("page").ok_or(Missing::Types)?;
        let kind = |name| enumerator(btf, "pagetype", name);
        let slab = match (kind("PGTY_slab"), enumerator(btf, "pageflags", "PG_slab")) {
            (Some(number), _) => SlabKind::Number(number),
            (None, Some(bit)) => SlabKind::Bit(bit),
            (None, None) => return Err(Missing::Field { structure: "page", field: "PG_slab" }),
        };
        Ok(Layout {
            page_bytes: btf.size(page).filter(|&size| size > 0).ok_or(Missing::Types)?,
            flags: field("page", "flags")?,
            mapping: field("page", "mapping")?,
            compound_head: field("page", "compound_head").or_else(|_| field("page", "compound_info"))?,
            page_type: field("page", "page_type").ok(),
            references: field("page", "_refcount")?,
            reserved_bit: enumerator(btf, "pageflags", "PG_reserved").ok_or(Missing::Types)?,
            slab,
            kinds: kind("PGTY_buddy").zip(kind("PGTY_table")),
            slab_cache: field("slab", "slab_cache")?,
            cache_name: field("kmem_cache", "name")?,
            cache_size: field("kmem_cache", "size")?,
            cache_left: field("kmem_cache", "red_left_pad").ok(),
            file: FileLayout::of(btf, &field).ok(),
        })
    }
}

impl FileLayout {
    fn of(
        btf: &Btf<'_>,
        field: &dyn Fn(&'static str, &'static str) -> Result<u64, Missing>,
    ) -> Result<FileLayout, Missing> {
        let inside = |structure: &'static str, outer: &'static str, name: &'static str| {
            let missing = Missing::Field { structure, field: name };
            let outer = btf
                .structure(structure)
                .and_then(|number| btf.field(number, outer))
                .ok_or(missing.clone())?;
            Ok(outer.offset + btf.field(outer.kind, name).ok_or(missing)?.offset)
        };
        Ok(FileLayout {
            host: field("address_space", "host")?,
            inode_number: field("inode", "i_ino")?,
            super_block: field("inode", "i_sb")?,
            system_type: field("super_block", "s_type")?,
            system_name: field("file_system_type", "name")?,
            dentries: field("inode", "i_dentry")?,
            alias: inside("dentry", "d_u", "d_alias").or_else(|_| field("dentry", "d_alias"))?,
            name: inside("dentry", "d_name", "name").or_else(|_| inside("dentry", "__d_name", "name"))?,
        })
    }
}

/// The value of a name in an enumeration.
fn enumerator(btf: &Btf<'_>, enumeration: &str, name: &str) -> Option<u64> {
    btf.numbers().filter(|&number| btf.has_name(number, enumeration)).find_map(|number| {
        let Shape::Enumeration { values, .. } = btf.full(number)?.shape else { return None };
        values.iter().find(|(its, _)| *its == Some(name)).map(|&(_, value)| value as u64)
    })
}
