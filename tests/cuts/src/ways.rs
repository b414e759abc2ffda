//! The ways to run a program. All ways must have the same result.

use cpu::{Counts, CpuState, Startup, Stop, TurnPolicy, TurnRules, TurnState};
use guest_ram::GuestRam;

use crate::board::{Board, Lines, Requests};
use crate::layout::{CODE, PAGE, RAM_BYTES};
use crate::program::{Event, Program, turns};
use crate::tier::Tier;
use seeded::Rng;

/// How often a halted CPU is woken until the program is taken to be over.
const WAKES: u32 = 40;

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The run is cut only at events from outside.
    Whole,
    /// The run is cut at the program's cuts.
    Cut,
    /// The run is cut at the program's cuts. After many of these cuts, a new CPU with empty caches continues with a
    /// copy of RAM.
    Cold,
    /// The run is cut at the program's cuts. After some of the cuts, each of the next six steps is executed by a
    /// new CPU with empty caches.
    ColdSteps,
    /// The run is cut at the program's cuts. After a cut, the CPU runs ahead, and then goes back to the cut by
    /// [`Tier::restore_state`]. This function keeps everything that the CPU has cached from unchanged RAM.
    Warm,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 5] = [Way::Whole, Way::Cut, Way::Cold, Way::ColdSteps, Way::Warm];
}

/// How far the reference run goes in one call of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Each call executes one instruction.
    Single,
    /// Each call executes all instructions from one cut to the next, which takes a tenth of the time.
    Many,
}

/// A guest at one point of its run.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The state of the processor in the seat, which is the processor whose turn it is.
    pub state: CpuState,
    /// The states of the processors that are not in the seat.
    pub parked: Vec<CpuState>,
    /// The policy that gives turns to the processors, and the state of the turns.
    pub turns: (TurnPolicy, Option<TurnState>),
    /// The CPU's counts.
    pub counts: Counts,
    /// The state of the board.
    pub lines: Lines,
    /// The contents of all RAM.
    pub ram: Vec<u8>,
}

/// A running guest.
pub struct Guest<T> {
    cpu: T,
    policy: TurnPolicy,
    board: Board,
    /// Whether the CPU shut down, or sleeps for good.
    pub over: bool,
}

impl<T: Tier> Guest<T> {
    /// Creates a guest from a snapshot, with empty caches.
    pub fn new(snapshot: &Snapshot) -> Guest<T> {
        let ram = GuestRam::new(RAM_BYTES).expect("128 KiB can be mapped");
        ram.write_bytes(0, &snapshot.ram);
        let board = Board::new(ram.view(), snapshot.lines.clone());
        let mut cpu = T::new(ram);
        let (policy, turns) = &snapshot.turns;
        let policy = *policy;
        let spins_yield = turns.as_ref().is_some_and(|turns| turns.spins.is_some());
        cpu.inner().set_processors(snapshot.parked.len() + 1);
        cpu.inner().set_turn_rules(TurnRules { spins_yield, ..TurnRules::new(policy) });
        set_others(&mut cpu, snapshot);
        cpu.set_state(&snapshot.state, snapshot.counts);
        Guest { cpu, policy, board, over: false }
    }

    /// Creates the guest at its program's start.
    pub fn start(program: &Program) -> Guest<T> {
        let processors = vec![Requests::default(); program.others.len() + 1];
        let lines = Lines { apic_base: 0xfee0_0900, processors, ..Lines::default() };
        Guest::new(&Snapshot {
            state: program.state.clone(),
            parked: program.others.clone(),
            turns: (program.policy, program.turns.clone()),
            counts: Counts::default(),
            lines,
            ram: program.ram.clone(),
        })
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.cpu.counts().steps
    }

    /// The complete state of the guest.
    pub fn snapshot(&self) -> Snapshot {
        let mut ram = vec![0; RAM_BYTES as usize];
        self.cpu.ram().read_bytes(0, &mut ram);
        Snapshot {
            state: self.cpu.state(),
            parked: self.cpu.cpu().parked_states(),
            turns: (self.policy, self.cpu.cpu().turn_state()),
            counts: self.cpu.counts(),
            lines: self.board.lines.clone(),
            ram,
        }
    }

    /// Whether the guest equals the snapshot.
    pub fn equals(&self, snapshot: &Snapshot) -> bool {
        let page_equal = |(n, page): (usize, &[u8])| {
            let mut own = [0; PAGE as usize];
            self.cpu.ram().read_bytes(n as u64 * PAGE, &mut own);
            own == page
        };
        self.cpu.state() == snapshot.state
            && self.cpu.cpu().parked_states() == snapshot.parked
            && self.cpu.cpu().turn_state() == snapshot.turns.1
            && self.cpu.counts() == snapshot.counts
            && self.board.lines == snapshot.lines
            && snapshot.ram.chunks(PAGE as usize).enumerate().all(page_equal)
    }

    /// Goes back to a snapshot and keeps the caches. Like `Timeline`, the function writes only pages that differ.
    fn go_back(&mut self, snapshot: &Snapshot) {
        for (number, page) in snapshot.ram.chunks(PAGE as usize).enumerate() {
            let mut own = [0; PAGE as usize];
            self.cpu.ram().read_bytes(number as u64 * PAGE, &mut own);
            if own != page {
                self.cpu.ram().replace_bytes(number as u64 * PAGE, page);
            }
        }
        set_others(&mut self.cpu, snapshot);
        self.cpu.restore_state(&snapshot.state, snapshot.counts);
        self.board.lines = snapshot.lines.clone();
        self.over = false;
    }

