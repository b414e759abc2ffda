//! Measures time travel in a recording, and prints a table with the cost of restores, steps and searches. A benchmark,
//! not a test. `scripts/bench-travel` makes the recording and calls this.
//!
//! Usage: travel_bench RECORDING [NAME=CONDITION]... ; conditions as in `ttvm search`.

use std::path::Path;
use std::time::Instant;

use history::timeline::{Condition, Stops, Timeline, TravelStop};
use machine::position::{Count, Instructions};
use nix::sys::resource::{UsageWho, getrusage};
use recording::Recording;
use tests::record::open;

/// CPU seconds of all threads so far.
fn cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("there is no reason to fail");
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Runs `what`. Returns its result, its CPU seconds, and its wall-clock seconds.
fn timed<R>(what: impl FnOnce() -> R) -> (R, f64, f64) {
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    let result = what();
    (result, cpu_seconds() - cpu, wall.elapsed().as_secs_f64())
}

fn row(what: &str, cpu: f64, wall: f64, notes: &str) {
    println!("{what:<44} {cpu:>10.4} {wall:>10.4}  {notes}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the recording");
    let recording = open(Path::new(&path));
    println!("{:<44} {:>10} {:>10}", "", "CPU s", "wall s");
    let (timeline, cpu, wall) =
        timed(|| Timeline::open(&recording).unwrap_or_else(|error| panic!("{error}")));
    let mut timeline = timeline;
    let end = timeline.end();
    row("open", cpu, wall, &format!("{end} instructions"));
    restores(&mut timeline);
    steps(&mut timeline, end);
    for argument in arguments {
        let (name, condition) = argument.split_once('=').expect("NAME=CONDITION");
        let condition: Condition = condition.parse().unwrap_or_else(|error| panic!("{error}"));
        for threads in [1, 2] {
            search(&recording, name, &condition.0, threads);
        }
    }
}

/// Restores every checkpoint, in an order in which two neighbours rarely follow each other.
fn restores(timeline: &mut Timeline) {
    let checkpoints = timeline.checkpoints().map(|checkpoints| checkpoints.heads());
    let places: Vec<Instructions> = checkpoints.into_iter().flatten().map(|(&at, _)| at).collect();
    let (mut times, mut walls) = (Vec::new(), Vec::new());
    for number in 0..places.len() {
        let target = places[number * 7919 % places.len()];
        let (_, cpu, wall) = timed(|| timeline.seek(target, &mut || false).unwrap_or_else(|e| panic!("{e}")));
        times.push(cpu);
        walls.push(wall);
    }
    if !times.is_empty() {
        let worst = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        let dearest = format!("the dearest {:.4} CPU, {:.4} wall", worst(&times), worst(&walls));
        let notes = format!("median of {}; {dearest}", times.len());
        row("restore a checkpoint", median(times), median(walls), &notes);
    }
}

fn steps(timeline: &mut Timeline, end: Instructions) {
    let (_, cpu, wall) = timed(|| timeline.seek(end, &mut || false).unwrap_or_else(|e| panic!("{e}")));
    row("go to the end", cpu, wall, "");
    let (_, cpu, wall) = timed(|| timeline.settle(&mut || false).unwrap_or_else(|e| panic!("{e}")));
    row("make steps back from there near", cpu, wall, "");
    let mut cold = Vec::new();
    for n in 1..=9 {
        // Arrive by running forward, as after `continue`, and step back.
        timeline
            .seek(Instructions(end.number() / 10 * n), &mut || false)
            .unwrap_or_else(|error| panic!("{error}"));
        let target = timeline.position() + 3_000_000;
        timeline.set_stops(Stops::default());
        let mut polls = 0;
        while timeline.position() < target && polls < 5 {
            polls += 1;
            timeline.run_forward(&mut || true).unwrap_or_else(|error| panic!("{error}"));
        }
        cold.push(timed(|| timeline.step_backward(&mut || false).unwrap_or_else(|e| panic!("{e}"))).1);
    }
    let worst = cold.iter().copied().fold(0.0, f64::max);
    row("one step back, cold, after running", median(cold), 0.0, &format!("the dearest {worst:.4}"));
    timeline.seek(end, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    for count in [1, 10, 1000, 10_000] {
        let (_, cpu, wall) = timed(|| {
            for _ in 0..count {
                let stop = timeline.step_backward(&mut || false).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(stop, TravelStop::Reached);
            }
        });
        let each = format!("{:.1} us each", cpu / f64::from(count) * 1e6);
        row(&format!("{count} steps back in a row"), cpu, wall, &each);
    }
}

fn search(recording: &Recording<Instructions>, name: &str, stops: &Stops, threads: usize) {
    let mut timeline = Timeline::open_with(recording, threads).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.end();
    timeline.seek(end, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    timeline.set_stops(stops.clone());
    let before = timeline.replayed_steps();
    let (stop, cpu, wall) = timed(|| timeline.run_backward(&mut || false).unwrap_or_else(|e| panic!("{e}")));
    let replayed = (timeline.replayed_steps() - before) as f64 / 1e9;
    let distance = (end - timeline.position()) as f64 / 1e9;
    let notes = format!("{stop:?}, {distance:.3}e9 back, {replayed:.3}e9 replayed");
    row(&format!("back to {name}, {threads} threads"), cpu, wall, &notes);
}
