//! Tests of the player without a running machine. The tests check at which points the player gives events, which
//! differences it reports, and which sinks get output and frames. These tests are a program of their own, because one
//! test installs a logger in the process.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use devices::passthrough::{AskV1, DeviceInputV1, RegionV1};
use devices::virtio::SentFrame;
use machine::Machine;
use machine::checks::{CheckParts, CheckRecord};
use machine::comparable::Likeness;
use machine::config::{MachineConfig, MachineOptions};
use machine::engine::EngineKind;
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, PowerOn, Sent, Stopped, View};
use machine::position::{Count, Exits, Instructions, Moment};
use machine::unit::Unit;
use recording::cursor::Cursor;
use recording::log::{EventRecord, Log, LogRecord};
use recording::player::{Frame, Player, Scrutiny};
use tiny_guest::{record, write_kernel};

fn power_on() -> PowerOn {
    PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 }
}

fn machine<C: Unit>() -> Machine<C> {
    let directory = tempfile::tempdir().unwrap();
    let options = MachineOptions {
        kernel: write_kernel(directory.path(), 1),
        memory_bytes: 4 << 20,
        model: if C::NAMES_ONE_PLACE { cpu::CpuModel::default() } else { cpu::CpuModel::V2Kvm },
        ..MachineOptions::default()
    };
    let (config, images) = MachineConfig::from_options(&options).unwrap();
    Machine::build(&config, &images, &power_on(), EngineKind::SOFT).unwrap()
}

fn at<C: Count>(number: u64) -> Moment<C> {
    Moment { count: C::new(number), time_ns: 10 * number }
}

/// The inputs' view of a machine at rest, with this moment and this count of branches.
fn view<C: Unit>(machine: &Machine<C>, moment: Moment<C>, branches: u64) -> View<'_, C> {
    View {
        moment,
        console_room: 0,
        network_room: None,
        cpu: machine.cpu(),
        branches,
        likeness: Likeness::Exact,
        stopped: None,
    }
}

fn event<C: Unit>(machine: &Machine<C>, moment: Moment<C>, event: Event) -> LogRecord<C> {
    LogRecord::Event(EventRecord::of(&view(machine, moment, 0), event))
}

fn check<C: Unit>(machine: &Machine<C>, moment: Moment<C>, parts: CheckParts) -> LogRecord<C> {
    let view = view(machine, moment, 0);
    LogRecord::Check(CheckRecord {
        at: moment,
        branches: 0,
        rip: machine.cpu().rip(),
        cpu_hash: view.cpu_hash(),
        devices_hash: parts.devices.then_some([1; 8]),
        ram_digest: parts.ram.then_some([2; 16]),
    })
}

/// A player of a log with power-on and these records. The player has already given power-on.
fn player<C: Unit>(machine: &Machine<C>, records: Vec<LogRecord<C>>) -> Player<C> {
    let begin = [LogRecord::Machine([0; 32]), event(machine, at(0), Event::PowerOn(power_on()))];
    let records: Vec<_> = begin.into_iter().chain(records).collect();
    let mut player = Player::new(Arc::new(Log::of_records(&records).unwrap())).unwrap();
    let given = player.poll(&view(machine, at(0), 0)).unwrap();
    assert!(matches!(given, Some(Event::PowerOn(_))));
    player
}

fn ask() -> AskV1 {
    ask_at(0)
}

fn ask_at(offset: u32) -> AskV1 {
    AskV1::Read { device: 0, region: RegionV1::Config, offset, size_bytes: 4 }
}

fn answer() -> Event {
    Event::Devices(DeviceInputV1 { asked: Some(ask()), value: Some(7), ..DeviceInputV1::default() })
}

fn stopped() -> Event {
    Event::Stopped(Stopped::default())
}

fn must_diverge<T>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::Divergence(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no difference was noticed"),
    }
}

#[test]
fn an_event_comes_in_where_it_was_recorded_and_nowhere_else() {
    let machine = machine::<Instructions>();
    let records = vec![event(&machine, at(5), Event::PowerButton)];
    for scrutiny in [Scrutiny::Nothing, Scrutiny::Registers] {
        let mut player = player(&machine, records.clone());
        player.set_scrutiny(scrutiny);
        assert_eq!(player.poll(&view(&machine, at(4), 0)).unwrap(), None);
        assert!(!player.finished());
        assert_eq!(player.poll(&view(&machine, at(5), 0)).unwrap(), Some(Event::PowerButton));
        assert!(player.finished());
        assert_eq!(player.poll(&view(&machine, at(6), 0)).unwrap(), None);
    }
    let late = |moment| {
        let mut player = player(&machine, records.clone());
        player.poll(&view(&machine, moment, 0))
    };
    let by_count = must_diverge(late(at(6)));
    assert!(by_count.contains("instruction 5") && by_count.contains("instruction 6"), "{by_count}");
    must_diverge(late(Moment { count: Instructions(5), time_ns: 51 }));
    // A player that compares nothing gives the event late.
    let mut player = player(&machine, records);
    player.set_scrutiny(Scrutiny::Nothing);
    assert_eq!(player.poll(&view(&machine, at(6), 0)).unwrap(), Some(Event::PowerButton));
}

