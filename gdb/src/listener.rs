//! The place where gdb connects: a TCP port of this machine, or a Unix socket.
//!
//! The protocol has no authentication and gives its client full control. So only loopback addresses are served unless
//! the caller asks for more. On this machine, only the serving user and root may connect ([`crate::owner`]).
//!
//! ```text
//!   reserve: the address is ours, clients are refused ──► open: clients wait ──► accept: returns one client
//! ```
//!
//! All waiting clients are checked together. So hundreds of connections of another user cost one read of the kernel's
//! tables, and do not keep this user's gdb waiting.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, UnixAddr, bind,
    listen, setsockopt, socket, sockopt::ReuseAddr,
};
use nix::sys::stat::{Mode, fchmod};

use crate::owner::Owners;

/// Largest number of clients whose owners are looked up together. Each client takes a descriptor during the look-up.
const MOST_AT_ONCE: usize = 256;

/// The reasons why a listener gets no connections.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is not understood.
    #[error("cannot listen on {0:?}: expected ADDRESS:PORT, like 127.0.0.1:1234, or unix:PATH")]
    Address(String),
    /// Other hosts can reach the address.
    #[error(
        "cannot listen on {0}: other hosts can reach it, and every client has full control; use 127.0.0.1, or allow \
         remote clients"
    )]
    NotLoopback(SocketAddr),
    /// Another program listens on this address.
    #[error("cannot listen on {0}: the address is in use; choose another")]
    InUse(String),
    /// The operating system refused.
    #[error("cannot listen on {address}")]
    Bind {
        /// The requested address.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The host's tables of connections, which tell who connects, cannot be read.
    #[error("cannot listen on {address}: ttvm cannot find out which user connects ({source}); use unix:PATH")]
    Owners {
        /// The requested address.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system failed to accept a connection.
    #[error("cannot accept connections on {address}")]
    Accept {
        /// The address to which gdb connects.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A place where gdb can connect.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    gdb_address: String,
    /// Who may connect; `None` means everyone.
    owners: Option<Owners>,
    /// Allowed clients that wait for [`Listener::accept`].
    admitted: Mutex<VecDeque<Stream>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The serving user and root, on this host.
    ThisUser,
    /// Everyone who reaches the address.
    Anyone,
}

/// One client's connection.
#[derive(Debug)]
pub enum Stream {
    /// A connection to a TCP port. Small packets are sent at once.
    Tcp(TcpStream),
    /// A connection to a Unix socket.
    Unix(UnixStream),
}

impl Listener {
    /// Listens on `ADDRESS:PORT` or on `unix:PATH`. ADDRESS is a loopback address or `localhost`, and may be empty,
    /// which means `localhost`. Port 0 picks a free port. Replaces a socket file that a dead listener left behind.
    ///
    /// # Errors
    /// [`ListenError`] says in one sentence what is wrong with the address or with the host.
    pub fn bind(address: &str) -> Result<Self, ListenError> {
        let listener = Self::reserve(address, Reach::ThisUser)?;
        listener.open()?;
        Ok(listener)
    }

    /// As [`Self::bind`], but clients are refused until [`Self::open`]. With [`Reach::Anyone`], addresses that other
    /// hosts can reach are allowed too. Every client that connects then controls the target, so all hosts of the
    /// network and all their users must be trusted.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn reserve(address: &str, reach: Reach) -> Result<Self, ListenError> {
        match address.strip_prefix("unix:") {
            Some("") => Err(ListenError::Address(address.to_owned())),
            Some(path) => Self::bind_unix(address, Path::new(path)),
            None => Self::bind_tcp(address, reach),
        }
    }

    fn bind_tcp(address: &str, reach: Reach) -> Result<Self, ListenError> {
        let wanted = parse_tcp(address).ok_or_else(|| ListenError::Address(address.to_owned()))?;
        if reach == Reach::ThisUser && !wanted.ip().is_loopback() {
            return Err(ListenError::NotLoopback(wanted));
        }
        let failed = |source| bind_error(address, source);
        let family = if wanted.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = new_socket(family).map_err(failed)?;
        // A recently ended session must not delay a new listener.
        setsockopt(&socket, ReuseAddr, &true).map_err(|errno| failed(errno.into()))?;
        match wanted {
            SocketAddr::V4(wanted) => bind_socket(&socket, &SockaddrIn::from(wanted)),
            SocketAddr::V6(wanted) => bind_socket(&socket, &SockaddrIn6::from(wanted)),
        }
        .map_err(failed)?;
        let socket = TcpListener::from(socket);
        let gdb_address = socket.local_addr().map_err(failed)?.to_string();
        let owners = (reach == Reach::ThisUser).then(Owners::of_connections).transpose();
        let owners = owners.map_err(|source| ListenError::Owners { address: address.to_owned(), source })?;
        Ok(Self { socket: Socket::Tcp(socket), gdb_address, owners, admitted: Mutex::default() })
    }

    fn bind_unix(address: &str, path: &Path) -> Result<Self, ListenError> {
        let failed = |source| bind_error(address, source);
        let socket = new_socket(AddressFamily::Unix).map_err(failed)?;
        // The file gets this mode, minus the umask's bits.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|errno| failed(errno.into()))?;
        let name = UnixAddr::new(path).map_err(|errno| failed(errno.into()))?;
        match bind_socket(&socket, &name) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_stale_socket(path) => {
                fs::remove_file(path).and_then(|()| bind_socket(&socket, &name))
            }
            bound => bound,
        }
        .map_err(failed)?;
        let gdb_address = path.display().to_string();
        let socket = Socket::Unix(UnixListener::from(socket), path.to_owned());
        let owners = Some(Owners::of_sockets());
        Ok(Self { socket, gdb_address, owners, admitted: Mutex::default() })
    }

    /// From now on, clients can connect and wait for [`Self::accept`]. A second call does no harm.
    ///
    /// # Errors
    /// If another program has taken the address in the meantime.
    pub fn open(&self) -> Result<(), ListenError> {
        listen(self, Backlog::MAXCONN).map_err(|errno| bind_error(&self.gdb_address, errno.into()))
    }

    /// The argument for gdb's `target remote`.
    pub fn gdb_address(&self) -> &str {
        &self.gdb_address
    }

    /// Waits for the next client that may connect. Hangs up on other clients.
    ///
    /// # Errors
    /// [`ListenError::Accept`]. A client that gives up while it waits is not an error.
    pub fn accept(&self) -> Result<Stream, ListenError> {
        loop {
            if let Some(stream) = self.admitted().pop_front() {
                return Ok(stream);
            }
            self.admit_waiting()?;
        }
    }

    /// Checks all clients that wait. If no client waits, waits for one.
    fn admit_waiting(&self) -> Result<(), ListenError> {
        match self.accept_once() {
            Ok(stream) => self.admit(self.with_all_that_wait(stream)),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(source) => return Err(ListenError::Accept { address: self.gdb_address.clone(), source }),
        }
        Ok(())
    }

    fn admitted(&self) -> MutexGuard<'_, VecDeque<Stream>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts other clients that are already waiting. Returns `first` and these clients.
    fn with_all_that_wait(&self, first: Stream) -> Vec<Stream> {
        let mut streams = vec![first];
        while streams.len() < MOST_AT_ONCE && self.is_ready() {
            match self.accept_once() {
                Ok(stream) => streams.push(stream),
                // If the error lasts, the next call of `accept_once` fails, after the clients so far have been checked.
                Err(_) => break,
            }
        }
        streams
    }

    /// Puts the allowed clients in `admitted`, and hangs up on the others. Logs one line for each reason, with the
    /// number of refused clients.
    fn admit(&self, streams: Vec<Stream>) {
        let refusals = self.refusals(&streams);
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        for (stream, refusal) in streams.into_iter().zip(refusals) {
            match refusal {
                None => self.admitted().push_back(stream),
                Some(why) => *refused.entry(why).or_default() += 1,
            }
        }
        for (why, count) in refused {
            let address = &self.gdb_address;
            match count {
                1 => log::warn!("a connection to {address} is refused: {why}"),
                _ => log::warn!("{count} connections to {address} are refused: {why}"),
            }
        }
    }

    /// Whether a client waits for [`Self::accept`].
    pub fn has_client(&self) -> bool {
        !self.admitted().is_empty() || self.is_ready()
    }

    /// Whether a connection waits to be accepted from the operating system.
    fn is_ready(&self) -> bool {
        let mut descriptors = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut descriptors, PollTimeout::ZERO), Ok(ready) if ready > 0)
    }

    /// As [`Self::accept`]. Returns `None` once the other end of `stop` is closed.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn accept_until(&self, stop: &PipeReader) -> Result<Option<Stream>, ListenError> {
        loop {
            if let Some(stream) = self.admitted().pop_front() {
                return Ok(Some(stream));
            }
            let watched = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
            let mut descriptors = [watched(self.as_fd()), watched(stop.as_fd())];
            match poll(&mut descriptors, PollTimeout::NONE) {
                Ok(_) if descriptors[1].any() == Some(true) => return Ok(None),
                Ok(_) => self.admit_waiting()?,
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    return Err(ListenError::Accept {
                        address: self.gdb_address.clone(),
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// The reason why each client may not connect; `None` if the client may connect.
    fn refusals(&self, streams: &[Stream]) -> Vec<Option<String>> {
        let Some(owners) = &self.owners else { return streams.iter().map(|_| None).collect() };
        let users = match &self.socket {
            Socket::Tcp(_) => {
                let streams: Vec<&TcpStream> = streams.iter().filter_map(Stream::tcp).collect();
                owners.of_tcp(&streams)
            }
            Socket::Unix(..) => {
                streams.iter().filter_map(Stream::unix).map(|stream| owners.of_unix(stream)).collect()
            }
        };
        let refusal = |user: io::Result<u32>| match user {
            Ok(user) if owners.may_connect(user) => None,
            Ok(user) => Some(format!("it comes from user {user}, who does not own this session")),
            Err(error) => Some(format!("ttvm cannot find out which user it comes from: {error}")),
        };
        users.into_iter().map(refusal).collect()
    }

    fn accept_once(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept()?;
                // With Nagle's algorithm, every reply would wait up to 40 ms for the acknowledgement of the previous
                // reply. The call fails if the client has already closed the stream. The session notices this later.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix(socket, _) => Ok(Stream::Unix(socket.accept()?.0)),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket, _) => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // Another process may have removed the file already.
            let _ = fs::remove_file(path);
        }
    }
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

fn bind_socket(socket: &OwnedFd, address: &dyn SockaddrLike) -> io::Result<()> {
    Ok(bind(socket.as_raw_fd(), address)?)
}

/// Parses a socket address whose host may also be `localhost` or empty. Returns `None` for another host name, because
/// names are not looked up.
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

/// Whether `path` is a socket that a dead process left behind. Another kind of file must not be removed. A socket that
/// refuses clients may also belong to a listener that is reserved and not open yet.
fn is_stale_socket(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refuses =
        || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    is_socket && refuses() && !is_bound(path)
}

/// Whether a process has a socket with this name, according to /proc/net/unix: proc(5).
fn is_bound(path: &Path) -> bool {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let names = [path.display().to_string(), whole.display().to_string()];
    let bound = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    bound.lines().any(|line| names.iter().any(|name| line.ends_with(&format!(" {name}"))))
}

impl Stream {
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(stream),
            Stream::Unix(_) => None,
        }
    }

    fn unix(&self) -> Option<&UnixStream> {
        match self {
            Stream::Tcp(_) => None,
            Stream::Unix(stream) => Some(stream),
        }
    }

    /// Sets how long a read waits before it fails.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(patience)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(patience)),
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        }
    }
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
        // The program buffers no output for a socket.
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
            ("0.0.0.0:1234", "other hosts can reach it"),
            ("[::]:1234", "other hosts can reach it"),
            ("unix:/nonexistent/socket", "cannot listen on unix:/nonexistent/socket"),
        ];
        for (address, expected) in table {
            let sentence = Listener::bind(address).unwrap_err().to_string();
            assert!(sentence.contains(expected), "{address}: {sentence}");
        }
    }

    #[test]
    fn other_addresses_are_served_when_asked_for() {
        let listener = Listener::reserve("0.0.0.0:0", Reach::Anyone).unwrap();
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
        let listener = Listener::reserve(&address, Reach::ThisUser).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))), "it is bound and not open");
        listener.open().unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        drop(listener);
        assert!(!path.exists());

        // A socket file that a process left behind.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        // If another test starts a child process now, the child also holds the socket until it executes its program.
        while UnixStream::connect(&path).is_ok() || is_bound(&path) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(Listener::bind(&address).unwrap());

        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    /// A listener's socket file is private to its user from its first moment on. The test needs a umask of
    /// zero, which shows the mode that the listener sets. A umask belongs to the whole process, so a shell
    /// sets it.
    #[test]
    fn a_socket_is_private_whatever_the_umask() {
        const FOLDER: &str = "TTVM_TEST_SOCKET_FOLDER";
        let mode =
            |path: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
        if let Some(folder) = std::env::var_os(FOLDER) {
            let path = Path::new(&folder).join("socket");
            let _listener = Listener::bind(&format!("unix:{}", path.display())).unwrap();
            assert_eq!(mode(&path) & 0o777, 0o600);
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let name = "listener::tests::a_socket_is_private_whatever_the_umask";
        let line = format!("umask 0; exec \"$0\" --exact {name}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).arg(std::env::current_exe().unwrap()).env(FOLDER, folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    /// The kernel makes its table at each read, which takes longer with more connections. One read for many connections
    /// ensures that another user's connections do not keep this user's gdb out.
    #[test]
    fn clients_that_wait_are_looked_at_together() {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let clients: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(listener.gdb_address()).unwrap()).collect();
        drop(listener.accept().unwrap());
        assert_eq!(listener.admitted().len(), 99);
        for _ in 1..100 {
            assert!(listener.has_client());
            listener.accept().unwrap();
        }
        assert!(!listener.has_client());
        drop(clients);
    }

    #[test]
    fn clients_are_refused_until_it_is_open() {
        let listener = Listener::reserve("127.0.0.1:0", Reach::ThisUser).unwrap();
        let connect = || TcpStream::connect(listener.gdb_address());
        assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
        listener.open().unwrap();
        let _client = connect().unwrap();
        listener.accept().unwrap();
    }
}
