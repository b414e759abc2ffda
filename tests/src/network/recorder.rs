//! Records a guest with a network by `ttvm record`, and uses the recording.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::wire::Wire;
use crate::guests::{BUSYBOX, CLOUD, DEBIAN};
use crate::program::ttvm;

/// A guest that is being recorded.
pub struct RecordedGuest {
    process: Child,
    console: BufReader<ChildStdout>,
    shown: String,
}

impl RecordedGuest {
    /// Starts to record Debian on its disk, which runs `job`.
    pub fn debian(directory: &Path, wire: &Wire, job: &str) -> RecordedGuest {
        let disk = DEBIAN.path();
        let options = ["--memory".as_ref(), "512M".as_ref(), "--disk".as_ref(), disk.as_os_str()];
        RecordedGuest::start(directory, wire, &options, &format!("root=/dev/vda rw ttvm.run=\"{job}\""))
    }

    /// Starts to record busybox, which runs `job`.
    pub fn busybox(directory: &Path, wire: &Wire, job: &str) -> RecordedGuest {
        RecordedGuest::start(directory, wire, &[], &format!("ttvm.run=\"{job}\""))
    }

    fn start(directory: &Path, wire: &Wire, options: &[&OsStr], parameters: &str) -> RecordedGuest {
        let mut command = Command::new(ttvm());
        command.env("PATH", &wire.path).arg("record").arg("--output").arg(recording(directory));
        command.arg("--kernel").arg(CLOUD.path()).arg("--initrd").arg(BUSYBOX.path()).args(options);
        command.args(["--cmdline", &format!("console=ttyS0 quiet {parameters}"), "--net", &wire.option]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("ttvm starts");
        let console = BufReader::new(process.stdout.take().expect("it was asked for"));
        RecordedGuest { process, console, shown: String::new() }
    }

    /// Reads the console until a line contains this text. Returns the line.
    pub fn wait_for(&mut self, text: &str) -> String {
        loop {
            let mut line = Vec::new();
            let count = self.console.read_until(b'\n', &mut line).expect("the console can be read");
            let line = String::from_utf8_lossy(&line).into_owned();
            self.shown.push_str(&line);
            if line.contains(text) {
                return line;
            }
            if count == 0 {
                let mut said = String::new();
                _ = self.process.stderr.take().expect("it was asked for").read_to_string(&mut said);
                panic!("the guest has ended without {text:?}: {}\n{said}", self.shown);
            }
        }
    }

    /// The recorder's peak memory, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(status).expect("the recorder runs");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kibibytes| kibibytes.parse::<u64>().ok()).expect("Linux says it") << 10
    }

    /// Waits for the end, which must be a power-off after the job succeeded. Returns the console and the recorder's
    /// messages.
    pub fn finish(mut self) -> (String, String) {
        let mut rest = Vec::new();
        self.console.read_to_end(&mut rest).expect("the console can be read");
        let shown = self.shown + &String::from_utf8_lossy(&rest);
        let output = self.process.wait_with_output().expect("ttvm ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && shown.contains("ttvm.run: exit status 0"), "{shown}\n{said}");
        (shown, said)
    }
}

/// The recording's path.
pub fn recording(directory: &Path) -> PathBuf {
    directory.join("R.ttvm")
}

/// Replays the recording with all comparisons, and fails if there is a difference.
pub fn verify(directory: &Path) {
    verify_on(directory, "soft");
}

/// Does the same as [`verify`], but on the given engine of ttvm.
pub fn verify_on(directory: &Path, engine: &str) {
    let mut command = Command::new(ttvm());
    command.arg("replay").arg(recording(directory)).args(["--verify", "--quiet", "--engine", engine]);
    let output = command.output().expect("ttvm starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("replayed to the end"), "{said}");
}

/// Writes the capture file. Returns the file's path and the messages.
pub fn export(directory: &Path) -> (PathBuf, String) {
    let capture = directory.join("R.pcapng");
    let mut command = Command::new(ttvm());
    command.arg("export-pcap").arg(recording(directory)).arg("--output").arg(&capture);
    let output = command.output().expect("ttvm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (capture, String::from_utf8_lossy(&output.stdout).into_owned())
}
