//! The files that a process has mapped: the file lines of `/proc/PID/maps`, read from the process's `mm_struct`.
//!
//! Up to Linux 6.0 a process's areas are in a list. From 6.1 on they are in a maple tree. A node has slots and
//! ascending pivots. Each pivot is the last address of the slot with the same number. Slots point to further nodes or,
//! in a leaf, to areas. A pointer to a node has the node's kind in its low bits.
//!
//! Follows Linux 5.10 to 7.2: `include/linux/mm_types.h`, `include/linux/maple_tree.h`, `fs/d_path.c`. Guest memory is
//! not trusted: nodes, areas and the parts of paths have limits.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{Missing, types};
use super::symbols::Symbols;
use super::tasks::field;

/// The largest number of areas of a process. Linux has the same limit by default.
const MAX_AREAS: usize = 1 << 16;
/// The largest number of nodes of a tree that are read.
const MAX_NODES: usize = 1 << 16;
/// The largest depth of a tree.
const MAX_DEPTH: usize = 16;
/// The largest number of names and mount points of one path.
const MAX_PARTS: usize = 512;
/// The longest path, `PATH_MAX`.
const MAX_PATH_BYTES: usize = 4096;
/// The longest file name, `NAME_MAX`, and its NUL.
const MAX_NAME_BYTES: usize = 256;
/// Read, write, execute and `VM_MAYSHARE`, in `vm_area_struct::vm_flags`.
const RIGHTS: [(u64, char, char); 4] = [(1, 'r', '-'), (2, 'w', '-'), (4, 'x', '-'), (0x80, 's', 'p')];
/// The kernel stores file offsets in pages of 2^12 bytes.
const PAGE_BITS: u32 = 12;

/// A mapped part of a file in a process's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The virtual addresses at which this part is mapped.
    pub range: Range<u64>,
    /// The access rights, as in `/proc/PID/maps`: `r-xp`.
    pub rights: String,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The file's path, with control characters replaced.
    pub path: String,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mapping { range, rights, offset, path } = self;
        write!(f, "{:012x}-{:012x} {rights} {offset:08x} {path}", range.start, range.end)
    }
}

/// The layout of the kernel's structures that describe mappings. The layout is constant while the kernel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mappings {
    mm: u64,
    areas: Areas,
    start: u64,
    end: u64,
    flags: u64,
    page: u64,
    file: u64,
    /// Offsets in `struct file`: of the mount and of the directory entry.
    file_mount: u64,
    file_entry: u64,
    /// Offsets in `struct dentry`.
    parent: u64,
    name: u64,
    /// Offsets in `struct mount`, except for `root`, which is an offset in the inner `struct vfsmount`.
    inner: u64,
    root: u64,
    mount_parent: u64,
    mount_point: u64,
}

/// The location of a process's areas.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Areas {
    /// Offsets of the first area in `struct mm_struct`, and of the next in `struct vm_area_struct`.
    List { first: u64, next: u64 },
    /// `root` is the offset of the tree's root in `struct mm_struct`. `range` is the layout of range nodes, and
    /// `with_gaps` the layout of range nodes with gaps.
    Tree { root: u64, range: Node, with_gaps: Node },
}

/// The layout of a kind of tree node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    pivots: u64,
    pivot_count: u64,
    slots: u64,
    slot_count: u64,
}

/// The areas found so far, and the number of nodes that may still be read.
struct Walk {
    found: Vec<u64>,
    room: usize,
}

