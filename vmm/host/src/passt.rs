//! The program `passt`, which gives a guest the host's network without privileges. `passt` sends Ethernet frames
//! over a socket. Before each frame comes the frame's length (32 bits, big endian), as in QEMU's socket networks.
//!
//! See passt(1) and QEMU's documentation of `-netdev stream`.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{setsockopt, sockopt};

use machine::error::Error;

/// The size in bytes of the longest frame that passt accepts. passt disconnects at a longer frame.
const MAX_FRAME_BYTES: usize = 65_535;
/// The largest number of bytes of the guest's frames that wait until passt accepts them.
const MAX_UNSENT_BYTES: usize = 4 << 20;
/// Size of the buffer for bytes from passt that the guest has no room for yet. The buffer is larger than a
/// frame with its length.
const RECEIVED_BYTES: usize = 1 << 20;
/// Size of the socket buffer from passt, which fills while the guest runs. passt discards frames that do not fit.
/// TCP must send these frames again. With the usual 208 KiB, half of a download's frames do not fit, and the download
/// takes four times as long. The host's `net.core.wmem_max` limits this size.
pub const PASST_SOCKET_BYTES: usize = 4 << 20;
/// The longest time to wait for passt. passt is ready within a fraction of a second, or some seconds on a busy host.
const READY_TIME: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(2);

/// A forwarded port from the host to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The host's address; `None` for all addresses.
    pub address: Option<String>,
    /// The host's port.
    pub host_port: u16,
    /// The guest's port.
    pub guest_port: u16,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Forward {
    /// The arguments for passt.
    fn arguments(&self) -> [String; 2] {
        let option = match self.protocol {
            Protocol::Tcp => "--tcp-ports",
            Protocol::Udp => "--udp-ports",
        };
        let address = self.address.as_ref().map_or(String::new(), |address| format!("{address}/"));
        [option.to_string(), format!("{address}{}:{}", self.host_port, self.guest_port)]
    }
}

impl Forward {
    /// Checks that the host's port is free. If the port is not free, passt reports nothing and does not
    /// forward the port.
    fn check(&self) -> Result<(), Error> {
        let address = self.address.clone().unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.to_string());
        let place = (address.as_str(), self.host_port);
        let tried = match self.protocol {
            Protocol::Tcp => TcpListener::bind(place).map(drop),
            Protocol::Udp => UdpSocket::bind(place).map(drop),
        };
        tried.map_err(|why| {
            let port = self.host_port;
            Error::Unsupported(format!(
                "cannot forward port {port} of {address} to the guest: {why}; choose another port"
            ))
        })
    }
}

/// A process of passt that this process started. passt ends when the connection closes.
pub struct Passt {
    socket: UnixStream,
    received: Received,
    unsent: VecDeque<u8>,
}

impl Passt {
    /// The largest number of bytes that a frame carries, which is passt's maximum.
    pub const MTU: u16 = 65_520;

    /// Starts passt, and waits until it is ready.
    pub fn start(forwards: &[Forward]) -> Result<Passt, Error> {
        forwards.iter().try_for_each(Forward::check)?;
        let host = |what: &str| {
            let what = what.to_string();
            move |source: std::io::Error| Error::Host { what, source }
        };
        let (socket, theirs) = sockets().map_err(host("cannot make a socket for passt"))?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))
            .map_err(|errno| host("cannot set up the socket for passt")(errno.into()))?;
        let mut command = Command::new("passt");
        command.args(["--quiet", "--fd", &theirs.as_raw_fd().to_string()]);
        command.args(forwards.iter().flat_map(Forward::arguments));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = command.spawn().map_err(|source| match source.kind() {
            ErrorKind::NotFound => Error::Unsupported(
                "--net user needs the program passt, which is not installed: install Debian's package passt"
                    .to_string(),
            ),
            _ => host("cannot start passt")(source),
        })?;
        let ready = wait_until_ready(process).map_err(host("cannot wait for passt"))?;
        if !ready.status.success() {
            let said = String::from_utf8_lossy(&ready.stderr);
            let why =
                said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it gave no message");
            return Err(Error::Unsupported(format!("passt does not start: {why}")));
        }
        Ok(Passt::on(socket))
    }

    fn on(socket: UnixStream) -> Passt {
        Passt { socket, received: Received::default(), unsent: VecDeque::new() }
    }

    /// See [`Peer::receive`](super::peer::Peer::receive).
    pub fn receive(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(frame) = self.received.next_frame()? {
                return Ok(Some(frame));
            }
            match self.socket.read(self.received.room()) {
                Ok(0) => return Err(std::io::Error::other("passt has ended")),
                Ok(count) => self.received.end += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// See [`Peer::send`](super::peer::Peer::send).
    pub fn send(&mut self, frame: &[u8]) -> std::io::Result<bool> {
        if frame.len() > MAX_FRAME_BYTES || self.unsent.len() + frame.len() > MAX_UNSENT_BYTES {
            return Ok(false);
        }
        self.unsent.extend((frame.len() as u32).to_be_bytes());
        self.unsent.extend(frame);
        self.flush()?;
        Ok(true)
    }

    /// See [`Peer::flush`](super::peer::Peer::flush).
    pub fn flush(&mut self) -> std::io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(self.unsent.as_slices().0) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A socket pair: this process's end and passt's end.
fn sockets() -> std::io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    setsockopt(&theirs, sockopt::SndBuf, &PASST_SOCKET_BYTES)?;
    Ok((ours, theirs))
}

/// Received bytes from passt: frames, the last of which may be incomplete.
struct Received {
    buffer: Box<[u8]>,
    /// The range of the received bytes in the buffer.
    begin: usize,
    end: usize,
}

impl Default for Received {
    fn default() -> Received {
        Received { buffer: vec![0; RECEIVED_BYTES].into_boxed_slice(), begin: 0, end: 0 }
    }
}

impl Received {
    /// The free part of the buffer, for more bytes. Called when the buffer has no complete frame.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= std::mem::take(&mut self.begin);
        &mut self.buffer[self.end..]
    }

    fn next_frame(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let Some((length, rest)) = self.buffer[self.begin..self.end].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(std::io::Error::other("passt sent an invalid frame"));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let frame = frame.to_vec();
        self.begin += 4 + length;
        Ok(Some(frame))
    }
}

