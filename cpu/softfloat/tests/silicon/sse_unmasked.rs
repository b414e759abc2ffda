//! Unmasked SSE exceptions, which are signals: packed instructions whose lanes raise different exceptions.
//!
//! A SIGFPE handler notes the MXCSR with which #XM was delivered and masks all exceptions, so that the interrupted
//! instruction completes. The test is for Linux only, because it depends on Linux's signal frame.

use crate::cases;
use seeded::Operands;
use softfloat::sse::{self, Predicate, SseEnv};
use std::arch::asm;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

const BASE: u32 = 20_000;
const DEFAULT_MXCSR: u32 = 0x1f80;
/// The value of [`DELIVERED`] before any exception was delivered. No MXCSR has all these bits set.
const NONE: u32 = u32::MAX;

/// MXCSR at the last #XM. Only this module's test unmasks SSE exceptions, on one thread.
static DELIVERED: AtomicU32 = AtomicU32::new(NONE);

/// `struct sigaction` of the C library.
#[repr(C)]
struct SigAction {
    handler: extern "C" fn(i32, *const u8, *const u8),
    mask: [u64; 16],
    flags: i32,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: i32, new: *const SigAction, old: *mut SigAction) -> i32;
}

const SIGFPE: i32 = 8;
const SA_SIGINFO: i32 = 4;

extern "C" fn note_and_mask(_signal: i32, _info: *const u8, context: *const u8) {
    // `uc_mcontext.fpregs` of `ucontext_t`, and `mxcsr` in the FXSAVE area it points to.
    const FPREGS: usize = 224;
    const MXCSR: usize = 24;
    // SAFETY: the kernel passes a valid context whose FPU pointer is valid until the handler returns.
    let mxcsr = unsafe { (*context.add(FPREGS).cast::<*mut u8>()).add(MXCSR).cast::<u32>() };
    // SAFETY: the FPU pointer of the context is valid, and the FXSAVE area is aligned to 16 bytes.
    unsafe {
        DELIVERED.store(*mxcsr, Ordering::SeqCst);
        *mxcsr = DEFAULT_MXCSR;
    }
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let action = SigAction { handler: note_and_mask, mask: [0; 16], flags: SA_SIGINFO, restorer: 0 };
        // SAFETY: the structure has the C library's layout, and the handler only touches its own frame.
        let outcome = unsafe { sigaction(SIGFPE, &action, std::ptr::null_mut()) };
        assert_eq!(outcome, 0, "sigaction failed");
    });
}

type Lanes = [u32; 4];

/// Runs `op xmm0, xmm1`. Returns MXCSR afterwards, or as `Err` the MXCSR with which #XM was delivered.
macro_rules! packed {
    ($name:ident, $op:literal) => {
        fn $name(mxcsr: u32, a: Lanes, b: Lanes) -> Result<u32, u32> {
            let mut control = mxcsr;
            DELIVERED.store(NONE, Ordering::SeqCst);
            // SAFETY: reads two operands, touches declared registers and MXCSR, and restores MXCSR's default.
            // `note_and_mask` handles an exception, after which the instruction completes.
            unsafe {
                asm!(
                    "movups xmm0, [{a}]",
                    "movups xmm1, [{b}]",
                    "ldmxcsr [{control}]",
                    concat!($op, " xmm0, xmm1"),
                    "stmxcsr [{control}]",
                    "ldmxcsr [{default}]",
                    a = in(reg) a.as_ptr(),
                    b = in(reg) b.as_ptr(),
                    control = in(reg) &raw mut control,
                    default = in(reg) &DEFAULT_MXCSR,
                    out("xmm0") _,
                    out("xmm1") _,
                );
            }
            match DELIVERED.load(Ordering::SeqCst) {
                NONE => Ok(control),
                delivered => Err(delivered),
            }
        }
    };
}

packed!(addps, "addps");
packed!(mulps, "mulps");
packed!(divps, "divps");
packed!(mulpd, "mulpd");
packed!(minps, "minps");
packed!(cmpltps, "cmpltps");
packed!(sqrtps, "sqrtps");
packed!(cvtps2dq, "cvtps2dq");
packed!(cvtpd2ps, "cvtpd2ps");

fn compare(
    name: &str,
    hardware: fn(u32, Lanes, Lanes) -> Result<u32, u32>,
    software: impl Fn(&mut SseEnv, Lanes, Lanes),
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        // Use any control bits and sticky flags. About half of the lanes are ordinary numbers. Otherwise almost
        // every case would raise #I.
        let mxcsr = random.bits() as u32 & 0xffff;
        let lanes = |random: &mut Operands| -> Lanes {
            std::array::from_fn(|_| match random.below(2) {
                0 => random.f32(),
                _ => (random.bits() as u32 & 0x807f_ffff) | (127 - 64 + random.below(128) as u32) << 23,
            })
        };
        let (a, b) = (lanes(&mut random), lanes(&mut random));
        let mut env = SseEnv::new(mxcsr);
        software(&mut env, a, b);
        let ours = env.finish().map_err(|unmasked| unmasked.mxcsr);
        assert_eq!(ours, hardware(mxcsr, a, b), "{name} mxcsr={mxcsr:#x} {a:x?} {b:x?}");
    }
}

fn wide(lanes: Lanes) -> [u64; 2] {
    [0, 2].map(|index| u64::from(lanes[index]) | u64::from(lanes[index + 1]) << 32)
}

fn each_lane(operation: impl Fn(&mut SseEnv, u32, u32) -> u32 + Copy) -> impl Fn(&mut SseEnv, Lanes, Lanes) {
    move |env, a, b| {
        for (x, y) in a.into_iter().zip(b) {
            operation(env, x, y);
        }
    }
}

#[test]
fn flags_of_unmasked_exceptions() {
    install_handler();
    compare("addps", addps, each_lane(sse::add));
    compare("mulps", mulps, each_lane(sse::mul));
    compare("divps", divps, each_lane(sse::div));
    compare("minps", minps, each_lane(sse::min));
    compare("cmpltps", cmpltps, each_lane(|env, a, b| sse::compare(env, a, b, Predicate::sse(1)).into()));
    compare("sqrtps", sqrtps, each_lane(|env, _, b| sse::sqrt(env, b)));
    compare("cvtps2dq", cvtps2dq, each_lane(|env, _, b| sse::to_i32(env, b) as u32));
    compare("mulpd", mulpd, |env, a, b| {
        for (x, y) in wide(a).into_iter().zip(wide(b)) {
            sse::mul(env, x, y);
        }
    });
    compare("cvtpd2ps", cvtpd2ps, |env, _, b| {
        for y in wide(b) {
            sse::f64_to_f32(env, y);
        }
    });
}
