//! Live inputs: from the console, the network, and the passed-through devices of the host.

use std::os::fd::BorrowedFd;

use devices::passthrough::{AskV1, DeviceInputV1};

use crate::console::LiveConsole;
use crate::outside::{Devices, Network};
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, Sent, View};
use machine::position::Moment;
use machine::unit::Unit;

/// Distance, in instructions or exits, between two polls of passed-through devices while the guest is busy.
const BETWEEN_LOOKS: u64 = 100_000;
/// As [`BETWEEN_LOOKS`], but while there is a device that the host must poll to find its interrupts.
const BETWEEN_WATCHING_LOOKS: u64 = 20_000;
/// Time between two polls of a device that must be polled for interrupts, while the guest is idle.
const WATCHING_NS: u64 = 250_000;
/// The largest number of polls in one wait, for a device that must be polled for interrupts. Signals are checked
/// between two waits.
const LOOKS_IN_A_WAIT: usize = 400;

/// A console, and optionally a network and devices.
pub struct LiveInputs<C> {
    console: LiveConsole<C>,
    network: Option<Box<dyn Network<C>>>,
    devices: Option<Box<dyn Devices>>,
}

impl<C: Unit> LiveInputs<C> {
    /// Inputs from only the console.
    pub fn new(console: LiveConsole<C>) -> LiveInputs<C> {
        LiveInputs { console, network: None, devices: None }
    }

    /// Adds a network.
    #[cfg(feature = "network")]
    pub fn with_network(self, peer: crate::peer::Peer) -> LiveInputs<C> {
        LiveInputs { network: Some(Box::new(crate::network::LiveNetwork::new(peer))), ..self }
    }

    /// Adds passed-through devices in these slots, for a guest with this RAM.
    #[cfg(feature = "vfio")]
    pub fn with_devices(
        self,
        opened: crate::passthrough::OpenedDevices,
        slots: &[u8],
        ram: guest_ram::RamView,
    ) -> Result<LiveInputs<C>, Error> {
        if opened.is_empty() {
            return Ok(self);
        }
        let devices = crate::passthrough::LiveDevices::new(opened, slots, ram)?;
        Ok(LiveInputs { devices: Some(Box::new(devices)), ..self })
    }

    /// How idle time passes from now on, as a sentence.
    pub fn pacing(&self) -> &'static str {
        if self.devices.is_some() {
            "the guest's idle time passes in real time, because it has devices of the host"
        } else if self.network.is_some() {
            "the guest's idle time passes in real time, because it has a network"
        } else {
            self.console.pacing()
        }
    }

    /// Notes that the machine, whose count was `before`, counts from zero again.
    pub fn count_anew(&mut self, before: C) {
        self.console.count_anew(before);
        self.network.iter_mut().for_each(|network| network.count_anew());
    }

    /// Waits until a time, or until an input comes. Returns the virtual time at the end of the wait.
    fn wait(&mut self, now: Moment<C>, until_ns: u64) -> u64 {
        let mut wakes: Vec<BorrowedFd<'_>> =
            self.devices.iter().flat_map(|devices| devices.wakes()).collect();
        wakes.extend(self.network.as_mut().map(|network| network.wakes(now.count)));
        self.console.wait(now, Some(until_ns).filter(|&ns| ns != u64::MAX), Some(&wakes))
    }

    /// Calls `ask` with the network. If the network's peer fails or has gone, the network is dropped, and the result is
    /// `None`.
    fn of_network<T>(&mut self, ask: impl FnOnce(&mut dyn Network<C>) -> std::io::Result<T>) -> Option<T> {
        match ask(self.network.as_deref_mut()?) {
            Ok(given) => Some(given),
            Err(why) => {
                log::warn!("the network's peer is gone ({why}); the guest goes on without a network");
                self.network = None;
                None
            }
        }
    }
}

impl<C: Unit> Inputs<C> for LiveInputs<C> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        if let Some(event) = self.console.poll(view)? {
            return Ok(Some(event));
        }
        if let Some(input) = self.devices.as_mut().and_then(|devices| devices.receive()) {
            return Ok(Some(Event::Devices(input)));
        }
        let frames = self.of_network(|network| network.receive(view.moment.count, view.network_room));
        Ok(frames.filter(|frames| !frames.is_empty()).map(Event::NetworkInput))
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        let next = self.console.next_poll(now);
        match &self.devices {
            None => next,
            Some(devices) if devices.are_watched() => next.min(now.count + BETWEEN_WATCHING_LOOKS),
            Some(_) => next.min(now.count + BETWEEN_LOOKS),
        }
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        if self.network.is_none() && self.devices.is_none() {
            return self.console.idle(now, deadline_ns);
        }
        if let Some(devices) = &mut self.devices {
            devices.before_idle();
        }
        let mut time_ns = now.time_ns;
        for _ in 0..LOOKS_IN_A_WAIT {
            let is_watching = self.devices.as_ref().is_some_and(|devices| devices.are_watched());
            let look_ns = if is_watching { time_ns + WATCHING_NS } else { u64::MAX };
            let end_ns = look_ns.min(deadline_ns.unwrap_or(u64::MAX));
            time_ns = self.wait(Moment { time_ns, ..now }, end_ns);
            // A shorter wait means that an input has come.
            if time_ns < look_ns || self.devices.as_mut().is_some_and(|devices| devices.look()) {
                break;
            }
        }
        Ok(Idle::Until(time_ns))
    }

    fn ask_devices(&mut self, _at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        Ok(self
            .devices
            .as_mut()
            .map_or_else(|| DeviceInputV1::nothing_there(*ask), |devices| devices.ask(ask)))
    }

    fn tell_devices(&mut self, _at: AskedAt<C>, told: &AskV1) -> Result<(), Error> {
        if let Some(devices) = &mut self.devices {
            devices.tell(told);
        }
        Ok(())
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.console.console_output(now, bytes)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.of_network(|network| network.send(frames));
        Ok(())
    }
}
