//! File systems that the tests make byte by byte. The structures are from Linux' `Documentation/filesystems/ext4`.

use std::collections::BTreeMap;
use std::io;

use guest_disk::{ByteSource, Files};

/// A disk that has only the parts that were written. All other bytes are zero.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub size_bytes: u64,
    parts: BTreeMap<u64, [u8; Disk::PART]>,
}

impl Disk {
    const PART: usize = 1024;

    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let part = self.parts.entry(at / Disk::PART as u64).or_insert([0; Disk::PART]);
            part[at as usize % Disk::PART] = *byte;
        }
    }
}

impl ByteSource for Disk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let end = offset + to.len() as u64;
        assert!(end <= self.size_bytes, "a read from {offset:#x} to {end:#x}");
        to.fill(0);
        let parts = offset / Disk::PART as u64..end.div_ceil(Disk::PART as u64);
        for (&number, part) in self.parts.range(parts) {
            let start = number * Disk::PART as u64;
            let (from, until) = (start.max(offset), end.min(start + Disk::PART as u64));
            to[(from - offset) as usize..(until - offset) as usize]
                .copy_from_slice(&part[(from - start) as usize..(until - start) as usize]);
        }
        Ok(())
    }
}

/// The sizes of a file system.
#[derive(Clone, Copy)]
pub struct Layout {
    pub block_bytes: u64,
    pub blocks: u64,
    pub inodes: u32,
    pub group_inodes: u32,
    pub inode_bytes: u16,
    /// The size of a group descriptor with 64-bit block numbers; `None` for 32-bit numbers.
    pub wide_descriptors: Option<u16>,
    /// The first block of the table of group 0's inodes, and the distance to the table of the next group.
    pub tables: (u64, u64),
}

impl Layout {
    /// Sizes with which all tables of a file system are near its start.
    pub const SMALL: Layout = Layout {
        block_bytes: 1024,
        blocks: 8192,
        inodes: 64,
        group_inodes: 64,
        inode_bytes: 256,
        wide_descriptors: None,
        tables: (8, 0),
    };

    /// Sizes with block numbers that need more than 32 bits.
    pub const LARGE: Layout = Layout { blocks: 1 << 34, wide_descriptors: Some(64), ..Layout::SMALL };
}

/// The flags of an inode.
pub mod flag {
    pub const ENCRYPTED: u32 = 0x800;
    pub const EXTENTS: u32 = 0x8_0000;
    pub const INLINE_DATA: u32 = 0x1000_0000;
}

/// An inode.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub mode: u16,
    pub size: u64,
    pub flags: u32,
    /// The first bytes of the 60 bytes that have block numbers, extents, or data.
    pub map: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    /// The time of the last change: the low 32 bits, and the two bits above these bits.
    pub modified: (u32, u32),
}

impl Node {
    /// A file whose blocks are found by block numbers.
    pub fn file(size: u64, blocks: &[u32]) -> Node {
        let map = blocks.iter().flat_map(|block| block.to_le_bytes()).collect();
        Node { mode: 0o10_0644, size, map, ..Node::default() }
    }

    /// A file whose blocks are found by extents.
    pub fn with_extents(size: u64, map: Vec<u8>) -> Node {
        Node { mode: 0o10_0644, size, flags: flag::EXTENTS, map, ..Node::default() }
    }

    /// A symbolic link whose target is in the inode.
    pub fn link(target: &str) -> Node {
        Node { mode: 0o12_0777, size: target.len() as u64, map: target.into(), ..Node::default() }
    }
}

/// A file system.
#[derive(Clone)]
pub struct Image {
    pub disk: Disk,
    pub layout: Layout,
    folders: BTreeMap<u32, Vec<(Vec<u8>, u32)>>,
    next_inode: u32,
    next_block: u32,
}

/// The inode of the root folder.
pub const ROOT: u32 = 2;
/// The inode that file systems use for the journal.
pub const JOURNAL: u32 = 8;

/// Offsets of superblock fields.
pub mod superblock {
    pub const START: u64 = 1024;
    pub const BLOCKS: u64 = 4;
    pub const LOG_BLOCK_BYTES: u64 = 0x18;
    pub const GROUP_BLOCKS: u64 = 0x20;
    pub const GROUP_INODES: u64 = 0x28;
    pub const MAGIC: u64 = 0x38;
    pub const REVISION: u64 = 0x4c;
    pub const INODE_BYTES: u64 = 0x58;
    pub const COMPATIBLE: u64 = 0x5c;
    pub const INCOMPATIBLE: u64 = 0x60;
    pub const JOURNAL_INODE: u64 = 0xe0;
    pub const DESCRIPTOR_BYTES: u64 = 0xfe;
    pub const BLOCKS_HIGH: u64 = 0x150;
}

