//! Serves the guest's disk by NBD, for `ttvm disk R mount`.

use std::fmt::{Display, Formatter, Result as Written};
use std::io::{ErrorKind, PipeReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gdb::{ListenError, Listener, Reach, Stream};
use gdb_server::trouble;
use guest_disk::{ByteSource, nbd};
use machine::error::Error;
use sandbox::Needs;
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use views::disk::Volume;

use crate::companion::{Companion, Leftovers};
use crate::output::say;
use crate::sandbox_arg::SandboxArgs;

/// The port that the NBD project has registered.
const DEFAULT_ADDRESS: &str = "127.0.0.1:10809";
/// The largest number of connections at one time.
const MOST_CONNECTIONS: usize = 16;

/// The address of the server.
#[derive(clap::Args)]
pub struct ServerArgs {
    /// Address to serve at: 127.0.0.1:PORT or unix:PATH. Port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    listen: String,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// A server that refuses clients until [`DiskServer::serve`].
pub struct DiskServer {
    listener: Listener,
    /// Gets a byte when the server must end.
    stop: PipeReader,
    /// Removes the socket at the end, because a process in its sandbox cannot remove a file.
    _companion: Option<Companion>,
    socket: Option<PathBuf>,
}

/// The address of the server, and how to use it.
#[derive(JsonSchema, Serialize)]
pub struct Served {
    /// The size of the served disk in bytes.
    size_bytes: u64,
    /// The address as NBD clients take it.
    uri: String,
    /// The command that connects the kernel's NBD client.
    connect: String,
    /// The device that a mount takes.
    device: &'static str,
}

impl ServerArgs {
    /// Takes the address. Clients are refused for now.
    pub fn reserve(&self) -> Result<DiskServer, Error> {
        let listener = Listener::reserve(&self.listen, Reach::ThisUser).map_err(unheard)?;
        let no_signals = |source| Error::Host { what: "cannot watch for signals".to_string(), source };
        let stop = stop_pipe().map_err(no_signals)?;
        let socket = self.listen.strip_prefix("unix:").map(Path::new);
        let left = Leftovers { socket, ..Leftovers::default() };
        let companion = socket.is_some().then(|| Companion::start(&left, None)).transpose()?;
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(DiskServer { listener, stop, _companion: companion, socket: socket.map(absolute) })
    }

    /// Enters the sandbox.
    pub fn lock_in(&self, needs: &Needs) -> Result<(), Error> {
        self.sandbox.lock_in(needs)
    }
}

impl DiskServer {
    /// The address, and commands that use the served disk.
    pub fn served(&self, volume: &Volume, has_partitions: bool) -> Served {
        let (uri, client) = match &self.socket {
            Some(path) => {
                (format!("nbd+unix:///?socket={}", path.display()), format!("-unix {}", path.display()))
            }
            None => {
                let address = self.listener.gdb_address();
                let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
                (format!("nbd://{address}"), format!("{} {port}", host.trim_matches(['[', ']'])))
            }
        };
        Served {
            size_bytes: volume.size_bytes(),
            uri,
            connect: format!("nbd-client {client} /dev/nbd0"),
            device: if has_partitions { "/dev/nbd0p1" } else { "/dev/nbd0" },
        }
    }

    /// Lets clients connect.
    pub fn open(&self) -> Result<(), Error> {
        self.listener.open().map_err(unheard)
    }

    /// Serves clients, each in a thread, until ^C.
    pub fn serve(&self, volume: &Volume) -> Result<(), Error> {
        let connections = Arc::new(AtomicUsize::new(0));
        while let Some(client) = self.listener.accept_until(&self.stop).map_err(unheard)? {
            if connections.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
                say(&format!(
                    "ttvm: refused a client: {MOST_CONNECTIONS} are connected, which is the maximum"
                ));
                continue;
            }
            connections.fetch_add(1, Ordering::Relaxed);
            let (connections, volume) = (connections.clone(), volume.clone());
            std::thread::spawn(move || {
                answer(client, volume);
                connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
        Ok(())
    }
}

/// The text for people.
impl Display for Served {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Served { size_bytes, uri, connect, device } = self;
        write!(
            f,
            "serving {size_bytes} bytes, read-only; ^C ends the server
address               {uri}
mount, as root        {connect} && mount -o ro,noload {device} /mnt
mount with journal    qemu-nbd --snapshot --connect=/dev/nbd0 '{uri}' && mount {device} /mnt
copy                  qemu-img convert -O raw '{uri}' disk.img"
        )
    }
}

/// The error of the address. gdb's listener has advice for gdb's users only.
fn unheard(error: ListenError) -> Error {
    match error {
        ListenError::NotLoopback(address) => Error::Usage(format!(
            "cannot listen on {address}: other hosts can reach it; use 127.0.0.1, and a tunnel of ssh for other hosts"
        )),
        other => trouble(other),
    }
}

/// A pipe that gets a byte at ^C, SIGTERM and SIGHUP.
fn stop_pipe() -> std::io::Result<PipeReader> {
    let (reader, writer) = std::io::pipe()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(writer.try_clone()?))?;
    }
    Ok(reader)
}

/// Serves one client.
fn answer(mut client: Stream, mut volume: Volume) {
    match nbd::serve(&mut client, &mut volume) {
        // Clients may end without a farewell.
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            say(&format!("ttvm: a connection ended: {error}"))
        }
        _ => {}
    }
}
