//! Two states of a machine shortly before where it is, held in memory while it records. A recorder stores them when the
//! run ends: whoever opens the recording there steps backward at once, instead of replaying from the last checkpoint.
//!
//! A state is what the pages written since the checkpoint before it held then. Which of them will be written again
//! before the end nobody knows, so copies are kept of all of them, up to a limit.

use std::collections::BTreeMap;

use checkpoint::{BackgroundWriter, Page, PageMap, PageRef, Space};

use crate::error::Error;
use crate::machine::{Machine, MachineState};
use crate::position::{Counting, Moment};
use crate::recording::checkpoints::{CheckpointHead, state_bytes};
use crate::recording::player::Cursor;

/// Pages that are held at most: 16 MiB. After more there is no trail until the next checkpoint.
const MAX_PAGES: usize = 4096;

/// See the module.
pub struct Trail {
    older: Option<Mark>,
    newer: Option<Mark>,
    given_up: bool,
    /// Instructions to the next mark, at least, for each page that was copied for the last.
    page_rest_steps: u64,
    /// No mark is taken before this step.
    next_step: u64,
}

/// One state.
struct Mark {
    at: Moment,
    head: CheckpointHead,
    state: MachineState,
    /// What was written since the mark or the checkpoint before it; for the older mark, since the checkpoint before it.
    ram: BTreeMap<u64, Box<Page>>,
    disk: PageMap,
    /// Whether a checkpoint was taken since.
    is_behind_checkpoint: bool,
}

impl Trail {
    /// Begins where the machine stands, at a checkpoint or at its first instruction. From one mark to the next there are at least
    /// `page_rest_steps` instructions for each page that the first took.
    pub fn begin(machine: &mut Machine, page_rest_steps: u64) -> Trail {
        machine.begin_trail();
        Trail { older: None, newer: None, given_up: false, page_rest_steps, next_step: 0 }
    }

    /// A checkpoint was just taken here: what follows is relative to it.
    pub fn checkpoint(&mut self, machine: &mut Machine) {
        let last = joined(self.older.take(), self.newer.take());
        let older = last.map(|mark| Mark { is_behind_checkpoint: true, ..mark });
        *self = Trail { older, ..Trail::begin(machine, self.page_rest_steps) };
    }

    /// Keeps the state here, and the one kept last, unless the last is too near for what it cost.
    pub fn mark(&mut self, machine: &mut Machine, cursor: Cursor) {
        let at = machine.moment_in(Counting::Instructions);
        if self.given_up || at.steps < self.next_step {
            return;
        }
        let mut ram = BTreeMap::new();
        let are_few = machine.take_trail(MAX_PAGES, |page, contents| {
            ram.insert(page, Box::new(*contents));
        });
        if !are_few {
            return self.give_up();
        }
        self.next_step = at.steps + ram.len() as u64 * self.page_rest_steps;
        let here = Mark {
            at,
            head: CheckpointHead::of(machine, Counting::Instructions, cursor),
            state: machine.state(),
            ram,
            disk: machine.disk_version(),
            is_behind_checkpoint: false,
        };
        let newer = self.newer.replace(here);
        self.older = joined(self.older.take(), newer);
        let pages = |mark: &Option<Mark>| mark.as_ref().map_or(0, |mark| mark.ram.len());
        if pages(&self.older) + pages(&self.newer) > MAX_PAGES {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        (self.older, self.newer, self.given_up) = (None, None, true);
    }

    /// Hands the states that lie before `end` to the writer, each as a checkpoint.
    pub fn store(self, end: Moment, writer: &mut BackgroundWriter) -> Result<(), Error> {
        let mut before: Option<PageMap> = None;
        for mark in [self.older, self.newer].into_iter().flatten().filter(|mark| mark.at.steps < end.steps) {
            writer.begin(mark.at.steps, mark.at.time_ns)?;
            for (page, contents) in &mark.ram {
                writer.page(Space::Ram, *page, contents)?;
            }
            let nothing = PageMap::new(mark.disk.len());
            for (block, contents) in mark.disk.changed_since(before.as_ref().unwrap_or(&nothing)) {
                // Others lie in an earlier checkpoint.
                if let PageRef::Held(contents) = contents {
                    writer.page(Space::Disk, block, contents)?;
                }
            }
            writer.finish(mark.head.to_bytes(), state_bytes(&mark.state))?;
            before = Some(mark.disk);
        }
        Ok(())
    }
}

/// The later mark, relative to what the earlier one is relative to.
fn joined(earlier: Option<Mark>, later: Option<Mark>) -> Option<Mark> {
    match (earlier, later) {
        (Some(earlier), Some(later)) if !earlier.is_behind_checkpoint => {
            let mut ram = earlier.ram;
            ram.extend(later.ram);
            Some(Mark { ram, ..later })
        }
        (earlier, later) => later.or(earlier),
    }
}
