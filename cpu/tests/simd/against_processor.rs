//! Compares every instruction, in register and memory form, with the processor.

use iced_x86::{Code, Mnemonic};

use crate::guest::Guest;
use crate::host::{DATA_BYTES, Host};
use crate::instructions::{self, Encoded};
use crate::state::{FLAGS, State, quad};
use seeded::{Operands, setting};

/// Number of states to try with each encoding.
const STATES: u64 = 25;
/// Number of failures after which a test gives up on an instruction.
const ENOUGH: usize = 3;

/// Bytes that are filled before each case. The rest of the data area is cleared, and compared too.
const WINDOW: usize = 1024;

#[test]
fn every_instruction_computes_what_the_processor_does() {
    if !is_reference() {
        return;
    }
    let mut bench = Bench::new();
    let mut failures = Vec::new();
    let mut tried = 0;
    for code in instructions::all().filter(|&code| !special(code.mnemonic())) {
        for memory in [false, true] {
            if instructions::has_form(code, memory) {
                failures.extend(bench.compare(code, memory));
                tried += 1;
            }
        }
    }
    println!("{tried} instruction forms");
    assert!(tried > 400, "the list of instructions is not nearly complete");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn fxsave_images_are_the_processors() {
    if !is_reference() {
        return;
    }
    let mut bench = Bench::new();
    let mut failures = Vec::new();
    for code in
        [Code::Fxsave_m512byte, Code::Fxsave64_m512byte, Code::Fxrstor_m512byte, Code::Fxrstor64_m512byte]
    {
        failures.extend(bench.compare(code, true));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn xsave_images_are_the_processors() {
    if !is_reference() {
        return;
    }
    let mut bench = Bench::new();
    let mut failures = Vec::new();
    for code in [Code::Xsave_mem, Code::Xsave64_mem, Code::Xrstor_mem, Code::Xrstor64_mem] {
        failures.extend(bench.compare(code, true));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Whether the processor can serve as reference. If not, reports the test as skipped. If the manual leaves a
/// choice, the CPU follows Intel's processors.
fn is_reference() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    let has_all = std::is_x86_feature_detected!("sse4.2")
        && std::is_x86_feature_detected!("aes")
        && std::is_x86_feature_detected!("pclmulqdq")
        && std::is_x86_feature_detected!("xsave");
    let reference = name == b"GenuineIntel" && has_all;
    if !reference {
        skip::test("not an Intel processor with SSE4.2, AES, PCLMULQDQ and XSAVE");
    }
    reference
}

/// Whether the instruction has a separate test, or results that `softfloat` defines itself.
fn special(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Rcpps
            | Rcpss
            | Rsqrtps
            | Rsqrtss
            | Fxsave
            | Fxsave64
            | Fxrstor
            | Fxrstor64
            | Xsave
            | Xsave64
            | Xrstor
            | Xrstor64
    )
}

struct Bench {
    host: Host,
    guest: Guest,
    random: Operands,
    encodings: u64,
}

impl Bench {
    fn new() -> Bench {
        let host = Host::new();
        let guest = Guest::new(host.code_address(), host.data_address(), DATA_BYTES as u64);
        Bench {
            host,
            guest,
            random: Operands::for_test("simd", "SIMD_SEED"),
            encodings: setting("SIMD_ENCODINGS", 8),
        }
    }

    /// Tries random encodings and states of one instruction. Returns descriptions of the differences.
    fn compare(&mut self, code: Code, memory: bool) -> Vec<String> {
        let mut failures = Vec::new();
        for _ in 0..self.encodings {
            let address = self.host.instruction_address();
            let encoded = instructions::encode(code, memory, address, &mut self.random);
            self.host.load(&encoded.bytes);
            for _ in 0..STATES {
                failures.extend(self.compare_once(&encoded));
                if failures.len() >= ENOUGH {
                    return failures;
                }
            }
        }
        failures
    }

    fn compare_once(&mut self, encoded: &Encoded) -> Option<String> {
        let offset = self.operand_offset(encoded);
        let mut before = State::random(&mut self.random);
        if let Some(base) = encoded.base {
            before.gpr[base] = self.host.data_address() + offset as u64 - encoded.displacement;
        }
        // The native code uses RSP and R15 itself.
        (before.gpr[4], before.gpr[15]) = (self.guest.initial().gpr[4], 0);
        let window = self.memory_operand(encoded.instruction.mnemonic(), &mut before);
        let range = offset..(offset + WINDOW).min(DATA_BYTES);
        self.host.data()[range.clone()].copy_from_slice(&window[..range.len()]);
        self.guest.write_data(offset as u64, &window[..range.len()]);

        let mut theirs = before.clone();
        // SAFETY: operands lie in the data area, aligned if necessary. All floating-point exceptions are
        // masked. Encodings use neither RSP nor R15.
        unsafe { self.host.run(&mut theirs) };
        theirs.flags &= FLAGS;
        let mut start = self.guest.initial();
        before.enter(&mut start);
        let at = self.host.instruction_address() - self.host.code_address();
        let outcome = self.guest.run(&start, at, &encoded.bytes);
        if let Some(vector) = outcome.vector {
            return Some(format!("{}: raised exception {vector}", encoded.instruction));
        }
        let mut ours = before.clone();
        ours.leave(&outcome.state);
        let mut lines = State::differences(&before, &theirs, &ours);
        let mut our_data = vec![0; range.len()];
        self.guest.read_data(offset as u64, &mut our_data);
        for (n, (t, o)) in self.host.data()[range].iter().zip(&our_data).enumerate() {
            if t != o {
                lines.push(format!("  memory[{n}]: was {:#x}, processor {t:#x}, ours {o:#x}", window[n]));
            }
        }
        (!lines.is_empty()).then(|| {
            let operand = u128::from_le_bytes(window[..16].try_into().unwrap());
            format!(
                "{} under MXCSR {:#x}, operand {operand:#x}:\n{}",
                encoded.instruction,
                before.mxcsr(),
                lines.join("\n")
            )
        })
    }

    /// Offset of the operand in the data area: anywhere that the instruction allows, including page crossings.
    fn operand_offset(&mut self, encoded: &Encoded) -> usize {
        let mnemonic = encoded.instruction.mnemonic();
        let size = encoded.instruction.memory_size().size();
        let near = if self.random.below(4) == 0 { 4096 - 32 } else { 256 };
        let offset = near + self.random.below(64) as usize;
        match size {
            _ if special(mnemonic) => offset & !63,
            16.. if !instructions::allows_misaligned(mnemonic) => offset & !15,
            _ => offset,
        }
    }

    /// Contents of memory at the operand.
    fn memory_operand(&mut self, mnemonic: Mnemonic, before: &mut State) -> Vec<u8> {
        let mut window: Vec<u8> =
            (0..WINDOW / 8).flat_map(|_| quad(&mut self.random).to_le_bytes()).collect();
        match mnemonic {
            Mnemonic::Ldmxcsr => {
                let value = 0x1f80 | self.random.bits() as u32 & 0xe07f;
                window[..4].copy_from_slice(&value.to_le_bytes());
            }
            Mnemonic::Fxrstor | Mnemonic::Fxrstor64 | Mnemonic::Xrstor | Mnemonic::Xrstor64 => {
                let mut image = State::random(&mut self.random).image;
                // Any exceptions, masked or not: ES and B must match them.
                image[0..4].copy_from_slice(&(self.random.bits() as u32).to_le_bytes());
                window[..512].copy_from_slice(&image);
            }
            _ => {}
        }
        if matches!(mnemonic, Mnemonic::Xsave | Mnemonic::Xsave64 | Mnemonic::Xrstor | Mnemonic::Xrstor64) {
            // The component mask in EDX:EAX selects x87, SSE, both or neither, and some components that do not
            // exist.
            before.gpr[0] = before.gpr[0] & !0xffff_ffff | self.random.below(4) | 1 << 31;
            before.gpr[2] = before.gpr[2] & !0xffff_ffff | 1 << 20;
            window[512..520].copy_from_slice(&self.random.below(4).to_le_bytes());
            window[520..576].fill(0);
        }
        window
    }
}
