//! FST, FSTP, FIST, FISTP, FISTTP and FBSTP to memory (SDM vol. 2 under those names).

use softfloat::x87::{self, F80, X87Env};

use super::unit::{ALL_MASKED, Outcome};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};

/// A memory format for storing ST(0).
trait Store: 'static {
    const BYTES: u64;
    fn bytes(env: &mut X87Env, value: F80) -> Option<[u8; 10]>;
}

macro_rules! stores {
    ($($name:ident, $bytes:literal, $convert:ident;)*) => {
        $(struct $name;

        impl Store for $name {
            const BYTES: u64 = $bytes;
            #[inline(always)]
            fn bytes(env: &mut X87Env, value: F80) -> Option<[u8; 10]> {
                let mut bytes = [0; 10];
                bytes[..$bytes].copy_from_slice(&x87::$convert(env, value)?.to_le_bytes());
                Some(bytes)
            }
        })*
    };
}

stores! {
    Single, 4, to_f32;
    Double, 8, to_f64;
    Word, 2, to_i16;
    Dword, 4, to_i32;
    Qword, 8, to_i64;
    TruncatedWord, 2, to_i16_truncating;
    TruncatedDword, 4, to_i32_truncating;
    TruncatedQword, 8, to_i64_truncating;
}

struct Extended;

impl Store for Extended {
    const BYTES: u64 = 10;
    fn bytes(_: &mut X87Env, value: F80) -> Option<[u8; 10]> {
        Some(value.to_bytes())
    }
}

struct Decimal;

impl Store for Decimal {
    const BYTES: u64 = 10;
    fn bytes(env: &mut X87Env, value: F80) -> Option<[u8; 10]> {
        x87::to_bcd(env, value)
    }
}

/// Returns the indefinite value of the format `S`: the floating-point indefinite, converted to this format.
fn indefinite<S: Store>() -> [u8; 10] {
    S::bytes(&mut X87Env::new(ALL_MASKED), F80::INDEFINITE).expect("masked exceptions leave a result")
}

/// Stores ST(0), then pops `aux` registers.
fn store<S: Store>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run_store(
        bus,
        op,
        S::BYTES,
        |fpu| match fpu.operand(0) {
            Some(value) => Outcome::compute(fpu, |env| S::bytes(env, value)),
            None => Outcome::underflow(fpu, indefinite::<S>()),
        },
        write::<S>,
    )
}

fn write<S: Store>(core: &mut Core, bus: &mut dyn Bus, address: u64, bytes: [u8; 10]) -> Res<()> {
    let low = u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
    if S::BYTES <= 8 {
        return core.store_sized(bus, address, S::BYTES, low);
    }
    // Real processors make two stores too. If the second store faults, the first store stays in memory.
    core.store_u64(bus, address, low)?;
    core.store_u16(bus, address.wrapping_add(8), u16::from_le_bytes([bytes[8], bytes[9]]))
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use iced_x86::Code::*;
    let (handler, pops): (Handler, u8) = match insn.code() {
        Fst_m32fp => (store::<Single>, 0),
        Fstp_m32fp => (store::<Single>, 1),
        Fst_m64fp => (store::<Double>, 0),
        Fstp_m64fp => (store::<Double>, 1),
        Fstp_m80fp => (store::<Extended>, 1),
        Fist_m16int => (store::<Word>, 0),
        Fistp_m16int => (store::<Word>, 1),
        Fist_m32int => (store::<Dword>, 0),
        Fistp_m32int => (store::<Dword>, 1),
        Fistp_m64int => (store::<Qword>, 1),
        Fisttp_m16int => (store::<TruncatedWord>, 1),
        Fisttp_m32int => (store::<TruncatedDword>, 1),
        Fisttp_m64int => (store::<TruncatedQword>, 1),
        Fbstp_m80bcd => (store::<Decimal>, 1),
        _ => return None,
    };
    Some(Op::new(handler).aux(pops))
}
