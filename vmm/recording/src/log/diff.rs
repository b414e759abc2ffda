//! Finds the first difference between two event logs, without replaying.

use crate::log::contents::Log;
use crate::log::records::EventRecord;
use machine::checks::CheckRecord;
use machine::error::Error;
use machine::position::{Count, Moment};

/// The first place where two logs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogParting<C> {
    /// The place of the difference. `None` if the logs belong to different machines.
    pub at: Option<Moment<C>>,
    /// A description of the difference.
    pub what: String,
}

/// Compares two logs. Checks are compared only at points where both logs have a check. A check that only one log has is
/// no difference, because checks do not influence the guest.
pub fn diff<C: Count>(left: &Log<C>, right: &Log<C>) -> Result<Option<LogParting<C>>, Error> {
    if left.machine_hash != right.machine_hash {
        return Ok(Some(LogParting { at: None, what: "they were made on different machines".to_string() }));
    }
    let event = first_event(left, right)?;
    let check = first_check(left, right)?;
    let first = match (event, check) {
        (Some(event), Some(check)) if check.at < event.at => Some(check),
        (event, check) => event.or(check),
    };
    Ok(first.or_else(|| end(left, right)))
}

fn first_event<C: Count>(left: &Log<C>, right: &Log<C>) -> Result<Option<LogParting<C>>, Error> {
    let mut number = left.event_count().min(right.event_count());
    for (this, pair) in left.events().zip(right.events()).enumerate() {
        let (l, r) = (pair.0?, pair.1?);
        if l != r {
            number = this;
            break;
        }
    }
    let parting = |at: Moment<C>, what: String| Some(LogParting { at: Some(at), what });
    Ok(match (left.event(number)?, right.event(number)?) {
        (None, None) => None,
        (Some(l), Some(r)) => {
            let what = format!("event {number}: {}", event_difference(&l, &r));
            parting(l.at.min(r.at), what)
        }
        // A log that was cut off counts as equal if it has no difference before its end.
        (Some(event), None) if event.at <= right.last_moment() => {
            parting(event.at, format!("event {number} ({}) is in the first only", event.event.kind()))
        }
        (None, Some(event)) if event.at <= left.last_moment() => {
            parting(event.at, format!("event {number} ({}) is in the second only", event.event.kind()))
        }
        _ => None,
    })
}

fn event_difference<C: Count>(left: &EventRecord<C>, right: &EventRecord<C>) -> String {
    if left.event != right.event {
        return format!("{:?} or {:?}", left.event, right.event);
    }
    if left.at != right.at {
        return format!("{} at {} or at {}", left.event.kind(), left.at, right.at);
    }
    format!("{}: the machine's registers differ", left.event.kind())
}

fn first_check<C: Count>(left: &Log<C>, right: &Log<C>) -> Result<Option<LogParting<C>>, Error> {
    let mut others = right.checks().peekable();
    for check in left.checks() {
        let check = check?;
        while others.next_if(|other| other.as_ref().is_ok_and(|other| other.at < check.at)).is_some() {}
        let same_point = |other: &Result<CheckRecord<C>, Error>| {
            other.as_ref().is_ok_and(|other| other.at == check.at) || other.is_err()
        };
        let Some(other) = others.next_if(same_point).transpose()? else { continue };
        let both = |l: Option<&[u8]>, r: Option<&[u8]>| l.is_none() || r.is_none() || l == r;
        let devices = both(
            check.devices_hash.as_ref().map(|h| h.as_slice()),
            other.devices_hash.as_ref().map(|h| h.as_slice()),
        );
        let ram = both(
            check.ram_digest.as_ref().map(|d| d.as_slice()),
            other.ram_digest.as_ref().map(|d| d.as_slice()),
        );
        let registers =
            (check.rip, check.branches, check.cpu_hash) == (other.rip, other.branches, other.cpu_hash);
        for (same, what) in [(registers, "registers"), (devices, "devices"), (ram, "RAM")] {
            if !same {
                let what = format!("a check finds different {what}");
                return Ok(Some(LogParting { at: Some(check.at), what }));
            }
        }
    }
    Ok(None)
}

