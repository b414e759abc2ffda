//! The long form of the network tests. Records a Debian guest at work on networks, replays the recording, compares
//! captures, and prints a table. `scripts/endurance-network` calls this.
//!
//! Usage: network_endurance FOLDER SECONDS RATE REQUESTS user|tap... ; recordings and captures stay in the folder.

use std::path::Path;
use std::time::{Duration, Instant};

use tests::network::{
    Amounts, Done, Payloads, SSH, WEB, Wire, export, in_own_network, payloads, record_work, verify,
    why_no_tap,
};
use tests::program::missing;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, seconds, rate, requests, networks @ ..] = arguments.as_slice() else {
        panic!("the arguments are FOLDER SECONDS RATE REQUESTS user|tap...")
    };
    let number = |text: &String| text.parse::<u64>().unwrap_or_else(|_| panic!("{text} is no number"));
    let amounts = Amounts {
        requests: number(requests) as u32,
        keep_alive: true,
        stream_seconds: number(seconds),
        stream_rate: number(rate),
    };
    if let Some(why) = missing(&["passt", "ssh", "ab", "dpkg-deb", "tshark", "dumpcap"]) {
        panic!("{why}: scripts/setup installs it");
    }
    println!(
        "| network | requests a second | stream each way | record | replay --verify | event log | connections | captures |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for network in networks {
        let directory = Path::new(folder).join(network);
        std::fs::create_dir_all(&directory).expect("there is room for a folder");
        let run = || one_network(network, &directory, &amounts);
        if network == "tap" {
            in_own_network(run).unwrap_or_else(|| panic!("{}", why_no_tap().unwrap_or_default()));
        } else {
            run();
        }
    }
}

/// Tests one kind of network, and prints its line of the table. Panics with an error message if the test fails.
fn one_network(network: &str, directory: &Path, amounts: &Amounts) {
    let mut wire = if network == "tap" { Wire::tap(directory) } else { Wire::user(directory, &[SSH, WEB]) };
    let done = record_work(directory, &wire, amounts);
    let host_file = wire.end_capture().to_path_buf();
    eprintln!("{network}: recorded in {:.0} s; replaying", done.elapsed.as_secs_f64());
    let (verified, guest, host) = std::thread::scope(|scope| {
        let verified = scope.spawn(|| timed(|| verify(directory)).1);
        let guest = scope.spawn(|| payloads(&export(directory).0));
        let host = scope.spawn(|| payloads(&host_file));
        let failed = "the sentence above says what is wrong";
        (verified.join().expect(failed), guest.join().expect(failed), host.join().expect(failed))
    });
    assert!(guest == host, "{network}: the two captures differ: {}", difference(&guest, &host));
    let log = directory.join("R.ttvm/events.log");
    let log_bytes = std::fs::metadata(&log).expect("a recording has a log").len();
    print_row(network, amounts, &done, verified, log_bytes, &guest);
}

fn print_row(
    network: &str,
    amounts: &Amounts,
    done: &Done,
    verified: Duration,
    log_bytes: u64,
    captured: &Payloads,
) {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let connections = captured.values().map(Vec::len).sum::<usize>().div_ceil(2);
    let bytes = captured.values().flatten().map(|(bytes, _)| bytes).sum();
    println!(
        "| {network} | {:.0} of {} | {:.1} MB in {:.0} s | {:.0} s | {:.0} s | {:.1} MB | {connections} | equal, {:.1} MB |",
        f64::from(amounts.requests) / done.requests.as_secs_f64(),
        amounts.requests,
        megabytes(done.echoed.bytes),
        done.echoed.elapsed.as_secs_f64(),
        done.elapsed.as_secs_f64(),
        verified.as_secs_f64(),
        megabytes(log_bytes),
        megabytes(bytes),
    );
}

/// The first difference between two captures.
fn difference(guest: &Payloads, host: &Payloads) -> String {
    let places = guest.keys().chain(host.keys());
    let place = places.into_iter().find(|&place| guest.get(place) != host.get(place));
    place.map_or(String::new(), |place| {
        format!("from {place} the guest's has {:?}, the host's {:?}", guest.get(place), host.get(place))
    })
}

fn timed<R>(what: impl FnOnce() -> R) -> (R, Duration) {
    let began = Instant::now();
    let result = what();
    (result, began.elapsed())
}
