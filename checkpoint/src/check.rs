//! One number for everything that a checkpoint's maps say.
//!
//! A checkpoint's file lists only what changed, so its contents depend on the files before it. If one of those is
//! missing, or belongs to another store, every file may still be whole by itself; the number that was
//! written down when the checkpoint was taken tells.

use twox_hash::XxHash3_128;

use crate::map::{Maps, PageMap, PageRef, Space};
use crate::table::{BlobTable, Digest};

/// The check of `maps`, whose versions are in `blobs`: a sum with one term for each page that is not as at
/// power-on, which depends on the contents alone and not on the numbers of versions.
pub(crate) fn maps_check(maps: &Maps, blobs: &BlobTable) -> u64 {
    let of_space = |space: Space| sum(maps.space(space), space as u64, blobs);
    of_space(Space::Ram).wrapping_add(of_space(Space::Disk))
}

fn sum(map: &PageMap, space: u64, blobs: &BlobTable) -> u64 {
    map.iter_not_base().fold(0, |sum, (page, version)| {
        let term = XxHash3_128::oneshot_with_seed(page << 1 | space, &digest_of(version, blobs)) as u64;
        sum.wrapping_add(term)
    })
}

/// Of a page of zeroes there is no digest in the table; no page's is likely to be that of no bytes at all.
fn digest_of(version: &PageRef, blobs: &BlobTable) -> Digest {
    let row = version.stored().and_then(|id| blobs.get(id));
    row.map_or([0; 16], |row| row.digest)
}
