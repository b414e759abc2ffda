//! `ttvm export-pcap`: writes a recording's network frames to a file for Wireshark.

use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use history::replay::{Replay, last_place};
use machine::config::NetworkConfig;
use machine::error::{Error, exit_code};
use machine::new_file::NewFile;
use machine::unit::Unit;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use recording::player::{Frame, Scrutiny};
use recording::{Opened, Recording};

use crate::engine_arg::EngineArgs;
use crate::progress;

/// Write a recording's network frames to a file for Wireshark
///
/// Each frame has its guest time, and its position as a comment.
///
/// Examples:
///   ttvm export-pcap R.ttvm -o R.pcapng
///   wireshark R.pcapng
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The new file to write
    #[arg(short, long, value_name = "FILE.pcapng")]
    output: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    match Opened::open(&args.recording)? {
        Opened::ByInstructions(recording) => export(args, &recording),
        Opened::ByExits(recording) => export(args, &recording),
    }
}

fn export<U: Unit>(args: &Args, recording: &Recording<U>) -> Result<i32, Error> {
    let Some(network) = &recording.manifest.machine.network else {
        let why = "the machine of this recording has no network: record with --net".to_string();
        return Err(Error::recording(&args.recording, why));
    };
    let engine = args.engine.for_replay(&recording.manifest)?;
    let mut file = NewFile::begin(&args.output)?;
    let mut replay = Replay::on(engine, recording, Scrutiny::Registers, |_| Ok(()))?;
    let began = Duration::from_secs(replay.player.power_on().unix_seconds.max(0) as u64);
    let out = file.file().try_clone().map_err(|why| unwritten(args, why))?;
    let capture = Capture::begin(BufWriter::new(out), network, began).map_err(|why| unwritten(args, why))?;
    let capture = Arc::new(Mutex::new(capture));
    let (shared, output) = (capture.clone(), args.output.clone());
    replay.player.on_frame(move |frame| {
        let mut capture = shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        capture.add(&frame).map_err(|source| Error::file("write", &output)(source))
    });
    let bar = progress::bar(last_place(recording).number(), std::io::stderr().is_terminal());
    bar.set_message("replaying");
    let result = replay.run(None, |at| progress::show(&bar, at.number()));
    bar.finish_and_clear();
    result?;
    let mut capture = capture.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    capture.writer.get_mut().flush().map_err(|why| unwritten(args, why))?;
    file.finish()?;
    let Direction { frames: sent, bytes: sent_bytes } = capture.sent;
    let Direction { frames: received, bytes: received_bytes } = capture.received;
    crate::output::print(&format!(
        "{}: {received} frames received ({received_bytes} bytes), {sent} frames sent ({sent_bytes} bytes); the event log \
         has {} bytes",
        args.output.display(),
        recording.log.bytes,
    ))?;
    Ok(exit_code::DONE)
}

fn unwritten(args: &Args, why: std::io::Error) -> Error {
    Error::file("write", &args.output)(why)
}

/// The amount of data in one direction.
#[derive(Clone, Copy, Default)]
struct Direction {
    frames: u64,
    bytes: u64,
}

/// A capture file that is being written. <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-02.html>
struct Capture<W: Write> {
    writer: PcapNgWriter<W>,
    /// The date of the machine's power-on.
    began: Duration,
    sent: Direction,
    received: Direction,
}

impl<W: Write> Capture<W> {
    fn begin(file: W, network: &NetworkConfig, began: Duration) -> std::io::Result<Capture<W>> {
        const NANOSECONDS: u8 = 9;
        let mut writer = PcapNgWriter::new(file).map_err(io_error)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed("guest")),
                InterfaceDescriptionOption::IfMacAddr(Cow::Owned(network.mac.to_vec())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        writer.write_block(&interface.into_block()).map_err(io_error)?;
        Ok(Capture { writer, began, sent: Direction::default(), received: Direction::default() })
    }

    fn add<U: Unit>(&mut self, frame: &Frame<U>) -> std::io::Result<()> {
        /// The link-layer flags of a packet.
        const INBOUND: u32 = 1;
        const OUTBOUND: u32 = 2;
        let direction = if frame.is_sent { &mut self.sent } else { &mut self.received };
        direction.frames += 1;
        direction.bytes += frame.bytes.len() as u64;
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: self.began + Duration::from_nanos(frame.at.time_ns),
            original_len: frame.bytes.len() as u32,
            data: Cow::Borrowed(&frame.bytes),
            options: vec![
                EnhancedPacketOption::Comment(Cow::Owned(frame.at.count.position().short())),
                EnhancedPacketOption::Flags(if frame.is_sent { OUTBOUND } else { INBOUND }),
            ],
        };
        self.writer.write_block(&packet.into_block()).map(drop).map_err(io_error)
    }
}

fn io_error(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::position::{Instructions, Moment};
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn a_capture_has_the_frames_with_their_times_and_positions() {
        let network = NetworkConfig { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, segments: false };
        let mut capture = Capture::begin(Vec::new(), &network, Duration::from_secs(1_000)).unwrap();
        for (number, is_sent) in [(7, false), (9, true)] {
            let at = Moment { count: Instructions(number), time_ns: 10 * number };
            capture.add(&Frame { at, is_sent, bytes: vec![number as u8; 60] }).unwrap();
        }
        let file = capture.writer.into_inner();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                found.push((
                    packet.timestamp,
                    packet.data[0],
                    packet.options.into_iter().map(shown).collect(),
                ));
            }
        }
        let expected = |number: u64, flags: u32| {
            let time = Duration::new(1_000, 10 * number as u32);
            (time, number as u8, vec![format!("insn:{number}"), flags.to_string()])
        };
        assert_eq!(found, [expected(7, 1), expected(9, 2)]);
    }

    fn shown(option: EnhancedPacketOption<'_>) -> String {
        match option {
            EnhancedPacketOption::Comment(text) => text.into_owned(),
            EnhancedPacketOption::Flags(flags) => flags.to_string(),
            other => panic!("{other:?}"),
        }
    }
}