/// Features of a file system.
pub mod feature {
    pub const HAS_JOURNAL: u32 = 4;
    pub const RECOVER: u32 = 4;
    pub const BITS_64: u32 = 0x80;
}

impl Image {
    /// An image with an empty root folder.
    pub fn new(layout: Layout) -> Image {
        let size_bytes = layout.blocks * layout.block_bytes;
        let disk = Disk { size_bytes, ..Disk::default() };
        let folders = BTreeMap::from([(ROOT, Vec::new())]);
        let mut image = Image { disk, layout, folders, next_inode: 12, next_block: 200 };
        let wide = layout.wide_descriptors;
        image.set(0, &layout.inodes.to_le_bytes());
        image.set(superblock::BLOCKS, &(layout.blocks as u32).to_le_bytes());
        image.set(superblock::BLOCKS_HIGH, &((layout.blocks >> 32) as u32).to_le_bytes());
        image.set(superblock::LOG_BLOCK_BYTES, &(layout.block_bytes.ilog2() - 10).to_le_bytes());
        image.set(superblock::GROUP_BLOCKS, &8192_u32.to_le_bytes());
        image.set(superblock::GROUP_INODES, &layout.group_inodes.to_le_bytes());
        image.set(superblock::MAGIC, &[0x53, 0xef]);
        image.set(superblock::REVISION, &1_u32.to_le_bytes());
        image.set(superblock::INODE_BYTES, &layout.inode_bytes.to_le_bytes());
        let features = if wide.is_some() { feature::BITS_64 } else { 0 };
        image.set(superblock::INCOMPATIBLE, &features.to_le_bytes());
        image.set(superblock::DESCRIPTOR_BYTES, &wide.unwrap_or(0).to_le_bytes());
        // The group descriptors begin in the block after the superblock.
        let descriptors = if layout.block_bytes == 1024 { 2048 } else { layout.block_bytes };
        for group in 0..u64::from(layout.inodes.div_ceil(layout.group_inodes)) {
            let at = descriptors + group * u64::from(wide.unwrap_or(32));
            let table = image.table(group);
            image.disk.put(at + 8, &(table as u32).to_le_bytes());
            if wide.is_some() {
                image.disk.put(at + 0x28, &((table >> 32) as u32).to_le_bytes());
            }
        }
        image
    }

    /// The first block of the table of a group's inodes.
    fn table(&self, group: u64) -> u64 {
        self.layout.tables.0 + group * self.layout.tables.1
    }

    /// Sets bytes of the superblock.
    pub fn set(&mut self, field: u64, bytes: &[u8]) {
        self.disk.put(superblock::START + field, bytes);
    }

    /// Writes an inode.
    pub fn put_inode(&mut self, number: u32, node: &Node) {
        let (group, index) =
            ((number - 1) / self.layout.group_inodes, (number - 1) % self.layout.group_inodes);
        let table = self.table(group.into()) * self.layout.block_bytes;
        let mut bytes = vec![0; self.layout.inode_bytes.into()];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &node.mode.to_le_bytes());
        put(2, &(node.uid as u16).to_le_bytes());
        put(4, &(node.size as u32).to_le_bytes());
        put(0x10, &node.modified.0.to_le_bytes());
        put(0x18, &(node.gid as u16).to_le_bytes());
        put(0x20, &node.flags.to_le_bytes());
        put(0x28, &node.map);
        put(0x6c, &((node.size >> 32) as u32).to_le_bytes());
        put(0x78, &((node.uid >> 16) as u16).to_le_bytes());
        put(0x7a, &((node.gid >> 16) as u16).to_le_bytes());
        if self.layout.inode_bytes > 128 {
            // The number of bytes in use after the first 128 bytes.
            put(0x80, &32_u16.to_le_bytes());
            // Nanoseconds are in the bits above the two bits of the time.
            put(0x88, &(999_999_999 << 2 | node.modified.1).to_le_bytes());
        }
        self.disk.put(table + u64::from(index) * u64::from(self.layout.inode_bytes), &bytes);
    }

    /// Adds a file to the root folder. Returns the number of its inode.
    pub fn add(&mut self, name: &str, node: &Node) -> u32 {
        self.add_in(ROOT, name, node)
    }

    /// Adds a file to a folder.
    pub fn add_in(&mut self, folder: u32, name: &str, node: &Node) -> u32 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.put_inode(number, node);
        self.name(folder, name, number);
        number
    }

    /// Gives an inode a name in a folder.
    pub fn name(&mut self, folder: u32, name: &str, inode: u32) {
        self.folders.get_mut(&folder).unwrap().push((name.into(), inode));
    }

    /// Adds an empty folder to a folder.
    pub fn add_folder(&mut self, folder: u32, name: &str) -> u32 {
        let number = self.add_in(folder, name, &Node::default());
        self.folders.insert(number, Vec::new());
        number
    }

    /// Writes a block that is not in use, and returns its number.
    pub fn add_block(&mut self, contents: &[u8]) -> u32 {
        assert!(contents.len() as u64 <= self.layout.block_bytes);
        let number = self.next_block;
        self.next_block += 1;
        self.put_block(number.into(), contents);
        number
    }

    pub fn put_block(&mut self, number: u64, contents: &[u8]) {
        self.disk.put(number * self.layout.block_bytes, contents);
    }

    /// The disk with the entries of all folders. Each folder has one block.
    pub fn finished(&self) -> Disk {
        let mut image = self.clone();
        for (number, entries) in &self.folders {
            let listed: Vec<(&[u8], u32)> = [(&b"."[..], *number), (b"..", ROOT)]
                .into_iter()
                .chain(entries.iter().map(|(name, inode)| (&name[..], *inode)))
                .collect();
            let block = image.add_block(&folder_block(&listed, self.layout.block_bytes as usize));
            let size = self.layout.block_bytes;
            image.put_inode(*number, &Node { mode: 0o4_0755, ..Node::file(size, &[block]) });
        }
        image.disk
    }

    /// Opens the file system.
    pub fn open(&self) -> Files {
        Files::open(self.finished()).unwrap()
    }

    /// The error at opening the file system, without its beginning.
    pub fn refusal(&self) -> String {
        sentence(Files::open(self.finished()).err().unwrap())
    }
}

