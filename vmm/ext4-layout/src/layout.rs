//! The layout: finds the contents of a block, and lists folders when their inodes are first read.

use crate::bytes::{BLOCK_BYTES, Bytes, zeros};
use crate::extents::{Extents, index_blocks};
use crate::folder::{Names, Target};
use crate::front;
use crate::geometry::{BLOCK_INODES, Geometry, INODE_BYTES, Part};
use crate::inode::{SHORT_TARGET_BYTES, inode};
use crate::links::Links;
use crate::node::{Body, Folder, Node};
use crate::options::{Error, Options};
use crate::space::{Role, Run, Space};
use crate::tables::Tables;
use crate::tree::{Entry, Id, Kind, Tree};
use crate::usage::{Exact, Usage};

/// The number of the root among the nodes.
const ROOT: u32 = 0;
/// The folder that e2fsck wants in the root. Without entries, unless the host has such a folder.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// The largest target of a symbolic link in bytes.
const MOST_TARGET_BYTES: usize = BLOCK_BYTES - 1;

/// The contents of a block of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Zeros.
    Zero,
    /// These bytes.
    Made(Box<[u8; BLOCK_BYTES]>),
    /// A part of a file. Behind the end of the file, the block has zeros.
    File {
        /// The file's number.
        id: Id,
        /// The place of the block's first byte in the file, in bytes.
        offset: u64,
    },
}

/// An ext4 file system of a tree of folders and files.
#[derive(Debug)]
pub struct Layout<T> {
    tree: T,
    options: Options,
    geometry: Geometry,
    nodes: Vec<Node>,
    tables: Tables,
    space: Space,
    links: Links,
    usage: Usage,
}

impl<T: Tree> Layout<T> {
    /// A lazy layout, which lists a folder when the guest first reads the block of its inode. The name, the size and the
    /// links of `root` do not count.
    ///
    /// # Errors
    ///
    /// If the sizes in `options` do not fit, or `root` is not a folder.
    pub fn new(options: Options, tree: T, root: &Entry) -> Result<Layout<T>, Error> {
        if root.kind != Kind::Folder {
            return Err(Error::RootIsNoFolder);
        }
        let geometry = Geometry::new(&options)?;
        let (tables, space) = (Tables::new(&geometry), Space::new(geometry.host()));
        let nodes = vec![Node::new(front::ROOT_INODE, ROOT, root)];
        let (links, usage) = (Links::default(), Usage::Lazy);
        Ok(Layout { tree, options, geometry, nodes, tables, space, links, usage })
    }

    /// An eager layout: lists all folders at once, and calls nothing used that is free. The tree must be finite.
    ///
    /// # Errors
    ///
    /// The errors of [`Layout::new`].
    pub fn eager(options: Options, tree: T, root: &Entry) -> Result<Layout<T>, Error> {
        let mut layout = Layout::new(options, tree, root)?;
        let mut node = 0;
        while node < layout.nodes.len() {
            layout.list(node as u32);
            node += 1;
        }
        for (node, names) in layout.links.names() {
            layout.nodes[node as usize].links = names;
        }
        let Layout { geometry, tables, space, nodes, .. } = &layout;
        layout.usage = Usage::Exact(Exact::new(geometry, space.left(), tables, nodes));
        Ok(layout)
    }

