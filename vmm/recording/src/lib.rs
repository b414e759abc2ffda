//! Writes and reads recordings. A recording is a folder with a run's event log and other files.
//!
//! ```
//! use machine::Machine;
//! use machine::config::{MachineConfig, MachineOptions};
//! use machine::inputs::PowerOn;
//! use machine::position::{Count, Instructions};
//! use recording::player::Player;
//! use recording::recorder::Recorder;
//! use recording::{Opened, Recording};
//!
//! let folder = tempfile::tempdir()?;
//! let options = MachineOptions {
//!     kernel: tiny_guest::write_kernel(folder.path(), 100),
//!     memory_bytes: 4 << 20,
//!     debug_exit: Some(0x501),
//!     ..MachineOptions::default()
//! };
//! let (config, images) = MachineConfig::from_options(&options)?;
//! let power_on = PowerOn { unix_seconds: 1_700_000_000, seed: [1; 32], columns: 80, rows: 25 };
//!
//! // Record: someone types a letter at instruction 300.
//! let mut machine = Machine::new(&config, &images, &power_on)?;
//! let path = folder.path().join("r.ttvm");
//! let log = Recording::<Instructions>::create(&path, &config)?;
//! let typed = tiny_guest::Script(tiny_guest::typed(&[(300, "x")]));
//! let mut recorder = Recorder::new(typed, log, power_on);
//! machine.run(Instructions::MAX, &mut recorder)?;
//! recorder.finish(&mut machine)?;
//!
//! // Replay: the log takes the place of the typist.
//! let Opened::ByInstructions(recording) = Opened::open(&path)? else { panic!("it counts instructions") };
//! let mut player = Player::new(recording.log.clone())?;
//! let mut again = Machine::new(&config, &images, player.power_on())?;
//! again.run(Instructions::MAX, &mut player)?;
//! assert_eq!(again.hashes(), machine.hashes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To make a recording, start with [`Recordable`]: a machine and its description. `vmm/history/examples` has whole
//! programs. To understand a recording, start with [`recorder`] and [`player`]: the recorder writes the log, and the
//! player plays it back. [`opened`] is a recording on disk. [`manifest`] describes its machine, [`mod@log`] holds the
//! inputs, and [`checkpoints`] holds the machine's state at some points. The [`checkpointer`] takes checkpoints when
//! the [`pace`] says that one is due. The [`trail`] adds two checkpoints shortly before the end. [`pack`] packs a
//! recording into one file. `vmm/recording/FORMAT.md` describes the format.
//!
//! The path of one event, a key press, to the log and back:
//!
//! ```text
//! recording                                             replaying
//!   keyboard                                              events.log
//!      │ read                                                 │ Log, in pieces
//!   LiveConsole   vmm/host/src/console.rs                  Player
//!      │ Event::ConsoleInput                                  │ compares registers and position,
//!   Recorder ──► events.log                                   │ then gives the same event
//!      │ Inputs::poll                                         │ Inputs::poll
//!      └──────────────────────────┬───────────────────────────┘
//!                              Machine   vmm/machine/src/run.rs: take_events, apply
//!                                 │ push_input, at the same position in both
//!                              UART      devices/src/uart.rs ──► interrupt ──► the guest's driver
//! ```
//!
//! A network frame that comes in takes the same path, as `Event::NetworkInput`, to `devices/src/virtio/net.rs`. A frame
//! that the guest sends goes from the device to the machine, with its position. When recording,
//! `Inputs::network_output` passes the frame to the host's side of the network. In a replay, the frame is dropped. The
//! device counts and hashes sent frames in its state, so every check of the devices compares the sent frames. The
//! machine asks passed-through devices of the host in the middle of an instruction, by `Inputs::ask_devices`. The
//! answer is `Event::Devices`.
//!
//! No code in this package asks the host for input or time. The package `host` does this. The packages that use this
//! package decide what to do with a recording.
//!
//! The package defines its own formats of logs and packs, because a file may come from a stranger or be cut off
//! anywhere. For encoding, checksums and compression it uses libraries (postcard, CRC-32, Zstandard).

#![forbid(unsafe_code)]

mod carried_images;
mod checkpoint_head;
pub mod checkpointer;
pub mod checkpoints;
pub mod console_digest;
pub mod cursor;
mod disk_seen;
pub mod files;
mod head_bytes;
mod head_v1;
pub mod log;
pub mod manifest;
mod manifest_text;
mod manifest_v5;
mod moment_v1;
pub mod new_recording;
pub mod opened;
pub mod pace;
pub mod pack;
mod panic_note;
pub mod player;
pub mod recordable;
pub mod recorder;
pub mod relink;
pub mod trail;

pub use carried_images::create_gathered_disk;
pub use files::{CHECKPOINTS, EVENTS, MANIFEST};
pub use manifest::{Cut, Manifest, NEWEST_FORMAT, OLDEST_FORMAT};
pub use new_recording::NewRecording;
pub use opened::{Opened, Recording, Recounted, create_folder};
pub use panic_note::{read_panic_note, write_panic_note};
pub use recordable::Recordable;
