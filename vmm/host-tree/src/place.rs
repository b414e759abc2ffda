//! The tree's memory of the folders and files that have a number.

use std::sync::Arc;

use ext4_layout::{Entry, Id, Identity, Time};

use crate::graft::Grafts;

/// A folder or a file.
#[derive(Debug)]
pub(crate) struct Place {
    /// The number of the folder that has the place. The root is its own parent.
    pub(crate) parent: u32,
    pub(crate) name: Box<[u8]>,
    pub(crate) source: Source,
    /// A user was warned about the place.
    pub(crate) is_warned: bool,
}

/// Where a place has its contents from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A folder that the host does not have, with these grafts.
    Made(Arc<Grafts>),
    /// The folder of the base with this number, with grafts.
    Base(usize, Arc<Grafts>),
    /// A folder of the host that is in the folder above, with grafts.
    Folder(Arc<Grafts>),
    /// A file of the host that is in the folder above. The state was read when the folder was listed.
    File(FileState),
    /// A file that the host does not have.
    Bytes(Arc<[u8]>),
}

/// By which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    identity: Identity,
    pub(crate) size_bytes: u64,
    mtime: Time,
    ctime: Time,
}

impl From<&Entry> for FileState {
    fn from(entry: &Entry) -> FileState {
        let &Entry { identity, size_bytes, mtime, ctime, .. } = entry;
        FileState { identity, size_bytes, mtime, ctime }
    }
}

/// All places. The number of a place is the number by which a layout names the folder or file.
#[derive(Debug, Default)]
pub(crate) struct Places {
    places: Vec<Place>,
}

impl Places {
    pub(crate) fn add(&mut self, parent: Id, name: &[u8], source: Source) -> Id {
        let id = Id(self.places.len() as u64);
        self.places.push(Place { parent: parent.0 as u32, name: name.into(), source, is_warned: false });
        id
    }

    pub(crate) fn get(&self, id: Id) -> &Place {
        &self.places[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> &mut Place {
        &mut self.places[id.0 as usize]
    }

    /// The base that has a place, and the names that lead from the base to the place. A place that the host does not have
    /// has no base, but names from the root.
    pub(crate) fn way(&self, id: Id) -> (Option<usize>, Vec<&[u8]>) {
        let (mut at, mut names) = (id, Vec::new());
        let mut is_made = false;
        loop {
            let place = self.get(at);
            is_made |= matches!(place.source, Source::Made(_) | Source::Bytes(_));
            match place.source {
                Source::Base(base, _) if !is_made => {
                    names.reverse();
                    return (Some(base), names);
                }
                _ if place.parent == at.0 as u32 => {
                    names.reverse();
                    return (None, names);
                }
                _ => names.push(&*place.name),
            }
            at = Id(place.parent.into());
        }
    }
}
