//! The progress of a movement, for the person who waits at gdb. The host's clock only decides when to report the
//! progress. The movement does not depend on the clock.

use std::rc::Rc;
use std::time::{Duration, Instant};

use history::timeline::Meter;

/// A function that receives progress messages, in addition to gdb.
pub(super) type Listener = Rc<dyn Fn(String)>;

/// How often to report the progress, and the function that receives the messages in addition to gdb.
pub(super) struct Settings {
    pub every: Duration,
    pub listener: Option<Listener>,
}

impl Default for Settings {
    fn default() -> Settings {
        // A movement of less than two seconds needs no report.
        Settings { every: Duration::from_secs(2), listener: None }
    }
}

/// A function to call at every poll of a movement that begins now. The function returns the message that is
/// due, if any.
pub(super) fn teller(meter: Meter, settings: &Settings) -> Box<gdb::Progress> {
    let (every, listener) = (settings.every, settings.listener.clone());
    let begun = Instant::now();
    let mut next = every;
    Box::new(move || {
        let elapsed = begun.elapsed();
        if elapsed < next {
            return None;
        }
        next = elapsed + every;
        let text = sentence(meter.progress(), elapsed);
        if let Some(listener) = &listener {
            listener(text.clone());
        }
        Some(format!("[{text}]\n"))
    })
}

fn sentence((done, at_most): (u64, u64), elapsed: Duration) -> String {
    const MILLION: f64 = 1e6;
    let (done, at_most) = (done as f64, at_most as f64);
    let speed = done / elapsed.as_secs_f64().max(1e-3);
    let left =
        if speed > 0.0 { format!(", about {:.0} s left", (at_most - done) / speed) } else { String::new() };
    format!(
        "{:.0} of at most {:.0} million instructions replayed, {:.0} %{left}",
        done / MILLION,
        at_most / MILLION,
        (done / at_most.max(1.0) * 100.0).floor()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_sentence() {
        let table = [
            ((0, 0), 0, "0 of at most 0 million instructions replayed, 0 %"),
            ((0, 5_000_000), 2, "0 of at most 5 million instructions replayed, 0 %"),
            (
                (350_000_000, 25_000_000_000),
                2,
                "350 of at most 25000 million instructions replayed, 1 %, about 141 s left",
            ),
            (
                (4_000_000, 4_000_000),
                1,
                "4 of at most 4 million instructions replayed, 100 %, about 0 s left",
            ),
        ];
        for (progress, seconds, expected) in table {
            assert_eq!(sentence(progress, Duration::from_secs(seconds)), expected);
        }
    }
}