impl Mappings {
    /// The layout in the kernel with these symbols.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<Mappings, Missing> {
        KernelView::first_with(guest, |view| Mappings::find(view, symbols))
    }

    pub(super) fn find(memory: KernelView<'_>, symbols: &Symbols) -> Result<Mappings, Missing> {
        let bytes = types(memory, &|name| symbols.address_of(name))?;
        let btf = &Btf::parse(&bytes).ok_or(Missing::Types)?;
        let area = |name| field(btf, "vm_area_struct", name);
        let path = field(btf, "file", "f_path")?;
        Ok(Mappings {
            mm: field(btf, "task_struct", "mm")?,
            areas: Areas::of(btf)?,
            start: area("vm_start")?,
            end: area("vm_end")?,
            flags: area("vm_flags")?,
            page: area("vm_pgoff")?,
            file: area("vm_file")?,
            file_mount: path + field(btf, "path", "mnt")?,
            file_entry: path + field(btf, "path", "dentry")?,
            parent: field(btf, "dentry", "d_parent")?,
            name: field(btf, "dentry", "d_name")? + field(btf, "qstr", "name")?,
            inner: field(btf, "mount", "mnt")?,
            root: field(btf, "vfsmount", "mnt_root")?,
            mount_parent: field(btf, "mount", "mnt_parent")?,
            mount_point: field(btf, "mount", "mnt_mountpoint")?,
        })
    }

    /// The files that a process has mapped, by address. `task` is the address of the `task_struct` of one of its
    /// threads. The list is empty if the process has no memory of its own.
    pub fn of_task(&self, guest: &dyn GuestView, task: u64) -> Vec<Mapping> {
        let found = KernelView::all(guest).map(|view| self.in_view(view, task));
        found.reduce(|first, second| if first.is_empty() { second } else { first }).unwrap_or_default()
    }

    pub(super) fn in_view(&self, memory: KernelView<'_>, task: u64) -> Vec<Mapping> {
        let mm = memory.number::<8>(task.wrapping_add(self.mm)).filter(|&mm| mm != 0);
        let areas = mm.map(|mm| self.areas.all(memory, mm)).unwrap_or_default();
        let mut paths = BTreeMap::new();
        areas.into_iter().filter_map(|area| self.mapping(memory, area, &mut paths)).collect()
    }

    /// The mapping of an area, if the area maps a file. `paths` caches the paths by mount and directory entry.
    fn mapping(
        &self,
        memory: KernelView<'_>,
        area: u64,
        paths: &mut BTreeMap<(u64, u64), Option<String>>,
    ) -> Option<Mapping> {
        let word = |offset: u64| memory.number::<8>(area.wrapping_add(offset));
        let file = word(self.file).filter(|&file| file != 0)?;
        let range = word(self.start)?..word(self.end)?;
        let flags = word(self.flags)?;
        let mount = memory.number::<8>(file.wrapping_add(self.file_mount))?;
        let entry = memory.number::<8>(file.wrapping_add(self.file_entry))?;
        let path = paths.entry((mount, entry)).or_insert_with(|| self.path(memory, mount, entry)).clone()?;
        let right = |&(bit, yes, no): &(u64, char, char)| if flags & bit != 0 { yes } else { no };
        let rights = RIGHTS.iter().map(right).collect();
        let offset = word(self.page)?.wrapping_shl(PAGE_BITS);
        (!range.is_empty()).then_some(Mapping { range, rights, offset, path })
    }

    /// The path of a directory entry, up to the root of all mounts.
    fn path(&self, memory: KernelView<'_>, mut mount: u64, mut entry: u64) -> Option<String> {
        let pointer = |at: u64, offset: u64| memory.number::<8>(at.wrapping_add(offset));
        let mut path = String::new();
        for _ in 0..MAX_PARTS {
            if pointer(mount, self.root)? == entry {
                let outer = mount.wrapping_sub(self.inner);
                let parent = pointer(outer, self.mount_parent)?;
                if parent == outer {
                    break;
                }
                entry = pointer(outer, self.mount_point)?;
                mount = parent.wrapping_add(self.inner);
                continue;
            }
            let parent = pointer(entry, self.parent)?;
            if parent == entry {
                break;
            }
            path = format!("/{}{path}", name(memory, pointer(entry, self.name)?)?);
            if path.len() > MAX_PATH_BYTES {
                return None;
            }
            entry = parent;
        }
        (!path.is_empty()).then_some(path)
    }
}

