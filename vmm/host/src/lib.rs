//! The host's side of a run: terminal, keyboard, network, clock, entropy, signals, and KVM as an engine.
//!
//! ```no_run
//! use host::{LiveConsole, LiveInputs, LiveOptions};
//! use machine::Machine;
//! use machine::config::{MachineConfig, MachineOptions};
//! use machine::position::{Count, Instructions};
//!
//! let options =
//!     MachineOptions { kernel: "bzImage".into(), memory_bytes: 256 << 20, ..MachineOptions::default() };
//! let (config, images) = MachineConfig::from_options(&options)?;
//! let mut machine = Machine::new(&config, &images, &host::power_on(None, None)?)?;
//! let console = LiveConsole::new(LiveOptions::default())?;
//! machine.run(Instructions::MAX, &mut LiveInputs::new(console))?;
//! # Ok::<(), machine::error::Error>(())
//! ```
//!
//! Start with [`LiveInputs`], the inputs of a run that is not a replay. `LiveInputs` has the console
//! ([`LiveConsole`]), the guest's network, and passed-through devices of the host. [`LiveClock`] adds host
//! time for KVM, and [`KVM`] is the engine. `PASSTHROUGH.md` describes passed-through devices.
//!
//! Only this crate asks the host for values that a guest can see: input, time, randomness. The crate does not use logs,
//! and no code that replays uses the crate.
//!
//! Without default features the crate has only the console. Each of the features `kvm`, `network` and `vfio` adds the
//! part in its name, and the crates that this part needs.

#![forbid(unsafe_code)]

mod awaited_text;
mod clock;
mod console;
mod inputs;
#[cfg(feature = "kvm")]
pub mod kvm_engine;
#[cfg(feature = "network")]
mod network;
mod outside;
#[cfg(feature = "network")]
mod passt;
#[cfg(feature = "vfio")]
mod passthrough;
#[cfg(feature = "network")]
mod peer;
mod program_output;
mod screen;
mod stopping;
#[cfg(feature = "network")]
mod tap;
mod terminal;

pub use awaited_text::AwaitedText;
pub use clock::{ClockOptions, LiveClock};
pub use console::{LiveConsole, LiveOptions, Pacing};
pub use inputs::LiveInputs;
#[cfg(feature = "kvm")]
pub use kvm_engine::KVM;
#[cfg(feature = "network")]
pub use passt::{Forward, PASST_SOCKET_BYTES, Protocol};
#[cfg(feature = "vfio")]
pub use passthrough::{ALLOWED_PORTS, OpenedDevices, PassedOptions};
#[cfg(feature = "network")]
pub use peer::{NetworkOptions, Peer};
pub use terminal::{RawTerminal, window_size};

use std::io::Read;

use machine::error::Error;
use machine::inputs::PowerOn;

/// The machine's values at power-on. The host supplies the values that the user does not give.
pub fn power_on(unix_seconds: Option<i64>, seed: Option<u64>) -> Result<PowerOn, Error> {
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |duration| duration.as_secs() as i64)
    };
    let (columns, rows) = terminal::window_size().unwrap_or((80, 25));
    Ok(PowerOn {
        unix_seconds: unix_seconds.unwrap_or_else(now),
        seed: match seed {
            Some(number) => *blake3::hash(&number.to_le_bytes()).as_bytes(),
            None => random_bytes()?,
        },
        columns,
        rows,
    })
}

/// Random bytes from the host.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::file("read", "/dev/urandom"))?;
    Ok(bytes)
}
