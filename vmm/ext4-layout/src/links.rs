//! Recognizes names that are hard links to one file of the host.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

use crate::node::MOST_LINKS;
use crate::tree::{Entry, Identity, Kind, Time};

/// Files that have several names on the host.
#[derive(Debug, Default)]
pub(crate) struct Links {
    known: BTreeMap<Identity, Known>,
    /// Files whose identity another file has got since.
    replaced: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    node: u32,
    /// The number of names that listings showed so far.
    names: u32,
    /// The number of links when the first name was listed. The guest has seen this number.
    links: u32,
    kind: Discriminant<Kind>,
    size_bytes: u64,
    mtime: Time,
}

impl Links {
    /// The node that the entry is a further name of. A node never gets more names than links, because a guest that deletes
    /// all links of an inode gives the inode away.
    pub(crate) fn join(&mut self, entry: &Entry) -> Option<u32> {
        if !has_links(entry) {
            return None;
        }
        let known = self.known.get_mut(&entry.identity)?;
        let same = known.kind == discriminant(&entry.kind)
            && (known.size_bytes, known.mtime) == (entry.size_bytes, entry.mtime);
        if !same || known.names >= known.links {
            return None;
        }
        known.names += 1;
        Some(known.node)
    }

    /// Remembers the first name of a node.
    pub(crate) fn add(&mut self, entry: &Entry, node: u32) {
        if has_links(entry) {
            let links = entry.links.min(MOST_LINKS);
            let (kind, size_bytes, mtime) = (discriminant(&entry.kind), entry.size_bytes, entry.mtime);
            let known = Known { node, names: 1, links, kind, size_bytes, mtime };
            self.replaced.extend(self.known.insert(entry.identity, known));
        }
    }

    /// Each node with several links, and the number of its names.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u32, u32)> {
        self.known.values().chain(&self.replaced).map(|known| (known.node, known.names))
    }
}

fn has_links(entry: &Entry) -> bool {
    entry.links > 1 && entry.kind != Kind::Folder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Id;

    fn entry(links: u32, kind: Kind, size_bytes: u64) -> Entry {
        let (mtime, ctime) = (Time::default(), Time::default());
        let identity = Identity { device: 1, inode: 2 };
        let (name, id) = (b"name".to_vec(), Id(0));
        Entry {
            name,
            id,
            kind,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            size_bytes,
            mtime,
            ctime,
            links,
            identity,
        }
    }

    #[test]
    fn a_node_gets_no_more_names_than_links() {
        let mut links = Links::default();
        let file = entry(3, Kind::File, 5);
        assert_eq!(links.join(&file), None);
        links.add(&file, 7);
        assert_eq!((links.join(&file), links.join(&file), links.join(&file)), (Some(7), Some(7), None));
        links.add(&file, 8);
        assert_eq!(links.join(&file), Some(8));
        let mut names: Vec<_> = links.names().collect();
        names.sort();
        assert_eq!(names, [(7, 3), (8, 2)]);
    }

    #[test]
    fn other_files_do_not_join() {
        let mut links = Links::default();
        links.add(&entry(3, Kind::File, 5), 7);
        for other in [entry(1, Kind::File, 5), entry(3, Kind::Fifo, 5), entry(3, Kind::File, 6)] {
            assert_eq!(links.join(&other), None);
        }
        links.add(&entry(2, Kind::Folder, 5), 9);
        assert_eq!(links.names().collect::<Vec<_>>(), [(7, 1)]);
    }
}
