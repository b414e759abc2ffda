//! Tests of the recorder without a running machine: the inputs that it passes on, and the records that it writes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use devices::passthrough::{AskV1, DeviceInputV1, RegionV1};
use devices::virtio::SentFrame;
use machine::checks::{CheckParts, CheckRecord, Intervals};
use machine::comparable::Likeness;
use machine::config::MachineConfig;
use machine::engine::{EngineKind, Leave};
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, PowerOn, Sent, View};
use machine::position::{Count, Exits, Instructions, Moment};
use machine::unit::Unit;
use machine::{Format, Machine, Outcome, Start, StartingState};
use recording::cursor::Logged;
use recording::log::{Log, LogWriter, read_log};
use recording::pace::CheckpointOptions;
use recording::player::Player;
use recording::recorder::Recorder;
use recording::{CHECKPOINTS, Cut, EVENTS, Opened, Recordable, create_folder};
use tiny_guest::{DENSE, options, record, typed, write_kernel};

fn at<C: Count>(number: u64) -> Moment<C> {
    Moment { count: C::new(number), time_ns: 10 * number }
}

fn power_on() -> PowerOn {
    PowerOn { unix_seconds: 5, seed: [1; 32], columns: 80, rows: 25 }
}

/// Inputs that note which calls reach them. The next event comes in at count 100.
#[derive(Clone, Default)]
struct Noting(Rc<RefCell<Vec<String>>>);

impl Noting {
    fn note(&self, call: impl Into<String>) {
        self.0.borrow_mut().push(call.into());
    }

    fn noted(&self) -> Vec<String> {
        self.0.take()
    }
}

impl<C: Count> Inputs<C> for Noting {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        Ok((view.moment.count >= C::new(100)).then_some(Event::PowerButton))
    }
    fn next_poll(&self, _now: Moment<C>) -> C {
        C::new(100)
    }
    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.note(format!("idle {} {deadline_ns:?}", now.count));
        Ok(Idle::Until(77))
    }
    fn leave(&self, _now: Moment<C>, deadline_ns: Option<u64>) -> Leave {
        match deadline_ns {
            Some(ns) => {
                let due = Duration::from_nanos(ns);
                Leave::After { due, force: 2 * due, note: false }
            }
            None => Leave::AtExits,
        }
    }
    fn ask_devices(&mut self, _at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        self.note("ask");
        Ok(DeviceInputV1 { asked: Some(*ask), value: Some(7), ..DeviceInputV1::default() })
    }
    fn tell_devices(&mut self, _at: AskedAt<C>, _told: &AskV1) -> Result<(), Error> {
        self.note("tell");
        Ok(())
    }
    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.note(format!("{} frames", frames.len()));
        Ok(())
    }
    fn console_output(&mut self, _now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.note(String::from_utf8_lossy(bytes));
        Ok(())
    }
}

fn machine<C: Unit>() -> Machine<C> {
    let directory = tempfile::tempdir().unwrap();
    let model = if C::NAMES_ONE_PLACE { cpu::CpuModel::default() } else { cpu::CpuModel::V2Kvm };
    let options = machine::config::MachineOptions { model, ..options(write_kernel(directory.path(), 1)) };
    let (config, images) = MachineConfig::from_options(&options).unwrap();
    Machine::build(&config, &images, &power_on(), EngineKind::SOFT).unwrap()
}

fn view<C: Unit>(machine: &Machine<C>, moment: Moment<C>) -> View<'_, C> {
    View {
        moment,
        console_room: 0,
        network_room: None,
        cpu: machine.cpu(),
        branches: 0,
        likeness: Likeness::Exact,
        stopped: None,
    }
}

fn check<C: Count>(moment: Moment<C>, parts: CheckParts) -> CheckRecord<C> {
    CheckRecord {
        at: moment,
        branches: 0,
        rip: 0,
        cpu_hash: [0; 8],
        devices_hash: parts.devices.then_some([1; 8]),
        ram_digest: parts.ram.then_some([2; 16]),
    }
}