#[test]
fn what_the_next_check_looks_at_is_known_once_it_is_next() {
    let machine = machine::<Instructions>();
    let both = CheckParts { devices: true, ram: true };
    let devices = CheckParts { devices: true, ram: false };
    let records = vec![
        check(&machine, at(1), devices),
        event(&machine, at(2), Event::PowerButton),
        check(&machine, at(3), both),
    ];
    let mut player = player(&machine, records.clone());
    player.set_scrutiny(Scrutiny::Everything);
    let pass = |player: &mut Player<_>, number: usize| {
        let LogRecord::Check(check) = &records[number] else { panic!() };
        assert_eq!(player.check_due(check.at), player.next_check_parts());
        player.checked(check.clone()).unwrap();
    };
    assert_eq!(player.next_check_parts(), Some(devices));
    pass(&mut player, 0);
    assert_eq!(player.next_check_parts(), None);
    player.poll(&view(&machine, at(2), 0)).unwrap();
    assert_eq!(player.next_check_parts(), Some(both));
    pass(&mut player, 2);
    assert_eq!(player.next_check_parts(), None);
}

#[test]
fn the_machine_is_told_how_far_it_may_run() {
    let machine = machine::<Instructions>();
    let of = |event: LogRecord<_>| player(&machine, vec![event]);
    // The machine may run up to the next event. If the next event is at this count but later in time, the player
    // sets no limit: the event comes in while the guest idles.
    let button = of(event(&machine, at(5), Event::PowerButton));
    assert_eq!(button.next_poll(at(3)), Instructions(5));
    assert_eq!(button.next_poll(Moment { count: Instructions(5), time_ns: 1 }), Instructions::MAX);
    // An answer comes in while an instruction executes.
    let asked = of(event(&machine, at(5), answer()));
    assert_eq!(asked.next_poll(at(3)), Instructions(6));
    assert_eq!(asked.next_poll(at(5)), Instructions(6));
    assert_eq!(player(&machine, Vec::new()).next_poll(at(3)), Instructions::MAX);
}

#[test]
fn where_the_guest_was_stopped_the_next_exit_would_be_a_difference() {
    let machine = machine::<Exits>();
    let mut stop = player(&machine, vec![event(&machine, at(5), stopped())]);
    assert_eq!(stop.next_poll(at(3)), Exits(5));
    assert_eq!(stop.next_poll(at(5)), Exits(6));
    // The guest reaches this count by its exits. The place of the stop lies beyond the exit.
    assert_eq!(stop.poll(&view(&machine, at(5), 0)).unwrap(), None);
    let here = View { stopped: Some(Stopped::default()), ..view(&machine, at(5), 0) };
    assert_eq!(stop.poll(&here).unwrap(), Some(stopped()));
    let button = player(&machine, vec![event(&machine, at(5), Event::PowerButton)]);
    assert_eq!(button.next_poll(at(5)), Exits::MAX);
}

#[test]
fn an_idle_guest_waits_for_the_next_event_here_or_its_own_deadline() {
    let machine = machine::<Instructions>();
    let late = Moment { count: Instructions(5), time_ns: 500 };
    let mut player = player(&machine, vec![event(&machine, late, Event::PowerButton)]);
    let mut idle = |number, deadline| player.idle(at(number), deadline).unwrap();
    assert_eq!(idle(5, None), Idle::Until(500));
    assert_eq!(idle(5, Some(700)), Idle::Until(500));
    assert_eq!(idle(5, Some(300)), Idle::Until(300));
    // While the guest idles at count 4, the event of count 5 does not come in.
    assert_eq!(idle(4, None), Idle::Forever);
    assert_eq!(idle(4, Some(700)), Idle::Until(700));
}

#[test]
fn an_answer_is_given_to_who_asked_for_it_only() {
    let machine = machine::<Instructions>();
    let asked_at = |moment| AskedAt { at: moment, instructions: Instructions(0) };
    let records = vec![event(&machine, at(5), answer())];
    let mut right = player(&machine, records.clone());
    assert_eq!(right.poll(&view(&machine, at(5), 0)).unwrap(), None, "it is no event between instructions");
    assert_eq!(right.ask_devices(asked_at(at(5)), &ask()).unwrap().value, Some(7));
    assert!(right.finished());
    must_diverge(player(&machine, records.clone()).ask_devices(asked_at(at(5)), &ask_at(4)));
    must_diverge(player(&machine, records.clone()).ask_devices(asked_at(at(6)), &ask()));
    // The machine is one instruction farther, and has not asked for the answer.
    must_diverge(player(&machine, records).poll(&view(&machine, at(6), 0)));
    let button = vec![event(&machine, at(9), Event::PowerButton)];
    must_diverge(player(&machine, button).ask_devices(asked_at(at(5)), &ask()));
}

