//! A checksum of a checkpoint's maps.
//!
//! A checkpoint's file lists only changes, so its contents depend on the files before it. If an earlier file is
//! missing, or belongs to another store, each remaining file may still be valid alone. In such a case the computed
//! checksum differs from the checksum that was stored with the checkpoint.

use twox_hash::XxHash3_128;

use crate::map::{Maps, PageMap, PageRef, Space};
use crate::table::{BlobTable, Digest};

/// The check (the checksum) of `maps`, whose versions are in `blobs`. The check is a sum with one term for each page
/// that changed since power-on. The check depends on the contents alone, not on the numbers of versions.
pub(crate) fn maps_check(maps: &Maps, blobs: &BlobTable) -> u64 {
    let of_space = |space: Space| sum(maps.space(space), space as u64, blobs);
    of_space(Space::Ram).wrapping_add(of_space(Space::Disk))
}

/// The check of `maps`, computed from `earlier` maps and their check. Looks only at pages that differ: a recorder's
/// checkpoint changes few of a machine's pages. `None` if a version of the earlier maps is no longer in `blobs`.
pub(crate) fn maps_check_from(earlier: &Maps, check: u64, maps: &Maps, blobs: &BlobTable) -> Option<u64> {
    [Space::Ram, Space::Disk].into_iter().try_fold(check, |check, space| {
        let (before, now) = (earlier.space(space), maps.space(space));
        now.changed_since(before).try_fold(check, |check, (page, version)| {
            let old = before.get(page);
            if old.stored().is_some_and(|id| blobs.get(id).is_none()) {
                return None;
            }
            let [old, new] = [old, version].map(|version| term(page, version, space as u64, blobs));
            Some(check.wrapping_sub(old).wrapping_add(new))
        })
    })
}

fn sum(map: &PageMap, space: u64, blobs: &BlobTable) -> u64 {
    map.iter_not_base().fold(0, |sum, (page, version)| sum.wrapping_add(term(page, version, space, blobs)))
}

/// A page's term of the sum. A page with its contents of power-on has no term.
fn term(page: u64, version: &PageRef, space: u64, blobs: &BlobTable) -> u64 {
    match version {
        PageRef::Base => 0,
        version => XxHash3_128::oneshot_with_seed(page << 1 | space, &digest_of(version, blobs)) as u64,
    }
}

/// The digest of a version. The table has no digest of a zero page, which gets zero bytes instead. No page is likely to
/// have that digest.
fn digest_of(version: &PageRef, blobs: &BlobTable) -> Digest {
    let row = version.stored().and_then(|id| blobs.get(id));
    row.map_or([0; 16], |row| row.digest)
}