fn end<C: Count>(left: &Log<C>, right: &Log<C>) -> Option<LogParting<C>> {
    let (Some(l), Some(r)) = (&left.end, &right.end) else { return None };
    let what = if l.outcome != r.outcome {
        format!("the end: {}, or {}", l.outcome, r.outcome)
    } else if l.at != r.at {
        format!("the end: at {} or at {}", l.at, r.at)
    } else {
        "the hashes of the whole machine at the end".to_string()
    };
    (l != r).then(|| LogParting { at: Some(l.at.min(r.at)), what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::records::LogRecord;
    use machine::inputs::{Event, PowerOn};
    use machine::position::Instructions;

    fn at(number: u64) -> Moment<Instructions> {
        Moment { count: Instructions(number), time_ns: number }
    }

    fn event(number: u64, event: Event) -> EventRecord<Instructions> {
        EventRecord { at: at(number), branches: 0, rip: 0, cpu_hash: [0; 8], event }
    }

    fn check(number: u64, hash: u8) -> CheckRecord<Instructions> {
        let (at, cpu_hash) = (at(number), [hash; 8]);
        CheckRecord { at, branches: 0, rip: 0, cpu_hash, devices_hash: None, ram_digest: None }
    }

    fn log_of(
        machine: [u8; 32],
        events: Vec<EventRecord<Instructions>>,
        checks: Vec<CheckRecord<Instructions>>,
    ) -> Log<Instructions> {
        let power_on = PowerOn { unix_seconds: 0, seed: [0; 32], columns: 80, rows: 25 };
        let mut entries = vec![(at(0), LogRecord::Event(event(0, Event::PowerOn(power_on))))];
        entries.extend(events.into_iter().map(|event| (event.at, LogRecord::Event(event))));
        entries.extend(checks.into_iter().map(|check| (check.at, LogRecord::Check(check))));
        entries.sort_by_key(|(at, _)| *at);
        let records = entries.into_iter().map(|(_, record)| record);
        Log::of_records(&[LogRecord::Machine(machine)].into_iter().chain(records).collect::<Vec<_>>())
            .unwrap()
    }

    fn log(
        events: Vec<EventRecord<Instructions>>,
        checks: Vec<CheckRecord<Instructions>>,
    ) -> Log<Instructions> {
        log_of([0; 32], events, checks)
    }

    #[test]
    fn the_earliest_difference_is_named() {
        let typed = |number, text: &[u8]| event(number, Event::ConsoleInput(text.to_vec()));
        let base = log(vec![typed(10, b"a"), typed(30, b"b")], vec![check(20, 1), check(40, 1)]);
        let place = |other: &Log<_>| diff(&base, other).unwrap().map(|parting| parting.at.unwrap().count);
        assert_eq!(place(&base), None);
        for (what, events, checks, expected) in [
            ("payload", vec![typed(10, b"a"), typed(30, b"c")], vec![], Some(30)),
            ("position", vec![typed(10, b"a"), typed(29, b"b")], vec![], Some(29)),
            ("missing", vec![typed(10, b"a")], vec![check(40, 1)], Some(30)),
            ("cut off", vec![typed(10, b"a")], vec![check(20, 1)], None),
            ("check before event", vec![typed(10, b"a"), typed(30, b"c")], vec![check(20, 2)], Some(20)),
            ("check elsewhere", vec![typed(10, b"a"), typed(30, b"b")], vec![check(21, 2)], None),
            ("more", vec![typed(10, b"a"), typed(30, b"b"), typed(35, b"c")], vec![], Some(35)),
        ] {
            assert_eq!(place(&log(events, checks)), expected.map(Instructions), "{what}");
        }
        let other = log_of([1; 32], vec![typed(10, b"a"), typed(30, b"b")], vec![]);
        assert_eq!(diff(&base, &other).unwrap().unwrap().at, None);
    }

    #[test]
    fn a_difference_is_told_in_words() {
        let typed = |number, text: &[u8]| event(number, Event::ConsoleInput(text.to_vec()));
        let with = |rip| EventRecord { rip, ..event(10, Event::PowerButton) };
        let what = |left: &Log<_>, right: &Log<_>| {
            let parting = diff(left, right).unwrap();
            parting.map(|parting| parting.what).unwrap_or_default()
        };
        let base = log(vec![with(1)], vec![]);
        let other = log_of([1; 32], vec![with(1)], vec![]);
        assert_eq!(what(&base, &other), "they were made on different machines");
        assert_eq!(
            what(&base, &log(vec![with(2)], vec![])),
            "event 1: power-button: the machine's registers differ"
        );
        let later = log(vec![event(11, Event::PowerButton)], vec![]);
        let told = what(&base, &later);
        assert!(told.starts_with("event 1: power-button at ") && told.contains(" or at "), "{told}");
        let told = what(&base, &log(vec![typed(10, b"x")], vec![]));
        assert_eq!(told, "event 1: PowerButton or ConsoleInput([120])");
        // The event is missing in a log that goes on beyond the event's point.
        let without = log(vec![], vec![check(20, 1)]);
        assert_eq!(what(&base, &without), "event 1 (power-button) is in the first only");
        assert_eq!(what(&without, &base), "event 1 (power-button) is in the second only");
        let ends_there = log(vec![], vec![check(10, 1)]);
        assert_eq!(what(&base, &ends_there), "event 1 (power-button) is in the first only");
        let ends_before = log(vec![], vec![check(9, 1)]);
        assert_eq!((what(&base, &ends_before), what(&ends_before, &base)), (String::new(), String::new()));
    }

    #[test]
    fn checks_are_compared_in_the_parts_that_both_have() {
        let of = |devices: Option<u8>, ram: Option<u8>| CheckRecord {
            devices_hash: devices.map(|byte| [byte; 8]),
            ram_digest: ram.map(|byte| [byte; 16]),
            ..check(20, 1)
        };
        let what = |left: CheckRecord<_>, right: CheckRecord<_>| {
            let parting =
                diff(&log(vec![], vec![check(10, 1), left]), &log(vec![], vec![check(15, 7), right]));
            parting.unwrap().map(|parting| (parting.at.unwrap().count.0, parting.what)).unwrap_or_default()
        };
        let differs = |part: &str| (20, format!("a check finds different {part}"));
        assert_eq!(what(of(Some(1), Some(1)), of(Some(1), Some(1))).0, 0);
        assert_eq!(what(of(Some(1), None), of(Some(2), None)), differs("devices"));
        assert_eq!(what(of(None, Some(1)), of(None, Some(2))), differs("RAM"));
        assert_eq!(what(of(Some(1), Some(1)), of(Some(2), Some(2))), differs("devices"));
        assert_eq!(what(of(Some(1), Some(1)), of(None, None)).0, 0);
        assert_eq!(what(of(None, None), of(Some(1), Some(1))).0, 0);
        assert_eq!(what(CheckRecord { rip: 9, ..of(None, None) }, of(None, None)), differs("registers"));
        assert_eq!(what(CheckRecord { branches: 9, ..of(None, None) }, of(None, None)), differs("registers"));
    }

    #[test]
    fn ends_are_compared_last() {
        use crate::log::records::EndRecord;
        use machine::Outcome;
        use machine::hashes::Hashes;
        let ended = |number, outcome, ram: u8| {
            let hashes = Hashes { cpu: [0; 32], devices: [0; 32], ram: [ram; 16], disk: [0; 32] };
            let (console_bytes, console_hash) = (0, [0; 32]);
            let end = EndRecord { at: at(number), branches: 0, outcome, hashes, console_bytes, console_hash };
            let mut records = log(vec![], vec![]).records().unwrap();
            records.push(LogRecord::End(end));
            Log::of_records(&records).unwrap()
        };
        let base = ended(50, Outcome::PowerOff, 1);
        let told = |other: &Log<_>| {
            let parting = diff(&base, other).unwrap();
            parting.map(|parting| (parting.at.unwrap().count.0, parting.what)).unwrap_or_default()
        };
        assert_eq!(told(&base), (0, String::new()));
        assert_eq!(told(&log(vec![], vec![])).0, 0, "one was cut off");
        let (place, what) = told(&ended(50, Outcome::Reset, 1));
        assert!(place == 50 && what.starts_with("the end: ") && what.contains(", or "), "{what}");
        let (place, what) = told(&ended(40, Outcome::PowerOff, 1));
        assert!(place == 40 && what.starts_with("the end: at ") && what.contains(" or at "), "{what}");
        let hashes = (50, "the hashes of the whole machine at the end".to_string());
        assert_eq!(told(&ended(50, Outcome::PowerOff, 2)), hashes);
    }
}
