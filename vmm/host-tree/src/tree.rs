//! The tree of the host's folders and files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use ext4_layout::{Entry, Id, Identity, Kind, Time, Tree};
use rustix::fs::{Stat, fstat};

use crate::beneath::{Base, open_folder};
use crate::entries::{Found, Listing, entry_of, identity, list};
use crate::files::{OpenFiles, Read};
use crate::graft::{Grafts, Planted, What, plant};
use crate::hidden::Hidden;
use crate::options::{Error, Options};
use crate::place::{FileState, Places, Source};
use crate::warning::{Warning, WarningKind};

/// The number of the root.
const ROOT: Id = Id(0);
/// The device of files that the host does not have.
const NO_DEVICE: u64 = u64::MAX;

/// The bytes of a file cannot be had. The warnings of the tree say why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} cannot be read", path.display())]
pub struct Unreadable {
    /// The path on the host.
    pub path: PathBuf,
}

/// Folders and files of the host, as a guest sees them.
#[derive(Debug)]
pub struct HostTree {
    bases: Vec<Base>,
    places: Places,
    hidden: Hidden,
    time: Time,
    open: OpenFiles,
    warnings: Vec<Warning>,
    root: Entry,
}

impl HostTree {
    /// Opens the root and the grafted folders.
    ///
    /// # Errors
    ///
    /// If a folder cannot be opened, a path is not absolute, or the host lacks `openat2` or /proc.
    pub fn new(options: &Options) -> Result<HostTree, Error> {
        let mut bases = vec![Base::open(&options.root)?];
        bases[0].check_host()?;
        let grafts = plant(&options.grafts, &mut bases)?;
        let hidden = Hidden::new(&options.hidden)?;
        let mut places = Places::default();
        places.add(ROOT, b"", Source::Base(0, grafts));
        let root =
            stat_base(&bases[0]).map_err(|source| Error::Folder { path: options.root.clone(), source })?;
        let root = Entry { id: ROOT, ..entry_of(b"", Kind::Folder, &root) };
        let (open, warnings) = (OpenFiles::default(), Vec::new());
        Ok(HostTree { bases, places, hidden, time: options.time, open, warnings, root })
    }

    /// The entry of the root, for a layout.
    pub fn root(&self) -> &Entry {
        &self.root
    }

    /// Reads the part of a file that begins at `offset`. Bytes behind the end of the file are zero.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or changed after its folder was listed. A file that once changed stays unreadable.
    pub fn read(&mut self, file: Id, offset: u64, bytes: &mut [u8]) -> Result<(), Unreadable> {
        bytes.fill(0);
        let state = match &self.places.get(file).source {
            Source::Bytes(contents) => {
                let rest = contents.get(offset as usize..).unwrap_or_default();
                let count = rest.len().min(bytes.len());
                bytes[..count].copy_from_slice(&rest[..count]);
                return Ok(());
            }
            Source::File(state) if !self.places.get(file).is_warned => *state,
            _ => return Err(Unreadable { path: self.path(file) }),
        };
        let HostTree { bases, places, open, .. } = self;
        let find = || {
            let (base, names) = places.way(file);
            bases[base.unwrap_or_default()].find(&names)
        };
        let kind = match open.read(file, &state, find, offset, bytes) {
            Read::Done => return Ok(()),
            Read::Changed => WarningKind::Changed,
            Read::Failed(error) => WarningKind::Unreadable(error.to_string()),
        };
        self.warn(file, kind);
        Err(Unreadable { path: self.path(file) })
    }

    /// The warnings since the last call, in their order. There is at most one about each file.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    /// The path of a folder or a file on the host. A place that the host does not have has its path in the guest.
    fn path(&self, id: Id) -> PathBuf {
        let (base, names) = self.places.way(id);
        self.bases[base.unwrap_or_default()].path(&names)
    }

    fn warn(&mut self, id: Id, kind: WarningKind) {
        if !self.places.get(id).is_warned {
            self.places.get_mut(id).is_warned = true;
            self.warnings.push(Warning { path: self.path(id), kind });
        }
    }

