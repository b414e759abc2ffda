//! A live network. The network receives a peer's frames when the guest has room for them, and sends the
//! guest's frames to the peer.
//!
//! The peer never delays the machine. While the guest has no room, frames stay with the peer. While no driver of the
//! guest has started the card, frames from the peer are discarded. If the peer does not accept the guest's frames, the
//! frames are kept up to a limit. Further frames are lost, as on a wire.

use std::os::fd::{AsFd, BorrowedFd};

use crate::outside::Network;
use crate::peer::Peer;
use machine::inputs::Sent;
use machine::unit::Unit;

/// The largest number of frames in one event. The next constant is the largest number of their bytes. There are limits
/// because a record of the log has at most 1 MiB.
const MOST_FRAMES: usize = 64;
const MOST_BYTES: usize = 512 << 10;

/// The largest number of frames that one check discards while no driver has started the card. The limit keeps a peer
/// that sends without end from delaying the machine.
const MOST_DISCARDED: usize = 1024;

/// A live network: the guest's card, connected to a peer.
pub(super) struct LiveNetwork<C> {
    peer: Peer,
    /// A frame that did not fit into the previous event.
    kept: Option<Vec<u8>>,
    /// The count at which the peer is next checked while the guest is busy.
    next_look: C,
    told_lost: bool,
}

impl<C: Unit> LiveNetwork<C> {
    /// A network with a peer.
    pub fn new(peer: Peer) -> LiveNetwork<C> {
        LiveNetwork { peer, kept: None, next_look: C::default(), told_lost: false }
    }

    fn take(&mut self, most: usize) -> std::io::Result<Vec<Vec<u8>>> {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while frames.len() < most {
            let next = match self.kept.take() {
                Some(frame) => Some(frame),
                None => self.peer.receive()?,
            };
            let Some(frame) = next else { break };
            bytes += frame.len();
            if bytes > MOST_BYTES {
                self.kept = Some(frame);
                break;
            }
            frames.push(frame);
        }
        Ok(frames)
    }
}

impl<C: Unit> Network<C> for LiveNetwork<C> {
    fn count_anew(&mut self) {
        self.next_look = C::default();
    }

    fn wakes(&mut self, now: C) -> BorrowedFd<'_> {
        self.next_look = now;
        self.peer.as_fd()
    }

    fn receive(&mut self, now: C, room: Option<usize>) -> std::io::Result<Vec<Vec<u8>>> {
        if now < self.next_look {
            return Ok(Vec::new());
        }
        self.peer.flush()?;
        let frames = match room {
            Some(room) => self.take(room.min(MOST_FRAMES))?,
            None => {
                self.kept = None;
                for _ in 0..MOST_DISCARDED {
                    if self.peer.receive()?.is_none() {
                        break;
                    }
                }
                Vec::new()
            }
        };
        if frames.is_empty() {
            self.next_look = now + C::KEYBOARD_LOOKS;
        }
        Ok(frames)
    }

    fn send(&mut self, frames: Vec<Sent<C>>) -> std::io::Result<()> {
        for sent in frames {
            let is_taken = self.peer.send(sent.frame.into_checksummed())?;
            if !is_taken && !std::mem::replace(&mut self.told_lost, true) {
                log::warn!("the network's peer is too slow for the guest's frames; some are lost");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::passt::connected;
    use machine::position::Instructions;

    /// Receives from the peer until it has no more frames. Returns the frames of each event.
    fn events(network: &mut LiveNetwork<Instructions>, room: Option<usize>) -> Vec<Vec<Vec<u8>>> {
        let mut events = Vec::new();
        loop {
            let now = network.next_look;
            match network.receive(now, room).unwrap() {
                frames if frames.is_empty() => return events,
                frames => events.push(frames),
            }
        }
    }

    #[test]
    fn frames_come_in_order_and_in_pieces_that_fit_into_the_log() {
        for (count, bytes) in [(200, 100), (20, 60_000)] {
            let (passt, mut theirs) = connected();
            theirs.set_nonblocking(false).unwrap();
            let mut network = LiveNetwork::new(Peer::User(passt));
            let frames: Vec<_> = (0..count).map(|number| vec![number as u8; bytes]).collect();
            let sent = frames.clone();
            let sender = std::thread::spawn(move || {
                for frame in sent {
                    theirs.write_all(&(frame.len() as u32).to_be_bytes()).unwrap();
                    theirs.write_all(&frame).unwrap();
                }
                theirs
            });
            let mut found = Vec::new();
            while found.len() < count {
                for event in events(&mut network, Some(100)) {
                    assert!(event.len() <= MOST_FRAMES && event.len() * bytes <= MOST_BYTES);
                    found.extend(event);
                }
            }
            assert!(found == frames, "{count} of {bytes} bytes");
            sender.join().unwrap();
        }
    }

    #[test]
    fn frames_stay_with_the_peer_without_room_and_are_lost_without_a_driver() {
        let (passt, mut theirs) = connected();
        let mut network = LiveNetwork::new(Peer::User(passt));
        let mut send = |byte: u8| theirs.write_all(&[0, 0, 0, 1, byte]).unwrap();
        (1..=5).for_each(&mut send);
        assert!(events(&mut network, Some(0)).is_empty());
        assert_eq!(network.receive(network.next_look, Some(2)).unwrap(), [[1], [2]]);
        assert!(events(&mut network, None).is_empty());
        send(6);
        assert_eq!(events(&mut network, Some(2)), [[[6]]]);
        drop(theirs);
        assert!(network.receive(network.next_look, Some(2)).is_err(), "the peer has gone");
    }
}
