//! Tests the verbs that write files for other tools, with a guest that is not Linux.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::ttvm;
use machine::config::{MachineOptions, NetworkConfig};
use machine::inputs::Event;
use object::LittleEndian;
use object::elf::{FileHeader64, NT_PRSTATUS, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use recording::Recordable;
use serde_json::Value;
use tiny_guest::{DENSE, POWER_ON, STIRRED, Script, record, typed};

const ROUNDS: u32 = 20_000;
const AT: &str = "insn:50000";

fn recording() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a")]));
    directory
}

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let (code, out, told) = ttvm(directory, arguments);
    assert_eq!(code, 0, "{arguments:?}: {out}{told}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
}

/// The files in a folder that do not belong to the recording.
fn others(directory: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().is_some_and(|name| name.contains("dump"))).map(PathBuf::from).collect()
}

#[test]
fn a_core_file_has_the_memory_and_registers_of_the_position() {
    let directory = recording();
    let report = json(directory.path(), &["dump", "r.ttvm", "--at", AT, "-o", "dump", "--json"]);
    let file = directory.path().join("dump");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(report["instruction"], 50_000);
    assert_eq!(report["file_bytes"], bytes.len());
    assert!(report["disk_bytes"].as_u64() < report["memory_bytes"].as_u64(), "zeroes take room: {report}");

    let header: &FileHeader64<LittleEndian> = FileHeader64::parse(&*bytes).unwrap();
    let endian = LittleEndian;
    let parts = header.program_headers(endian, &*bytes).unwrap();
    let loaded: Vec<_> = parts.iter().filter(|part| part.p_type(endian) == PT_LOAD).collect();
    assert_eq!((loaded.len(), loaded[0].p_paddr(endian)), (1, 0));
    let ram = loaded[0].data(endian, &*bytes).unwrap();
    assert_eq!(report["memory_bytes"], ram.len());

    let range = format!("{STIRRED:#x}:0x4000");
    let state = json(directory.path(), &["state", "r.ttvm", "--at", AT, "--physical", &range, "--json"]);
    let hex: String = ram[STIRRED as usize..][..0x4000].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(state["physical"][0]["bytes"], hex);
    assert!(hex.bytes().any(|digit| digit != b'0'), "the guest has stirred nothing");

    let notes = parts.iter().find(|part| part.p_type(endian) == PT_NOTE).unwrap();
    let mut notes = notes.notes(endian, &*bytes).unwrap().unwrap();
    let note = notes.next().unwrap().unwrap();
    assert_eq!((note.name(), note.n_type(endian)), (&b"CORE"[..], NT_PRSTATUS));
    let of_qemu = notes.next().unwrap().unwrap();
    assert_eq!(of_qemu.name(), b"QEMU");
    assert!(notes.next().unwrap().is_none(), "this guest has no VMCOREINFO");
    let register = |number: usize| {
        let at = 112 + 8 * number;
        let value = u64::from_le_bytes(*note.desc()[at..].first_chunk().unwrap());
        Value::from(format!("{value:#x}"))
    };
    for (number, name) in [
        (0, "r15"),
        (5, "rbx"),
        (10, "rax"),
        (16, "rip"),
        (17, "cs"),
        (18, "rflags"),
        (19, "rsp"),
        (20, "ss"),
    ] {
        assert_eq!(register(number), state["registers"][name], "{name}");
    }
}

#[test]
fn files_are_never_overwritten() {
    let directory = recording();
    std::fs::write(directory.path().join("dump"), "mine").unwrap();
    for verb in ["dump", "trace"] {
        let (code, _, told) = ttvm(directory.path(), &[verb, "r.ttvm", "-o", "dump"]);
        // `ttvm trace` first reports that this guest has no kernel to trace.
        assert!(code == 1 && told.contains("it exists") || verb == "trace" && code == 2, "{verb}: {told}");
    }
    assert_eq!(std::fs::read(directory.path().join("dump")).unwrap(), b"mine");
    assert_eq!(others(directory.path()), [PathBuf::from("dump")]);
}

#[test]
fn a_disk_without_room_leaves_nothing_half_done() {
    let directory = recording();
    // No file may grow beyond 64 KiB.
    let line = format!(
        "trap '' XFSZ; ulimit -f 64; exec {} dump r.ttvm --at {AT} -o dump",
        env!("CARGO_BIN_EXE_ttvm")
    );
    let mut command = Command::new("bash");
    command.args(["-c", &line]).current_dir(directory.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("cannot write dump: "), "{told}");
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(others(directory.path()).is_empty(), "{left:?}");
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".ttvm")), "{left:?}");
}