    /// The entries of a folder of the host, without hidden ones.
    fn list_host(&mut self, id: Id) -> Vec<Entry> {
        let (base, names) = self.places.way(id);
        let base = &self.bases[base.unwrap_or_default()];
        let listed = base.find(&names).and_then(|found| {
            let is_hidden = self.hidden.has_inode(identity(&fstat(&found)?));
            let folder = if is_hidden { None } else { open_folder(&found)? };
            folder.map_or_else(|| Ok(Listing::default()), list)
        });
        let path = base.path(&names);
        let Listing { found, lost } = listed.unwrap_or_else(|error| {
            self.warn(id, WarningKind::EmptyFolder(error.to_string()));
            Listing::default()
        });
        for (name, error) in lost {
            let path = path.join(OsStr::from_bytes(&name));
            self.warnings.push(Warning { path, kind: WarningKind::Missing(error.to_string()) });
        }
        let mut entries = Vec::with_capacity(found.len());
        for Found { entry, is_readable } in found {
            if !self.hidden.has(&path, &entry.name, entry.identity) {
                entries.push(self.number(id, entry, is_readable));
            }
        }
        entries
    }

    /// Gives a number to an entry of a folder.
    fn number(&mut self, folder: Id, mut entry: Entry, is_readable: bool) -> Entry {
        let source = match entry.kind {
            Kind::Folder => Source::Folder(Arc::default()),
            Kind::File => Source::File(FileState::from(&entry)),
            _ => return entry,
        };
        entry.id = self.places.add(folder, &entry.name, source);
        if !is_readable {
            entry.size_bytes = 0;
            self.warn(entry.id, WarningKind::EmptyFile);
        }
        entry
    }

    /// Puts grafts into the list of a folder's entries.
    fn graft(&mut self, folder: Id, grafts: &Grafts, entries: &mut Vec<Entry>) {
        for (name, planted) in grafts {
            let host = entries.iter().find(|entry| entry.name == *name && entry.kind == Kind::Folder);
            if let (Some(host), None) = (host, &planted.what) {
                self.places.get_mut(host.id).source = Source::Folder(planted.below.clone());
                continue;
            }
            entries.retain(|entry| entry.name != *name);
            entries.extend(self.grafted(folder, name, planted));
        }
    }

    /// The entry of a graft; `None` if its folder cannot be looked at.
    fn grafted(&mut self, folder: Id, name: &[u8], planted: &Planted) -> Option<Entry> {
        let below = planted.below.clone();
        let source = match &planted.what {
            None => Source::Made(below),
            Some(What::Base(base)) => Source::Base(*base, below),
            Some(What::File(bytes, _)) => Source::Bytes(bytes.clone()),
        };
        let id = self.places.add(folder, name, source);
        match &planted.what {
            None => Some(self.made(id, name, Kind::Folder, 0o755, 0)),
            Some(What::File(bytes, permissions)) => {
                Some(self.made(id, name, Kind::File, *permissions, bytes.len() as u64))
            }
            Some(What::Base(base)) => {
                let stat = stat_base(&self.bases[*base]).ok()?;
                Some(Entry { id, ..entry_of(name, Kind::Folder, &stat) })
            }
        }
    }

    /// The entry of a folder or a file that the host does not have.
    fn made(&self, id: Id, name: &[u8], kind: Kind, permissions: u16, size_bytes: u64) -> Entry {
        let (name, identity) = (name.to_vec(), Identity { device: NO_DEVICE, inode: id.0 });
        let (mtime, ctime) = (self.time, self.time);
        Entry { name, id, kind, permissions, uid: 0, gid: 0, size_bytes, mtime, ctime, links: 1, identity }
    }
}

impl Tree for HostTree {
    fn list(&mut self, folder: Id) -> Vec<Entry> {
        let (mut entries, grafts) = match self.places.get(folder).source.clone() {
            Source::Base(_, grafts) | Source::Folder(grafts) => (self.list_host(folder), grafts),
            Source::Made(grafts) => (Vec::new(), grafts),
            Source::File(_) | Source::Bytes(_) => unreachable!("a layout lists folders only"),
        };
        self.graft(folder, &grafts, &mut entries);
        entries
    }

    fn no_room(&mut self, folder: Id, name: &[u8]) {
        let mut path = self.path(folder);
        if !name.is_empty() {
            path.push(OsStr::from_bytes(name));
        }
        self.warnings.push(Warning { path, kind: WarningKind::NoRoom });
    }
}

fn stat_base(base: &Base) -> std::io::Result<Stat> {
    Ok(fstat(base.find(&[])?)?)
}
