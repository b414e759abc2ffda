//! A counter for tests, on machines that have none: it knows each instruction that the vCPU executes.
//!
//! Where a landing waits for an overflow and nothing else, the software CPU executes in the vCPU's place, as fast as it
//! can. Wherever a breakpoint is set, the vCPU is stepped through the code and stops as it does without being stepped. What
//! the guest may not do meanwhile: make exits on the way to an overflow, take exceptions or change privilege while stepped,
//! load SS, change its own code.

use std::collections::BTreeMap;

use cpu::{Bus, BusSignals, Cpu, Stop};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::branch_counter::{BranchCounter, Entry};
use super::skid::{Behaviour, Skid};
use crate::error::Error;
use crate::vcpu::{Exit, Vcpu};

/// In DR6: the breakpoint of a landing, and a completed step.
const BREAKPOINT: u64 = 1;
const STEP: u64 = 1 << 14;
/// The watchdog must have come within this many branches after a lost overflow.
const PATIENCE: u64 = 1 << 28;
/// Steps of the software CPU between two looks for the watchdog.
const CHUNK: u64 = 4096;
/// The guest is left at most this many steps beyond the branch at which an overflow comes.
const EXTRA_STEPS: u64 = 8;

/// What matters of an instruction.
#[derive(Clone, Copy)]
enum Kind {
    /// It counts.
    Branch,
    /// It cannot be stepped: it would take several steps, or push the trap flag for the guest to see, or clear it. The vCPU
    /// runs to a breakpoint behind it instead.
    Unsteppable {
        next: u64,
    },
    Other,
}

struct Armed {
    /// By the count.
    due: u64,
    /// When it comes; `None`: it is lost.
    delivery: Option<u64>,
}

pub(crate) struct Simulated {
    skid: Skid,
    count: u64,
    armed: Option<Armed>,
    overflowed: bool,
    code: BTreeMap<u64, Kind>,
}

impl Simulated {
    pub(super) fn new(behaviour: Behaviour, seed: u64) -> Simulated {
        let skid = Skid::new(behaviour, seed);
        Simulated { skid, count: 0, armed: None, overflowed: false, code: BTreeMap::new() }
    }

    /// Whether the overflow comes here, if it is one that comes.
    fn comes(&self) -> bool {
        self.armed.as_ref().and_then(|armed| armed.delivery).is_some_and(|delivery| delivery <= self.count)
    }

    fn deliver(&mut self) -> Exit {
        self.armed = None;
        self.overflowed = true;
        Exit::Interrupted
    }

    /// Runs to where the armed overflow comes, or, if it does not, to where the watchdog does.
    fn run_ahead(&mut self, entry: Entry<'_>) -> Result<Exit, Error> {
        let Entry { vcpu, soft, cr8, .. } = entry;
        let before = soft.counts();
        let mut state = soft.state();
        vcpu.take_all(&mut state)?;
        soft.set_state(&state);
        let mut bus = NoExits::default();
        let exit = loop {
            let now = self.count + (soft.branches() - before.branches);
            let Some(Armed { due, delivery }) = &self.armed else { break Exit::Interrupted };
            let left = match delivery {
                Some(delivery) if *delivery <= now => break self.deliver(),
                Some(delivery) => delivery - now,
                None if vcpu.take_kick() && now >= *due => break Exit::Interrupted,
                None if now > due + PATIENCE => break Exit::Stuck("the watchdog does not come".to_string()),
                None => CHUNK,
            };
            // A branch is a step at least.
            match soft.run(&mut bus, soft.steps() + left.min(CHUNK), u64::MAX) {
                Stop::Budget if !bus.touched => {}
                stop => {
                    break Exit::Stuck(format!(
                        "the guest left on its own under a simulated counter ({stop:?})"
                    ));
                }
            }
        };
        soft.run(&mut bus, soft.steps() + self.skid.below(EXTRA_STEPS), u64::MAX);
        self.count += soft.branches() - before.branches;
        soft.set_counts(before);
        vcpu.load(&soft.state(), cr8)?;
        match vcpu.complete_instruction(cr8) {
            Exit::Interrupted => Ok(exit),
            other => Ok(other),
        }
    }

