//! Tests the chains of `who-set` with *flows*. A guest program moves known bytes by random ways: through registers,
//! memory, string instructions, signals, processes, pipes, files and other system calls. The program knows which
//! instruction or input every byte came from (`flows/*.c`). After each flow, the test asks `who-set` for the bytes.
//!
//! An answer is *right* if the chain of the whole value ends at the origin that the program knows. The kind of the
//! end must be the same. For a constant or a computed value, the last link must be the instruction at the known
//! address. For a value from outside, the answer must name the input. Inputs are the byte and sector of the disk, the
//! event of the typed key, the port, and the instruction. For random bytes, the last link must be in the kernel's generator (ChaCha).
//!
//! An answer is *stopped with the true reason* if the chain ends because different steps wrote the parts. The
//! program must have moved the value in parts, or through the kernel or the C library, which may do so. Then the test
//! asks for each byte alone. The chain of each byte must end at the byte's origin. The steps that wrote the parts must be
//! links of these chains. If an instruction of the program certainly moved the value in parts, this end is the only good
//! answer.
//!
//! Every other answer is wrong.
//!
//! `TTVM_FLOWS=1000 cargo test --release -p tests flows` is the long form. `TTVM_FLOWS_SEED` gives another seed, and
//! `TTVM_FLOWS_FIRST` the number of the first flow. A flow depends only on its number and the seed.

use std::path::Path;
use std::process::Command;

use history::timeline::{Cause, Timeline};
use machine::Machine;
use machine::config::MachineOptions;
use machine::inputs::Event;
use machine::position::Instructions;
use machine::script::Script;
use origins::{Answer, EndKind, Link, Location, WhoSet};
use recording::Recording;
use recording::pace::CheckpointOptions;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options, repository, with_files};
use tests::program::json;
use tests::random::Random;
use tests::record::{open, record_with_checkpoints};
use tests::run::last_lines;

const SHORT_FLOWS: u64 = 40;
const SEED: u64 = 4711;
/// The number of sectors of the disk that belong to each flow (`flows/origins.c`).
const SECTORS_PER_FLOW: u64 = 40;
const SECTOR: u64 = 512;
/// The largest number of links. A byte that moves once through each hop has some dozens of links.
const LIMIT: usize = 400;
/// The program `ttvm` is asked for one flow of so many, and at least for this number of flows.
const ASKED_OF: u64 = 50;
const ASKED: u64 = 2;
/// The largest number of wrong answers that are shown.
const SHOWN: usize = 5;
/// The bytes of `struct flow` (`flows/flows.h`) before the story, and of the story.
const NUMBERS: usize = (3 + 8 + 16 + 8) * 8;
const STORY: usize = 320;
/// Distance of the checkpoints, in guest time.
const CHECKPOINT_NS: u64 = 20_000_000;

fn number_in(variable: &str, otherwise: u64) -> u64 {
    let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{variable} must be a number"));
    std::env::var(variable).map_or(otherwise, parse)
}

/// The origin of a byte, as the guest's program knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// A constant of the instruction at this address.
    Constant(u64),
    /// The result of the instruction at this address.
    Computed(u64),
    /// The answer of the processor to the instruction at this address.
    Processor(u64),
    /// A port, read by the instruction at this address.
    Port(u64),
    /// A register that is not followed, read by the instruction at this address.
    Unfollowed(u64),
    /// The kernel's random numbers.
    Random,
    /// A sector of the disk.
    Disk(u64),
    /// A typed key, by its number.
    Key(u64),
    /// Zeros with which the instruction at this address extended a value.
    Zeros(u64),
    /// Copies of the sign with which the instruction at this address extended a value.
    Signs(u64),
}

impl From {
    fn fills(self) -> bool {
        matches!(self, From::Zeros(_) | From::Signs(_))
    }
}

/// A flow, as the guest's program describes it.
struct Flow {
    number: u64,
    at: Instructions,
    address: u64,
    /// The values of the bytes, their origins, and the numbers that the program gave with the origins.
    bytes: Vec<(u8, From, u64)>,
    /// Whether hops may have moved the value in parts.
    may_split: bool,
    /// Whether a hop certainly moved the value in parts.
    is_split: bool,
    /// The names of the flow's beginning and of its hops.
    story: String,
}

