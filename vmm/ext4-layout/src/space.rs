//! Gives out the blocks of the host area.
//!
//! Contents of files grow upward from the start of the area. Blocks of folders, long symbolic links and extent trees grow
//! downward from the end. So the guest's read-ahead in a file does not reach folders.

use std::ops::Range;

use crate::frozen::Frozen;

/// Adjacent blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u32,
    pub(crate) count: u32,
}

/// The use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The contents of a file, a folder or a symbolic link.
    Contents,
    /// A block of an extent tree.
    Index,
}

/// Blocks that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    run: Run,
    owner: Owner,
}

/// The node that has a block, and which of its blocks this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) node: u32,
    pub(crate) role: Role,
    /// The number of the block among the node's blocks with this role.
    pub(crate) number: u32,
}

/// The host area.
#[derive(Debug)]
pub(crate) struct Space {
    /// The blocks that are not given out.
    left: Range<u32>,
    frozen: Frozen,
    /// The regions before `left`, in rising order.
    before: Vec<Region>,
    /// The regions behind `left`, in falling order.
    behind: Vec<Region>,
}

impl Space {
    pub(crate) fn new(area: Range<u32>) -> Space {
        Space { left: area, frozen: Frozen::default(), before: Vec::new(), behind: Vec::new() }
    }

    /// The blocks between the last file and the last folder.
    pub(crate) fn left(&self) -> Range<u32> {
        self.left.clone()
    }

    /// The owner of a block of the host area. A block without an owner never gets one: the block is frozen.
    pub(crate) fn read(&mut self, block: u32) -> Option<Owner> {
        if self.left.contains(&block) {
            self.frozen.insert(block);
            return None;
        }
        let regions = if block < self.left.start { &self.before } else { &self.behind };
        let found = match block < self.left.start {
            true => regions.partition_point(|region| region.run.start <= block).checked_sub(1)?,
            false => regions.partition_point(|region| region.run.start > block),
        };
        let Region { run, owner } = *regions.get(found)?;
        let at = block.checked_sub(run.start).filter(|&at| at < run.count)?;
        Some(Owner { number: owner.number + at, ..owner })
    }

    /// Gives blocks for a file's contents to a node.
    pub(crate) fn give_to_file(&mut self, node: u32, count: u64) -> Option<Vec<Run>> {
        let count = u32::try_from(count).ok()?;
        let runs = self.rising_runs(count)?;
        let mut owner = Owner { node, role: Role::Contents, number: 0 };
        for &run in &runs {
            self.before.push(Region { run, owner });
            owner.number += run.count;
            self.left.start = run.start + run.count;
        }
        Some(runs)
    }

    /// Gives blocks of a folder, a symbolic link or an extent tree to a node. The runs are in the order of the owner's
    /// blocks.
    pub(crate) fn give(&mut self, node: u32, role: Role, count: u32) -> Option<Vec<Run>> {
        let falling = self.falling_runs(count)?;
        let mut owner = Owner { node, role, number: count };
        for &run in &falling {
            owner.number -= run.count;
            self.behind.push(Region { run, owner });
            self.left.end = run.start;
        }
        Some(falling.into_iter().rev().collect())
    }

    fn rising_runs(&self, count: u32) -> Option<Vec<Run>> {
        let (mut runs, mut at, mut missing) = (Vec::new(), self.left.start, count);
        while missing > 0 {
            let end = at.saturating_add(missing).min(self.left.end);
            let frozen = self.frozen.first_in(at..end);
            let run = Run { start: at, count: frozen.unwrap_or(end) - at };
            if run.count > 0 {
                runs.push(run);
            }
            missing -= run.count;
            at = frozen.map_or(end, |frozen| frozen + 1);
            if at >= self.left.end && missing > 0 {
                return None;
            }
        }
        Some(runs)
    }

    fn falling_runs(&self, count: u32) -> Option<Vec<Run>> {
        let (mut runs, mut end, mut missing) = (Vec::new(), self.left.end, count);
        while missing > 0 {
            let least = end.saturating_sub(missing).max(self.left.start);
            let frozen = self.frozen.last_in(least..end);
            let start = frozen.map_or(least, |frozen| frozen + 1);
            if end > start {
                runs.push(Run { start, count: end - start });
            }
            missing -= end - start;
            end = frozen.unwrap_or(least);
            if end <= self.left.start && missing > 0 {
                return None;
            }
        }
        Some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32, count: u32) -> Run {
        Run { start, count }
    }

    #[test]
    fn files_grow_upward_and_folders_downward_around_frozen_blocks() {
        let mut space = Space::new(100..200);
        for frozen in [103, 104, 196] {
            assert_eq!(space.read(frozen), None);
        }
        assert_eq!(space.give_to_file(7, 5), Some(vec![run(100, 3), run(105, 2)]));
        assert_eq!(space.give(8, Role::Contents, 5), Some(vec![run(194, 2), run(197, 3)]));
        assert_eq!(space.give(8, Role::Index, 1), Some(vec![run(193, 1)]));
        let owner = |node, role, number| Some(Owner { node, role, number });
        for (block, expected) in [
            (102, owner(7, Role::Contents, 2)),
            (103, None),
            (105, owner(7, Role::Contents, 3)),
            (106, owner(7, Role::Contents, 4)),
            (193, owner(8, Role::Index, 0)),
            (195, owner(8, Role::Contents, 1)),
            (196, None),
            (197, owner(8, Role::Contents, 2)),
            (199, owner(8, Role::Contents, 4)),
        ] {
            assert_eq!(space.read(block), expected, "{block}");
        }
        assert_eq!(space.left(), 107..193);
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let mut space = Space::new(100..110);
        space.read(105);
        assert_eq!((space.give_to_file(1, 10), space.give(1, Role::Index, 10)), (None, None));
        assert_eq!(space.give_to_file(1, 1 << 32), None);
        assert_eq!(space.left(), 100..110);
        assert_eq!(space.give_to_file(1, 9), Some(vec![run(100, 5), run(106, 4)]));
        assert_eq!(
            (space.give(1, Role::Contents, 1), space.give(1, Role::Contents, 0)),
            (None, Some(vec![]))
        );
    }
}