#[test]
fn all_inputs_and_checks_are_written_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let mut log = LogWriter::create(&path, Format::default()).unwrap();
    log.append(&recording::log::LogRecord::<Instructions>::Machine([0; 32])).unwrap();
    let (machine, live) = (machine::<Instructions>(), Noting::default());
    let mut recorder = Recorder::new(live.clone(), log, power_on());
    let intervals = Intervals { registers: 30, registers_ns: 1 << 40, devices: 60, ram: 90 };
    recorder.check_every(intervals);
    let both = CheckParts { devices: true, ram: true };

    // All parts of a check are due at the beginning, after the power-on event.
    assert_eq!(recorder.next_poll(at(0)), Instructions(0));
    let given = recorder.poll(&view(&machine, at(0))).unwrap();
    assert_eq!(given, Some(Event::PowerOn(power_on())));
    assert_eq!(recorder.poll(&view(&machine, at(0))).unwrap(), None);
    assert_eq!(recorder.check_due(at(0)), Some(both));
    recorder.checked(check(at(0), both)).unwrap();
    assert_eq!((recorder.check_due(at(29)), recorder.next_poll(at(1))), (None, Instructions(30)));
    let none = CheckParts::default();
    assert_eq!(recorder.check_due(at(30)), Some(none));
    recorder.checked(check(at(30), none)).unwrap();
    recorder.checked(check(at(95), CheckParts { devices: true, ram: false })).unwrap();
    // The live inputs have an event before the next check.
    assert_eq!(recorder.next_poll(at(95)), Instructions(100));
    assert_eq!(recorder.poll(&view(&machine, at(100))).unwrap(), Some(Event::PowerButton));
    let ask = AskV1::Read { device: 0, region: RegionV1::Config, offset: 0, size_bytes: 4 };
    let asked_at = AskedAt { at: at(101), instructions: Instructions(0) };
    assert_eq!(recorder.ask_devices(asked_at, &ask).unwrap().value, Some(7));
    recorder.tell_devices(asked_at, &ask).unwrap();
    let frame = SentFrame { header: [0; 12], bytes: vec![3; 80] };
    recorder.network_output(vec![Sent { at: at(102), frame }]).unwrap();
    recorder.console_output(at(102), b"text").unwrap();
    assert_eq!(recorder.idle(at(103), Some(9)).unwrap(), Idle::Until(77));
    assert_eq!(live.noted(), ["ask", "tell", "1 frames", "text", "idle 103 Some(9)"]);
    assert_eq!(recorder.leave(at(103), None), Leave::AtExits);
    let due = Duration::from_nanos(5);
    assert_eq!(recorder.leave(at(103), Some(5)), Leave::After { due, force: 2 * due, note: true });

    let cursor = recorder.cursor();
    assert_eq!((cursor.events(), cursor.checks(), recorder.format()), (3, 3, Format::default()));
    let log: Log<Instructions> = read_log(&path, Format::default()).unwrap();
    let kinds: Vec<_> =
        log.events().map(|event| event.unwrap()).map(|event| (event.event.kind(), event.at)).collect();
    assert_eq!(kinds, [("power-on", at(0)), ("power-button", at(100)), ("devices", at(101))]);
    let parts: Vec<_> = log.checks().map(|check| check.unwrap().parts()).collect();
    assert_eq!(parts, [both, none, CheckParts { devices: true, ram: false }]);
    // A player at the same place has the same cursor.
    assert!(cursor.is_of(&log).unwrap());
    let mut player = Player::new(log.into()).unwrap();
    player.set_cursor(cursor).unwrap();
    assert!(player.finished());
    assert_eq!(player.cursor(), cursor);
}

