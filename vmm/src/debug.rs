//! The timeline as gdb's debug target.

use std::ops::Range;

use cpu::{AddressKind, CpuState, SegReg};
use gdb::{DebugTarget, Refusal, Registers, Stop};

use crate::error::Error;
use crate::position::PositionSpec;
use crate::timeline::{Cause, Timeline, TravelStop};

/// A timeline for gdb. What gdb changes never reaches the recorded past: writes are refused.
pub struct GdbTarget<'a> {
    timeline: &'a mut Timeline,
    breakpoints: Vec<u64>,
    watchpoints: Vec<gdb::Watchpoint>,
}

const READ_ONLY: &str = "this is a recorded run: registers and memory cannot be changed";

const MONITOR_HELP: &str = "\
monitor when          where this is: instruction count, branches, guest time
monitor goto POS      go to a position: start, end, panic, event:N, insn:N, branch:N, syscall:N, 12.5s, 37%
                      (then: maintenance flush register-cache)
monitor end           where the recording ends
";

impl<'a> GdbTarget<'a> {
    /// A target that stands where the timeline stands.
    pub fn new(timeline: &'a mut Timeline) -> GdbTarget<'a> {
        GdbTarget { timeline, breakpoints: Vec::new(), watchpoints: Vec::new() }
    }

    /// Hands the points in force to the timeline; cheap when nothing changed.
    fn points_changed(&mut self) {
        self.timeline.set_breakpoints(self.breakpoints.clone());
        self.timeline.set_watchpoints(self.watchpoints.iter().map(engine_watchpoint).collect());
    }

    fn when(&self) -> String {
        let machine = self.timeline.machine();
        let now = machine.moment();
        format!(
            "instruction {} of {}, branch {}, {:.9} s guest time\n",
            now.steps,
            self.timeline.end(),
            machine.cpu().branches(),
            now.time_ns as f64 / 1e9
        )
    }
}

fn refused(error: Error) -> Refusal {
    Refusal::new(error.to_string())
}

fn engine_watchpoint(point: &gdb::Watchpoint) -> cpu::Watchpoint {
    let kind = match point.kind {
        gdb::WatchKind::Read => cpu::WatchKind::Read,
        gdb::WatchKind::Write => cpu::WatchKind::Write,
        gdb::WatchKind::Access => cpu::WatchKind::Access,
    };
    cpu::Watchpoint { space: AddressKind::Linear, address: point.address, length: point.length, kind }
}

impl GdbTarget<'_> {
    fn gdb_stop(&self, stop: TravelStop) -> Stop {
        match stop {
            TravelStop::Reached => Stop::Step,
            TravelStop::Hit(Cause::Breakpoint(_)) => Stop::Breakpoint(self.timeline.machine().cpu().rip()),
            // Only gdb's own points are set while gdb runs.
            TravelStop::Hit(Cause::SystemCall(_) | Cause::Vector(_) | Cause::Console) => Stop::Step,
            TravelStop::Hit(Cause::Watch { kind, address }) => Stop::Watchpoint {
                kind: match kind {
                    cpu::WatchKind::Read => gdb::WatchKind::Read,
                    cpu::WatchKind::Write => gdb::WatchKind::Write,
                    cpu::WatchKind::Access => gdb::WatchKind::Access,
                },
                address,
            },
            TravelStop::Interrupted => Stop::Interrupted,
            TravelStop::Start => Stop::HistoryStart,
            TravelStop::End => Stop::HistoryEnd,
        }
    }
}