    /// Steps the vCPU to the breakpoint, to where the armed overflow comes, or to any other exit.
    fn step(&mut self, entry: Entry<'_>) -> Result<Exit, Error> {
        let Entry { vcpu, soft, window, cr8 } = entry;
        look(vcpu, soft);
        let mut stepping = false;
        let exit = loop {
            let rip = vcpu.synced().regs.rip;
            let kind = *self.code.entry(rip).or_insert_with(|| kind_of(rip, soft));
            match kind {
                Kind::Unsteppable { next } => {
                    vcpu.set_debug(Some(next), false)?;
                    stepping = false;
                }
                _ if !stepping => {
                    vcpu.set_debug(None, true)?;
                    stepping = true;
                }
                _ => {}
            }
            let exit = vcpu.enter(window, cr8);
            if !matches!(exit, Exit::Breakpoint) {
                break exit;
            }
            let status = vcpu.debug_status();
            self.count += u64::from(status & STEP != 0 && matches!(kind, Kind::Branch));
            if status & BREAKPOINT != 0 {
                break Exit::Breakpoint;
            }
            if self.comes() {
                break self.deliver();
            }
        };
        vcpu.set_debug(None, false)?;
        Ok(exit)
    }
}

/// Lets the software CPU see what the vCPU's code is.
fn look(vcpu: &Vcpu, soft: &mut Cpu) {
    let mut state = soft.state();
    vcpu.take_synced(&mut state);
    soft.set_registers(&state);
}

fn kind_of(rip: u64, soft: &Cpu) -> Kind {
    let mut bytes = [0; 15];
    let length = soft.core().peek(rip, &mut bytes);
    // Kernels and the guests of tests are 64-bit code.
    let instruction = Decoder::with_ip(64, &bytes[..length], rip, DecoderOptions::NONE).decode();
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => Kind::Branch,
        _ if is_unsteppable(&instruction) => Kind::Unsteppable { next: instruction.next_ip() },
        _ => Kind::Other,
    }
}

fn is_unsteppable(instruction: &Instruction) -> bool {
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let flags = [Mnemonic::Pushfq, Mnemonic::Pushf, Mnemonic::Popfq, Mnemonic::Popf];
    repeated && instruction.is_string_instruction() || flags.contains(&instruction.mnemonic())
}

impl BranchCounter for Simulated {
    fn move_here(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn count(&mut self) -> Result<u64, Error> {
        Ok(self.count)
    }

    fn arm(&mut self, branches: u64) -> Result<(), Error> {
        let due = self.count + branches.max(1);
        self.armed = Some(Armed { due, delivery: self.skid.next().map(|late| due + late) });
        self.overflowed = false;
        Ok(())
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.armed = None;
        self.overflowed = false;
        self.code.clear();
        Ok(())
    }

    fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn enter(&mut self, entry: Entry<'_>) -> Exit {
        let waits = self.armed.is_some() && !entry.vcpu.has_breakpoints() && !entry.window;
        let exit = if waits { self.run_ahead(entry) } else { self.step(entry) };
        exit.unwrap_or_else(|error| Exit::Stuck(error.to_string()))
    }
}

/// What is around a guest that has nothing around it.
#[derive(Default)]
struct NoExits {
    touched: bool,
}

impl Bus for NoExits {
    fn port_read(&mut self, _: u64, _: u16, _: u8) -> u32 {
        self.touched = true;
        0
    }
    fn port_write(&mut self, _: u64, _: u16, _: u8, _: u32) {
        self.touched = true;
    }
    fn mmio_read(&mut self, _: u64, _: u64, data: &mut [u8]) {
        self.touched = true;
        data.fill(0);
    }
    fn mmio_write(&mut self, _: u64, _: u64, _: &[u8]) {
        self.touched = true;
    }
    fn signals(&mut self) -> BusSignals {
        BusSignals { stop: self.touched, ..BusSignals::default() }
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        None
    }
    fn take_nmi(&mut self) -> bool {
        false
    }
    fn read_msr(&mut self, _: u64, _: u32) -> Option<u64> {
        self.touched = true;
        None
    }
    fn write_msr(&mut self, _: u64, _: u32, _: u64) -> Option<()> {
        self.touched = true;
        None
    }
    fn cr8(&mut self) -> u64 {
        0
    }
    fn set_cr8(&mut self, _: u64, _: u64) {
        self.touched = true;
    }
    fn tsc(&mut self, _: u64) -> u64 {
        self.touched = true;
        0
    }
}