#[test]
fn a_cursor_belongs_to_a_log_with_the_same_records_before_it() {
    let log = |seconds: i64| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.log");
        let mut log = LogWriter::create(&path, Format::default()).unwrap();
        log.append(&recording::log::LogRecord::<Exits>::Machine([0; 32])).unwrap();
        let machine = machine::<Exits>();
        let power_on = PowerOn { unix_seconds: seconds, ..power_on() };
        let mut recorder = Recorder::new(Noting::default(), log, power_on);
        recorder.poll(&view(&machine, at(0))).unwrap();
        (Logged::<Exits>::cursor(&recorder), read_log::<Exits>(&path, Format::default()).unwrap())
    };
    let ((one, of_one), (other, of_other)) = (log(1), log(2));
    assert!(one.is_of(&of_one).unwrap() && other.is_of(&of_other).unwrap());
    assert!(!one.is_of(&of_other).unwrap() && !other.is_of(&of_one).unwrap());
    // A cursor beyond the end is accepted, because the log may have been cut off before this place.
    let behind = recording::cursor::Cursor::after(2, 0, at::<Exits>(0), 0);
    assert!(behind.is_of(&of_one).unwrap());
    assert_eq!((one.entry(), behind.entry()), (1, 2));
}

/// Inputs that return an error after a number of polls.
struct Failing(u32);

impl Inputs<Instructions> for Failing {
    fn poll(&mut self, _view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| Error::Engine("the engine is gone".to_string()))?;
        Ok(None)
    }
    fn next_poll(&self, now: Moment<Instructions>) -> Instructions {
        now.count + 1_000
    }
    fn idle(&mut self, _now: Moment<Instructions>, _deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(Idle::Forever)
    }
}

#[test]
fn a_run_that_fails_is_cut_off_and_replays_so_far() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    let mut guest = Recordable::new(&options(write_kernel(directory.path(), 10_000)), power_on()).unwrap();
    let every = Duration::from_micros(10);
    let recording = guest.record_in(&path).unwrap().checks(DENSE).checkpoint_every(every);
    assert_eq!(
        (recording.format(), recording.machine().moment().count),
        (Format::default(), Instructions(0))
    );
    let error = recording.run(Failing(30)).unwrap_err();
    let Error::CutOff { cause, recording, at } = error else { panic!("{error}") };
    assert_eq!((cause.to_string().as_str(), recording), ("the engine is gone", path.clone()));
    assert_eq!(at, guest.machine.moment().count.position());
    assert!(path.join(CHECKPOINTS).is_dir());
    let Opened::ByInstructions(recording) = Opened::open(&path).unwrap() else { panic!() };
    assert!(recording.log.end.is_none() && recording.log.event_count() == 1);
    assert!(recording.log.check_count() >= 1);
    let mut player = Player::new(recording.log.clone()).unwrap();
    let images = recording.read_images().unwrap();
    let mut machine = Machine::new(&recording.manifest.machine, &images, player.power_on()).unwrap();
    machine.run(recording.log.last_moment().count + 1, &mut player).unwrap();
    assert!(player.finished());
}

#[test]
fn a_recording_may_carry_its_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let (path, kernel) = (directory.path().join("r.ttvm"), write_kernel(directory.path(), 10));
    std::fs::create_dir(&path).unwrap();
    let mut guest: Recordable<Instructions> =
        Recordable::carrying_images(EngineKind::SOFT, &options(kernel.clone()), power_on(), &path).unwrap();
    let kernel_in = |folder| guest.config_in(folder).start.booted().kernel.path.clone();
    assert_eq!(kernel_in(&path).to_str(), Some("images/kernel"));
    assert_eq!(
        kernel_in(directory.path()),
        guest.config().start.booted().kernel.path,
        "it is not in that folder"
    );
    std::fs::remove_file(&kernel).unwrap();
    let end = guest.record_in_empty(&path).unwrap().run(machine::script::Script::silent()).unwrap();
    assert_eq!(end.outcome, Outcome::DebugExit { code: 1 });
    let Opened::ByInstructions(recording) = Opened::open(&path).unwrap() else { panic!() };
    recording.read_images().unwrap();
}

