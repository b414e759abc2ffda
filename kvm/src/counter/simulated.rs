//! A counter for tests on machines without a real one. The counter sees each instruction that the vCPU
//! executes.
//!
//! While a landing waits only for an overflow, the software CPU executes in the vCPU's place, as fast as it
//! can. Once a breakpoint is set, the vCPU is single-stepped and stops where it would stop without stepping.
//! The guest must not make exits on the way to an overflow, and must not take exceptions or change privilege
//! while stepped. The guest must not load SS or change its own code.

use std::collections::BTreeMap;

use cpu::{Bus, BusSignals, Cpu, Stop};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::branch_counter::{BranchCounter, Entry};
use super::skid::{Behaviour, Skid};
use crate::error::Error;
use crate::vcpu::{Exit, Vcpu};

/// DR6 bits: the breakpoint of a landing, and a completed step.
const BREAKPOINT: u64 = 1;
const STEP: u64 = 1 << 14;
/// After a lost overflow, the watchdog must come within this many branches.
const PATIENCE: u64 = 1 << 28;
/// Steps of the software CPU between two checks for the watchdog.
const CHUNK: u64 = 4096;
/// The largest number of steps that the guest runs beyond the branch of an overflow.
const EXTRA_STEPS: u64 = 8;

/// The kinds of instructions.
#[derive(Clone, Copy)]
enum Kind {
    /// A conditional branch, which is counted.
    Branch,
    /// An instruction that cannot be stepped. Such an instruction would take several steps, or show the trap
    /// flag to the guest, or clear the flag. The vCPU runs to a breakpoint after it instead.
    Unsteppable {
        next: u64,
    },
    Other,
}

struct Armed {
    /// The count at which the overflow is due.
    due: u64,
    /// The count at which the overflow comes; `None` if it is lost.
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

    /// Whether the overflow comes now.
    fn comes(&self) -> bool {
        self.armed.as_ref().and_then(|armed| armed.delivery).is_some_and(|delivery| delivery <= self.count)
    }

    fn deliver(&mut self) -> Exit {
        self.armed = None;
        self.overflowed = true;
        Exit::Interrupted
    }

    /// Runs until the armed overflow comes or, if it is lost, until the watchdog comes.
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
            // A branch takes at least one step.
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

    /// Steps the vCPU to the breakpoint, to the armed overflow, or to any other exit.
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

/// Copies the vCPU's registers to the software CPU, so that it can read the code.
fn look(vcpu: &Vcpu, soft: &mut Cpu) {
    let mut state = soft.state();
    vcpu.take_synced(&mut state);
    soft.set_registers(&state);
}

fn kind_of(rip: u64, soft: &Cpu) -> Kind {
    let mut bytes = [0; 15];
    let length = soft.core().peek(rip, &mut bytes);
    // Kernels and test guests are 64-bit code.
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

/// The bus of a guest that must make no exits.
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
