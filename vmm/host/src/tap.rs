//! A TAP interface of the host.
//!
//! See Linux's Documentation/networking/tuntap.rst.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use machine::error::Error;

/// The size in bytes of the longest frame of an interface.
const MAX_FRAME_BYTES: usize = 65_535 + 18;

/// An attached TAP interface.
pub struct Tap {
    interface: SyncDevice,
    buffer: Vec<u8>,
}

impl Tap {
    /// The largest number of bytes that a frame carries, which is the default of Linux's interfaces.
    pub const MTU: u16 = 1500;

    /// Attaches to the interface with this name, or creates it. The user brings the interface up, and gives
    /// it addresses and routes.
    pub fn open(name: &str) -> Result<Tap, Error> {
        let open = || {
            // If the interface exists, its state (up or down) does not change.
            let interface =
                DeviceBuilder::new().name(name).layer(Layer::L2).inherit_enable_state().build_sync()?;
            interface.set_nonblocking(true)?;
            Ok(Tap { interface, buffer: vec![0; MAX_FRAME_BYTES] })
        };
        open().map_err(|source: std::io::Error| {
            let advice = match source.kind() {
                ErrorKind::PermissionDenied => format!(
                    "; make it for yourself first, with `sudo ip tuntap add {name} mode tap user $USER`"
                ),
                ErrorKind::ResourceBusy => {
                    "; another program has it: end that, or give this guest an interface of its own"
                        .to_string()
                }
                _ => String::new(),
            };
            Error::Unsupported(format!("cannot use the TAP interface {name}: {source}{advice}"))
        })
    }

    /// See [`Peer::receive`](super::peer::Peer::receive).
    pub fn receive(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        match self.interface.recv(&mut self.buffer) {
            Ok(count) => Ok(Some(self.buffer[..count].to_vec())),
            Err(error) if is_not_now(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// See [`Peer::send`](super::peer::Peer::send).
    pub fn send(&mut self, frame: &[u8]) -> std::io::Result<bool> {
        match self.interface.send(frame) {
            Ok(_) => Ok(true),
            // A frame that the interface rejects is lost, as on a wire.
            Err(error) if is_not_now(&error) || error.kind() == ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the interface has no frame, is full, or is down. Each of these conditions may change later.
fn is_not_now(error: &std::io::Error) -> bool {
    const INTERFACE_IS_DOWN: i32 = nix::errno::Errno::EIO as i32;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(INTERFACE_IS_DOWN)
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.interface.as_fd()
    }
}
