//! Chooses the checkpoints to remove. Many recent checkpoints and few old checkpoints stay, within the cap.

use crate::error::Result;
use crate::index::Entry;
use crate::page::PAGE_BYTES;
use crate::store::{Store, Writer};

/// The largest number of checkpoints to try, until one is found whose removal needs a small enough temporary file.
const ATTEMPTS: usize = 8;
/// A gap between two checkpoints is large from this number of positions on: a user notices how long its replay
/// takes. If positions count instructions, replaying this gap takes about half a second. Recordings whose positions
/// count exits of KVM never have such a gap.
const LARGE_GAP: f64 = 4e8;
/// The cost of a large gap grows with this power of its length. With the sixth power, the large gaps of a long run
/// are nearly equal.
const LARGE_GAP_POWER: i32 = 6;
/// With equal gaps only, there would be no checkpoint near the end of a long run. So no gap grows beyond this share
/// of its distance from the newest checkpoint while another gap can grow.
const LARGEST_SHARE: f64 = 0.25;

/// The limits of a store. Each limit that is set must hold; the default limits only the number of
/// checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The largest total size of all files in bytes, including files that are being written; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// Guest time before the newest checkpoint, in nanoseconds, beyond which only one checkpoint is kept; `None` for no
    /// limit.
    pub keep_last_ns: Option<u64>,
    /// The largest number of checkpoints.
    pub max_checkpoints: usize,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { max_bytes: None, keep_last_ns: None, max_checkpoints: 4096 }
    }
}

impl Store {
    /// Removes checkpoints until the policy holds, and returns them.
    ///
    /// First removes the checkpoints older than `keep_last_ns`, except the newest old one: replay needs it to reach
    /// the oldest wanted moment. Then removes checkpoints one by one while their number or their size exceeds a
    /// limit. The checkpoint that is removed next has the smallest gap around it, relative to its distance from the
    /// newest checkpoint. So the gaps grow exponentially into the past, until replaying a gap would take some time.
    /// If all other checkpoints are removed, the first checkpoint is removed next, and the newest checkpoint last.
    /// A cap smaller than any checkpoint leaves no checkpoint.
    ///
    /// # Errors
    ///
    /// The same errors as [`Store::remove`]. Checkpoints that were removed before the error stay removed.
    pub fn thin(&self, policy: &Policy) -> Result<Vec<Entry>> {
        self.thin_lazily(policy, 1)
    }

    /// Works like [`Store::thin`], for a run that ended at the guest time `end_ns`, which may be later than the
    /// newest checkpoint. `keep_last_ns` counts back from `end_ns`.
    ///
    /// # Errors
    ///
    /// As [`Store::thin`].
    pub fn thin_at_end(&self, policy: &Policy, end_ns: u64) -> Result<Vec<Entry>> {
        self.thin_from(policy, 1, Some(end_ns))
    }

    /// Works like [`Store::thin`], but removes old checkpoints only once `patience` checkpoints are too old.
    pub(crate) fn thin_lazily(&self, policy: &Policy, patience: usize) -> Result<Vec<Entry>> {
        self.thin_from(policy, patience, None)
    }

    fn thin_from(&self, policy: &Policy, patience: usize, end_ns: Option<u64>) -> Result<Vec<Entry>> {
        let mut writer = self.writer()?;
        let mut removed = Vec::new();
        let old = too_old(&self.entries(), policy.keep_last_ns, end_ns);
        if old.len() >= patience {
            // The oldest file is the largest. Remove the oldest checkpoint last, so that its pages are copied
            // only once.
            for position in old.into_iter().rev() {
                removed.extend(self.remove_whole(&mut writer, position, self.spare(policy))?);
            }
        }
        loop {
            let entries = self.entries();
            let too_large = policy.max_bytes.is_some_and(|max| self.total_bytes() > max);
            if entries.is_empty() || (entries.len() <= policy.max_checkpoints && !too_large) {
                return Ok(removed);
            }
            let mut candidates = by_sparseness(&entries);
            candidates.extend([0, entries.len() - 1]);
            match self.remove_first_that_fits(&mut writer, &entries, &candidates, self.spare(policy))? {
                Some(entry) => removed.push(entry),
                None => return Ok(removed),
            }
        }
    }

    /// The largest size of a merge's temporary file in bytes. There is no limit for a store above its cap, because
    /// the merge makes such a store smaller.
    fn spare(&self, policy: &Policy) -> u64 {
        policy.max_bytes.map_or(u64::MAX, |max| max.checked_sub(self.total_bytes()).unwrap_or(u64::MAX))
    }

