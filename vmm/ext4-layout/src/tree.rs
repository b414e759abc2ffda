//! The folders and files that a layout shows, and the trait that provides them.

/// A number that a [`Tree`] gives to a folder or a file. The layout only repeats the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

/// A time since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after these seconds, below 10^9.
    pub nanoseconds: u32,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder, which [`Tree::list`] lists.
    Folder,
    /// A file with contents, which the reader of [`crate::Block::File`] provides.
    File,
    /// A symbolic link, with its target: 1 to 4095 bytes without a zero byte.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device, with its major and minor number.
    CharacterDevice(u32, u32),
    /// A block device, with its major and minor number.
    BlockDevice(u32, u32),
}

/// A device and an inode of the host. Two names with equal identities are hard links to one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The number of the device that has the host's file system.
    pub device: u64,
    /// The number of the inode in this file system.
    pub inode: u64,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name: 1 to 255 bytes without `/` and zero bytes. The names `.` and `..` do not count as entries.
    pub name: Vec<u8>,
    /// The number by which the layout asks for the folder, or names the file. No other kind uses the number.
    pub id: Id,
    /// The kind.
    pub kind: Kind,
    /// The permission bits, with set-user-ID, set-group-ID and the sticky bit: at most 0o7777.
    pub permissions: u16,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The size of a file's contents in bytes. No other kind uses the size.
    pub size_bytes: u64,
    /// The time of the last change of the contents.
    pub mtime: Time,
    /// The time of the last change of the inode.
    pub ctime: Time,
    /// The number of hard links to the inode. A folder does not use this number.
    pub links: u32,
    /// The inode of the host, for recognizing hard links. A folder does not use the identity.
    pub identity: Identity,
}

/// The tree of folders that a layout shows.
///
/// Calling contract: all calls come from the thread that calls [`crate::Layout::block`], inside this call.
pub trait Tree {
    /// Lists a folder. The layout asks once per folder, and sorts the entries. An unreadable folder is an empty listing.
    ///
    /// The layout leaves out entries whose name or symbolic link [`Entry`] does not allow, and all but one of the entries
    /// with equal names.
    fn list(&mut self, folder: Id) -> Vec<Entry>;

    /// Reports that the disk has no room for the entry `name` of `folder`: the guest sees no such entry, or a file without
    /// contents. An empty `name` stands for the list of all names of the folder: the guest sees an empty folder.
    fn no_room(&mut self, folder: Id, name: &[u8]);
}
