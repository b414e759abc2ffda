//! Takes checkpoints while a machine is recorded. [`record`] runs the machine in slices. A checkpoint passes the pages
//! written since the last checkpoint to a background writer. The guest cannot notice the checkpoints. The positions of
//! checkpoints follow from the run alone, not from the host's speed. If a checkpoint cannot be written, the next
//! checkpoint stores its pages too.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{BackgroundWriter, Store};

use crate::checkpoints::CheckpointHead;
use crate::cursor::Logged;
use crate::files::CHECKPOINTS;
use crate::pace::{CheckpointOptions, Pace};
use crate::trail::Trail;
use machine::error::Error;
use machine::unit::Unit;
use machine::{Format, Machine, Outcome, RunStop};

/// Records a machine from its first instruction to its end into the recording at `path`, with checkpoints.
pub fn record<C: Unit>(
    machine: &mut Machine<C>,
    recorder: &mut impl Logged<C>,
    path: &Path,
    options: CheckpointOptions,
) -> Result<Outcome, Error> {
    let CheckpointOptions { interval_ns, slice_steps, slice_ns, .. } = options;
    let mut checkpointer = Checkpointer::<C>::new(&path.join(CHECKPOINTS), options, machine)?;
    let outcome = loop {
        let now = machine.moment();
        let stop = if C::NAMES_ONE_PLACE {
            machine.run(now.count.saturating_add(slice_steps), recorder)?
        } else {
            machine.run_past(now.time_ns + slice_ns.min(interval_ns), recorder)?
        };
        if let RunStop::Ended(outcome) = stop {
            break outcome;
        }
        checkpointer.look(machine, recorder)?;
    };
    checkpointer.finish(machine, recorder)?;
    Ok(outcome)
}

/// The least size of a store that has one checkpoint of this machine, if the checkpoint stores no pages.
pub fn least_bytes<U: Unit>(machine: &Machine<U>, format: Format) -> u64 {
    checkpoint::least_bytes(&machine.state().to_bytes(format))
}

/// Takes a machine's checkpoints while it is recorded.
pub struct Checkpointer<C> {
    writer: BackgroundWriter,
    pace: Pace<C>,
    /// States shortly before the present position, to store when the run ends. `None` in a recording that counts exits,
    /// because a debugger of such a recording uses its recounted log and that log's checkpoints.
    trail: Option<Trail<C>>,
    told_full: bool,
}

impl<C: Unit> Checkpointer<C> {
    /// Makes a new store in `directory`, for a machine at its first instruction. The checkpoints may count in another
    /// unit than the machine.
    pub fn new<U: Unit>(
        directory: &Path,
        options: CheckpointOptions,
        machine: &mut Machine<U>,
    ) -> Result<Checkpointer<C>, Error> {
        let (ram_pages, disk_blocks) = machine.page_counts();
        let store = Arc::new(Store::create(directory, ram_pages, disk_blocks)?);
        machine.attach_store(store.clone());
        // Checkpoints need not store the pages that the loader wrote, because each replay loads them again.
        machine.begin_written()?;
        Checkpointer::on(store, options, machine)
    }

    /// Continues a store that already has a checkpoint of the machine's present state. The store must be attached to
    /// the machine.
    pub fn on<U: Unit>(
        store: Arc<Store>,
        options: CheckpointOptions,
        machine: &mut Machine<U>,
    ) -> Result<Checkpointer<C>, Error> {
        let pace = Pace::begin(&options, machine.moment_in());
        let trail =
            C::NAMES_ONE_PLACE.then(|| Trail::begin(machine, options.trail_rest_steps)).transpose()?;
        let writer = BackgroundWriter::start(store, options.policy)?;
        Ok(Checkpointer { writer, pace, trail, told_full: false })
    }

    /// Takes a checkpoint if one is due. The recorder calls this function at the end of each slice, while the machine
    /// does not run.
    pub fn look<U: Unit>(&mut self, machine: &mut Machine<U>, log: &impl Logged<U, C>) -> Result<(), Error> {
        self.adopt_stored(machine);
        let (now, held_blocks) = (machine.moment_in::<C>(), machine.written_blocks());
        if !self.pace.due(now, held_blocks, || machine.written_count())? {
            return self.trail.as_mut().map_or(Ok(()), |trail| trail.keep(machine, log.cursor()));
        }
        let lost = self.writer.take_lost()?;
        if !lost.is_empty() {
            // The trail's states need a checkpoint that could not be stored. So the trail begins again without
            // them.
            self.trail.as_mut().map_or(Ok(()), |trail| trail.begin_anew(machine))?;
        }
        machine.write_again(lost);
        self.take(machine, log)?;
        self.trail.as_mut().map_or(Ok(()), |trail| trail.checkpoint(machine))
    }

    /// Frees the memory of disk blocks that the writer has stored.
    fn adopt_stored<U: Unit>(&mut self, machine: &mut Machine<U>) {
        for done in self.writer.take_done() {
            machine.adopt_blocks(done.disk);
        }
    }

    fn take<U: Unit>(&mut self, machine: &mut Machine<U>, log: &impl Logged<U, C>) -> Result<(), Error> {
        let at = machine.moment_in::<C>();
        let writer = &mut self.writer;
        writer.begin(at.count.number(), at.time_ns)?;
        let pages = machine.take_written(|space, page, contents| Ok(writer.page(space, page, contents)?))?;
        let head = CheckpointHead::of(machine, log.cursor());
        let format = log.format();
        writer.finish(head.to_bytes(format), machine.state().to_bytes(format))?;
        self.pace.taken(at, pages);
        if self.writer.is_full() && !std::mem::replace(&mut self.told_full, true) {
            log::warn!("no more checkpoints fit below --max-size; the recording goes on without new ones");
        }
        Ok(())
    }

    /// Takes the last checkpoints: up to two shortly before the end, and one at the end. Takes no checkpoint if the
    /// checkpoint at the end costs too much (`Pace::due_at_end`). Leaves out the checkpoint at the end if a replay
    /// could not reach the end in the same state. Waits until the writer has stored as many checkpoints as
    /// possible.
    pub fn finish<U: Unit>(mut self, machine: &mut Machine<U>, log: &impl Logged<U, C>) -> Result<(), Error> {
        let at = machine.moment_in::<C>();
        let mut lost = self.writer.wait_and_take_lost()?;
        if !self.pace.due_at_end(at, machine.written_count()?) {
            self.writer.close_at_end(at.time_ns)?;
            return Ok(());
        }
        if let Some(trail) = self.trail.take().filter(|_| lost.is_empty()) {
            trail.store(at, log.format(), &mut self.writer)?;
            lost = self.writer.wait_and_take_lost()?;
        }
        machine.write_again(lost);
        // If the run was ended from outside or by idling, time may have passed since the machine reached this count.
        // Replay then reaches the count in another state. In a recording that counts exits, the guest may also shut
        // down without an exit after the last checkpoint.
        let is_taken = !C::NAMES_ONE_PLACE && self.pace.last.count == at.count;
        let by_itself = machine
            .outcome()
            .is_some_and(|outcome| !outcome.is_from_outside() && *outcome != Outcome::IdleForever);
        if by_itself && !is_taken {
            self.take(machine, log)?;
        }
        self.writer.close_at_end(at.time_ns)?;
        Ok(())
    }
}