    /// The number of blocks of the disk. A block has 4096 bytes.
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks().into()
    }

    /// The tree.
    pub fn tree(&self) -> &T {
        &self.tree
    }

    /// The tree, for reading the contents of files.
    pub fn tree_mut(&mut self) -> &mut T {
        &mut self.tree
    }

    /// The contents of block `number`. The answer for a block never changes. A block behind the end of the disk has zeros.
    pub fn block(&mut self, number: u64) -> Block {
        let Layout { geometry, options, usage, .. } = &*self;
        match geometry.part(number) {
            Part::Superblock => Block::Made(front::superblock(geometry, options, usage)),
            Part::Descriptors(first) => Block::Made(front::descriptors(geometry, usage, first)),
            Part::BlockBitmap(group) => made(usage.block_bitmap(geometry, group)),
            Part::InodeBitmap(group) => made(usage.inode_bitmap(geometry, group)),
            Part::InodeTable(block) => self.inodes(block),
            Part::Data(block) if geometry.host().contains(&block) => self.data(block),
            Part::Data(_) | Part::Outside => Block::Zero,
        }
    }

    /// A block of the inode tables. Folders are listed, because their inodes have their sizes.
    fn inodes(&mut self, block: u32) -> Block {
        let Some(table) = self.tables.read(block) else { return Block::Zero };
        let mut bytes = zeros();
        for at in 0..table.count {
            self.list(table.node + at);
            let node = &self.nodes[(table.node + at) as usize];
            debug_assert_eq!(node.inode, block * BLOCK_INODES + table.slot + at + 1);
            let place = (table.slot + at) as usize * INODE_BYTES;
            bytes[place..place + INODE_BYTES].copy_from_slice(&inode(node));
        }
        Block::Made(bytes)
    }

    /// A block of the host area.
    fn data(&mut self, block: u32) -> Block {
        let Some(owner) = self.space.read(block) else { return Block::Zero };
        let node = &self.nodes[owner.node as usize];
        let offset = u64::from(owner.number) * BLOCK_BYTES as u64;
        match (&node.body, owner.role) {
            (Body::File { size_bytes, .. }, _) if *size_bytes == 0 => Block::Zero,
            (Body::File { extents, .. }, Role::Index) => Block::Made(extents.index_block(owner.number)),
            (Body::File { id, .. }, Role::Contents) => Block::File { id: *id, offset },
            (Body::Folder(folder), role) => self.folder_block(node, folder, role, owner.number),
            (Body::Symlink { target, .. }, _) => {
                let mut bytes = zeros();
                bytes[..target.len()].copy_from_slice(target);
                Block::Made(bytes)
            }
            _ => Block::Zero,
        }
    }

    fn folder_block(&self, node: &Node, folder: &Folder, role: Role, number: u32) -> Block {
        let Some(names) = &folder.names else { return Block::Zero };
        if role == Role::Index {
            return Block::Made(folder.extents.index_block(number));
        }
        let target = |node: u32| {
            let node = &self.nodes[node as usize];
            Target { inode: node.inode, kind: node.code() }
        };
        Block::Made(names.block(number, node.inode, self.nodes[node.parent as usize].inode, target))
    }

    /// Lists a folder if it was not listed, and gives inodes and blocks to its entries.
    fn list(&mut self, folder: u32) {
        let Body::Unlisted(id) = self.nodes[folder as usize].body else { return };
        let mut entries = id.map_or_else(Vec::new, |id| self.tree.list(id));
        let lacks_lost = folder == ROOT && !entries.iter().any(|entry| entry.name == LOST_AND_FOUND);
        if lacks_lost {
            entries.push(lost_and_found(&self.options));
        }
        tidy(&mut entries);
        let subfolders = entries.partition_point(|entry| entry.kind == Kind::Folder);
        let (folders, others) = entries.split_at(subfolders);
        // A guest that reads a file's inode must not make us list folders beside the file. In the root even each folder
        // stands alone: one of them may be the place of a file system whose server does not answer.
        let mut children = self.add(folder, id, folders, if folder == ROOT { 1 } else { BLOCK_INODES });
        let subfolders = children.len() as u32;
        children.extend(self.add(folder, id, others, BLOCK_INODES));
        if lacks_lost && let Some(&(_, lost)) = children.iter().find(|(name, _)| *name == LOST_AND_FOUND) {
            self.nodes[lost as usize].body = Body::Unlisted(None);
        }
        let names = Names::new(front::hash_seed(&self.options), children.into_iter());
        self.finish(folder, id, names, subfolders);
    }

    /// Gives inodes to entries of a folder, beginning with a fresh block, at most `most` in each block.
    fn add<'a>(
        &mut self,
        folder: u32,
        id: Option<Id>,
        entries: &'a [Entry],
        most: u32,
    ) -> Vec<(&'a [u8], u32)> {
        self.tables.close_block();
        let mut children = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.child(folder, entry, most) {
                Some(node) => children.push((&entry.name[..], node)),
                None => id.into_iter().for_each(|id| self.tree.no_room(id, &entry.name)),
            }
        }
        children
    }

    /// The node of an entry: a known one, or a new one. `None` if the disk has no room.
    fn child(&mut self, folder: u32, entry: &Entry, most: u32) -> Option<u32> {
        if let Some(node) = self.links.join(entry) {
            return Some(node);
        }
        let number = self.nodes.len() as u32;
        let mut node = Node::new(self.tables.give(number, most)?, folder, entry);
        let has_room = give_contents(&mut self.space, number, &mut node.body);
        if !has_room && matches!(node.body, Body::Symlink { .. }) {
            self.tables.take_back();
            return None;
        }
        if !has_room && let Body::Unlisted(Some(id)) = self.nodes[folder as usize].body {
            self.tree.no_room(id, &entry.name);
        }
        self.nodes.push(node);
        self.links.add(entry, number);
        Some(number)
    }

    /// Gives blocks to the names of a folder.
    fn finish(&mut self, folder: u32, id: Option<Id>, names: Names, subfolders: u32) {
        let runs = self.space.give(folder, Role::Contents, names.blocks());
        let extents = runs.and_then(|contents| with_index(&mut self.space, folder, contents));
        if let (None, Some(id)) = (&extents, id) {
            self.tree.no_room(id, b"");
        }
        let names = extents.is_some().then_some(names);
        let extents = extents.unwrap_or_default();
        self.nodes[folder as usize].body = Body::Folder(Box::new(Folder { names, extents, subfolders }));
    }
}

