//! Executes all encodings of the opcode maps 0F, 0F 38 and 0F 3A on the processor and on the software CPU. The
//! sweep compares which encodings are undefined, and how long the defined encodings are. Every combination of
//! mandatory prefix, REX.W, opcode and ModRM byte (without a displacement) is executed once in user mode.
//!
//! Breakpoint instructions follow each encoding. So the exception that follows shows whether the encoding was
//! undefined, and where the instruction ended. [`EXPLAINED`] lists each difference that is allowed, with its
//! reason.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use cpu::Tier;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use serde::{Deserialize, Serialize};

use crate::catalogue::in_model;
use crate::layout::{BATCH, CODE_STRIDE, DATA, PAGE, slot};
use crate::native::Native;
use crate::process::{self, Child, Ended};
use crate::soft::Soft;
use crate::state::{FxImage, Outcome, Registers};

const INT3: u8 = 0xcc;
const UNDEFINED: u8 = 6;
const BREAKPOINT: u8 = 3;
/// The address of memory operands.
const OPERAND: u64 = DATA + PAGE;
const OPERAND_BYTES: usize = 1024;
/// A SIB byte: RSP without an index.
const SIB: u8 = 0x24;

/// The result of executing the bytes of one encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum End {
    /// The CPU executed the instruction. The number is the instruction's length in bytes.
    Executed(u64),
    /// The instruction raised this exception.
    Raised(u8),
}

impl End {
    fn of(outcome: &Outcome, start: u64) -> End {
        match outcome.fault {
            Some(fault) if fault.vector == BREAKPOINT => {
                End::Executed((outcome.registers.rip - 1).wrapping_sub(start))
            }
            Some(fault) => End::Raised(fault.vector),
            None => End::Executed(outcome.registers.rip.wrapping_sub(start)),
        }
    }

    fn is_undefined(self) -> bool {
        self == End::Raised(UNDEFINED)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Executed(length) => write!(f, "{length} bytes"),
            End::Raised(UNDEFINED) => write!(f, "#UD"),
            End::Raised(vector) => write!(f, "exception {vector}"),
        }
    }
}

/// An encoding, with its results on the processor and on the software CPU.
struct Tried {
    instruction: Instruction,
    bytes: Vec<u8>,
    native: End,
    soft: End,
}

impl Tried {
    /// Returns the opcode after the bytes of the opcode map.
    fn opcode(&self) -> [u8; 2] {
        let at = self.bytes.iter().position(|&byte| byte == 0x0f).unwrap_or_default();
        [self.bytes[at + 1], self.bytes[at + 2]]
    }
}

/// A difference that is allowed.
struct Explained {
    reason: &'static str,
    applies: fn(&Tried) -> bool,
}

/// Whether processors of every vendor have the opcode, whatever their features: WBINVD with any prefix, hints and
/// reserved NOPs (SDM vol. 2, table A-3).
fn is_on_all(tried: &Tried) -> bool {
    matches!(tried.opcode()[0], 0x09 | 0x0d | 0x18..=0x1f)
}

const EXPLAINED: &[Explained] = &[
    Explained {
        reason: "the CPU model has no such feature, or its guest here has not switched it on",
        applies: |tried| {
            let needs = tried.instruction.cpuid_features();
            tried.soft.is_undefined() && !is_on_all(tried) && needs.iter().any(|&feature| !in_model(feature))
        },
    },
    Explained {
        reason: "PREFETCHW of a register is a NOP on Intel's processors (SDM vol. 2, table A-3), and undefined on some of AMD's \
                 (APM vol. 3, \"PREFETCH\")",
        applies: |tried| {
            let [opcode, modrm] = tried.opcode();
            opcode == 0x0d && modrm >= 0xc0 && tried.native.is_undefined()
        },
    },
];

/// The reason why an encoding is not executed on the processor; `None` if it is executed.
fn is_left_out(instruction: &Instruction, bytes: &[u8]) -> Option<&'static str> {
    use Mnemonic::*;
    match instruction.mnemonic() {
        _ if instruction.flow_control() == FlowControl::ConditionalBranch => Some("it may lead elsewhere"),
        Syscall | Sysenter => Some("it enters the operating system"),
        Wrfsbase => Some("it takes away the process's thread pointer"),
        _ if [[0x0f, 0x01, 0xc1], [0x0f, 0x01, 0xd9]].iter().any(|call| bytes.ends_with(call)) => {
            Some("a hypervisor below the host answers it")
        }
        _ => None,
    }
}

/// The results of the sweep.
#[derive(Default, Serialize, Deserialize)]
pub struct Swept {
    /// The number of encodings that processor and software CPU executed.
    pub executed: u64,
    /// The number of encodings that were undefined on the processor and on the software CPU.
    pub undefined: u64,
    /// Number of encodings that were left out, by reason.
    pub left_out: BTreeMap<String, u64>,
    /// Number of explained differences, by reason and mnemonic.
    pub explained: BTreeMap<String, BTreeMap<String, u64>>,
    /// Number of unexplained differences, by kind, with an example of each kind.
    pub differences: BTreeMap<String, (u64, String)>,
}

impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} encodings executed, {} of them undefined on both sides",
            self.executed, self.undefined
        )?;
        for (reason, count) in &self.left_out {
            writeln!(f, "left out, {count}: {reason}")?;
        }
        for (reason, by_name) in &self.explained {
            let names: Vec<_> = by_name.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(f, "explained, {}: {reason}: {}", by_name.values().sum::<u64>(), names.join(", "))?;
        }
        for (what, (count, example)) in &self.differences {
            writeln!(f, "DIFFERS, {count}: {what}; for example {example}")?;
        }
        Ok(())
    }
}