impl Areas {
    fn of(btf: &Btf<'_>) -> Result<Areas, Missing> {
        let Ok(tree) = field(btf, "mm_struct", "mm_mt") else {
            let (first, next) = (field(btf, "mm_struct", "mmap")?, field(btf, "vm_area_struct", "vm_next")?);
            return Ok(Areas::List { first, next });
        };
        let root = tree + field(btf, "maple_tree", "ma_root")?;
        let (range, with_gaps) = (Node::of(btf, "maple_range_64")?, Node::of(btf, "maple_arange_64")?);
        Ok(Areas::Tree { root, range, with_gaps })
    }

    /// The addresses of the areas' structures.
    fn all(&self, memory: KernelView<'_>, mm: u64) -> Vec<u64> {
        match *self {
            Areas::List { first, next } => {
                let mut found = Vec::new();
                let mut at = memory.number::<8>(mm.wrapping_add(first));
                while let Some(area) = at.filter(|&area| area != 0 && found.len() < MAX_AREAS) {
                    found.push(area);
                    at = memory.number::<8>(area.wrapping_add(next));
                }
                found
            }
            Areas::Tree { root, .. } => {
                let mut walk = Walk { found: Vec::new(), room: MAX_NODES };
                // Whether an entry points to a node, at the root or elsewhere in the tree.
                let is_node = |entry: &u64| entry & 3 == 2 && *entry > 4096;
                if let Some(root) = memory.number::<8>(mm.wrapping_add(root)).filter(is_node) {
                    self.walk(memory, root, u64::MAX, MAX_DEPTH, &mut walk);
                }
                walk.found
            }
        }
    }

    /// Adds the areas of a node whose range ends at `max`.
    fn walk(
        &self,
        memory: KernelView<'_>,
        entry: u64,
        max: u64,
        depth: usize,
        walk: &mut Walk,
    ) -> Option<()> {
        let Areas::Tree { range, with_gaps, .. } = *self else { return None };
        let (node, is_leaf) = match entry >> 3 & 0xf {
            1 => (range, true),
            2 => (range, false),
            3 => (with_gaps, false),
            _ => return None,
        };
        walk.room = walk.room.checked_sub(1)?;
        let at = entry & !0xff;
        let word = |offset: u64, number: u64| memory.number::<8>(at.wrapping_add(offset + 8 * number));
        for number in 0..node.slot_count {
            let pivot = if number < node.pivot_count { word(node.pivots, number)? } else { max };
            // A pivot of zero, except the first pivot, marks the end of the node.
            let end = if pivot == 0 && number > 0 { max } else { pivot.min(max) };
            match word(node.slots, number)? {
                0 => {}
                slot if !is_leaf && depth > 0 => {
                    self.walk(memory, slot, end, depth - 1, walk);
                }
                // Other values in a slot are marks of the tree itself, and not areas.
                slot if is_leaf && slot & 3 == 0 && walk.found.len() < MAX_AREAS => walk.found.push(slot),
                _ => {}
            }
            if end == max {
                break;
            }
        }
        Some(())
    }
}

impl Node {
    fn of(btf: &Btf<'_>, structure: &'static str) -> Result<Node, Missing> {
        let array = |name: &'static str| {
            let found = btf.structure(structure).and_then(|number| btf.field(number, name));
            let found = found.and_then(|found| Some((found.offset, btf.array(found.kind)?.1)));
            found.ok_or(Missing::Field { structure, field: name })
        };
        let ((pivots, pivot_count), (slots, slot_count)) = (array("pivot")?, array("slot")?);
        // A node of 256 bytes has at most 32 words.
        let count = |count: u32| u64::from(count.min(32));
        Ok(Node { pivots, pivot_count: count(pivot_count), slots, slot_count: count(slot_count) })
    }
}

/// A file's name, with control characters replaced.
fn name(memory: KernelView<'_>, address: u64) -> Option<String> {
    let mut bytes = [0; MAX_NAME_BYTES];
    let count = memory.read(address, &mut bytes);
    let end = bytes[..count].iter().position(|&byte| byte == 0).filter(|&end| end > 0)?;
    let visible = |c: char| if c.is_control() { '?' } else { c };
    Some(String::from_utf8_lossy(&bytes[..end]).chars().map(visible).collect())
}
