//! Waits while a timeline moves. After a second a bar shows the progress, and ^C stops the movement.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use history::timeline::{Meter, Timeline};
use indicatif::ProgressBar;
use machine::error::Error;

use crate::interrupt::Interrupt;
use crate::progress;

/// A wait shorter than this needs no progress bar.
const QUIET: Duration = Duration::from_secs(1);

/// The bar and the interrupt for a user who waits. The host's clock decides only when the bar is shown. No movement
/// depends on the clock.
pub struct Wait {
    interrupt: Interrupt,
    meter: Meter,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl Wait {
    /// Begins waiting for this timeline, and catches ^C ([`Interrupt::catch`]).
    pub fn on(timeline: &Timeline) -> Result<Wait, Error> {
        let interrupt = Interrupt::catch()?;
        Ok(Wait { interrupt, meter: timeline.meter(), begun: Instant::now(), bar: None })
    }

    /// Continues this wait with another timeline.
    pub fn of(mut self, timeline: &Timeline) -> Wait {
        self.clear();
        Wait { interrupt: self.interrupt.clone(), meter: timeline.meter(), begun: self.begun, bar: None }
    }

    /// A movement's poll function: shows the progress, and returns whether to stop.
    pub fn poll(&mut self) -> bool {
        if self.begun.elapsed() >= QUIET {
            self.show();
        }
        self.interrupt.poll()
    }

    /// Removes the bar. The returned value still catches ^C.
    pub fn over(mut self) -> Interrupt {
        self.clear();
        self.interrupt.clone()
    }

    fn show(&mut self) {
        let (done, at_most) = self.meter.progress();
        let bar = self.bar.get_or_insert_with(|| {
            let bar = progress::bar(at_most, std::io::stderr().is_terminal());
            bar.set_message("replaying");
            bar
        });
        // The bar is used for several movements one after the other, and each has its own length.
        if bar.length() != Some(at_most) {
            bar.set_length(at_most);
        }
        if done < bar.position() {
            bar.reset_eta();
        }
        bar.set_position(done);
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.clear();
    }
}
