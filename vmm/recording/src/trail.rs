//! The trail: two states of a machine shortly before its present position, held in memory while the machine is
//! recorded. The recorder stores the states when the run ends. A debugger that opens the recording at its end then
//! steps backward at once, instead of replaying from the last checkpoint.
//!
//! A state has the contents, at the state's position, of the pages written since the checkpoint before the state. The
//! recorder does not know which of these pages the guest will write again before the end. So the trail copies all these
//! pages, up to a limit.

use std::collections::BTreeMap;

use checkpoint::{BackgroundWriter, Page, PageMap, PageRef, Space};

use crate::checkpoints::CheckpointHead;
use crate::cursor::Cursor;
use machine::error::Error;
use machine::position::Moment;
use machine::unit::Unit;
use machine::{Format, Machine, MachineState};

/// The largest number of pages and disk blocks in the trail: 16 MiB. If the states need more, they are dropped, and
/// there is no trail until the next checkpoint.
const MAX_PAGES: usize = 4096;

/// The cost of a state in addition to its pages, as a number of pages. The cost is for the state of CPU and devices,
/// and for noticing the next writes.
const STATE_PAGES: usize = 64;

/// The two states that are stored when the run ends.
pub struct Trail<C> {
    older: Option<TrailState<C>>,
    newer: Option<TrailState<C>>,
    given_up: bool,
    /// The least number of instructions between a state and the state before, for each copied page.
    page_rest_steps: u64,
    /// The last state's position, or the position where the trail began.
    last: C,
    /// The next state is not taken before this position.
    next: C,
}

/// One state, held in memory.
struct TrailState<C> {
    at: Moment<C>,
    head: CheckpointHead<C>,
    state: MachineState,
    /// The pages written since the state or checkpoint before this state. The older of the two states has all pages
    /// written since its checkpoint.
    ram: BTreeMap<u64, Box<Page>>,
    disk: PageMap,
    /// Number of disk blocks in memory that were written since the checkpoint before this state.
    blocks: usize,
    /// Whether a checkpoint was taken after this state.
    is_behind_checkpoint: bool,
}

impl<C: Unit> Trail<C> {
    /// Begins at a checkpoint, or at the machine's first instruction. A state is taken only when the run has
    /// executed `page_rest_steps` instructions for each page of the state's cost. The run executes these
    /// instructions before the state and not after it, because a starting guest writes many pages, and the run may
    /// end soon.
    pub fn begin<U: Unit>(machine: &mut Machine<U>, page_rest_steps: u64) -> Result<Trail<C>, Error> {
        machine.begin_trail()?;
        let last = machine.moment_in::<C>().count;
        Ok(Trail { older: None, newer: None, given_up: false, page_rest_steps, last, next: last })
    }

    /// Notes that a checkpoint was taken here. Later states have the pages written since this checkpoint.
    pub fn checkpoint<U: Unit>(&mut self, machine: &mut Machine<U>) -> Result<(), Error> {
        let last = joined(self.older.take(), self.newer.take());
        let older = last.map(|kept| TrailState { is_behind_checkpoint: true, ..kept });
        *self = Trail { older, ..Trail::begin(machine, self.page_rest_steps)? };
        Ok(())
    }

    /// Drops both states. Later states have the pages written from here on.
    pub fn begin_anew<U: Unit>(&mut self, machine: &mut Machine<U>) -> Result<(), Error> {
        *self = Trail::begin(machine, self.page_rest_steps)?;
        Ok(())
    }

    /// Takes the present state. The last state becomes the older one. Does nothing if the last state is too few
    /// instructions back for the cost of a new state.
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
        // The number of written pages never falls, so no state is due before this position.
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