    /// Makes room for an unfinished file of `part_bytes`. Does not remove the newest checkpoint, because the
    /// unfinished file follows it. Returns the number of further bytes that would fit, or `None` if even
    /// `part_bytes` do not fit.
    pub(crate) fn thin_for(
        &self,
        writer: &mut Writer,
        policy: &Policy,
        part_bytes: u64,
    ) -> Result<Option<u64>> {
        let Some(max) = policy.max_bytes else { return Ok(Some(u64::MAX)) };
        loop {
            let used = self.total_bytes() + part_bytes;
            let entries = self.entries();
            let goal = goal_bytes(max, writer.merges.room(self.shape.ram_pages * PAGE_BYTES as u64));
            if used <= goal {
                return Ok(Some(goal - used));
            }
            let mut candidates = by_sparseness(&entries);
            if entries.len() > 1 {
                candidates.push(0);
            }
            let spare = max.saturating_sub(used);
            if self.remove_first_that_fits(writer, &entries, &candidates, spare)?.is_none() {
                return Ok(max.checked_sub(used));
            }
        }
    }

    fn remove_first_that_fits(
        &self,
        writer: &mut Writer,
        entries: &[Entry],
        candidates: &[usize],
        limit: u64,
    ) -> Result<Option<Entry>> {
        for candidate in candidates {
            if let Some(removed) = self.remove_whole(writer, entries[*candidate].position, limit)? {
                return Ok(Some(removed));
            }
        }
        Ok(None)
    }

    /// Removes a checkpoint. Returns `None`, and removes nothing, if the removal would need a temporary file of
    /// more than `limit` bytes, or would copy damaged data.
    fn remove_whole(&self, writer: &mut Writer, position: u64, limit: u64) -> Result<Option<Entry>> {
        match self.remove_within(writer, position, limit) {
            Err(error) if error.is_damage() => {
                if !std::mem::replace(&mut writer.told_damage, true) {
                    log::warn!("{error}; checkpoints that need this page stay");
                }
                Ok(None)
            }
            removed => removed,
        }
    }
}

/// The positions of the checkpoints to remove: checkpoints more than `keep_ns` before the end of the run. The
/// newest old checkpoint stays. A run that has not ended is treated as if it ended at its newest checkpoint.
pub(crate) fn too_old(entries: &[Entry], keep_ns: Option<u64>, end_ns: Option<u64>) -> Vec<u64> {
    let (Some(keep_ns), Some(newest)) = (keep_ns, entries.last()) else { return Vec::new() };
    let oldest_ns = end_ns.unwrap_or(newest.time_ns).saturating_sub(keep_ns);
    let older = entries.iter().take_while(|entry| entry.time_ns <= oldest_ns).count();
    entries[..older.saturating_sub(1)].iter().map(|entry| entry.position).collect()
}

/// The number of bytes that a recorder may fill before it thins out. The rest below the cap is room for the
/// temporary file of a merge. A room of half the cap is always enough for this file.
fn goal_bytes(max_bytes: u64, room_bytes: u64) -> u64 {
    max_bytes - room_bytes.clamp(max_bytes / 8, max_bytes / 2)
}

