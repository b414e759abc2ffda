//! The owner of a connection from this machine: the client's user, as known to the kernel.
//!
//! See unix(7), SO_PEERCRED, and Linux, Documentation/networking/proc_net_tcp.rst.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

const ROOT: u32 = 0;
/// The inode that the kernel's tables show for an end of a connection that no program has open any more.
const NO_INODE: &str = "0";
/// The largest number of bytes to read from one table, which is enough for half a million connections.
const MAX_TABLE_BYTES: usize = 64 << 20;

/// Who may connect, and how to find out who a client is.
#[derive(Debug)]
pub(crate) struct Owners {
    own: u32,
    /// The kernel's tables of TCP connections, opened while the process can still open files.
    tables: Vec<File>,
}

impl Owners {
    /// Makes an `Owners` that checks clients of Unix sockets.
    pub fn of_sockets() -> Owners {
        Owners { own: geteuid().as_raw(), tables: Vec::new() }
    }

    /// Makes an `Owners` that checks clients of TCP ports.
    pub fn of_connections() -> io::Result<Owners> {
        // A host without IPv6 has only one table.
        let second = File::open("/proc/net/tcp6").ok();
        let tables = [File::open("/proc/net/tcp")?].into_iter().chain(second).collect();
        Ok(Owners { tables, ..Owners::of_sockets() })
    }

    /// Whether a user's clients may connect. Root's clients may connect, because root can read and change the process
    /// anyway.
    pub fn may_connect(&self, user: u32) -> bool {
        user == self.own || user == ROOT
    }

    /// The user at the other end of a Unix socket at the time of the connection.
    pub fn of_unix(&self, stream: &UnixStream) -> io::Result<u32> {
        Ok(getsockopt(stream, PeerCredentials)?.uid())
    }

    /// The users who have the other ends of TCP connections on this machine, in the order of the connections.
    /// Reads each of the kernel's tables at most once, for any number of connections. The tables list all
    /// connections of the machine, so one read can take long.
    pub fn of_tcp(&self, streams: &[&TcpStream]) -> Vec<io::Result<u32>> {
        let ends = |stream: &TcpStream| Ok(Ends { theirs: stream.peer_addr()?, ours: stream.local_addr()? });
        let ends: Vec<io::Result<Ends>> = streams.iter().map(|stream| ends(stream)).collect();
        let mut wanted: HashMap<Ends, Option<u32>> =
            ends.iter().flatten().map(|ends| (ends.canonical(), None)).collect();
        let mut failed = None;
        for table in &self.tables {
            if wanted.values().all(Option::is_some) {
                break;
            }
            match read_whole(table) {
                Ok(table) => find_owners(&table, &mut wanted),
                Err(error) => failed = Some(error),
            }
        }
        let nobody = || match &failed {
            Some(error) => io::Error::new(error.kind(), error.to_string()),
            None => io::Error::new(ErrorKind::NotFound, "it does not come from a program on this host"),
        };
        let owner = |ends: Ends| wanted.get(&ends.canonical()).copied().flatten().ok_or_else(nobody);
        ends.into_iter().map(|ends| ends.and_then(owner)).collect()
    }
}

/// Both ends of a TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Ends {
    theirs: SocketAddr,
    ours: SocketAddr,
}

impl Ends {
    /// The same ends with canonical addresses, so that equal addresses compare equal.
    fn canonical(self) -> Ends {
        let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Ends { theirs: canonical(self.theirs), ours: canonical(self.ours) }
    }
}

/// Reads a whole table. The kernel builds the table again for each read from its beginning.
fn read_whole(table: &File) -> io::Result<String> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match table.read_at(&mut piece, bytes.len() as u64) {
            Ok(0) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(_) if bytes.len() > MAX_TABLE_BYTES => {
                return Err(io::Error::other("there are too many connections"));
            }
            Ok(count) => bytes.extend(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Finds the users of connections in a table. For an end that its program has closed, the kernel shows root as the
/// owner.
fn find_owners(table: &str, wanted: &mut HashMap<Ends, Option<u32>>) {
    let owner = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let end = |word: &str| end(word).map(SocketAddr::from);
        let ends = Ends { theirs: end(words.next()?)?, ours: end(words.next()?)? };
        let mut words = words.skip(4);
        let (user, _timeout, inode) = (words.next()?, words.next()?, words.next()?);
        (inode != NO_INODE).then(|| user.parse().ok().map(|user: u32| (ends, user)))?
    };
    for (ends, user) in table.lines().skip(1).filter_map(owner) {
        if let Some(found) = wanted.get_mut(&ends) {
            found.get_or_insert(user);
        }
    }
}

/// Parses an end: `0100007F:04D2` is port 1234 of 127.0.0.1. Returns `None` for other text. The address consists of
/// words in the host's byte order.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn owner(line: &str) -> Option<u32> {
        let (theirs, ours) = ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:1234".parse().unwrap());
        let ends = Ends { theirs, ours };
        let mut wanted = HashMap::from([(ends, None)]);
        find_owners(&format!("{HEAD}{line}\n"), &mut wanted);
        wanted[&ends]
    }

    #[test]
    fn the_owner_of_the_other_end_is_found_in_the_table() {
        let rest = "00000000:00000000 00:00000000 00000000";
        let line = |ends: &str, state: &str, user: u32, inode: u32| {
            owner(&format!(
                "   7: {ends} {state} {rest}  {user}        0 {inode} 1 0000000000000000 20 4 30 10 -1"
            ))
        };
        let theirs = "0100007F:9C40 0100007F:04D2";
        let mapped = "0000000000000000FFFF00000100007F:9C40 0000000000000000FFFF00000100007F:04D2";
        for (ends, state, user, inode, found) in [
            (theirs, "01", 1000, 77, Some(1000)),
            (mapped, "01", 1001, 77, Some(1001)),
            // This line shows the server's end of the connection.
            ("0100007F:04D2 0100007F:9C40", "01", 0, 77, None),
            ("0100007F:9C41 0100007F:04D2", "01", 1000, 77, None),
            ("0200007F:9C40 0100007F:04D2", "01", 1000, 77, None),
            // The program will send no more, but still holds the connection.
            (theirs, "05", 1000, 77, Some(1000)),
            // The program has closed the connection.
            (theirs, "05", 0, 0, None),
            (theirs, "06", 0, 0, None),
            (theirs, "01", 0, 0, None),
        ] {
            assert_eq!(line(ends, state, user, inode), found, "{ends} {state} {inode}");
        }
        for damaged in ["", "1:", "   7: 0100007F:9C40", "   7: 0100007F:9C40 0100007F:04D2 01 x y z u"] {
            assert_eq!(owner(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn connections_of_this_process_are_its_users() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                skip::test(format!("there is no {address} on this host"));
                continue;
            };
            let owners = Owners::of_connections().unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (served, _) = listener.accept().unwrap();
            for _ in 0..2 {
                let found = owners.of_tcp(&[&served, &served]);
                let found: Vec<u32> = found.into_iter().map(Result::unwrap).collect();
                assert_eq!(found, [geteuid().as_raw(); 2], "{address}");
            }
            drop(client);
            assert!(owners.of_tcp(&[&served])[0].is_err(), "the client has gone");
        }
    }

    #[test]
    fn the_user_and_root_may_connect() {
        let owners = Owners { own: 1000, tables: Vec::new() };
        assert_eq!([0, 999, 1000, 1001].map(|user| owners.may_connect(user)), [true, false, true, false]);
    }
}