/// Executes every encoding. The calling process must have only one thread, because the function forks.
///
/// # Errors
/// Fails if the process that runs the encodings on the processor cannot be set up, or dies.
pub fn run() -> io::Result<Swept> {
    let child = Child::spawn(|progress| {
        let swept = Sweep::new().map(|mut sweep| {
            let encodings = encodings();
            for (batch, part) in encodings.chunks(BATCH as usize).enumerate() {
                process::watchdog(120);
                progress.batch.store(batch as u64, std::sync::atomic::Ordering::Relaxed);
                sweep.batch(part, |number| progress.case.store(number, std::sync::atomic::Ordering::Relaxed));
            }
            sweep.swept
        });
        serde_json::to_vec(&swept.unwrap_or_else(|error| crate::give_up(&error))).expect("it is plain data")
    })?;
    match child.finish()? {
        Ended::Result(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
        Ended::Died(how) => Err(io::Error::other(format!("the process that swept died: {how}"))),
    }
}

/// Returns every encoding up to its ModRM byte, or up to its SIB byte if it has one.
fn encodings() -> Vec<Vec<u8>> {
    let prefixes: [&[u8]; 4] = [&[], &[0x66], &[0xf3], &[0xf2]];
    let maps: [&[u8]; 3] = [&[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let mut all = Vec::new();
    for map in maps {
        for opcode in (0..=0xff).filter(|opcode| map.len() > 1 || !matches!(opcode, 0x38 | 0x3a)) {
            for prefix in prefixes {
                for rex in [&[][..], &[0x48]] {
                    for modrm in (0..0x40).chain(0xc0..=0xff) {
                        let sib: &[u8] = if modrm & 0xc7 == 4 { &[SIB] } else { &[] };
                        all.push([prefix, rex, map, &[opcode, modrm], sib].concat());
                    }
                }
            }
        }
    }
    all
}

struct Sweep {
    native: Native,
    soft: Soft,
    registers: Registers,
    swept: Swept,
}

impl Sweep {
    fn new() -> io::Result<Sweep> {
        let native = Native::new()?;
        let soft = Soft::new(native.fs_base, Tier::Interpreter);
        let mut fx = FxImage::ZERO;
        fx.set_control(0x37f);
        fx.set_mxcsr(0x1f80);
        let registers = Registers { fx, gpr: [OPERAND; 16], rip: 0, rflags: 0x202 };
        Ok(Sweep { native, soft, registers, swept: Swept::default() })
    }

    fn batch(&mut self, encodings: &[Vec<u8>], started: impl Fn(u64)) {
        self.soft.start_batch();
        for (number, bytes) in encodings.iter().enumerate() {
            started(number as u64);
            self.try_one(slot(number as u64), bytes);
        }
    }

    fn try_one(&mut self, start: u64, bytes: &[u8]) {
        let mut code = [INT3; CODE_STRIDE as usize];
        code[..bytes.len()].copy_from_slice(bytes);
        let instruction = Decoder::with_ip(64, &code[..15], start, DecoderOptions::NONE).decode();
        let has_no_modrm = !instruction.is_invalid() && bytes[..instruction.len().min(bytes.len())] != *bytes;
        if has_no_modrm && code[instruction.len()] != INT3 {
            return;
        }
        if let Some(reason) = is_left_out(&instruction, bytes) {
            *self.swept.left_out.entry(reason.to_string()).or_default() += 1;
            return;
        }
        self.registers.rip = start;
        let mut outcome = Outcome { registers: Registers::ZERO, fault: None };
        self.native.write_code(start, &code);
        self.native.write_data(OPERAND, &[0xff; OPERAND_BYTES]);
        self.native.run(&self.registers, 0, start, &mut outcome);
        let native = End::of(&outcome, start);
        self.soft.write_code(start, &code);
        self.soft.write_data(OPERAND, &[0xff; OPERAND_BYTES]);
        self.soft.run(&self.registers, 2, false, &mut outcome);
        let soft = End::of(&outcome, start);
        self.judge(Tried { instruction, bytes: bytes.to_vec(), native, soft });
    }

    fn judge(&mut self, tried: Tried) {
        self.swept.executed += 1;
        if tried.native == tried.soft {
            self.swept.undefined += u64::from(tried.soft.is_undefined());
            return;
        }
        let name = if tried.instruction.code() == Code::INVALID {
            "undefined".to_string()
        } else {
            format!("{:?}", tried.instruction.mnemonic()).to_lowercase()
        };
        if let Some(explained) = EXPLAINED.iter().find(|explained| (explained.applies)(&tried)) {
            let by_name = self.swept.explained.entry(explained.reason.to_string()).or_default();
            *by_name.entry(name).or_default() += 1;
            return;
        }
        let [opcode, next] = tried.opcode();
        let opcode = if matches!(opcode, 0x38 | 0x3a) {
            format!("{opcode:02x} {next:02x}")
        } else {
            format!("{opcode:02x}")
        };
        let what = format!("0f {opcode} {name}: {} here, {} on the processor", tried.soft, tried.native);
        let example = tried.bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        self.swept.differences.entry(what).or_insert((0, example)).0 += 1;
    }
}