#[test]
fn behind_the_end_of_a_log_that_has_one_nothing_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", 10, Vec::new());
    let records = recording.log.records().unwrap();
    let ask_behind = |records: &[LogRecord<_>]| {
        let log = Log::of_records(records).unwrap();
        let mut player = Player::new(Arc::new(log)).unwrap();
        player
            .set_cursor(Cursor::after(player.log().event_count(), player.log().check_count(), end.at, 0))
            .unwrap();
        assert!(player.finished());
        player.ask_devices(AskedAt { at: end.at, instructions: end.at.count }, &ask())
    };
    must_diverge(ask_behind(&records));
    // A log that was cut off may have lost the answer.
    let cut = &records[..records.len() - 1];
    assert_eq!(ask_behind(cut).unwrap(), DeviceInputV1::nothing_there(ask()));
}

#[test]
fn a_cursor_that_was_set_is_one_of_the_log() {
    let machine = machine::<Instructions>();
    let records = (1..9).map(|number| event(&machine, at(number), Event::PowerButton)).collect();
    let mut player = player(&machine, records);
    for number in [5, 2, 9, 0] {
        player.set_cursor(Cursor::after(number, 0, at(0), 12345)).unwrap();
        assert!(player.cursor().is_of(player.log()).unwrap(), "before event {number}");
        let next = player.next_poll(at(0));
        assert!(number == 0 || number == 9 || next == Instructions(number as u64), "{next}");
    }
}

#[test]
fn frames_are_shown_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    let frames = vec![vec![1; 60], vec![2; 70]];
    let script = vec![(500, Event::NetworkInput(frames.clone()))];
    let (recording, _) = record(directory.path(), "r.ttvm", 100, script);
    let mut player = Player::new(recording.log.clone()).unwrap();
    player.set_scrutiny(Scrutiny::Everything);
    let images = recording.read_images().unwrap();
    let mut machine = Machine::new(&recording.manifest.machine, &images, player.power_on()).unwrap();
    let sent = || {
        let frame = SentFrame { header: [0; 12], bytes: vec![3; 80] };
        vec![Sent { at: at(700), frame }]
    };
    // No sink is set yet.
    player.network_output(sent()).unwrap();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let sink = shown.clone();
    player.on_frame(move |frame| {
        sink.lock().unwrap().push(frame);
        Ok(())
    });
    machine.run(Instructions::MAX, &mut player).unwrap();
    assert!(machine.outcome().is_some() && player.finished());
    player.network_output(sent()).unwrap();
    let came_in = Moment { count: Instructions(500), time_ns: 500 };
    let came_in = frames.into_iter().map(|bytes| Frame { at: came_in, is_sent: false, bytes });
    let went_out = Frame { at: at(700), is_sent: true, bytes: vec![3; 80] };
    let expected: Vec<_> = came_in.chain([went_out]).collect();
    assert_eq!(*shown.lock().unwrap(), expected);
    player.on_frame(|_| Err(Error::Interrupted));
    assert!(matches!(player.network_output(sent()), Err(Error::Interrupted)));
}

#[test]
fn output_goes_where_it_was_told_to_until_it_is_told_to_go_nowhere() {
    let machine = machine::<Instructions>();
    let mut player = player(&machine, Vec::new());
    assert!(!player.shows_output());
    let shown = Arc::new(Mutex::new(Vec::new()));
    let sink = shown.clone();
    player.on_output(move |bytes| {
        sink.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    });
    assert!(player.shows_output());
    player.console_output(at(1), b"seen").unwrap();
    player.without_output();
    assert!(!player.shows_output());
    player.console_output(at(2), b"not seen").unwrap();
    assert_eq!(*shown.lock().unwrap(), b"seen");
}

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A logger that collects the warnings of each thread.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        WARNINGS.with_borrow_mut(|warnings| warnings.push(record.args().to_string()));
    }
    fn flush(&self) {}
}

#[test]
fn a_branch_counter_that_is_not_exact_is_warned_of_and_no_difference() {
    log::set_logger(&Warnings).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let machine = machine::<Exits>();
    // A count of 0 means that branches were not counted.
    for (then, now, is_warned_of) in
        [(7, 8, true), (7, 7, false), (0, 8, false), (7, 0, false), (0, 0, false)]
    {
        let button = EventRecord::of(&view(&machine, at(5), then), Event::PowerButton);
        let mut player = player(&machine, vec![LogRecord::Event(button)]);
        WARNINGS.take();
        assert_eq!(player.poll(&view(&machine, at(5), now)).unwrap(), Some(Event::PowerButton));
        let warnings = WARNINGS.take();
        let told = warnings.iter().any(|text| text.contains("7 when it was recorded, 8 now"));
        assert_eq!((told, warnings.len()), (is_warned_of, usize::from(is_warned_of)), "{then} {now}");
    }
    // A machine that counts instructions also counts branches exactly.
    let machine = self::machine::<Instructions>();
    let button = EventRecord::of(&view(&machine, at(5), 7), Event::PowerButton);
    let mut player = player(&machine, vec![LogRecord::Event(button)]);
    must_diverge(player.poll(&view(&machine, at(5), 8)));
}
