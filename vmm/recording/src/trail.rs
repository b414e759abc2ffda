//! Two states of a machine shortly before where it is, held in memory while it records. The recorder stores
//! them when the run ends. A debugger that opens the recording at its end then steps backward at once,
//! instead of replaying from the last checkpoint.
//!
//! A state consists of what the pages that were written since the checkpoint before it held at that point.
//! Which of them will be written again before the end is not known, so copies are kept of all of them, up to
//! a limit.

use std::collections::BTreeMap;

use checkpoint::{BackgroundWriter, Page, PageMap, PageRef, Space};

use crate::checkpoints::CheckpointHead;
use crate::cursor::Cursor;
use machine::error::Error;
use machine::position::Moment;
use machine::unit::Unit;
use machine::{Format, Machine, MachineState};

/// Pages and disk blocks that are held at most: 16 MiB. After more there is no trail until the next checkpoint.
const MAX_PAGES: usize = 4096;

/// See the module.
pub struct Trail<C> {
    older: Option<TrailState<C>>,
    newer: Option<TrailState<C>>,
    given_up: bool,
    /// Distance of a state from the one before it, at least, for each page that is copied for it.
    page_rest_steps: u64,
    /// Where the last state is, or where the trail began.
    last: C,
    /// The next state is not kept before this place.
    next: C,
}

/// One state.
struct TrailState<C> {
    at: Moment<C>,
    head: CheckpointHead<C>,
    state: MachineState,
    /// What was written since the state or the checkpoint before it; for the older state, since the
    /// checkpoint before it.
    ram: BTreeMap<u64, Box<Page>>,
    disk: PageMap,
    /// Blocks of it that were written since the checkpoint before it.
    blocks: usize,
    /// Whether a checkpoint was taken since.
    is_behind_checkpoint: bool,
}

impl<C: Unit> Trail<C> {
    /// Begins where the machine stands, at a checkpoint or at its first instruction. A state is kept once there were
    /// `page_rest_steps` for each page that it takes: paid in advance, for a guest that starts writes so much that a run may
    /// end before it has paid.
    pub fn begin<U: Unit>(machine: &mut Machine<U>, page_rest_steps: u64) -> Result<Trail<C>, Error> {
        machine.begin_trail()?;
        let last = machine.moment_in::<C>().count;
        Ok(Trail { older: None, newer: None, given_up: false, page_rest_steps, last, next: last })
    }

    /// A checkpoint was just taken here: what follows is relative to it.
    pub fn checkpoint<U: Unit>(&mut self, machine: &mut Machine<U>) -> Result<(), Error> {
        let last = joined(self.older.take(), self.newer.take());
        let older = last.map(|kept| TrailState { is_behind_checkpoint: true, ..kept });
        *self = Trail { older, ..Trail::begin(machine, self.page_rest_steps)? };
        Ok(())
    }

    /// Forgets all states. Those that come are relative to the checkpoint that is taken next.
    pub fn begin_anew<U: Unit>(&mut self, machine: &mut Machine<U>) -> Result<(), Error> {
        *self = Trail::begin(machine, self.page_rest_steps)?;
        Ok(())
    }

    /// Keeps the state here, and the one kept last, unless the last is too near for what this one costs.
    pub fn keep<U: Unit>(&mut self, machine: &mut Machine<U>, cursor: Cursor<C>) -> Result<(), Error> {
        let at = machine.moment_in::<C>();
        if self.given_up || at.count < self.next {
            return Ok(());
        }
        let count = machine.trail_count()?;
        if count > MAX_PAGES {
            self.give_up();
            return Ok(());
        }
        // They do not become fewer.
        self.next = self.last + count as u64 * self.page_rest_steps;
        if at.count < self.next {
            return Ok(());
        }
        self.last = at.count;
        let mut ram = BTreeMap::new();
        machine.take_trail(|page, contents| {
            ram.insert(page, Box::new(*contents));
        })?;
        let here = TrailState {
            at,
            head: CheckpointHead::of(machine, cursor),
            state: machine.state(),
            ram,
            disk: machine.disk_version(),
            blocks: machine.written_blocks(),
            is_behind_checkpoint: false,
        };
        let newer = self.newer.replace(here);
        self.older = joined(self.older.take(), newer);
        let pages =
            |kept: &Option<TrailState<C>>| kept.as_ref().map_or(0, |kept| kept.ram.len() + kept.blocks);
        if pages(&self.older) + pages(&self.newer) > MAX_PAGES {
            self.give_up();
        }
        Ok(())
    }

    fn give_up(&mut self) {
        (self.older, self.newer, self.given_up) = (None, None, true);
    }

    /// Hands the states that lie before `end` to the writer, each as a checkpoint.
    pub fn store(self, end: Moment<C>, format: Format, writer: &mut BackgroundWriter) -> Result<(), Error> {
        let mut before: Option<PageMap> = None;
        for kept in [self.older, self.newer].into_iter().flatten().filter(|kept| kept.at.count < end.count) {
            writer.begin(kept.at.count.number(), kept.at.time_ns)?;
            for (page, contents) in &kept.ram {
                writer.page(Space::Ram, *page, contents)?;
            }
            let nothing = PageMap::new(kept.disk.len());
            for (block, contents) in kept.disk.changed_since(before.as_ref().unwrap_or(&nothing)) {
                // Others lie in an earlier checkpoint.
                if let PageRef::Held(contents) = contents {
                    writer.page(Space::Disk, block, contents)?;
                }
            }
            writer.finish(kept.head.to_bytes(format), kept.state.to_bytes(format))?;
            before = Some(kept.disk);
        }
        Ok(())
    }
}

/// The later state, with the pages of the earlier one where both are relative to the same checkpoint.
fn joined<C>(earlier: Option<TrailState<C>>, later: Option<TrailState<C>>) -> Option<TrailState<C>> {
    match (earlier, later) {
        (Some(earlier), Some(later)) if !earlier.is_behind_checkpoint => {
            let mut ram = earlier.ram;
            ram.extend(later.ram);
            Some(TrailState { ram, ..later })
        }
        (earlier, later) => later.or(earlier),
    }
}
