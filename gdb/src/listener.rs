//! Where gdb connects to: a TCP port of this machine, or a Unix socket.
//!
//! The protocol has no authentication and gives its client everything, so only loopback addresses are served unless
//! the caller asks for more.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why there is no connection to be had.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is not understood.
    #[error("cannot listen on {0:?}: expected ADDRESS:PORT, like 127.0.0.1:1234, or unix:PATH")]
    Address(String),
    /// The address can be reached from elsewhere.
    #[error(
        "cannot listen on {0}: every client that connects is in control, so only loopback addresses are allowed unless remote ones are asked for"
    )]
    NotLoopback(SocketAddr),
    /// Something else listens there.
    #[error("cannot listen on {0}: the address is in use")]
    InUse(String),
    /// The operating system refused.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address as it was asked for.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operating system stopped giving us connections.
    #[error("cannot accept connections on {address}")]
    Accept {
        /// The address as gdb would be given it.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A place where gdb can connect.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    gdb_address: String,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Who may connect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    ThisHost,
    Anyone,
}

/// One client's connection.
#[derive(Debug)]
pub enum Stream {
    /// From a TCP port; small packets leave at once.
    Tcp(TcpStream),
    /// From a Unix socket.
    Unix(UnixStream),
}

impl Listener {
    /// Listens on `ADDRESS:PORT` (a loopback address, `localhost`, or nothing, which means the latter; port 0
    /// picks a free one) or on `unix:PATH`. A socket file left behind by a listener that is gone is replaced.
    ///
    /// # Errors
    /// [`ListenError`] says in one sentence what is wrong with the address or with the host.
    pub fn bind(address: &str) -> Result<Self, ListenError> {
        Self::bind_within(address, Reach::ThisHost)
    }

    /// As [`Self::bind`], but also on addresses that other hosts reach. Every client that connects is then in
    /// control of the target, so all hosts of the network must be trusted.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_anywhere(address: &str) -> Result<Self, ListenError> {
        Self::bind_within(address, Reach::Anyone)
    }

    fn bind_within(address: &str, reach: Reach) -> Result<Self, ListenError> {
        match address.strip_prefix("unix:") {
            Some("") => Err(ListenError::Address(address.to_owned())),
            Some(path) => Self::bind_unix(address, Path::new(path)),
            None => Self::bind_tcp(address, reach),
        }
    }

    fn bind_tcp(address: &str, reach: Reach) -> Result<Self, ListenError> {
        let wanted = parse_tcp(address).ok_or_else(|| ListenError::Address(address.to_owned()))?;
        if reach == Reach::ThisHost && !wanted.ip().is_loopback() {
            return Err(ListenError::NotLoopback(wanted));
        }
        let bound = TcpListener::bind(wanted).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (actual, socket) = bound.map_err(|source| bind_error(address, source))?;
        Ok(Self { socket: Socket::Tcp(socket), gdb_address: actual.to_string() })
    }

    fn bind_unix(address: &str, path: &Path) -> Result<Self, ListenError> {
        let bound = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_stale_socket(path) => {
                fs::remove_file(path).and_then(|()| UnixListener::bind(path))
            }
            bound => bound,
        };
        let socket = bound.map_err(|source| bind_error(address, source))?;
        let gdb_address = path.display().to_string();
        Ok(Self { socket: Socket::Unix(socket, path.to_owned()), gdb_address })
    }

    /// What to give to gdb's `target remote`.
    pub fn gdb_address(&self) -> &str {
        &self.gdb_address
    }

    /// Waits for the next client.
    ///
    /// # Errors
    /// [`ListenError::Accept`]; that one client gave up while it waited is not an error.
    pub fn accept(&self) -> Result<Stream, ListenError> {
        loop {
            match self.accept_once() {
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(source) => return Err(ListenError::Accept { address: self.gdb_address.clone(), source }),
                Ok(stream) => return Ok(stream),
            }
        }
    }

    fn accept_once(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept()?;
                // Without this every reply waits for the acknowledgement of the one before, up to 40 ms. A
                // stream that has already been closed may refuse; the session will find out by itself.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix(socket, _) => Ok(Stream::Unix(socket.accept()?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // Another process may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
}

/// A socket address, where the host may also be `localhost` or nothing at all. Names are not looked up.
fn parse_tcp(address: &str) -> Option<SocketAddr> {
    if let Ok(parsed) = address.parse() {
        return Some(parsed);
    }
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    matches!(host, "" | "localhost").then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn bind_error(address: &str, source: io::Error) -> ListenError {
    match source.kind() {
        ErrorKind::AddrInUse => ListenError::InUse(address.to_owned()),
        _ => ListenError::Bind { address: address.to_owned(), source },
    }
}

/// Whether this is a socket that a process left behind. Anything but a socket is not ours to remove.
fn is_stale_socket(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // Sockets do not buffer on our side.
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_or_refused_in_a_sentence() {
        let table = [
            ("1234", "expected ADDRESS:PORT"),
            ("unix:", "expected ADDRESS:PORT"),
            ("example.org:1234", "expected ADDRESS:PORT"),
            ("127.0.0.1:70000", "expected ADDRESS:PORT"),
            ("0.0.0.0:1234", "only loopback"),
            ("[::]:1234", "only loopback"),
            ("unix:/nonexistent/socket", "cannot listen on unix:/nonexistent/socket"),
        ];
        for (address, expected) in table {
            let sentence = Listener::bind(address).unwrap_err().to_string();
            assert!(sentence.contains(expected), "{address}: {sentence}");
        }
    }

    #[test]
    fn other_addresses_are_served_when_asked_for() {
        let listener = Listener::bind_anywhere("0.0.0.0:0").unwrap();
        assert!(listener.gdb_address().starts_with("0.0.0.0:"));
    }

    #[test]
    fn a_free_port_is_picked_and_then_in_use() {
        for address in ["127.0.0.1:0", "localhost:0", ":0"] {
            let listener = Listener::bind(address).unwrap();
            assert!(listener.gdb_address().starts_with("127.0.0.1:"));
            assert!(matches!(Listener::bind(listener.gdb_address()), Err(ListenError::InUse(_))));
        }
    }

    #[test]
    fn a_socket_file_comes_and_goes_but_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gdb.sock");
        let address = format!("unix:{}", path.display());
        let listener = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        drop(listener);
        assert!(!path.exists());

        // A socket that its process left behind.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::bind(&address).unwrap());

        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