#[test]
fn a_machine_that_ran_is_recorded_from_its_present_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut guest =
        Recordable::<Instructions>::new(&options(write_kernel(directory.path(), 10_000)), power_on())
            .unwrap();
    let mut live = Noting::default();
    assert!(guest.machine.run(Instructions(50), &mut live).is_ok());
    let path = directory.path().join("r.ttvm");
    assert!(guest.record_in(&path).err().unwrap().to_string().contains("record from here"));
    std::fs::create_dir(&path).unwrap();
    let options = CheckpointOptions { slice_steps: 10_000, ..CheckpointOptions::default() }.at_any_cost();
    let recording = guest.record_from_here(&path).unwrap().checks(DENSE).checkpoints(Some(options));
    let end = recording.run(machine::script::Script::silent()).unwrap();
    let Opened::ByInstructions(recording) = Opened::open(&path).unwrap() else { panic!() };
    assert!(recording.manifest.cut.is_none() && !recording.is_part());
    let mut player = Player::new(recording.log.clone()).unwrap();
    let images = recording.read_images().unwrap();
    let mut machine = Machine::new(&recording.manifest.machine, &images, player.power_on()).unwrap();
    assert_eq!(machine.moment().count, Instructions(0));
    machine.run(Instructions::MAX, &mut player).unwrap();
    assert_eq!((machine.moment(), machine.known_hashes().unwrap()), (end.at, end.hashes));
    assert!(guest.record_in(directory.path().join("again")).is_err(), "its beginning is gone");
    assert!(std::fs::exists(path.join(EVENTS)).unwrap());
}

#[test]
fn the_end_of_a_recording_can_be_recorded_as_one_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (from, end) = record(directory.path(), "from.ttvm", 10_000, typed(&[(5_003, "x")]));
    let mut player = Player::new(from.log.clone()).unwrap();
    let images = from.read_images().unwrap();
    let mut machine = Machine::new(&from.manifest.machine, &images, player.power_on()).unwrap();
    machine.run(Instructions(50_000), &mut player).unwrap();
    let start = StartingState::of(&mut machine).unwrap();
    let cut = Cut { instructions: 50_000, free_pages: 3 };
    let mut guest: Recordable<Instructions> = Recordable::going_on(EngineKind::SOFT, &from, start).unwrap();
    let Start::Kernel(files) = &guest.config().start else {
        panic!("its own start is no part of the description")
    };
    assert!(files.kernel.path.is_absolute());
    let path = directory.path().join("to.ttvm");
    let stopped = directory.path().join("stopped.ttvm");
    create_folder(&stopped).unwrap();
    let error = guest.record_cut_in_empty(&stopped, cut, &mut |done, _| done == 3 * 4096).err().unwrap();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(!stopped.join("images/start").exists());
    create_folder(&path).unwrap();
    let mut pages = Vec::new();
    let mut count_pages = |done, of| {
        pages.push((done, of));
        false
    };
    let new = guest.record_cut_in_empty(&path, cut, &mut count_pages).unwrap();
    let went_on = new.checks(DENSE).run(machine::script::Script::silent()).unwrap();
    assert!(pages.iter().enumerate().all(|(at, page)| page.0 == at as u64 * 4096), "{pages:?}");
    assert!(pages.iter().all(|&(_, of)| of >= 4096 * pages.len() as u64 && of < 4 << 20), "{pages:?}");
    assert_eq!(went_on.at.count + 50_000, end.at.count);
    assert_eq!((went_on.at.time_ns, went_on.hashes.ram), (end.at.time_ns, end.hashes.ram));
    let Opened::ByInstructions(recording) = Opened::open(&path).unwrap() else { panic!() };
    assert_eq!(recording.manifest.cut, Some(cut));
    assert!(matches!(recording.manifest.machine.start, Start::State { .. }));
    let error = guest.record_in(directory.path().join("again.ttvm")).err().unwrap().to_string();
    assert!(error.contains("record from here"), "{error}");
}