/// A block of zeros needs no bytes.
fn made(bytes: Box<Bytes>) -> Block {
    if *bytes == [0; BLOCK_BYTES] { Block::Zero } else { Block::Made(bytes) }
}

/// Leaves out what a folder cannot have, and sorts: folders first, then by name.
fn tidy(entries: &mut Vec<Entry>) {
    entries.retain(|entry| is_name(&entry.name) && has_good_target(&entry.kind));
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    entries.dedup_by(|one, other| one.name == other.name);
    entries.sort_by_key(|entry| entry.kind != Kind::Folder);
}

fn is_name(name: &[u8]) -> bool {
    (1..256).contains(&name.len())
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b".."
}

fn has_good_target(kind: &Kind) -> bool {
    match kind {
        Kind::Symlink(target) => (1..=MOST_TARGET_BYTES).contains(&target.len()) && !target.contains(&0),
        _ => true,
    }
}

fn lost_and_found(options: &Options) -> Entry {
    let created = crate::Time { seconds: options.created_seconds.into(), nanoseconds: 0 };
    Entry {
        name: LOST_AND_FOUND.to_vec(),
        id: Id(0),
        kind: Kind::Folder,
        permissions: 0o700,
        uid: 0,
        gid: 0,
        size_bytes: 0,
        mtime: created,
        ctime: created,
        links: 2,
        identity: crate::Identity::default(),
    }
}

/// Gives blocks to the contents of a file or a symbolic link. If there is no room, the result is false, and a file becomes
/// empty.
fn give_contents(space: &mut Space, node: u32, body: &mut Body) -> bool {
    match body {
        Body::File { size_bytes, extents, .. } => {
            let runs = space.give_to_file(node, size_bytes.div_ceil(BLOCK_BYTES as u64));
            let given = runs.and_then(|contents| with_index(space, node, contents));
            let has_room = given.is_some();
            if !has_room {
                *size_bytes = 0;
            }
            *extents = given.unwrap_or_default();
            has_room
        }
        Body::Symlink { target, extents } if target.len() > SHORT_TARGET_BYTES => {
            let given = space.give(node, Role::Contents, 1);
            *extents = Extents { contents: given.unwrap_or_default(), index: Vec::new() };
            !extents.contents.is_empty()
        }
        _ => true,
    }
}

/// Gives blocks to the extent tree of contents.
fn with_index(space: &mut Space, node: u32, contents: Vec<Run>) -> Option<Extents> {
    let index = space.give(node, Role::Index, index_blocks(&contents))?;
    Some(Extents { contents, index })
}