#[test]
fn where_no_kernel_is_known_that_is_said() {
    let directory = recording();
    let (code, _, told) = ttvm(directory.path(), &["dump", "r.ttvm", "-o", "dump"]);
    assert!(code == 0 && told.contains("the memory here has no VMCOREINFO note"), "{told}");
    let (code, _, told) = ttvm(directory.path(), &["drgn", "r.ttvm"]);
    assert!(code == 2 && told.contains("the memory here has no VMCOREINFO note"), "{told}");
    let (code, _, told) = ttvm(directory.path(), &["trace", "r.ttvm", "-o", "trace"]);
    assert!(code == 2 && told.contains("there is nothing to trace: no kernel"), "{told}");
    let (code, _, told) = ttvm(directory.path(), &["state", "r.ttvm", "--backtrace"]);
    assert!(code == 2 && told.contains("there is no backtrace to show: no kernel"), "{told}");
    let search = ["search", "r.ttvm", "break:0x12345", "--all", "--backtrace"];
    let (code, _, told) = ttvm(directory.path(), &search);
    assert!(code == 2 && told.contains("there are no backtraces to show: no kernel"), "{told}");
}

#[test]
fn rows_of_a_search_have_their_time() {
    let directory = recording();
    let condition = format!("write-phys:{STIRRED:#x}+0x1000");
    let search = ["search", "r.ttvm", &condition, "--all", "--json", "--limit", "5"];
    let found = json(directory.path(), &search);
    let hits = found["hits"].as_array().unwrap();
    assert_eq!(hits.len(), 5);
    for hit in hits {
        // The position right after the write.
        let behind = format!("insn:{}", hit["instruction"].as_u64().unwrap() + 1);
        let state = json(directory.path(), &["state", "r.ttvm", "--at", &behind, "--json"]);
        assert_eq!(hit["guest_seconds"], state["guest_seconds"]);
        assert!(hit.get("pid").is_none(), "this guest has no processes: {hit}");
    }
}

#[test]
fn a_capture_has_the_frames_that_came_in() {
    let directory = tempfile::tempdir().unwrap();
    let network = NetworkConfig { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, segments: false };
    let options = tiny_guest::options(tiny_guest::write_kernel(directory.path(), 100));
    let options = MachineOptions { network: Some(network), ..options };
    let frames = |frames: &[(u8, usize)]| {
        Event::NetworkInput(frames.iter().map(|&(byte, length)| vec![byte; length]).collect())
    };
    let script = vec![(500, frames(&[(1, 60), (2, 70)])), (700, frames(&[(3, 80)]))];
    let mut guest = Recordable::new(&options, POWER_ON).unwrap();
    let recording = guest.record_in(directory.path().join("r.ttvm")).unwrap().checks(DENSE);
    recording.run(Script(script)).unwrap();
    let (code, out, told) = ttvm(directory.path(), &["export-pcap", "r.ttvm", "-o", "capture"]);
    assert_eq!(code, 0, "{told}");
    let log_bytes = directory.path().join("r.ttvm/events.log").metadata().unwrap().len();
    let expected = "capture: 3 frames received (210 bytes), 0 frames sent (0 bytes); the event log has";
    assert_eq!(out, format!("{expected} {log_bytes} bytes\n"));
    let mut reader =
        PcapNgReader::new(std::fs::File::open(directory.path().join("capture")).unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let comment = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
            _ => None,
        });
        let since = packet.timestamp.as_nanos() - 1_000_000_000 * POWER_ON.unix_seconds as u128;
        found.push((packet.data.to_vec(), since, comment.unwrap()));
    }
    let frame = |byte, length, at: u64| (vec![byte; length], u128::from(at), format!("insn:{at}"));
    assert_eq!(found, [frame(1, 60, 500), frame(2, 70, 500), frame(3, 80, 700)]);

    let (code, _, told) = ttvm(directory.path(), &["export-pcap", "r.ttvm", "-o", "capture"]);
    assert!(code == 1 && told.contains("it exists"), "{code}: {told}");
    record(directory.path(), "alone.ttvm", 100, Vec::new());
    let (_, out, told) = ttvm(directory.path(), &["export-pcap", "alone.ttvm", "-o", "none"]);
    assert!(out.is_empty() && told.contains("has no network: record with --net"), "{told}");
    assert!(!directory.path().join("none").exists());
}
