//! Live inputs: the console, and a network if the guest has one.

use crate::error::Error;
use crate::live::console::LiveConsole;
use crate::live::network::Network;
use crate::live::peer::Peer;
use crate::machine::inputs::{Event, Idle, Inputs, Sent, View};
use crate::machine::unit::Unit;
use crate::position::Moment;

/// A console, and perhaps a network beside it.
pub struct LiveInputs<C> {
    console: LiveConsole<C>,
    network: Option<Network<C>>,
}

impl<C: Unit> LiveInputs<C> {
    /// Inputs from the console, and from the peer if there is one.
    pub fn new(console: LiveConsole<C>, peer: Option<Peer>) -> LiveInputs<C> {
        LiveInputs { console, network: peer.map(Network::new) }
    }

    /// How idle time passes from here on, in a sentence.
    pub fn pacing(&self) -> &'static str {
        if self.network.is_some() {
            "the guest's idle time passes in real time, because it has a network"
        } else {
            self.console.pacing()
        }
    }

    /// What the network gives; a peer that fails or has gone is let go of.
    fn of_network<T>(&mut self, ask: impl FnOnce(&mut Network<C>) -> std::io::Result<T>) -> Option<T> {
        match ask(self.network.as_mut()?) {
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
        let frames = self.of_network(|network| network.receive(view.moment.count, view.network_room));
        Ok(frames.filter(|frames| !frames.is_empty()).map(Event::NetworkInput))
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        self.console.next_poll(now)
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let Some(network) = &mut self.network else { return self.console.idle(now, deadline_ns) };
        Ok(Idle::Until(self.console.wait(now, deadline_ns, Some(network.wakes(now.count)))))
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.console.console_output(now, bytes)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.of_network(|network| network.send(frames));
        Ok(())
    }
}
