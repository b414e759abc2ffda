//! The peer of a guest's network card, to which the card is connected.

use std::os::fd::{AsFd, BorrowedFd};

use crate::passt::{Forward, Passt};
use crate::tap::Tap;
use machine::error::Error;

/// The kind of network for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkOptions {
    /// The host's network, by the program `passt`, without privileges.
    User {
        /// Ports forwarded from the host to the guest.
        forwards: Vec<Forward>,
    },
    /// A TAP interface of the host.
    Tap {
        /// The interface's name.
        interface: String,
    },
}

impl NetworkOptions {
    /// The largest number of bytes that a frame may carry.
    pub fn mtu(&self) -> u16 {
        match self {
            NetworkOptions::User { .. } => Passt::MTU,
            NetworkOptions::Tap { .. } => Tap::MTU,
        }
    }

    /// Whether the peer accepts TCP segments that are longer than the MTU, and cuts them into frames.
    pub fn segments(&self) -> bool {
        matches!(self, NetworkOptions::User { .. })
    }
}

/// The peer of a guest's network card. No function of the peer waits.
pub enum Peer {
    /// See [`NetworkOptions::User`].
    User(Passt),
    /// See [`NetworkOptions::Tap`].
    Tap(Tap),
}

impl Peer {
    /// Connects to a network.
    pub fn connect(options: &NetworkOptions) -> Result<Peer, Error> {
        match options {
            NetworkOptions::User { forwards } => Passt::start(forwards).map(Peer::User),
            NetworkOptions::Tap { interface } => Tap::open(interface).map(Peer::Tap),
        }
    }

    /// The next frame from the peer, if there is one.
    pub fn receive(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        match self {
            Peer::User(passt) => passt.receive(),
            Peer::Tap(tap) => tap.receive(),
        }
    }

    /// Sends a frame. Returns false if the frame is lost.
    pub fn send(&mut self, frame: Vec<u8>) -> std::io::Result<bool> {
        match self {
            Peer::User(passt) => passt.send(&frame),
            Peer::Tap(tap) => tap.send(&frame),
        }
    }

    /// Sends frames that could not be sent before.
    pub fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Peer::User(passt) => passt.flush(),
            Peer::Tap(_) => Ok(()),
        }
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Peer::User(passt) => passt.as_fd(),
            Peer::Tap(tap) => tap.as_fd(),
        }
    }
}
