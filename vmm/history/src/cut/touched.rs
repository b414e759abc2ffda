//! Finds the pages that a run reads, writes or executes (touches).

use std::any::Any;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use cpu::{AddressKind, At, Core, Happening, Observer, Place, Places, Wants};
use guest_ram::{PAGE_SIZE, RamLayout};
use machine::error::Error;
use machine::position::Instructions;
use machine::{Machine, RunStop};

use super::inputs::Remaining;
use crate::workers::Poll;

/// Steps between two updates of the observed pages. A page that was touched is no longer observed after the next
/// update. Until then each access to the page is slow.
const LOOK_STEPS: u64 = 1_000_000;

/// An observer that notes the pages that the guest reads, writes or executes.
pub struct Touched {
    wants: Wants,
    layout: RamLayout,
    pages: BTreeSet<u64>,
}

impl Touched {
    /// An observer of these pages of a machine's memory.
    fn of(pages: &BTreeSet<u64>, layout: RamLayout) -> Touched {
        let places = Places::In(places(pages, layout));
        let wants =
            Wants { fetches: places.clone(), loads: places.clone(), stores: places, ..Wants::default() };
        Touched { wants, layout, pages: BTreeSet::new() }
    }
}

/// The pages as ranges of physical addresses, with neighbours joined.
fn places(pages: &BTreeSet<u64>, layout: RamLayout) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for (first, offset, bytes) in layout.ranges() {
        for page in pages.range(offset / PAGE_SIZE..(offset + bytes) / PAGE_SIZE) {
            let address = page * PAGE_SIZE - offset + first;
            let behind = address + PAGE_SIZE - 1;
            match places.last_mut() {
                Some(last) if *last.addresses.end() + 1 == address => {
                    last.addresses = *last.addresses.start()..=behind;
                }
                _ => places.push(Place { space: AddressKind::Physical, addresses: address..=behind }),
            }
        }
    }
    places
}

impl Observer for Touched {
    fn wants(&self) -> Wants {
        self.wants.clone()
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        let address = match *happening {
            Happening::Load { physical, .. } | Happening::Store { physical, .. } => Some(physical),
            Happening::Fetch => core.peek_address(at.rip),
            _ => None,
        };
        let offset = address.and_then(|address| self.layout.offset_of(address));
        self.pages.extend(offset.map(|offset| offset / PAGE_SIZE));
        ControlFlow::Continue(())
    }
}

/// Runs a machine to its end, and returns the pages that the run did not touch.
pub fn untouched(
    machine: &mut Machine<Instructions>,
    mut pages: BTreeSet<u64>,
    mut inputs: Remaining,
    poll: &mut Poll<'_>,
) -> Result<BTreeSet<u64>, Error> {
    let layout = *machine.ram().layout();
    machine.set_observer(Some(Box::new(Touched::of(&pages, layout))))?;
    loop {
        let until = machine.moment().count + LOOK_STEPS;
        let stop = machine.run(until, &mut inputs)?;
        if poll() {
            return Err(Error::Interrupted);
        }
        let observer: Option<Box<dyn Any>> =
            machine.set_observer(None)?.map(|observer| observer as Box<dyn Any>);
        let touched = observer.and_then(|observer| observer.downcast::<Touched>().ok());
        let touched = touched.expect("it was attached above");
        touched.pages.iter().for_each(|page| _ = pages.remove(page));
        if matches!(stop, RunStop::Ended(_)) {
            return Ok(pages);
        }
        let next = if touched.pages.is_empty() { *touched } else { Touched::of(&pages, layout) };
        machine.set_observer(Some(Box::new(next)))?;
    }
}

#[cfg(test)]
mod tests {
    use machine::StartingState;
    use machine::engine::EngineKind;
    use recording::Recordable;
    use tiny_guest::{STIRRED, STIRRED_BYTES, record_calls};

    use super::*;
    use crate::timeline::Timeline;

    #[test]
    fn pages_that_are_written_or_executed_are_touched() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, end) = record_calls(directory.path(), "r.ttvm", 300, None);
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        timeline.seek(Instructions(1_000), &mut || false).unwrap();
        let start = StartingState::of(timeline.machine_mut()).unwrap();
        let here = timeline.snapshot().unwrap();
        let mut guest = Recordable::<Instructions>::going_on(EngineKind::SOFT, &recording, start).unwrap();
        let inputs = Remaining::new(&recording, &here, end.at.count).unwrap();
        let page = |address: u64| address / PAGE_SIZE;
        let [written, beside] = [page(STIRRED), page(STIRRED) + 1];
        // The guest used this page only before `start`.
        let stack = page(STIRRED + STIRRED_BYTES - 4);
        let code = page(timeline.registers().rip);
        let pages = BTreeSet::from([written, beside, stack, code]);
        let left = untouched(&mut guest.machine, pages, inputs, &mut || false).unwrap();
        assert_eq!(left, BTreeSet::from([beside, stack]));
    }

    /// The guest's first call is at most the third instruction. The called function pops the return address at once,
    /// and the guest does not use the stack again.
    #[test]
    fn pages_that_are_read_only_are_touched() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, end) = record_calls(directory.path(), "r.ttvm", 10, None);
        let stack = (STIRRED + STIRRED_BYTES - 4) / PAGE_SIZE;
        let left_from = |place: Instructions| {
            let mut timeline = Timeline::open_with(&recording, 1).unwrap();
            timeline.seek(place, &mut || false).unwrap();
            let start = StartingState::of(timeline.machine_mut()).unwrap();
            let here = timeline.snapshot().unwrap();
            let mut guest =
                Recordable::<Instructions>::going_on(EngineKind::SOFT, &recording, start).unwrap();
            let inputs = Remaining::new(&recording, &here, end.at.count).unwrap();
            untouched(&mut guest.machine, BTreeSet::from([stack]), inputs, &mut || false).unwrap()
        };
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        let rsp = |timeline: &Timeline| timeline.registers().gpr[4];
        while rsp(&timeline) != STIRRED + STIRRED_BYTES - 4 {
            timeline.step_forward().unwrap();
        }
        let before_the_read = timeline.position();
        assert_eq!(left_from(before_the_read), BTreeSet::new());
        assert_eq!(left_from(before_the_read + 1), BTreeSet::from([stack]));
    }

    #[test]
    fn neighbours_are_one_place_except_across_the_hole() {
        let layout = RamLayout::new(guest_ram::LOW_RAM_LIMIT + 4 * PAGE_SIZE);
        let high = guest_ram::LOW_RAM_LIMIT / PAGE_SIZE;
        let pages = BTreeSet::from([1, 2, 5, high - 1, high, high + 1]);
        let found: Vec<_> = places(&pages, layout).into_iter().map(|place| place.addresses).collect();
        let low = guest_ram::LOW_RAM_LIMIT;
        let behind_hole = guest_ram::HIGH_RAM_START;
        let expected =
            [0x1000..=0x2fff, 0x5000..=0x5fff, low - 0x1000..=low - 1, behind_hole..=behind_hole + 0x1fff];
        assert_eq!(found, expected);
    }
}
