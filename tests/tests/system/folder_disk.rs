//! Tests of a folder of the host as the guest's disk. The guest sees the folder's files, and recordings need the folder no
//! more.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use machine::error::exit_code;
use tests::guests::{BUSYBOX, CLOUD};
use tests::program::{run, ttvm};
use tests::random::Random;

/// A guest that is being recorded, with the folder `host` as its disk.
struct Recorded {
    child: Child,
    console: BufReader<std::process::ChildStdout>,
    shown: String,
}

impl Recorded {
    /// Starts to record `r.ttvm`.
    fn start(directory: &Path, options: &[&str]) -> Recorded {
        let mut command = Command::new(ttvm());
        command.current_dir(directory).args(["record", "--output", "r.ttvm", "--disk", "host"]).args(options);
        command.arg("--kernel").arg(CLOUD.path()).arg("--initrd").arg(BUSYBOX.path());
        command.args(["--memory", "128M", "--cmdline", "console=ttyS0 quiet"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("ttvm can be run");
        let console = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut recorded = Recorded { child, console, shown: String::new() };
        recorded.types("mount -t ext4 /dev/vda /mnt && echo it is $((40 + 2))");
        recorded.shows("it is 42");
        recorded
    }

    fn types(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it is a pipe");
        input.write_all(format!("{line}\n").as_bytes()).expect("the guest runs");
    }

    /// Waits until the console has shown a text.
    fn shows(&mut self, text: &str) {
        while !self.shown.contains(text) {
            let mut line = Vec::new();
            let count = self.console.read_until(b'\n', &mut line).expect("the console can be read");
            assert!(count > 0, "the console never shows {text:?}: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&line).replace('\r', ""));
        }
    }

    /// Powers off the guest. Returns the console's text and the messages.
    fn ends(mut self) -> (String, String) {
        self.types("poweroff -f");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.console, &mut rest).expect("the console can be read");
        self.shown.push_str(&rest.replace('\r', ""));
        let output = self.child.wait_with_output().expect("ttvm can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(exit_code::DONE), "{said}\n{}", self.shown);
        (self.shown, said)
    }
}

/// A temporary folder, and the path of the folder `host` in it.
fn folders() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let host = directory.path().join("host");
    (directory, host)
}

fn is_equal(directory: &Path, recording: &str) {
    let (code, out, said) = run(directory, &["verify", recording]);
    assert_eq!(code, Some(exit_code::DONE), "{out}{said}");
    assert!(out.contains("replay: equal to the end"), "{out}");
}

/// Bytes that do not compress.
fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn a_guest_reads_the_hosts_files_and_the_recording_needs_them_no_more() {
    let (directory, host) = folders();
    let directory = directory.path();
    std::fs::create_dir_all(host.join("deep/er")).unwrap();
    let files = [("small", 5), ("deep/er/big", 3_000_000), ("deep/odd", 4097), ("empty", 0)];
    for (number, (name, size)) in files.into_iter().enumerate() {
        std::fs::write(host.join(name), noise(number as u64, size)).unwrap();
    }
    symlink("../small", host.join("deep/link")).unwrap();
    std::fs::hard_link(host.join("small"), host.join("deep/twin")).unwrap();
    let sums = |folder: &Path| {
        let sum = "md5sum small deep/er/big deep/odd empty deep/link deep/twin";
        let output = Command::new("sh").args(["-c", sum]).current_dir(folder).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = sums(&host);
    assert_eq!(expected.lines().count(), 6);

    let mut guest = Recorded::start(directory, &[]);
    guest.types("cd /mnt; md5sum small deep/er/big deep/odd empty deep/link deep/twin");
    guest.types("echo new > deep/odd; rm small; mkdir more; sync; ls; echo written $((1 + 2))");
    guest.shows("written 3");
    let (console, said) = guest.ends();
    assert!(console.contains(&expected), "{console}{said}");
    assert_eq!(sums(&host), expected, "the guest's writes are its own");

    std::fs::remove_dir_all(&host).unwrap();
    is_equal(directory, "r.ttvm");
    for (arguments, code, text) in [
        (&["pack", "r.ttvm", "-o", "r.pack"][..], exit_code::DONE, "packed"),
        (&["unpack", "r.pack", "-o", "u.ttvm"], exit_code::DONE, "unpacked"),
        (&["pack", "r.ttvm", "--last", "300ms", "-o", "end.pack"], exit_code::DONE, "packed"),
        (&["unpack", "end.pack", "-o", "end.ttvm"], exit_code::DONE, "unpacked"),
        (&["info", "u.ttvm"], exit_code::DONE, "a folder of the host:"),
        (&["disk", "u.ttvm", "ls", "/deep"], exit_code::DONE, "twin"),
        (&["disk", "u.ttvm", "cat", "/deep/odd"], exit_code::DONE, "new"),
        (
            &["run", "--snapshot-from", "u.ttvm"],
            exit_code::HOST_LACKS_FEATURE,
            "only the blocks that its guest read",
        ),
        (&["relink", "u.ttvm", "--disk", "x"], exit_code::UNREADABLE_RECORDING, "leave out --disk"),
    ] {
        let (ended, out, said) = run(directory, arguments);
        assert_eq!(ended, Some(code), "{arguments:?}: {out}{said}");
        assert!(format!("{out}{said}").contains(text), "{arguments:?}: {out}{said}");
    }
    std::fs::remove_dir_all(directory.join("r.ttvm")).unwrap();
    is_equal(directory, "u.ttvm");
    is_equal(directory, "end.ttvm");
}

#[test]
fn a_file_that_changes_gives_errors_in_the_run_and_in_its_replay() {
    let (directory, host) = folders();
    let directory = directory.path();
    std::fs::create_dir_all(host.join("secret")).unwrap();
    std::fs::write(host.join("secret/key"), "nobody reads this").unwrap();
    for name in ["changes", "stays", "goes"] {
        std::fs::write(host.join(name), noise(3, 200_000)).unwrap();
    }
    let mut guest = Recorded::start(directory, &["--hide", "host/secret"]);
    guest.types(
        "ls -l /mnt/changes /mnt/goes /mnt/secret; head -c 9 /mnt/stays | wc -c; echo looked $((1 + 2))",
    );
    guest.shows("looked 3");
    std::fs::write(host.join("changes"), noise(4, 200_000)).unwrap();
    std::fs::remove_file(host.join("goes")).unwrap();
    std::fs::write(host.join("stays.new"), "the guest saw the folder before").unwrap();
    guest.types("for n in changes goes stays; do cat /mnt/$n | wc -c; done; ls /mnt; echo read $((1 + 3))");
    guest.shows("read 4");
    let (console, said) = guest.ends();
    assert!(console.contains("ls: /mnt/secret: No such file"), "{console}");
    assert!(console.contains("\n200000\n"), "the file that stays is whole: {console}");
    assert_eq!(console.matches("Input/output error").count(), 2, "{console}");
    assert!(!console.contains("stays.new"), "{console}");
    for name in ["changes", "goes"] {
        assert_eq!(said.matches(&format!("host/{name}: the guest gets errors")).count(), 1, "{said}");
    }
    is_equal(directory, "r.ttvm");
    let kept = std::fs::read(directory.join("r.ttvm/images/disk")).unwrap();
    assert!(!kept.windows(6).any(|bytes| bytes == b"nobody"));
}

/// The recording is in the folder that the guest reads, and grows meanwhile.
#[test]
fn the_guest_does_not_see_its_own_recording() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    symlink(".", directory.join("host")).unwrap();
    let mut guest = Recorded::start(directory, &[]);
    guest.types("find /mnt; echo found $((1 + 2))");
    guest.shows("found 3");
    let (console, said) = guest.ends();
    assert!(console.contains("/mnt/host\n") && !console.contains("r.ttvm"), "{console}{said}");
    is_equal(directory, "r.ttvm");
}

#[test]
fn blocks_that_are_read_at_random_replay() {
    let (directory, host) = folders();
    let directory = directory.path();
    for folder in 0..20 {
        std::fs::create_dir_all(host.join(format!("{folder}"))).unwrap();
        for file in 0..20 {
            std::fs::write(host.join(format!("{folder}/{file}")), noise(file, 5000)).unwrap();
        }
    }
    let mut guest = Recorded::start(directory, &[]);
    let mut random = Random::new(49);
    let numbers: Vec<String> = (0..400)
        .map(|_| {
            // Half of the blocks are in the first 64 GiB, where the tables and the first files are.
            let blocks = if random.below(2) == 0 { 1 << 24 } else { 1 << 28 };
            random.below(blocks).to_string()
        })
        .collect();
    guest.types("umount /mnt");
    // A shell reads at most 1023 bytes of a line.
    for part in numbers.chunks(80) {
        let list = part.join(" ");
        guest.types(&format!(
            "for n in {list}; do dd if=/dev/vda bs=4096 skip=$n count=1 2>/dev/null; done | md5sum"
        ));
    }
    guest.types("mount -t ext4 /dev/vda /mnt; find /mnt -type f | xargs cat | wc -c; echo end $((1 + 2))");
    guest.shows("end 3");
    guest.ends();
    is_equal(directory, "r.ttvm");
}