impl Flow {
    /// Reads the description at the end of a flow.
    fn read(number: u64, at: Instructions, address: u64, machine: &Machine<Instructions>) -> Flow {
        let mut row = [0; NUMBERS + STORY];
        let count = machine.running_processor().peek(address, &mut row);
        assert_eq!(count, row.len(), "the description of flow {number} is in memory");
        let (numbers, story) = row.split_at(NUMBERS);
        let numbers: Vec<u64> =
            numbers.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8"))).collect();
        let [place, bytes, may_split, rest @ ..] = &numbers[..] else { panic!("it has more numbers") };
        let bytes = *bytes as usize;
        let (apart, rest) = rest.split_at(8);
        let (from, values) = rest.split_at(16);
        let byte = |index: usize| {
            let (kind, origin) = (from[2 * index], from[2 * index + 1]);
            (values[index] as u8, origin_of(kind, origin), origin)
        };
        Flow {
            number,
            at,
            address: *place,
            bytes: (0..bytes).map(byte).collect(),
            may_split: *may_split != 0,
            is_split: apart[..bytes].iter().any(|others| *others != 0),
            story: String::from_utf8_lossy(story).trim_end_matches('\0').trim().to_string(),
        }
    }

    fn location(&self, first: u64, bytes: usize) -> String {
        format!("{:#x}:{bytes}", self.address + first)
    }

