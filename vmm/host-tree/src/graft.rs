//! Folders and files that the guest sees at other places than the host.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::fs::{FileType, fstat, readlinkat};

use crate::beneath::Base;
use crate::options::{Error, Graft, Grafted};

/// The largest number of symbolic links on the way to a graft, as in Linux.
const MOST_LINKS: usize = 40;

/// The grafts below a folder, by name.
pub(crate) type Grafts = BTreeMap<Vec<u8>, Planted>;

/// A name on the way to a graft, or the graft's own name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Planted {
    /// `None` for a folder that only leads to grafts.
    pub(crate) what: Option<What>,
    /// The grafts below.
    pub(crate) below: Arc<Grafts>,
}

/// The folder or file of a graft.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// The folder of the base with this number.
    Base(usize),
    /// A file with these permission bits.
    File(Arc<[u8]>, u16),
}

/// The grafts of a tree. Grafted folders become bases behind the first base, which is the root.
pub(crate) fn plant(grafts: &[Graft], bases: &mut Vec<Base>) -> Result<Arc<Grafts>, Error> {
    let mut all = Planted::default();
    for graft in grafts {
        let names = names(&bases[0], &graft.at)?;
        let mut place = &mut all;
        for name in names {
            place = Arc::make_mut(&mut place.below).entry(name).or_default();
        }
        place.what = Some(match &graft.what {
            Grafted::Folder(path) => {
                bases.push(Base::open(path)?);
                What::Base(bases.len() - 1)
            }
            Grafted::File(bytes, permissions) => What::File(bytes.as_slice().into(), *permissions),
        });
    }
    Ok(all.below)
}

/// The names that lead to a path of the guest. Symbolic links of the root are followed, apart from the last name.
fn names(root: &Base, at: &Path) -> Result<Vec<Vec<u8>>, Error> {
    if !at.is_absolute() {
        return Err(Error::NotAbsolute { path: at.into() });
    }
    let (mut names, mut rest, mut links) = (Vec::<Vec<u8>>::new(), parts(at), 0);
    while let Some(name) = rest.pop_front() {
        if name == b".." {
            names.pop();
            continue;
        }
        names.push(name);
        if rest.is_empty() || links == MOST_LINKS {
            continue;
        }
        if let Some(target) = link_target(root, &names) {
            links += 1;
            names.pop();
            if target.is_absolute() {
                names.clear();
            }
            let mut target = parts(&target);
            target.append(&mut rest);
            rest = target;
        }
    }
    if names.is_empty() { Err(Error::GraftAtRoot { path: at.into() }) } else { Ok(names) }
}

/// The names in a path, with `..`.
fn parts(path: &Path) -> VecDeque<Vec<u8>> {
    let parts = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.as_bytes().to_vec()),
        Component::ParentDir => Some(b"..".to_vec()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// The target if names lead to a symbolic link.
fn link_target(root: &Base, names: &[Vec<u8>]) -> Option<std::path::PathBuf> {
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let found = root.find(&names).ok()?;
    let is_link = FileType::from_raw_mode(fstat(&found).ok()?.st_mode) == FileType::Symlink;
    let target = is_link.then(|| readlinkat(&found, "", Vec::new()).ok()).flatten()?;
    Some(std::ffi::OsStr::from_bytes(target.as_bytes()).into())
}