impl DebugTarget for GdbTarget<'_> {
    fn read_registers(&mut self) -> Result<Registers, Refusal> {
        Ok(registers(&self.timeline.machine().cpu().state()))
    }

    fn write_registers(&mut self, _registers: &Registers) -> Result<(), Refusal> {
        Err(Refusal::new(READ_ONLY))
    }

    fn read_memory(&mut self, address: u64, buffer: &mut [u8]) -> usize {
        self.timeline.machine().cpu().core().peek(address, buffer)
    }

    fn write_memory(&mut self, _address: u64, _bytes: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::new(READ_ONLY))
    }

    fn set_breakpoint(&mut self, address: u64) -> Result<(), Refusal> {
        self.breakpoints.push(address);
        self.points_changed();
        Ok(())
    }

    fn clear_breakpoint(&mut self, address: u64) {
        self.breakpoints.retain(|&b| b != address);
        self.points_changed();
    }

    fn set_watchpoint(&mut self, watchpoint: gdb::Watchpoint) -> Result<(), Refusal> {
        self.watchpoints.push(watchpoint);
        self.points_changed();
        Ok(())
    }

    fn clear_watchpoint(&mut self, watchpoint: gdb::Watchpoint) {
        self.watchpoints.retain(|&w| w != watchpoint);
        self.points_changed();
    }

    fn step_forward(&mut self, _poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        let stop = self.timeline.step_forward().map_err(refused)?;
        Ok(self.gdb_stop(stop))
    }

    fn step_backward(&mut self, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        let stop = self.timeline.step_backward(poll).map_err(refused)?;
        Ok(self.gdb_stop(stop))
    }

    fn run_forward(&mut self, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        let stop = self.timeline.run_forward(poll).map_err(refused)?;
        Ok(self.gdb_stop(stop))
    }

    fn run_backward(&mut self, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        let stop = self.timeline.run_backward(poll).map_err(refused)?;
        Ok(self.gdb_stop(stop))
    }

    fn step_range(
        &mut self,
        range: Range<u64>,
        breakpoints: &std::collections::BTreeSet<u64>,
        poll: &mut gdb::Poll<'_>,
    ) -> Result<Stop, Refusal> {
        for step in 1_u64.. {
            let stop = self.step_forward(poll)?;
            if stop != Stop::Step {
                return Ok(stop);
            }
            let rip = self.timeline.machine().cpu().rip();
            if breakpoints.contains(&rip) {
                return Ok(Stop::Breakpoint(rip));
            }
            if !range.contains(&rip) {
                return Ok(Stop::Step);
            }
            if step.is_multiple_of(4096) && poll() {
                return Ok(Stop::Interrupted);
            }
        }
        unreachable!("nobody waits for 2^64 steps")
    }

    fn monitor(&mut self, command: &str, poll: &mut gdb::Poll<'_>) -> Result<String, Refusal> {
        match command.trim().split_once(' ').unwrap_or((command.trim(), "")) {
            ("when", _) => Ok(self.when()),
            ("end", _) => Ok(format!("the recording ends at instruction {}\n", self.timeline.end())),
            ("goto", text) => {
                let spec: PositionSpec = text.trim().parse().map_err(Refusal::new)?;
                let target = self.timeline.resolve(spec, poll).map_err(refused)?;
                self.timeline.seek(target, poll).map_err(refused)?;
                Ok(self.when())
            }
            _ => Ok(MONITOR_HELP.to_string()),
        }
    }
}

/// The CPU's state in gdb's terms.
fn registers(state: &CpuState) -> Registers {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    let selector = |register: SegReg| state.segments[register as usize].selector;
    let base = |register: SegReg| state.segments[register as usize].base;
    let fpu = &state.fpu;
    Registers {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rbp,
        rsp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip: state.rip,
        eflags: state.rflags as u32,
        cs: selector(SegReg::Cs),
        ss: selector(SegReg::Ss),
        ds: selector(SegReg::Ds),
        es: selector(SegReg::Es),
        fs: selector(SegReg::Fs),
        gs: selector(SegReg::Gs),
        fs_base: base(SegReg::Fs),
        gs_base: base(SegReg::Gs),
        k_gs_base: state.msrs.kernel_gs_base,
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        cr8: 0,
        efer: state.msrs.efer,
        st: std::array::from_fn(|n| stack_register(state, n)),
        fctrl: fpu.control,
        fstat: fpu.status,
        ftag: full_tag_word(state),
        fiseg: (fpu.instruction_pointer >> 32) as u16,
        fioff: fpu.instruction_pointer as u32,
        foseg: (fpu.data_pointer >> 32) as u16,
        fooff: fpu.data_pointer as u32,
        fop: fpu.opcode,
        xmm: state.xmm,
        mxcsr: state.mxcsr,
    }
}

/// Number of the physical register that is ST(n).
fn physical(state: &CpuState, n: usize) -> usize {
    (usize::from(state.fpu.status >> 11) + n) & 7
}

fn stack_register(state: &CpuState, n: usize) -> [u8; 10] {
    let number = physical(state, n);
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&state.fpu.mantissas[number].to_le_bytes());
    bytes[8..].copy_from_slice(&state.fpu.sign_exponents[number].to_le_bytes());
    bytes
}

/// Two bits for each physical register: valid, zero, special, empty (SDM vol. 1, 8.1.7).
fn full_tag_word(state: &CpuState) -> u16 {
    (0..8).fold(0, |word, n| {
        let (exponent, mantissa) = (state.fpu.sign_exponents[n] & 0x7fff, state.fpu.mantissas[n]);
        let tag = if state.fpu.valid >> n & 1 == 0 {
            3
        } else if exponent == 0 && mantissa == 0 {
            1
        } else if exponent == 0 || exponent == 0x7fff || mantissa >> 63 == 0 {
            2
        } else {
            0
        };
        word | tag << (2 * n)
    })
}