    fn ask(&self, timeline: &mut Timeline, first: u64, bytes: usize) -> Answer {
        let location: Location = self.location(first, bytes).parse().expect("a location");
        let question = WhoSet { location: &location, processor: None, at: self.at, limit: LIMIT };
        question.run(timeline, &mut || false).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The numbers are the values of `enum kind` in `flows/flows.h`.
fn origin_of(kind: u64, origin: u64) -> From {
    match kind {
        1 => From::Constant(origin),
        2 => From::Computed(origin),
        3 => From::Processor(origin),
        4 => From::Port(origin),
        5 => From::Unfollowed(origin),
        6 => From::Random,
        7 => From::Disk(origin / SECTOR),
        8 => From::Key(origin),
        9 => From::Zeros(origin),
        10 => From::Signs(origin),
        _ => panic!("there is no kind {kind}"),
    }
}

/// The contents of the disk, and the typed keys with their events.
struct World {
    disk: Vec<u8>,
    keys: Vec<(u8, u64)>,
}

impl World {
    /// Whether an answer for some bytes of a flow ends at the bytes' origin.
    fn is_right(&self, bytes: &[(u8, From, u64)], answer: &Answer) -> Result<(), String> {
        let value = bytes.iter().rev().fold(0, |value, (byte, ..)| value << 8 | u64::from(*byte));
        expect(&answer.value, &format!("{value:#x}"), "the value")?;
        // Bytes that extend a value are left behind at the instruction that extends it.
        let (_, from, number) = bytes.iter().find(|(_, from, _)| !from.fills()).unwrap_or(&bytes[0]);
        let last = answer.links.last().ok_or("there is no link")?;
        let is_at = |kind: EndKind, address: u64| {
            expect(&answer.end.kind, &kind, "the kind of the end")?;
            expect(&last.rip, &format!("{address:#x}"), "the instruction")
        };
        let says = |text: &str| {
            let is_said = answer.end.text.strip_prefix("from outside: ").is_some_and(|rest| rest == text);
            if is_said { Ok(()) } else { Err(format!("the end must be '{text}'")) }
        };
        match *from {
            From::Constant(address) | From::Zeros(address) => is_at(EndKind::Constant, address),
            From::Computed(address) | From::Signs(address) => is_at(EndKind::Computed, address),
            From::Unfollowed(address) => is_at(EndKind::Unfollowed, address),
            From::Processor(address) => {
                is_at(EndKind::Outside, address)?;
                says(&format!("the processor, by {}", last.code.to_uppercase()))
            }
            From::Port(address) => {
                is_at(EndKind::Outside, address)?;
                says("port 0x61")
            }
            From::Random => {
                expect(&answer.end.kind, &EndKind::Computed, "the kind of the end")?;
                let is_generator =
                    |link: &Link| link.function.as_ref().is_some_and(|name| name.contains("chacha"));
                if is_generator(last) { Ok(()) } else { Err("the end must be in ChaCha".to_string()) }
            }
            From::Disk(sector) => {
                expect(&answer.end.kind, &EndKind::Outside, "the kind of the end")?;
                says(&format!("the virtio disk: byte {} of sector {sector} of the disk", number % SECTOR))
            }
            From::Key(key) => {
                let (typed, event) = self.keys[key as usize];
                expect(&answer.end.event, &Some(event), "the event")?;
                says(&format!("port 0x3f8: '{}' typed at event {event}", char::from(typed)))
            }
        }
    }

    /// Whether the value of a flow is as on the disk, and as it was typed. Otherwise the guest's program is wrong.
    fn agrees(&self, flow: &Flow) -> bool {
        flow.bytes.iter().all(|(value, from, number)| match from {
            From::Disk(_) => self.disk[*number as usize] == *value,
            From::Key(key) => self.keys[*key as usize].0 == *value,
            _ => true,
        })
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T, what: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} must be {expected:?}, and is {found:?}")) }
}

/// How the chain of a flow ended.
enum Verdict {
    Right,
    StoppedTruly,
    Wrong(String),
}

/// Asks where the value of a flow came from. Also returns the number of replayed steps.
fn judge(flow: &Flow, world: &World, timeline: &mut Timeline) -> (Verdict, u64) {
    let whole = flow.ask(timeline, 0, flow.bytes.len());
    let mut steps = whole.replayed;
    let wrong = |why: String, answer: &Answer| Verdict::Wrong(format!("{why}\n{answer}"));
    if whole.end.kind != EndKind::Parts {
        let verdict = match world.is_right(&flow.bytes, &whole) {
            Ok(()) if flow.is_split => wrong("the value was moved in parts".to_string(), &whole),
            Ok(()) => Verdict::Right,
            Err(why) => wrong(why, &whole),
        };
        return (verdict, steps);
    }
    if !flow.may_split && !flow.is_split {
        return (wrong("the value was never moved in parts".to_string(), &whole), steps);
    }
    let mut writers: Vec<u64> = Vec::new();
    for (index, byte) in flow.bytes.iter().enumerate() {
        let answer = flow.ask(timeline, index as u64, 1);
        steps += answer.replayed;
        if let Err(why) = world.is_right(&[*byte], &answer) {
            return (wrong(format!("byte {index}: {why}; the whole is:\n{whole}"), &answer), steps);
        }
        writers.extend(answer.links.iter().map(|link| link.instruction));
    }
    let is_link = |step: Option<u64>| step.is_some_and(|step| writers.contains(&step));
    let are_different = whole.end.parts.windows(2).all(|pair| pair[0].instruction != pair[1].instruction);
    if whole.end.parts.len() > 1
        && are_different
        && whole.end.parts.iter().all(|part| is_link(part.instruction))
    {
        (Verdict::StoppedTruly, steps)
    } else {
        (wrong("the parts are not what the chains of the bytes say".to_string(), &whole), steps)
    }
}

/// Whether the program `ttvm` gives the same answer as the library.
fn is_told_by_program(flow: &Flow, timeline: &mut Timeline, directory: &Path) -> bool {
    let (location, at) = (flow.location(0, flow.bytes.len()), format!("insn:{}", flow.at));
    let limit = LIMIT.to_string();
    let arguments = ["who-set", "flows.ttvm", &location, "--at", &at, "--limit", &limit, "--json"];
    let told = json(directory, &arguments);
    let answer = serde_json::to_value(flow.ask(timeline, 0, flow.bytes.len())).expect("plain data");
    // The number of replayed steps depends on the questions before.
    ["location", "instruction", "value", "bytes", "links", "end"].iter().all(|key| told[key] == answer[key])
}

/// Compiles the guest's program, and returns an initial RAM disk with this program.
fn with_program(directory: &Path) -> std::path::PathBuf {
    let (root, initrd) = (directory.join("root"), directory.join("initrd.gz"));
    std::fs::create_dir(&root).expect("the folder is ours");
    let sources = repository().join("tests/tests/system/flows");
    let compiled = Command::new("gcc")
        .args(["-O1", "-Wall", "-Werror", "-static", "-no-pie", "-fno-pie", "-mno-red-zone", "-masm=intel"])
        .args(["-fno-stack-protector", "-Wl,-Ttext-segment=0x50000000", "-o"])
        .arg(root.join("flows"))
        .args(["main.c", "origins.c", "moves.c", "calls.c"].map(|file| sources.join(file)))
        .status();
    assert!(compiled.expect("gcc must be installed: run scripts/setup").success());
    with_files(&BUSYBOX, &root, &initrd);
    initrd
}

/// Parses the line `flows end at 0x50001234 and are at 0x500c0000`.
fn addresses(console: &str) -> (u64, u64) {
    let line = console.lines().find_map(|line| line.strip_prefix("flows end at 0x"));
    let (end, row) =
        line.and_then(|line| line.split_once(" and are at 0x")).unwrap_or_else(|| panic!("{console}"));
    let number = |text: &str| u64::from_str_radix(text.trim(), 16).unwrap_or_else(|_| panic!("{console}"));
    (number(end), number(row))
}

/// The flows of a run: the seed, the number of the first flow, and the number of flows.
#[derive(Clone, Copy)]
struct Flows {
    seed: u64,
    first: u64,
    count: u64,
}

impl Flows {
    fn wanted() -> Flows {
        Flows {
            seed: number_in("TTVM_FLOWS_SEED", SEED),
            first: number_in("TTVM_FLOWS_FIRST", 0),
            count: number_in("TTVM_FLOWS", SHORT_FLOWS),
        }
    }

    /// Records the guest as `flows.ttvm` in a folder. Returns the recording, its world, and the console's text.
    fn record(self, directory: &Path) -> (Recording<Instructions>, World, String) {
        let Flows { seed, first, count } = self;
        let mut random = Random::new(seed);
        let disk_bytes = (first + count) * SECTORS_PER_FLOW * SECTOR;
        let disk: Vec<u8> = (0..disk_bytes).map(|_| 1 + random.below(255) as u8).collect();
        let image = directory.join("disk");
        std::fs::write(&image, &disk).expect("the folder is ours");
        let typed: Vec<u8> = (0..count).map(|_| b'a' + random.below(26) as u8).collect();
        let typing: Vec<String> = typed.iter().map(|key| char::from(*key).to_string()).collect();
        let pairs: Vec<(&str, &str)> = typing.iter().map(|key| ("key?", key.as_str())).collect();
        let mut script = Script::new(&pairs);

        let parameters = format!("ttvm.run=\"/flows {seed} {first} {count}\" cryptomgr.notests");
        let options = linux_options(&CLOUD, &BUSYBOX, &parameters, 256);
        let initrd = Some(with_program(directory));
        let guest = Guest::new(&MachineOptions { initrd, disk: Some(image), ..options });
        let path = directory.join("flows.ttvm");
        let pace = CheckpointOptions { interval_ns: CHECKPOINT_NS, ..CheckpointOptions::default() };
        record_with_checkpoints(&guest, &path, &mut script, pace);
        let console = script.text();
        assert!(console.contains("that were all flows"), "seed {seed}: {}", last_lines(&script));

        let recording = open(&path);
        let events = recording.log.events().map(|event| event.unwrap_or_else(|error| panic!("{error}")));
        let inputs = events.enumerate().filter(|(_, record)| matches!(record.event, Event::ConsoleInput(_)));
        let keys = typed.into_iter().zip(inputs.map(|(number, _)| number as u64)).collect();
        (recording, World { disk, keys }, console)
    }

    /// The flows, as the guest's program describes them at the end of each flow.
    fn read(self, timeline: &mut Timeline, console: &str) -> Vec<Flow> {
        let (end_of_flow, row) = addresses(console);
        timeline.set_breakpoints(vec![end_of_flow]);
        let hits = timeline.hits(Instructions(0), timeline.end(), usize::MAX, &mut || false);
        timeline.set_breakpoints(Vec::new());
        let hits = hits.unwrap_or_else(|error| panic!("{error}")).found;
        assert!(hits.iter().all(|hit| hit.cause == Cause::Breakpoint(end_of_flow)));
        assert_eq!(hits.len() as u64, self.count, "{console}");
        let mut read = |(number, at)| {
            timeline.seek(at, &mut || false).unwrap_or_else(|error| panic!("{error}"));
            Flow::read(number, at, row, timeline.machine())
        };
        (self.first..).zip(hits.iter().map(|hit| hit.before)).map(&mut read).collect()
    }

    /// Whether the program `ttvm` is asked for a flow, too.
    fn is_asked_of_program(self, number: u64) -> bool {
        (number - self.first).is_multiple_of(ASKED_OF.min(self.count.div_ceil(ASKED)))
    }
}

#[test]
fn chains_of_random_flows_end_where_the_bytes_came_from() {
    let flows = Flows::wanted();
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (recording, world, console) = flows.record(directory.path());
    let mut timeline = Timeline::open(&recording).unwrap_or_else(|error| panic!("{error}"));
    let (mut right, mut stopped, mut all_steps, mut wrong) = (0, 0, 0, Vec::new());
    for flow in flows.read(&mut timeline, &console) {
        let name = format!("seed {}, flow {} ({})", flows.seed, flow.number, flow.story);
        assert!(world.agrees(&flow), "{name}: the guest has another value");
        let (verdict, steps) = judge(&flow, &world, &mut timeline);
        all_steps += steps;
        if flows.is_asked_of_program(flow.number) {
            let is_same = is_told_by_program(&flow, &mut timeline, directory.path());
            assert!(is_same, "{name}: the program has another answer");
        }
        match verdict {
            Verdict::Right => {
                right += 1;
                println!("{name}: right, {steps} steps");
            }
            Verdict::StoppedTruly => {
                stopped += 1;
                println!("{name}: stopped with the true reason, {steps} steps");
            }
            Verdict::Wrong(why) => {
                println!("{name}: wrong: {why}");
                wrong.push(format!("{name}: {why}"));
            }
        }
    }
    println!(
        "{right} right, {stopped} stopped with the true reason, {} wrong; {all_steps} steps",
        wrong.len()
    );
    let shown = wrong[..SHOWN.min(wrong.len())].join("\n\n");
    assert!(wrong.is_empty(), "{} answers are wrong:\n{shown}", wrong.len());
    assert!(right + stopped > 0, "no flow was compared");
}