    /// Passes the states before `end` to the writer, each as a checkpoint.
    pub fn store(self, end: Moment<C>, format: Format, writer: &mut BackgroundWriter) -> Result<(), Error> {
        let mut before: Option<PageMap> = None;
        for kept in [self.older, self.newer].into_iter().flatten().filter(|kept| kept.at.count < end.count) {
            writer.begin(kept.at.count.number(), kept.at.time_ns)?;
            for (page, contents) in &kept.ram {
                writer.page(Space::Ram, *page, contents)?;
            }
            let nothing = PageMap::new(kept.disk.len());
            for (block, contents) in kept.disk.changed_since(before.as_ref().unwrap_or(&nothing)) {
                // Only blocks in memory are stored here. The other changed blocks are in an earlier checkpoint.
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

/// Returns the later state. If no checkpoint lies between the two states, the result also has the earlier state's
/// pages.
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

#[cfg(test)]
mod tests {
    use machine::config::MachineConfig;
    use machine::inputs::PowerOn;
    use machine::position::Instructions;
    use tiny_guest::Script;

    use super::*;

    fn machine() -> Machine<Instructions> {
        let directory = tempfile::tempdir().unwrap();
        let options = tiny_guest::options(tiny_guest::write_kernel(directory.path(), 10_000));
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        Machine::new(&config, &images, &PowerOn::default()).unwrap()
    }

    fn run(machine: &mut Machine<Instructions>, until: u64) {
        machine.run(Instructions(until), &mut Script(Vec::new())).unwrap();
    }

    /// The positions of the two states.
    fn places(trail: &Trail<Instructions>) -> [Option<u64>; 2] {
        [&trail.older, &trail.newer].map(|kept| kept.as_ref().map(|kept| kept.at.count.0))
    }

    #[test]
    fn the_last_two_states_are_kept_with_all_pages_since_their_checkpoint() {
        let mut machine = machine();
        machine.begin_written().unwrap();
        let mut trail = Trail::<Instructions>::begin(&mut machine, 0).unwrap();
        assert_eq!(places(&trail), [None, None]);
        let mut pages = BTreeMap::new();
        let mut seen = Vec::new();
        for until in [1_000, 2_000, 3_000] {
            run(&mut machine, until);
            trail.keep(&mut machine, Cursor::default()).unwrap();
            pages.extend(trail.newer.as_ref().unwrap().ram.clone());
            seen.push((places(&trail), pages.len()));
        }
        let expected = [[None, Some(1_000)], [Some(1_000), Some(2_000)], [Some(2_000), Some(3_000)]];
        assert_eq!([0, 1, 2].map(|number| seen[number].0), expected);
        // The older state also has the pages of the state that it replaced.
        let older = trail.older.as_ref().unwrap();
        assert_eq!(older.ram.len(), seen[1].1);
        assert!(older.ram.len() > 10 && seen[2].1 > seen[1].1, "{seen:?}");

        // After a checkpoint, the last state stays as the older state. When a later state replaces this one, the later
        // state does not take over its pages.
        trail.checkpoint(&mut machine).unwrap();
        assert_eq!(places(&trail), [Some(3_000), None]);
        assert!(trail.older.as_ref().unwrap().is_behind_checkpoint);
        run(&mut machine, 4_000);
        trail.keep(&mut machine, Cursor::default()).unwrap();
        assert_eq!(places(&trail), [Some(3_000), Some(4_000)]);
        let alone = trail.newer.as_ref().unwrap().ram.len();
        run(&mut machine, 5_000);
        trail.keep(&mut machine, Cursor::default()).unwrap();
        assert_eq!(places(&trail), [Some(4_000), Some(5_000)]);
        assert_eq!(trail.older.as_ref().unwrap().ram.len(), alone, "without the pages of 3,000");
        trail.begin_anew(&mut machine).unwrap();
        assert_eq!(places(&trail), [None, None]);
        trail.give_up();
        run(&mut machine, 6_000);
        trail.keep(&mut machine, Cursor::default()).unwrap();
        assert_eq!(places(&trail), [None, None], "until the next checkpoint");
        trail.checkpoint(&mut machine).unwrap();
        run(&mut machine, 7_000);
        trail.keep(&mut machine, Cursor::default()).unwrap();
        assert_eq!(places(&trail), [None, Some(7_000)]);
    }

    #[test]
    fn a_state_is_kept_once_its_pages_are_paid() {
        let mut machine = machine();
        machine.begin_written().unwrap();
        run(&mut machine, 1_000);
        let price = 20;
        let mut trail = Trail::<Instructions>::begin(&mut machine, price).unwrap();
        let mut last = 1_000;
        for until in (2_000..90_000).step_by(500) {
            run(&mut machine, until);
            let before = places(&trail)[1];
            let pages = machine.trail_count().unwrap() as u64;
            trail.keep(&mut machine, Cursor::default()).unwrap();
            let is_paid = until >= last + (pages + STATE_PAGES as u64) * price;
            if is_paid {
                assert_eq!((places(&trail)[0], places(&trail)[1]), (before, Some(until)));
                last = until;
            } else {
                assert_eq!(places(&trail)[1], before, "{until}");
            }
        }
        assert!(last > 1_000 && places(&trail)[0].is_some(), "{last}");
    }
}
