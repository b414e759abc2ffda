//! Two states of a machine shortly before its present position, held in memory while it records. The recorder
//! stores the states when the run ends. A debugger that opens the recording at its end then steps backward at
//! once, instead of replaying from the last checkpoint.
//!
//! A state consists of the pages written since the checkpoint before it, as they were at that point. We do
//! not know which pages the guest will write again before the end. So the trail copies all of them, up to a
//! limit.

use std::collections::BTreeMap;

use checkpoint::{BackgroundWriter, Page, PageMap, PageRef, Space};

use crate::checkpoints::CheckpointHead;
use crate::cursor::Cursor;
use machine::error::Error;
use machine::position::Moment;
use machine::unit::Unit;
use machine::{Format, Machine, MachineState};

/// The most pages and disk blocks that are held: 16 MiB. Beyond this limit there is no trail until the next
/// checkpoint.
const MAX_PAGES: usize = 4096;

/// A state costs as much as this many pages beside its own pages: the devices' and the CPU's state, and the tracking of
/// writes.
const STATE_PAGES: usize = 64;

/// The states held for the end: see the module.
pub struct Trail<C> {
    older: Option<TrailState<C>>,
    newer: Option<TrailState<C>>,
    given_up: bool,
    /// Least distance of a state from the one before it, for each page copied.
    page_rest_steps: u64,
    /// The last state's place, or where the trail began.
    last: C,
    /// The next state is not kept before this place.
    next: C,
}

/// One state, held in memory.
struct TrailState<C> {
    at: Moment<C>,
    head: CheckpointHead<C>,
    state: MachineState,
    /// Pages written since the state or checkpoint before this state. The older state has all pages since its
    /// checkpoint.
    ram: BTreeMap<u64, Box<Page>>,
    disk: PageMap,
    /// Number of held disk blocks that were written since the checkpoint before this state.
    blocks: usize,
    /// Whether a checkpoint was taken after this state.
    is_behind_checkpoint: bool,
}

impl<C: Unit> Trail<C> {
    /// Begins at a checkpoint, or at the machine's first instruction. A state is kept once `page_rest_steps` have
    /// passed for each page that it costs. The run pays in advance: a starting guest writes so much that the run may
    /// end before it has paid.
    pub fn begin<U: Unit>(machine: &mut Machine<U>, page_rest_steps: u64) -> Result<Trail<C>, Error> {
        machine.begin_trail()?;
        let last = machine.moment_in::<C>().count;
        Ok(Trail { older: None, newer: None, given_up: false, page_rest_steps, last, next: last })
    }

    /// Notes that a checkpoint was taken here: later states are relative to it.
    pub fn checkpoint<U: Unit>(&mut self, machine: &mut Machine<U>) -> Result<(), Error> {
        let last = joined(self.older.take(), self.newer.take());
        let older = last.map(|kept| TrailState { is_behind_checkpoint: true, ..kept });
        *self = Trail { older, ..Trail::begin(machine, self.page_rest_steps)? };
        Ok(())
    }

    /// Forgets all states. Later states are relative to the next checkpoint.
    pub fn begin_anew<U: Unit>(&mut self, machine: &mut Machine<U>) -> Result<(), Error> {
        *self = Trail::begin(machine, self.page_rest_steps)?;
        Ok(())
    }

    /// Keeps the present state, and the state kept last. Does nothing if the last state is too near, compared
    /// to the cost of a new state.
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
        // The number of pages never falls.
        self.next = self.last + (count + STATE_PAGES) as u64 * self.page_rest_steps;
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

    /// Hands the states before `end` to the writer, each as a checkpoint.
    pub fn store(self, end: Moment<C>, format: Format, writer: &mut BackgroundWriter) -> Result<(), Error> {
        let mut before: Option<PageMap> = None;
        for kept in [self.older, self.newer].into_iter().flatten().filter(|kept| kept.at.count < end.count) {
            writer.begin(kept.at.count.number(), kept.at.time_ns)?;
            for (page, contents) in &kept.ram {
                writer.page(Space::Ram, *page, contents)?;
            }
            let nothing = PageMap::new(kept.disk.len());
            for (block, contents) in kept.disk.changed_since(before.as_ref().unwrap_or(&nothing)) {
                // Other blocks lie in an earlier checkpoint.
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

/// Returns the later state. The result gets the earlier state's pages too, if both states are relative
/// to the same checkpoint.
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