/// The text of an error without its beginning.
pub fn sentence(error: guest_disk::Error) -> String {
    let text = error.to_string();
    let rest = text.strip_prefix("the file system on the guest's disk cannot be read: ");
    rest.map_or(text.clone(), str::to_string)
}

/// A block of a folder with these entries. The last entry ends where the block ends.
pub fn folder_block(entries: &[(&[u8], u32)], block_bytes: usize) -> Vec<u8> {
    let mut block = Vec::new();
    for (index, (name, inode)) in entries.iter().enumerate() {
        let length = (8 + name.len()).next_multiple_of(4);
        let length = if index + 1 == entries.len() { block_bytes - block.len() } else { length };
        let end = block.len() + length;
        block.extend(inode.to_le_bytes());
        // A length of 64 KiB is stored as 0.
        block.extend((length as u16).to_le_bytes());
        block.extend([name.len() as u8, 0]);
        block.extend(*name);
        assert!(block.len() <= end, "the entries do not fit into a block");
        block.resize(end, 0);
    }
    block
}

/// An entry of a tree of extents.
#[derive(Clone, Copy)]
pub enum Extent {
    /// The first block of the file, the length with the bit for blocks without contents, and the first block.
    Leaf(u32, u16, u64),
    /// The first block of the file, and the block with the next level of the tree.
    Index(u32, u64),
}

/// A node of a tree of extents.
pub fn extents(depth: u16, entries: &[Extent]) -> Vec<u8> {
    let mut bytes = vec![0x0a, 0xf3];
    for half in [entries.len() as u16, entries.len() as u16, depth, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for entry in entries {
        match *entry {
            Extent::Leaf(first, length, block) => {
                bytes.extend(first.to_le_bytes());
                bytes.extend(length.to_le_bytes());
                bytes.extend(((block >> 32) as u16).to_le_bytes());
                bytes.extend((block as u32).to_le_bytes());
            }
            Extent::Index(first, block) => {
                bytes.extend(first.to_le_bytes());
                bytes.extend((block as u32).to_le_bytes());
                bytes.extend(((block >> 32) as u16).to_le_bytes());
                // Linux does not use these bytes.
                bytes.extend([0xff; 2]);
            }
        }
    }
    bytes
}

/// Contents that are different in each block.
pub fn contents(block: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| (seeded::mix(block << 16 | at / 8) >> (at % 8 * 8)) as u8).collect()
}

/// The whole contents of a file, read in pieces of at most `step` bytes.
pub fn read(files: &mut Files, path: &str, step: usize) -> Result<Vec<u8>, String> {
    let mut file = files.read(path.as_bytes()).map_err(sentence)?;
    let (mut all, mut part) = (Vec::new(), vec![0xaa; step]);
    loop {
        match file.read(&mut part).map_err(sentence)? {
            0 => return Ok(all),
            count => all.extend(&part[..count]),
        }
    }
}
