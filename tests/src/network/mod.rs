//! Records a Debian guest that works on a network. The guest installs a package from the host, answers ssh, serves
//! pages and echoes a TCP stream. Meanwhile the host captures the same frames.
//!
//! Unlike the rest of the harness, this module tests ttvm together with other programs of the host. So the module
//! reads the host's clock, to pace the stream and to measure durations.

mod archive;
mod capture;
mod recorder;
mod stream;
mod wire;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use archive::{Archive, BULK_BYTES};
pub use capture::{Payloads, payloads};
pub use recorder::{RecordedGuest, export, recording, verify, verify_on};
pub use stream::{Echoed, Stream};
pub use wire::{INTERFACE, TAP_HOST, Wire, in_own_network, ip, passt_process, why_no_tap};

/// The guest's port for ssh.
pub const SSH: u16 = 22;
/// The port of the guest's web server.
pub const WEB: u16 = 80;

/// The amount of each kind of work.
pub struct Amounts {
    /// Requests to the web server.
    pub requests: u32,
    /// Whether a connection serves many requests.
    pub keep_alive: bool,
    /// Seconds that the stream takes.
    pub stream_seconds: u64,
    /// The stream's bytes each second, in each direction.
    pub stream_rate: u64,
}

/// The results of a run without errors.
pub struct Done {
    /// The time from power-on to power-off.
    pub elapsed: Duration,
    /// The time that the requests took.
    pub requests: Duration,
    /// The echoed stream.
    pub echoed: Echoed,
}

/// Records the guest into `directory`/R.ttvm while the guest does all this work over the connection `wire`.
pub fn record_work(directory: &Path, wire: &Wire, amounts: &Amounts) -> Done {
    let archive = Archive::new(directory);
    let stream = Stream::listen(wire.host, amounts.stream_seconds, amounts.stream_rate);
    let job = job(archive.serve(wire.host), stream.port());
    let began = Instant::now();
    let mut guest = RecordedGuest::debian(directory, wire, &job);
    guest.wait_for("SERVING");
    let echoing = std::thread::spawn(move || stream.run());
    let bulk = ssh(wire, &format!("cat {}", archive::INSTALLED));
    assert!(bulk == archive.bulk(), "ssh shows {} bytes, and not those of the package", bulk.len());
    let requests = ask_web_server(wire, amounts);
    let echoed = echoing.join().expect("the stream comes back as it was sent");
    ssh(wire, "touch /run/done");
    guest.finish();
    Done { elapsed: began.elapsed(), requests, echoed }
}

/// The shell commands that the guest runs. The guest reaches the host at the address of the default gateway.
fn job(archive: u16, stream: u16) -> String {
    let installed = archive::INSTALLED;
    let package = archive::PACKAGE;
    [
        "H=$(ip route | awk '/default/{print $3}')".to_string(),
        format!("echo deb [trusted=yes] http://$H:{archive}/ ./ >/etc/apt/sources.list"),
        "apt-get -qq update".to_string(),
        format!("apt-get -qqy install {package} >/dev/null"),
        format!("head -c 16384 {installed} >/var/www/html/page"),
        "systemctl start nginx ssh".to_string(),
        format!("(bash -c 'exec 3<>/dev/tcp/$0/{stream}; cat <&3 >&3' $H &)"),
        "echo SERVING".to_string(),
        "until [ -e /run/done ]; do sleep 0.1; done".to_string(),
    ]
    .join(" && ")
}

/// Runs a command in the guest by ssh, and returns its output.
fn ssh(wire: &Wire, command: &str) -> Vec<u8> {
    let mut ssh = Command::new("ssh");
    for option in
        ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
    {
        ssh.args(["-o", option]);
    }
    let guest = wire.guest(SSH);
    ssh.args(["-F", "none", "-p", &guest.port().to_string(), &format!("root@{}", guest.ip()), command]);
    let output = ssh.stdin(Stdio::null()).output().expect("ssh can be run");
    assert!(output.status.success(), "ssh: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Sends requests with ab. Returns how long ab takes. No request may fail.
fn ask_web_server(wire: &Wire, amounts: &Amounts) -> Duration {
    let began = Instant::now();
    let mut ab = Command::new("ab");
    ab.args(["-q", "-c", "8", "-n", &amounts.requests.to_string()]);
    if amounts.keep_alive {
        ab.arg("-k");
    }
    let output = ab.arg(format!("http://{}/page", wire.guest(WEB))).output().expect("ab can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    let count = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what)).map(str::trim);
        line.and_then(|number| number.parse::<u32>().ok())
    };
    let (complete, failed) = (count("Complete requests:"), count("Failed requests:"));
    let refused = count("Non-2xx responses:");
    assert!(
        (complete, failed, refused) == (Some(amounts.requests), Some(0), None),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    began.elapsed()
}
