//! The connection to one client. The connection turns bytes into events, and can check for new input while
//! the target runs.
//!
//! Reads are buffered, and each reply is sent in one write, so that a request costs two system calls.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::frame::{Event, Framer};

/// A connected, blocking byte stream with a file descriptor: a TCP or Unix socket.
pub trait Transport: Read + Write + AsFd {}

impl<T: Read + Write + AsFd> Transport for T {}

/// The largest number of events that may wait while the target runs. gdb never has more than one
/// packet under way.
const MAX_WAITING_EVENTS: usize = 64;

pub(crate) struct Link<'s> {
    stream: Box<dyn Transport + 's>,
    framer: Framer,
    waiting: VecDeque<Event>,
    buffer: Vec<u8>,
    closed: bool,
}

impl<'s> Link<'s> {
    pub(crate) fn new(stream: impl Transport + 's) -> Self {
        Self {
            stream: Box::new(stream),
            framer: Framer::new(),
            waiting: VecDeque::new(),
            buffer: vec![0; 4096],
            closed: false,
        }
    }

    /// Waits for the next event; `None` if the client has closed the connection.
    pub(crate) fn next_event(&mut self) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            if self.closed {
                return Ok(None);
            }
            self.receive()?;
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the client has sent ^C since the last event was taken, or has gone. Never blocks. Each ^C is
    /// reported only once.
    pub(crate) fn wants_stop(&mut self) -> bool {
        while self.waiting.len() < MAX_WAITING_EVENTS && !self.closed && self.has_input() {
            // A broken connection also ends the run. The next send will report the error.
            if self.receive().is_err() {
                self.closed = true;
            }
        }
        let interrupt = self.waiting.iter().position(|event| *event == Event::Interrupt);
        interrupt.and_then(|index| self.waiting.remove(index)).is_some() || self.closed
    }

    /// Number of packets that have arrived and were not taken yet.
    pub(crate) fn waiting_packets(&self) -> usize {
        self.waiting.iter().filter(|event| matches!(event, Event::Packet(_))).count()
    }

    /// Whether a read would return at once. Returns false if the system call `poll` was interrupted or failed. The next
    /// call then finds the input.
    fn has_input(&self) -> bool {
        let mut descriptors = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut descriptors, PollTimeout::ZERO), Ok(ready) if ready > 0)
    }

    /// Waits until bytes arrive, reads them and splits them into events.
    fn receive(&mut self) -> io::Result<()> {
        let count = match self.stream.read(&mut self.buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            result => result?,
        };
        self.closed = count == 0;
        let events = self.buffer[..count].iter().filter_map(|byte| self.framer.push(*byte));
        self.waiting.extend(events);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_interrupt_is_seen_once_and_packets_wait() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut link = Link::new(server);
        assert!(!link.wants_stop());
        client.write_all(b"$g#67\x03$?#3f").unwrap();
        assert!(link.wants_stop());
        assert!(!link.wants_stop());
        assert_eq!(link.next_event().unwrap(), Some(Event::Packet(b"g".to_vec())));
        assert_eq!(link.next_event().unwrap(), Some(Event::Packet(b"?".to_vec())));
    }

    #[test]
    fn a_client_that_has_gone_wants_a_stop() {
        let (client, server) = UnixStream::pair().unwrap();
        let mut link = Link::new(server);
        client.shutdown(Shutdown::Both).unwrap();
        assert!(link.wants_stop());
        assert!(link.wants_stop());
        assert_eq!(link.next_event().unwrap(), None);
    }

    #[test]
    fn a_flood_is_left_unread() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut link = Link::new(server);
        for _ in 0..8 {
            client.write_all(&b"$g#67".repeat(1000)).unwrap();
        }
        assert!(!link.wants_stop());
        assert!(link.waiting.len() < MAX_WAITING_EVENTS + 1000);
    }
}