    /// Runs to a step count, or until the guest is over.
    pub fn run_to(&mut self, steps: u64) {
        while !self.over && self.cpu.counts().steps < steps {
            match self.cpu.run(&mut self.board, steps) {
                Stop::Budget => assert_eq!(self.cpu.counts().steps, steps, "a budget is exact"),
                Stop::Bus => self.board.lines.stop = false,
                // Wake a halted CPU only if it still has steps to execute. At a cut, a halted CPU stays halted.
                Stop::Halted if self.cpu.counts().steps < steps => self.wake(),
                Stop::Halted => {}
                Stop::Shutdown => self.over = true,
                stop => panic!("nothing else was asked for: {stop:?}"),
            }
        }
    }

    fn wake(&mut self) {
        self.board.lines.wakes += 1;
        let (wakes, is_alone) = (self.board.lines.wakes, self.board.lines.processors.len() == 1);
        let sleeper = self.board.requests(u64::from(wakes / 4));
        if wakes > WAKES || sleeper.nmi && is_alone {
            self.over = true;
        } else if sleeper.startup == Startup::Awaited {
            (sleeper.startup, sleeper.page) = (Startup::Due, (CODE / PAGE) as u8);
        } else if wakes.is_multiple_of(2) {
            sleeper.nmi = true;
        } else {
            // If the guest masks interrupts, this interrupt does not wake the CPU. So every second call of `wake`
            // sends an NMI.
            sleeper.interrupt = Some(0x2f);
            sleeper.nmi = wakes % 4 == 3;
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Interrupt(vector) => self.board.requests(vector.into()).interrupt = Some(vector),
            Event::Nmi => self.board.requests(self.steps()).nmi = true,
            Event::WriteRam(value) => self.board.write_ram(value),
            Event::Turns(number) => self.cpu.inner().give_turns(&mut self.board, &turns(number)),
        }
    }

    /// Runs to a cut, and then lets the program's events at this step happen.
    pub(crate) fn run_to_cut(&mut self, program: &Program, cut: u64) {
        self.run_to(cut);
        if !self.over
            && let Ok(at) = program.events.binary_search_by_key(&cut, |event| event.0)
        {
            self.happen(program.events[at].1);
        }
    }
}

/// Replaces the number of the processor in the seat, the states of the other processors, and the state of the
/// turns. The caller must call this before it replaces the state of the processor in the seat.
fn set_others<T: Tier>(cpu: &mut T, snapshot: &Snapshot) {
    cpu.inner().set_parked(snapshot.lines.seat, &snapshot.parked);
    // A CPU at the program's start has already taken its first turn from the policy.
    if snapshot.turns.1.is_some() || snapshot.counts.steps > 0 {
        cpu.inner().set_turn_state(snapshot.turns.1.as_ref());
    }
}

/// Returns a snapshot of the guest at each of its program's cuts. `steps` says whether the guest runs in single
/// steps or from cut to cut. The list is shorter if the guest ends early.
pub fn reference<T: Tier>(program: &Program, steps: Steps) -> Vec<Snapshot> {
    let mut guest = Guest::<T>::start(program);
    let mut snapshots = Vec::new();
    for &cut in &program.cuts {
        while steps == Steps::Single && guest.steps() + 1 < cut && !guest.over {
            guest.run_to(guest.steps() + 1);
        }
        guest.run_to_cut(program, cut);
        snapshots.push(guest.snapshot());
        if guest.over {
            break;
        }
    }
    snapshots
}

/// Runs a program in a way, and compares the guest with the reference's snapshots at the cuts. Returns the number
/// of the first cut at which the guest differs, and the guest at this cut. Returns `None` if there is no
/// difference.
pub fn compare<T: Tier>(
    program: &Program,
    expected: &[Snapshot],
    way: Way,
    rng: &mut Rng,
) -> Option<(usize, Snapshot)> {
    let mut guest = Guest::<T>::start(program);
    for (number, (snapshot, &cut)) in expected.iter().zip(&program.cuts).enumerate() {
        let has_event = || program.events.binary_search_by_key(&cut, |event| event.0).is_ok();
        if way == Way::Whole && number + 1 < expected.len() && !has_event() {
            continue;
        }
        if way == Way::ColdSteps && rng.percent(15) {
            let until = (guest.steps() + 6).min(cut);
            while guest.steps() < until && !guest.over {
                guest.run_to(guest.steps() + 1);
                if !guest.over {
                    guest = Guest::new(&guest.snapshot());
                }
            }
        }
        guest.run_to_cut(program, cut);
        if !guest.equals(snapshot) {
            return Some((number, guest.snapshot()));
        }
        if guest.over {
            break;
        }
        match way {
            Way::Cold if rng.percent(30) => guest = Guest::new(snapshot),
            Way::Warm => {
                for _ in 0..rng.below(3) {
                    guest.run_to(cut + 1 + rng.below(100));
                    if rng.percent(30) {
                        guest.cpu.ram().flags().take_dirty(|_| {});
                    }
                    guest.go_back(snapshot);
                }
            }
            _ => {}
        }
    }
    None
}
