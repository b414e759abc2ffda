//! Compares the library with the processor that runs the test: results, flags, C1 and condition codes.
//!
//! Operands are random but biased towards difficult cases. The seed is fixed and printed. `SOFTFLOAT_SCALE=20` runs
//! twenty times as many cases, `SOFTFLOAT_SEED=n` runs other cases. Unmasked x87 exceptions stay pending until the next
//! waiting instruction, so their responses are compared together with the masked ones. Unmasked SSE exceptions are
//! signals and have a test of their own.
#![cfg(target_arch = "x86_64")]

mod sse_compare;
mod sse_native;
#[cfg(target_os = "linux")]
mod sse_unmasked;
mod x87_compare;
mod x87_native;
mod x87_transcendental;

/// `base` cases, times `SOFTFLOAT_SCALE`.
fn cases(base: u32) -> u32 {
    base * seeded::setting("SOFTFLOAT_SCALE", 1) as u32
}

/// Whether the processor is Intel's. If not, reports the test as skipped. If the manual leaves a choice
/// (transcendentals, the step of a partial remainder), the library follows Intel. Other vendors' processors are
/// then no reference.
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
    if !intel {
        skip::test("not an Intel processor, which the library follows where the manual leaves room");
    }
    intel
}