/// The indices of all entries but the first and the last, in the order of removal. A gap's weight is its share of the
/// distance from the newest checkpoint. The weight of a large gap also grows with a power of its length, unless the
/// share is too large already.
fn by_sparseness(entries: &[Entry]) -> Vec<usize> {
    let Some(newest) = entries.last() else { return Vec::new() };
    let mut inner: Vec<usize> = (1..entries.len().saturating_sub(1)).collect();
    let effect = |at: usize| {
        let gap = (entries[at + 1].position - entries[at - 1].position) as f64;
        let share = gap / (newest.position - entries[at].position) as f64;
        match share > LARGEST_SHARE {
            true => (true, share),
            false => (false, share * (gap / LARGE_GAP).max(1.0).powi(LARGE_GAP_POWER)),
        }
    };
    let felt = |a: &usize, b: &usize| {
        let ((a_is_last, a), (b_is_last, b)) = (effect(*a), effect(*b));
        a_is_last.cmp(&b_is_last).then(a.total_cmp(&b))
    };
    if inner.len() > ATTEMPTS {
        inner.select_nth_unstable_by(ATTEMPTS - 1, felt);
        inner.truncate(ATTEMPTS);
    }
    inner.sort_by(felt);
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(positions: impl IntoIterator<Item = u64>) -> Vec<Entry> {
        let entry = |position| Entry {
            number: 0,
            position,
            time_ns: position * 10,
            head: Vec::new(),
            bytes: 1,
            counts: crate::index::Counts::default(),
        };
        positions.into_iter().map(entry).collect()
    }

    /// Adds `count` checkpoints at this distance from each other, thins them out to at most `most` each time,
    /// and returns the remaining positions.
    fn thinned(count: u64, distance: u64, most: usize) -> Vec<u64> {
        let mut kept: Vec<u64> = Vec::new();
        for number in 0..count {
            kept.push(number * distance);
            if kept.len() > most {
                kept.remove(by_sparseness(&entries(kept.iter().copied()))[0]);
            }
        }
        kept
    }

    fn largest_gap(kept: &[u64]) -> u64 {
        kept.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }

    #[test]
    fn gaps_grow_slowly_once_their_replay_takes_time() {
        // 4,000 checkpoints over a run that takes about 1,000 seconds to replay.
        let kept = |most| thinned(4_000, 250_000_000, most);
        for (most, longest) in [(2_100, 500_000_000), (1_100, 1_000_000_000), (560, 2_000_000_000)] {
            let kept = kept(most);
            assert!(largest_gap(&kept) <= longest, "{most}: {}", largest_gap(&kept));
            let near = kept.iter().rev().take(6).collect::<Vec<_>>();
            assert_eq!(*near[0] - *near[5], 5 * 250_000_000, "near the end all are kept: {most}");
        }
    }

    #[test]
    fn the_end_of_a_run_of_days_stays_near() {
        let kept = thinned(20_000, 4_000_000_000, 300);
        let end = *kept.last().unwrap();
        for distance in [10e9, 40e9, 200e9, 1e12] {
            let far = kept.partition_point(|position| (end - position) as f64 >= distance);
            let gap = (kept[far] - kept[far - 1]) as f64;
            assert!(gap <= (distance / 2.0).max(4e9), "{gap} in the distance {distance}");
        }
    }

    #[test]
    fn what_remains_gets_exponentially_sparser() {
        let mut kept: Vec<u64> = Vec::new();
        for position in 0..2000 {
            kept.push(position);
            if kept.len() > 40 {
                let at = by_sparseness(&entries(kept.iter().copied()))[0];
                kept.remove(at);
            }
        }
        assert_eq!((kept[0], kept[39]), (0, 1999));
        let gap_before = |age: u64| {
            let at = kept.partition_point(|position| *position <= 1999 - age);
            kept[at] - kept[at - 1]
        };
        let gaps = [gap_before(5), gap_before(60), gap_before(300), gap_before(1200)];
        assert!(gaps.is_sorted() && gaps[0] <= 2 && gaps[3] >= 8 * gaps[1], "{gaps:?} in {kept:?}");
        for pair in kept.windows(2) {
            assert!(pair[1] - pair[0] <= 8 + (1999 - pair[0]) / 3, "{pair:?} in {kept:?}");
        }
    }

    #[test]
    fn a_gap_reaches_from_the_one_before_to_the_one_behind() {
        assert_eq!(by_sparseness(&entries([0, 1, 2, 50, 60, 100])), [1, 2, 3, 4]);
        assert_eq!(by_sparseness(&entries([0, 40, 50, 98, 99, 100])), [1, 2, 4, 3]);
    }

    #[test]
    fn the_newest_of_the_old_ones_stays() {
        let all = entries([1, 5, 10, 20, 30]);
        for (keep_ns, old) in
            [(Some(200), vec![1, 5]), (Some(205), vec![1]), (Some(1000), vec![]), (None, vec![])]
        {
            assert_eq!(too_old(&all, keep_ns, None), old, "{keep_ns:?}");
        }
        assert_eq!(too_old(&all, Some(0), None), [1, 5, 10, 20]);
        assert_eq!(too_old(&[], Some(0), None), [0; 0]);
        assert_eq!(too_old(&all, Some(200), Some(399)), [1, 5]);
        assert_eq!(too_old(&all, Some(200), Some(400)), [1, 5, 10]);
        assert_eq!(too_old(&all, Some(200), Some(u64::MAX)), [1, 5, 10, 20]);
    }

    /// The part of the cap that a recorder does not fill is room for the temporary file of a merge.
    #[test]
    fn an_eighth_to_a_half_of_the_cap_is_left_to_merges() {
        for (max, room, goal) in [(80, 0, 70), (80, 8, 70), (80, 20, 60), (80, 38, 42), (80, u64::MAX, 40)] {
            assert_eq!(goal_bytes(max, room), goal, "{max} {room}");
        }
    }

    /// A store with two checkpoints. If the first checkpoint is removed, its pages move into the second
    /// checkpoint's file.
    fn two_that_merge() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 4, 0).unwrap();
        for position in [10, 20] {
            let mut draft = store.add(position, position).unwrap();
            draft.page(crate::map::Space::Ram, position % 4, &[position as u8; PAGE_BYTES]).unwrap();
            draft.finish(&[], &[]).unwrap();
        }
        (dir, store)
    }

    fn positions(store: &Store) -> Vec<u64> {
        store.entries().iter().map(|entry| entry.position).collect()
    }

    /// The size of the store [`two_that_merge`], and the size of the temporary file when its two files are merged.
    fn sizes_of_a_merge() -> (u64, u64) {
        let (_dir, store) = two_that_merge();
        let bytes = store.total_bytes();
        store.remove(10).unwrap();
        (bytes, store.entries()[0].bytes)
    }

    #[test]
    fn a_temporary_file_fits_beneath_the_cap_beside_what_there_is() {
        let (bytes, part) = sizes_of_a_merge();
        // Removing the newest checkpoint needs no temporary file. Above the cap a merge is allowed anyway.
        for (max, kept) in [(bytes + part, 20), (bytes + part - 1, 10), (bytes, 10), (bytes - 1, 20)] {
            let (_dir, store) = two_that_merge();
            store.thin(&Policy { max_bytes: Some(max), max_checkpoints: 1, ..Policy::default() }).unwrap();
            assert_eq!(positions(&store), [kept], "{max} of {bytes} and {part}");
        }
        for (max, kept) in [(bytes + part, &[20][..]), (bytes + part - 1, &[10, 20])] {
            let (_dir, store) = two_that_merge();
            let policy = Policy { max_bytes: Some(max), keep_last_ns: Some(0), ..Policy::default() };
            store.thin(&policy).unwrap();
            assert_eq!(positions(&store), kept, "{max} of {bytes} and {part}");
        }
    }

    #[test]
    fn a_temporary_file_fits_beneath_the_cap_beside_an_unfinished_one() {
        const UNFINISHED: u64 = 10_000;
        let (bytes, part) = sizes_of_a_merge();
        let used = bytes + UNFINISHED;
        for (room, kept) in [(part, &[20][..]), (part - 1, &[10, 20])] {
            let (_dir, store) = two_that_merge();
            let policy = Policy { max_bytes: Some(used + room), ..Policy::default() };
            let left = store.thin_for(&mut store.writer().unwrap(), &policy, UNFINISHED).unwrap();
            assert_eq!(positions(&store), kept, "{room} for {part}");
            let left_at_most = used + room - store.total_bytes() - UNFINISHED;
            assert!(left.is_some_and(|left| left <= left_at_most), "{left:?}");
            assert!(kept.len() == 1 || left == Some(room), "{left:?}");
        }
    }

    #[test]
    fn a_store_as_large_as_its_cap_stays() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 2, 0).unwrap();
        for position in [0, 10] {
            store.add(position, position).unwrap().finish(&[], &[]).unwrap();
        }
        let thin = |max| store.thin(&Policy { max_bytes: Some(max), ..Policy::default() }).unwrap().len();
        let bytes = store.total_bytes();
        assert_eq!((thin(bytes), thin(bytes - 1)), (0, 1));
    }

    #[test]
    fn thinning_leaves_the_newest_and_the_first_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 2, 0).unwrap();
        for position in [0, 10, 20, 30, 40, 50, 60, 70, 80] {
            let mut draft = store.add(position, position).unwrap();
            draft.page(crate::map::Space::Ram, 0, &[position as u8; PAGE_BYTES]).unwrap();
            draft.finish(&[], &[]).unwrap();
        }
        // The removed checkpoint has the smallest gap around it, relative to its distance from the newest. Of two
        // equal gaps, the checkpoint in the earlier gap is removed.
        let expected: [&[u64]; 9] = [
            &[0, 20, 30, 40, 50, 60, 70, 80],
            &[0, 20, 40, 50, 60, 70, 80],
            &[0, 40, 50, 60, 70, 80],
            &[0, 40, 60, 70, 80],
            &[0, 60, 70, 80],
            &[0, 60, 80],
            &[0, 80],
            &[80],
            &[],
        ];
        for (left, positions) in (0..9).rev().zip(expected) {
            store.thin(&Policy { max_checkpoints: left, ..Policy::default() }).unwrap();
            let kept: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
            assert_eq!(kept, positions, "{left}");
            store.verify(|_, _| {}).unwrap();
        }
    }
}