/// Waits until passt is ready and goes to the background. Returns the output of passt up to then.
fn wait_until_ready(mut process: Child) -> std::io::Result<Output> {
    let last_look = Instant::now() + READY_TIME;
    while process.try_wait()?.is_none() {
        if Instant::now() >= last_look {
            process.kill()?;
            process.wait()?;
            let seconds = READY_TIME.as_secs();
            return Err(std::io::Error::other(format!(
                "it was not ready after {seconds} s, and was ended; see whether `passt --foreground` starts"
            )));
        }
        std::thread::sleep(READY_POLL);
    }
    process.wait_with_output()
}

impl AsFd for Passt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A passt object whose other end a test controls.
#[cfg(test)]
pub(super) fn connected() -> (Passt, UnixStream) {
    let (socket, theirs) = sockets().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (Passt::on(socket), theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_however_they_arrive() {
        let (mut passt, mut theirs) = connected();
        let bytes =
            [&3_u32.to_be_bytes()[..], b"abc", &0_u32.to_be_bytes(), &2_u32.to_be_bytes(), b"de"].concat();
        let mut frames = Vec::new();
        for byte in bytes {
            theirs.write_all(&[byte]).unwrap();
            frames.extend(passt.receive().unwrap());
        }
        assert_eq!(frames, [b"abc".to_vec(), Vec::new(), b"de".to_vec()]);
        theirs.write_all(&0x10000_u32.to_be_bytes()).unwrap();
        assert!(passt.receive().is_err(), "no frame is as long");
        let (mut passt, theirs) = connected();
        drop(theirs);
        assert!(passt.receive().is_err(), "the other end has hung up");
    }

    /// If a frame does not fit into the socket, passt must send it again. The guest's TCP requests six or more of the
    /// longest frames at once. A socket buffer of the usual size has space for three.
    #[test]
    fn a_burst_of_frames_waits_in_the_socket_while_the_guest_runs() {
        let (mut passt, mut theirs) = connected();
        let frame = [&65_000_u32.to_be_bytes()[..], &[7; 65_000]].concat();
        for number in 0..5 {
            assert_eq!(theirs.write(&frame).ok(), Some(frame.len()), "frame {number}");
        }
        for _ in 0..5 {
            assert_eq!(passt.receive().unwrap().as_deref(), Some(&frame[4..]));
        }
    }

    #[test]
    fn a_peer_that_takes_nothing_costs_frames_and_no_more_memory() {
        let (mut passt, mut theirs) = connected();
        let (frame, mut taken) = (vec![7; 50_000], 0);
        while passt.send(&frame).unwrap() {
            taken += 1;
        }
        assert!(taken >= MAX_UNSENT_BYTES / frame.len() && passt.unsent.len() <= MAX_UNSENT_BYTES);
        assert!(!passt.send(&[0; MAX_FRAME_BYTES + 1]).unwrap());
        let (mut arrived, mut buffer) = (0, vec![0; 1 << 20]);
        while !passt.unsent.is_empty() {
            arrived += theirs.read(&mut buffer).unwrap();
            passt.flush().unwrap();
        }
        while let Ok(count) = theirs.read(&mut buffer) {
            arrived += count;
        }
        assert_eq!(arrived, taken * (frame.len() + 4), "what was taken arrives");
        assert!(passt.send(&frame).unwrap(), "and then there is room again");
    }

    #[test]
    fn ports_are_forwarded_as_passt_wants_it() {
        let forward = |protocol, address: Option<&str>| Forward {
            protocol,
            address: address.map(str::to_string),
            host_port: 2222,
            guest_port: 22,
        };
        assert_eq!(forward(Protocol::Tcp, None).arguments(), ["--tcp-ports", "2222:22"]);
        assert_eq!(
            forward(Protocol::Udp, Some("127.0.0.1")).arguments(),
            ["--udp-ports", "127.0.0.1/2222:22"]
        );
    }

    #[test]
    fn a_port_that_is_taken_is_said() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let host_port = taken.local_addr().unwrap().port();
        let address = Some("127.0.0.1".to_string());
        let forward = Forward { protocol: Protocol::Tcp, address, host_port, guest_port: 22 };
        let said = forward.check().unwrap_err().to_string();
        assert!(said.contains(&format!("port {host_port} of 127.0.0.1")), "{said}");
        drop(taken);
        assert!(forward.check().is_ok());
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let host_port = udp.local_addr().unwrap().port();
        assert!(Forward { protocol: Protocol::Udp, host_port, ..forward }.check().is_err());
    }
}
