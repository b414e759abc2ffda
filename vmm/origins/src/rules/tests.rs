//! A table of instructions and the bytes that they move.

use cpu::{Cpu, CpuState, EmptyBus, Segment, Stop};
use guest_ram::GuestRam;
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, IcedError};

use super::*;

/// The address at which instructions load. The next constant is the address at which they store.
const LOADED: u64 = 0x1000;
const STORED: u64 = 0x2000;
/// RAX before each instruction, and the bytes at [`LOADED`].
const RAX: u64 = 0x1122_3344_5566_7788;

fn state() -> CpuState {
    let mut state = CpuState::reset();
    for (number, value) in state.gpr.iter_mut().enumerate() {
        *value = RAX + number as u64;
    }
    state.gpr[4] = 0x3000;
    state.rflags = 2 | ZERO;
    state
}

/// The source of one byte that an instruction writes. The instruction may load and store 512 bytes.
fn source(
    assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    before: &CpuState,
    place: Place,
) -> Option<Source> {
    let mut a = CodeAssembler::new(64).unwrap();
    assemble(&mut a).unwrap();
    let code = a.assemble(0x100).unwrap();
    let instruction = Decoder::with_ip(64, &code, 0x100, DecoderOptions::NONE).decode();
    let size = match instruction.memory_size().size() {
        0 => 8,
        size => size,
    };
    let mut bytes: Vec<u8> = RAX.to_le_bytes().repeat(64);
    bytes.truncate(size);
    let access = |linear| vec![Access { linear, physical: linear, bytes: bytes.clone() }];
    let (loads, stores) = (access(LOADED), access(STORED));
    let executed = Executed { instruction: &instruction, before, loads: &loads, stores: &stores };
    let effects = effects(&executed);
    for effect in &effects {
        let (first, size) = match effect.to {
            Place::Register(Reg::General(_), first) => (first, 8),
            Place::Register(Reg::Vector(_), first) => (first, 16),
            Place::Memory(_) => continue,
        };
        assert!(first + effect.bytes <= size, "{effect:?} is longer than the register");
    }
    source_of(&effects, place)
}

fn reg(number: u8, byte: u8) -> Place {
    Place::Register(Reg::General(number), byte)
}

fn xmm(number: u8, byte: u8) -> Place {
    Place::Register(Reg::Vector(number), byte)
}

fn stored(byte: u64) -> Place {
    Place::Memory(STORED + byte)
}

fn loaded(byte: u64) -> Option<Source> {
    Some(Source::Copy(Place::Memory(LOADED + byte)))
}

fn copied(place: Place) -> Option<Source> {
    Some(Source::Copy(place))
}

const IMMEDIATE: Option<Source> = Some(Source::Constant("an immediate"));
const IDIOM: Option<Source> = Some(Source::Constant("a zeroing idiom"));
const COMPUTED: Option<Source> = Some(Source::Computed);
const ZEROS: Option<Source> = Some(Source::Zeros);
const SIGNS: Option<Source> = Some(Source::Signs);
const KEPT: Option<Source> = Some(Source::Kept);

/// Checks rows of an instruction, a byte, and the byte's source.
macro_rules! table {
    ($before:expr; $($assemble:expr, $place:expr => $source:expr;)*) => {$(
        let row = stringify!($assemble, $place);
        assert_eq!(source($assemble, $before, $place), $source, "{row}");
    )*};
}

#[test]
fn moves_of_general_registers() {
    table! { &state();
        |a| a.mov(rax, rbx), reg(0, 7) => copied(reg(3, 7));
        |a| a.mov(rax, rbx), reg(1, 0) => None;
        |a| a.mov(eax, ebx), reg(0, 3) => copied(reg(3, 3));
        |a| a.mov(eax, ebx), reg(0, 4) => ZEROS;
        |a| a.mov(ax, bx), reg(0, 2) => None;
        |a| a.mov(al, bh), reg(0, 0) => copied(reg(3, 1));
        |a| a.mov(ah, bl), reg(0, 1) => copied(reg(3, 0));
        |a| a.mov(ah, bl), reg(0, 0) => None;
        |a| a.mov(rax, qword_ptr(rbx)), reg(0, 5) => loaded(5);
        |a| a.mov(qword_ptr(rbx), rax), stored(5) => copied(reg(0, 5));
        |a| a.mov(byte_ptr(rbx), ah), stored(0) => copied(reg(0, 1));
        |a| a.mov(rax, 0x1234_5678_9abc_u64), reg(0, 0) => IMMEDIATE;
        |a| a.mov(dword_ptr(rbx), 7), stored(3) => IMMEDIATE;
        |a| a.mov(rax, cr3), reg(0, 0) => Some(Source::Unfollowed("cr3".to_string()));
        |a| a.mov(ax, ds), reg(0, 0) => Some(Source::Unfollowed("ds".to_string()));
        |a| a.movzx(eax, bl), reg(0, 0) => copied(reg(3, 0));
        |a| a.movzx(eax, bl), reg(0, 1) => ZEROS;
        |a| a.movzx(eax, word_ptr(rbx)), reg(0, 1) => loaded(1);
        |a| a.movzx(rax, bl), reg(0, 7) => ZEROS;
        |a| a.movsx(rax, bx), reg(0, 1) => copied(reg(3, 1));
        |a| a.movsx(rax, bx), reg(0, 7) => SIGNS;
        |a| a.movsx(eax, bl), reg(0, 4) => ZEROS;
        |a| a.movsxd(rax, dword_ptr(rbx)), reg(0, 3) => loaded(3);
        |a| a.movsxd(rax, dword_ptr(rbx)), reg(0, 4) => SIGNS;
        |a| a.cdqe(), reg(0, 3) => copied(reg(0, 3));
        |a| a.cwde(), reg(0, 1) => copied(reg(0, 1));
        |a| a.cwde(), reg(0, 2) => SIGNS;
        |a| a.cwde(), reg(0, 4) => ZEROS;
        |a| a.cdqe(), reg(0, 4) => SIGNS;
        |a| a.add(eax, ebx), reg(0, 3) => COMPUTED;
        |a| a.add(eax, ebx), reg(0, 4) => ZEROS;
        |a| a.add(rax, rbx), reg(0, 4) => COMPUTED;
        |a| a.cbw(), reg(0, 0) => copied(reg(0, 0));
        |a| a.cbw(), reg(0, 1) => SIGNS;
        |a| a.cbw(), reg(0, 2) => KEPT;
        |a| a.bswap(rax), reg(0, 0) => copied(reg(0, 7));
        |a| a.bswap(eax), reg(0, 3) => copied(reg(0, 0));
        |a| a.bswap(eax), reg(0, 4) => ZEROS;
        |a| a.movbe(rax, qword_ptr(rbx)), reg(0, 0) => loaded(7);
        |a| a.movbe(qword_ptr(rbx), rax), stored(1) => copied(reg(0, 6));
        |a| a.movnti(qword_ptr(rbx), rax), stored(1) => copied(reg(0, 1));
        |a| a.lea(rax, ptr(rbx)), reg(0, 2) => copied(reg(3, 2));
        |a| a.lea(eax, ptr(rbx)), reg(0, 2) => copied(reg(3, 2));
        |a| a.lea(rax, ptr(ebx)), reg(0, 2) => COMPUTED;
        |a| a.lea(rax, ptr(rbx + 1)), reg(0, 2) => COMPUTED;
        |a| a.lea(rax, ptr(rbx + rcx)), reg(0, 2) => COMPUTED;
        |a| a.lea(rax, ptr(rcx * 2 + 0x1000)), reg(0, 2) => COMPUTED;
        |a| a.lea(rax, ptr(0x1000)), reg(0, 2) => Some(Source::Constant("an address in the instruction"));
    }
}

#[test]
fn stack_and_exchange() {
    table! { &state();
        |a| a.push(rax), stored(2) => copied(reg(0, 2));
        |a| a.push(rax), reg(4, 0) => COMPUTED;
        |a| a.push(7), stored(2) => IMMEDIATE;
        |a| a.push(qword_ptr(rbx)), stored(2) => loaded(2);
        |a| a.pushfq(), stored(0) => Some(Source::Unfollowed("rflags".to_string()));
        |a| a.pop(rax), reg(0, 2) => loaded(2);
        |a| a.pop(rsp), reg(4, 2) => loaded(2);
        |a| a.pop(rax), reg(4, 2) => COMPUTED;
        |a| a.pop(qword_ptr(rbx)), stored(2) => loaded(2);
        |a| a.call(0x400_u64), stored(0) => Some(Source::Constant("a return address"));
        |a| a.leave(), reg(5, 3) => loaded(3);
        |a| a.enter(16, 0), stored(3) => copied(reg(5, 3));
        |a| a.iretq(), reg(4, 3) => copied(Place::Memory(0x3018 + 3));
        |a| a.syscall(), reg(1, 0) => Some(Source::Constant("the address after SYSCALL"));
        |a| a.syscall(), reg(11, 0) => Some(Source::Unfollowed("rflags".to_string()));
        |a| a.xchg(rax, rbx), reg(0, 1) => copied(reg(3, 1));
        |a| a.xchg(rax, rbx), reg(3, 1) => copied(reg(0, 1));
        |a| a.xchg(qword_ptr(rcx), rbx), reg(3, 1) => loaded(1);
        |a| a.xchg(qword_ptr(rcx), rbx), stored(1) => copied(reg(3, 1));
        |a| a.xadd(qword_ptr(rcx), rbx), reg(3, 1) => loaded(1);
        |a| a.xadd(qword_ptr(rcx), rbx), stored(1) => COMPUTED;
        |a| a.xadd(rcx, rbx), reg(3, 1) => copied(reg(1, 1));
        |a| a.xadd(rcx, rcx), reg(1, 1) => COMPUTED;
        |a| a.xadd(cl, ch), reg(1, 1) => copied(reg(1, 0));
        // The accumulator is equal to the bytes that were loaded.
        |a| a.cmpxchg(qword_ptr(rcx), rbx), stored(1) => copied(reg(3, 1));
        |a| a.cmpxchg(qword_ptr(rcx), rbx), reg(0, 1) => KEPT;
        // The accumulator is not equal to this register.
        |a| a.cmpxchg(rcx, rbx), reg(1, 1) => KEPT;
        |a| a.cmpxchg(rcx, rbx), reg(0, 1) => copied(reg(1, 1));
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), reg(0, 1) => loaded(1);
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), reg(2, 1) => loaded(9);
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), stored(9) => KEPT;
    }
    // Only the operand's bytes are compared.
    let mut equal_parts = state();
    equal_parts.gpr[0] = RAX ^ 1 << 63;
    equal_parts.gpr[1] = RAX;
    table! { &equal_parts;
        |a| a.cmpxchg(qword_ptr(rcx), rbx), stored(1) => KEPT;
        |a| a.cmpxchg(qword_ptr(rcx), rbx), reg(0, 7) => loaded(7);
        |a| a.cmpxchg(dword_ptr(rcx), ebx), stored(3) => copied(reg(3, 3));
        |a| a.cmpxchg(dword_ptr(rcx), ebx), reg(0, 3) => KEPT;
        |a| a.cmpxchg(word_ptr(rcx), bx), stored(1) => copied(reg(3, 1));
        |a| a.cmpxchg(byte_ptr(rcx), bl), stored(0) => copied(reg(3, 0));
        |a| a.cmpxchg(ecx, ebx), reg(1, 3) => copied(reg(3, 3));
        |a| a.cmpxchg(ch, bl), reg(1, 1) => KEPT;
        |a| a.cmpxchg(ch, bl), reg(0, 0) => copied(reg(1, 1));
    }
    for bytes in [1, 2, 4] {
        let mut unequal = state();
        unequal.gpr[0] = RAX ^ 1 << (8 * bytes - 1);
        let place = stored(bytes - 1);
        let (from, above) = (loaded(bytes - 1), if bytes == 4 { ZEROS } else { None });
        let (last, next) = (reg(0, bytes as u8 - 1), reg(0, bytes as u8));
        let exchange = |a: &mut CodeAssembler| match bytes {
            1 => a.cmpxchg(byte_ptr(rcx), bl),
            2 => a.cmpxchg(word_ptr(rcx), bx),
            _ => a.cmpxchg(dword_ptr(rcx), ebx),
        };
        table! { &unequal;
            exchange, place => KEPT;
            exchange, last => from;
            exchange, next => above;
        }
    }
    let mut equal = state();
    equal.gpr[2] = RAX;
    table! { &equal;
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), stored(1) => copied(reg(3, 1));
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), stored(9) => copied(reg(1, 1));
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), reg(0, 1) => KEPT;
        |a| a.cmpxchg16b(xmmword_ptr(rcx)), reg(2, 1) => KEPT;
    }
    let mut equal_halves = state();
    equal_halves.gpr[0] = RAX & 0xffff_ffff;
    equal_halves.gpr[2] = RAX >> 32;
    table! { &equal_halves;
        |a| a.cmpxchg8b(qword_ptr(rcx)), stored(3) => copied(reg(3, 3));
        |a| a.cmpxchg8b(qword_ptr(rcx)), stored(4) => copied(reg(1, 0));
        |a| a.cmpxchg8b(qword_ptr(rcx)), stored(8) => None;
    }
    table! { &state();
        |a| a.cmpxchg8b(qword_ptr(rcx)), reg(0, 3) => loaded(3);
        |a| a.cmpxchg8b(qword_ptr(rcx)), reg(0, 4) => ZEROS;
        |a| a.cmpxchg8b(qword_ptr(rcx)), reg(2, 3) => loaded(7);
        |a| a.cmpxchg8b(qword_ptr(rcx)), stored(7) => KEPT;
    }
}

#[test]
fn conditions_strings_and_constants() {
    let mut finished = state();
    finished.gpr[1] = 0;
    table! { &state();
        |a| a.cmove(rax, rbx), reg(0, 1) => copied(reg(3, 1));
        |a| a.cmovne(rax, rbx), reg(0, 1) => KEPT;
        |a| a.cmovne(eax, ebx), reg(0, 1) => KEPT;
        |a| a.cmovne(eax, ebx), reg(0, 4) => ZEROS;
        |a| a.cmovle(rax, qword_ptr(rbx)), reg(0, 1) => loaded(1);
        |a| a.cmovb(rax, rbx), reg(0, 1) => KEPT;
        |a| a.movsb(), stored(0) => loaded(0);
        |a| a.movsq(), stored(7) => loaded(7);
        |a| a.movsq(), reg(6, 0) => COMPUTED;
        |a| a.rep().movsq(), stored(7) => loaded(7);
        |a| a.stosd(), stored(3) => copied(reg(0, 3));
        |a| a.lodsb(), reg(0, 0) => loaded(0);
        |a| a.lodsd(), reg(0, 4) => ZEROS;
        |a| a.insb(), stored(0) => Some(Source::Outside(Outside::Port(0x778a)));
        |a| a.in_(al, dx), reg(0, 0) => Some(Source::Outside(Outside::Port(0x778a)));
        |a| a.in_(eax, 0x80), reg(0, 0) => Some(Source::Outside(Outside::Port(0x80)));
        |a| a.rdtsc(), reg(2, 0) => Some(Source::Outside(Outside::Processor("RDTSC")));
        |a| a.rdtsc(), reg(2, 4) => ZEROS;
        |a| a.cpuid(), reg(3, 0) => Some(Source::Outside(Outside::Processor("CPUID")));
        |a| a.rdrand(rbx), reg(3, 7) => Some(Source::Outside(Outside::Processor("RDRAND")));
        |a| a.rdmsr(), reg(0, 0) => Some(Source::Outside(Outside::Processor("RDMSR")));
        |a| a.rdtscp(), reg(1, 3) => Some(Source::Outside(Outside::Processor("RDTSCP")));
        |a| a.rdpmc(), reg(2, 0) => Some(Source::Outside(Outside::Processor("RDPMC")));
        |a| a.xgetbv(), reg(2, 0) => Some(Source::Outside(Outside::Processor("XGETBV")));
        |a| a.rdseed(rbx), reg(3, 7) => Some(Source::Outside(Outside::Processor("RDSEED")));
        |a| a.rdpid(rbx), reg(3, 7) => Some(Source::Outside(Outside::Processor("RDPID")));
        |a| a.rdfsbase(rbx), reg(3, 7) => Some(Source::Unfollowed("the base of fs".to_string()));
        |a| a.rdgsbase(ebx), reg(3, 3) => Some(Source::Unfollowed("the base of gs".to_string()));
        |a| a.rdgsbase(ebx), reg(3, 4) => ZEROS;
        |a| a.xor(eax, eax), reg(0, 0) => IDIOM;
        |a| a.xor(eax, eax), reg(0, 4) => ZEROS;
        |a| a.xor(eax, ebx), reg(0, 0) => COMPUTED;
        |a| a.sub(rax, rax), reg(0, 0) => IDIOM;
        |a| a.sbb(rax, rax), reg(0, 0) => COMPUTED;
        |a| a.and(rax, 0), reg(0, 0) => IDIOM;
        |a| a.and(rax, 1), reg(0, 0) => COMPUTED;
        |a| a.or(dword_ptr(rbx), -1), stored(0) => IDIOM;
        |a| a.or(dword_ptr(rbx), 0x7fff_ffff), stored(0) => COMPUTED;
        |a| a.or(al, 0xff_u32), reg(0, 0) => IDIOM;
        |a| a.or(ax, 0xff_u32), reg(0, 0) => COMPUTED;
        |a| a.or(rax, -1), reg(0, 7) => IDIOM;
        |a| a.or(rax, rbx), reg(0, 7) => COMPUTED;
        |a| a.and(rax, rbx), reg(0, 0) => COMPUTED;
        |a| a.xor(rax, qword_ptr(rbx)), reg(0, 0) => COMPUTED;
        |a| a.pxor(xmm1, xmm1), xmm(1, 9) => IDIOM;
        |a| a.pxor(xmm1, xmm2), xmm(1, 9) => COMPUTED;
        |a| a.sub(rax, 0), reg(0, 0) => COMPUTED;
        |a| a.xor(dword_ptr(rbx), eax), stored(0) => COMPUTED;
        |a| a.xorps(xmm1, xmm1), xmm(1, 9) => IDIOM;
        |a| a.psubd(xmm1, xmm1), xmm(1, 9) => IDIOM;
        |a| a.pcmpeqd(xmm1, xmm1), xmm(1, 9) => IDIOM;
        |a| a.pand(xmm1, xmm1), xmm(1, 9) => COMPUTED;
        |a| a.add(rax, rbx), reg(0, 0) => COMPUTED;
        |a| a.inc(dword_ptr(rbx)), stored(0) => COMPUTED;
        |a| a.mul(rbx), reg(2, 0) => COMPUTED;
        |a| a.mul(ebx), reg(2, 0) => COMPUTED;
        |a| a.mul(ebx), reg(3, 0) => None;
        |a| a.sete(al), reg(0, 0) => COMPUTED;
        |a| a.cmp(rax, rbx), reg(0, 0) => None;
        |a| a.nop(), reg(0, 0) => None;
    }
    table! { &finished;
        |a| a.rep().movsq(), stored(7) => None;
        |a| a.rep().movsq(), reg(6, 0) => None;
        |a| a.rep().stosq(), stored(7) => None;
        // Without a prefix, the count does not matter.
        |a| a.movsq(), stored(7) => loaded(7);
        |a| a.stosb(), stored(0) => copied(reg(0, 0));
    }
}

/// The size of the address decides how many bits of RCX count.
#[test]
fn repetitions_count_in_the_part_of_rcx_that_the_address_size_names() {
    let narrow = |opcode: &[u8], bits, count| {
        let mut before = state();
        before.gpr[1] = count;
        let instruction = Decoder::with_ip(bits, opcode, 0x100, DecoderOptions::NONE).decode();
        let access = |linear| [Access { linear, physical: linear, bytes: vec![0; 4] }];
        let (loads, stores) = (access(LOADED), access(STORED));
        let executed =
            Executed { instruction: &instruction, before: &before, loads: &loads, stores: &stores };
        source_of(&effects(&executed), stored(0))
    };
    // REP MOVSD and REP STOSD, in 64-bit code with addresses of 64 and 32 bits, and in 16-bit code.
    const MOVES_64: &[u8] = &[0xf3, 0xa5];
    const MOVES_32: &[u8] = &[0x67, 0xf3, 0xa5];
    const MOVES_16: &[u8] = &[0xf3, 0x66, 0xa5];
    const FILLS_32: &[u8] = &[0x67, 0xf3, 0xab];
    const FILLS_16: &[u8] = &[0xf3, 0x66, 0xab];
    for (opcode, bits, count, is_empty) in [
        (MOVES_64, 64, 1 << 32, false),
        (MOVES_32, 64, 1 << 32, true),
        (MOVES_32, 64, 1 << 31, false),
        (MOVES_16, 16, 1 << 16, true),
        (MOVES_16, 16, 1 << 15, false),
        (FILLS_32, 64, 1 << 32, true),
        (FILLS_32, 64, 1 << 31, false),
        (FILLS_16, 16, 1 << 16, true),
        (FILLS_16, 16, 1 << 15, false),
    ] {
        assert_eq!(narrow(opcode, bits, count).is_none(), is_empty, "{opcode:x?} with {count:#x}");
    }
}

/// LEAVE loads as many bytes of RBP as the operand size says.
#[test]
fn leave_loads_a_part_of_rbp() {
    let after = |bits, code: &[u8], bytes: usize, byte: u8| {
        let instruction = Decoder::with_ip(bits, code, 0x100, DecoderOptions::NONE).decode();
        let loads = [Access { linear: LOADED, physical: LOADED, bytes: vec![0; bytes] }];
        let executed = Executed { instruction: &instruction, before: &state(), loads: &loads, stores: &[] };
        source_of(&effects(&executed), reg(5, byte))
    };
    const LEAVE: &[u8] = &[0xc9];
    const LEAVE_16: &[u8] = &[0x66, 0xc9];
    assert_eq!((after(64, LEAVE, 8, 7), after(64, LEAVE_16, 2, 1)), (loaded(7), loaded(1)));
    assert_eq!((after(64, LEAVE_16, 2, 2), after(32, LEAVE_16, 2, 3)), (None, None));
    assert_eq!((after(32, LEAVE, 4, 3), after(32, LEAVE, 4, 4)), (loaded(3), ZEROS));
}

/// Each condition moves for some flags and keeps for others.
#[test]
fn conditional_moves_follow_the_flags() {
    let taken = |condition: u8, rflags: u64| {
        let mut before = state();
        before.rflags = 2 | rflags;
        // CMOVcc RAX, RBX.
        let code = [0x48, 0x0f, 0x40 + condition, 0xc3];
        let instruction = Decoder::with_ip(64, &code, 0x100, DecoderOptions::NONE).decode();
        let executed = Executed { instruction: &instruction, before: &before, loads: &[], stores: &[] };
        match source_of(&effects(&executed), reg(0, 0)) {
            source if source == copied(reg(3, 0)) => true,
            source => {
                assert_eq!(source, KEPT);
                false
            }
        }
    };
    // The combinations of flags for which the even conditions hold. The odd conditions are their opposites.
    const BOTH: u64 = SIGN | OVERFLOW;
    let rows: [(u8, &[u64], &[u64]); 8] = [
        (0x0, &[OVERFLOW, BOTH], &[0, SIGN]),
        (0x2, &[CARRY, CARRY | ZERO], &[0, ZERO]),
        (0x4, &[ZERO, ZERO | CARRY], &[0, CARRY]),
        (0x6, &[CARRY, ZERO, CARRY | ZERO], &[0, SIGN, OVERFLOW]),
        (0x8, &[SIGN, BOTH], &[0, OVERFLOW]),
        (0xa, &[PARITY], &[0, ZERO]),
        (0xc, &[SIGN, OVERFLOW, SIGN | ZERO], &[0, BOTH, ZERO]),
        (0xe, &[SIGN, OVERFLOW, ZERO, ZERO | BOTH], &[0, BOTH]),
    ];
    for (condition, holds, fails) in rows {
        for &flags in holds {
            assert!(taken(condition, flags) && !taken(condition + 1, flags), "{condition:x} {flags:x}");
        }
        for &flags in fails {
            assert!(!taken(condition, flags) && taken(condition + 1, flags), "{condition:x} {flags:x}");
        }
    }
}

#[test]
fn moves_of_vectors() {
    table! { &state();
        |a| a.movaps(xmm1, xmm2), xmm(1, 15) => copied(xmm(2, 15));
        |a| a.movups(xmm1, xmmword_ptr(rbx)), xmm(1, 15) => loaded(15);
        |a| a.movdqu(xmmword_ptr(rbx), xmm1), stored(15) => copied(xmm(1, 15));
        |a| a.movntdq(xmmword_ptr(rbx), xmm1), stored(15) => copied(xmm(1, 15));
        |a| a.movd(xmm1, eax), xmm(1, 3) => copied(reg(0, 3));
        |a| a.movd(xmm1, eax), xmm(1, 4) => ZEROS;
        |a| a.movd(eax, xmm1), reg(0, 3) => copied(xmm(1, 3));
        |a| a.movd(eax, xmm1), reg(0, 4) => ZEROS;
        |a| a.movq(xmm1, rax), xmm(1, 7) => copied(reg(0, 7));
        |a| a.movq(xmm1, rax), xmm(1, 8) => ZEROS;
        |a| a.movq(rax, xmm1), reg(0, 7) => copied(xmm(1, 7));
        |a| a.movq(xmm1, xmm2), xmm(1, 7) => copied(xmm(2, 7));
        |a| a.movq(xmm1, xmm2), xmm(1, 8) => ZEROS;
        |a| a.movq(xmm1, qword_ptr(rbx)), xmm(1, 7) => loaded(7);
        |a| a.movq(qword_ptr(rbx), xmm1), stored(7) => copied(xmm(1, 7));
        |a| a.movq(qword_ptr(rbx), mm1), stored(7) => Some(Source::Unfollowed("mm1".to_string()));
        |a| a.movss(xmm1, xmm2), xmm(1, 3) => copied(xmm(2, 3));
        |a| a.movss(xmm1, xmm2), xmm(1, 4) => KEPT;
        |a| a.movss(xmm1, dword_ptr(rbx)), xmm(1, 4) => ZEROS;
        |a| a.movsd_2(xmm1, xmm2), xmm(1, 7) => copied(xmm(2, 7));
        |a| a.movsd_2(qword_ptr(rbx), xmm2), stored(7) => copied(xmm(2, 7));
        |a| a.movlps(xmm1, qword_ptr(rbx)), xmm(1, 7) => loaded(7);
        |a| a.movlps(xmm1, qword_ptr(rbx)), xmm(1, 8) => KEPT;
        |a| a.movhps(xmm1, qword_ptr(rbx)), xmm(1, 8) => loaded(0);
        |a| a.movhps(xmm1, qword_ptr(rbx)), xmm(1, 7) => KEPT;
        |a| a.movhps(qword_ptr(rbx), xmm1), stored(0) => copied(xmm(1, 8));
        |a| a.movhlps(xmm1, xmm2), xmm(1, 0) => copied(xmm(2, 8));
        |a| a.movlhps(xmm1, xmm2), xmm(1, 8) => copied(xmm(2, 0));
        |a| a.punpcklqdq(xmm1, xmm2), xmm(1, 8) => copied(xmm(2, 0));
        |a| a.punpcklqdq(xmm1, xmm2), xmm(1, 7) => KEPT;
        |a| a.punpckhqdq(xmm1, xmm2), xmm(1, 0) => copied(xmm(1, 8));
        |a| a.punpckhqdq(xmm1, xmm2), xmm(1, 8) => copied(xmm(2, 8));
        |a| a.movddup(xmm1, xmm2), xmm(1, 9) => copied(xmm(2, 1));
        |a| a.pshufd(xmm1, xmm2, 0x4e), xmm(1, 0) => copied(xmm(2, 8));
        |a| a.pinsrq(xmm1, rax, 1), xmm(1, 8) => copied(reg(0, 0));
        |a| a.pinsrq(xmm1, rax, 1), xmm(1, 7) => KEPT;
        |a| a.pextrq(rax, xmm1, 1), reg(0, 0) => copied(xmm(1, 8));
        |a| a.pinsrb(xmm1, eax, 19), xmm(1, 3) => copied(reg(0, 0));
        |a| a.pinsrb(xmm1, eax, 19), xmm(1, 4) => KEPT;
        |a| a.pinsrw(xmm1, eax, 7), xmm(1, 15) => copied(reg(0, 1));
        |a| a.pinsrd(xmm1, dword_ptr(rbx), 2), xmm(1, 9) => loaded(1);
        |a| a.pextrw(eax, xmm1, 7), reg(0, 1) => copied(xmm(1, 15));
        |a| a.pextrw(eax, xmm1, 7), reg(0, 2) => ZEROS;
        |a| a.pextrw(eax, xmm1, 7), reg(0, 7) => ZEROS;
        |a| a.pextrw(eax, xmm1, 8), reg(0, 1) => copied(xmm(1, 1));
        |a| a.pextrq(rax, xmm1, 2), reg(0, 7) => copied(xmm(1, 7));
        |a| a.pextrd(eax, xmm1, 6), reg(0, 3) => copied(xmm(1, 11));
        |a| a.pextrd(dword_ptr(rbx), xmm1, 3), stored(3) => copied(xmm(1, 15));
        |a| a.pextrb(byte_ptr(rbx), xmm1, 15), stored(0) => copied(xmm(1, 15));
        |a| a.pextrb(eax, xmm1, 3), reg(0, 0) => copied(xmm(1, 3));
        |a| a.pextrb(eax, xmm1, 3), reg(0, 1) => ZEROS;
        |a| a.pextrb(eax, xmm1, 3), reg(0, 7) => ZEROS;
        |a| a.addps(xmm1, xmm2), xmm(1, 0) => COMPUTED;
        |a| a.fxsave(ptr(rbx)), xmm(1, 0) => None;
        |a| a.fxsave(ptr(0x1000)), Place::Memory(0x1000 + 160) => copied(xmm(0, 0));
        |a| a.fxsave(ptr(0x1000)), Place::Memory(0x1000 + 160 + 15 * 16 + 15) => copied(xmm(15, 15));
        |a| a.fxsave(ptr(rbx + 8)), Place::Memory(RAX + 3 + 8 + 160 + 16 + 2) => copied(xmm(1, 2));
        |a| a.fxrstor(ptr(0x1000)), xmm(2, 5) => loaded(160 + 2 * 16 + 5);
        |a| a.xsave(ptr(0x1000)), Place::Memory(0x1000 + 160) => copied(xmm(0, 0));
        |a| a.xsaveopt64(ptr(0x1000)), Place::Memory(0x1000 + 161) => copied(xmm(0, 1));
        |a| a.prefetchnta(ptr(0x1000)), Place::Memory(0x1000 + 160) => None;
    }
}

/// XRSTOR reads the whole area, also if the area has no SSE state.
#[test]
fn xrstor_sets_the_initial_state_if_the_area_has_none() {
    assert_eq!(xrstor(SSE_STATE, 2), loaded(160 + 2 * 16 + 5));
    assert_eq!(xrstor(SSE_STATE, 1), Some(Source::Constant("the initial state of XRSTOR")));
    // RAX says which states XRSTOR is to restore.
    assert_eq!(xrstor(1, 2), KEPT);
    assert_eq!(xrstor(SSE_STATE | 1, 3), loaded(160 + 2 * 16 + 5));
}

/// The source of a byte of XMM2 after XRSTOR. RAX asks for these states, and the area's header names the states in it.
fn xrstor(asked: u64, states: u8) -> Option<Source> {
    let mut before = state();
    before.gpr[0] = asked;
    let mut a = CodeAssembler::new(64).unwrap();
    a.xrstor64(ptr(LOADED)).unwrap();
    let code = a.assemble(0x100).unwrap();
    let instruction = Decoder::with_ip(64, &code, 0x100, DecoderOptions::NONE).decode();
    let mut bytes = vec![0x55; 576];
    bytes[XSTATE_BV_OFFSET as usize] = states;
    let loads = [Access { linear: LOADED, physical: LOADED, bytes }];
    let executed = Executed { instruction: &instruction, before: &before, loads: &loads, stores: &[] };
    source_of(&effects(&executed), xmm(2, 5))
}

#[test]
fn shuffles_of_vectors() {
    table! { &state();
        |a| a.palignr(xmm1, xmm2, 5), xmm(1, 0) => copied(xmm(2, 5));
        |a| a.palignr(xmm1, xmm2, 5), xmm(1, 10) => copied(xmm(2, 15));
        |a| a.palignr(xmm1, xmm2, 5), xmm(1, 11) => copied(xmm(1, 0));
        |a| a.palignr(xmm1, xmmword_ptr(rbx), 5), xmm(1, 10) => loaded(15);
        |a| a.palignr(xmm1, xmm2, 16), xmm(1, 3) => KEPT;
        |a| a.palignr(xmm1, xmm2, 20), xmm(1, 11) => copied(xmm(1, 15));
        |a| a.palignr(xmm1, xmm2, 20), xmm(1, 12) => ZEROS;
        |a| a.palignr(xmm1, xmm2, 255), xmm(1, 0) => ZEROS;
        |a| a.palignr(mm1, mm2, 3), xmm(1, 0) => None;
        |a| a.psrldq(xmm1, 3), xmm(1, 12) => copied(xmm(1, 15));
        |a| a.psrldq(xmm1, 3), xmm(1, 13) => ZEROS;
        |a| a.pslldq(xmm1, 3), xmm(1, 3) => copied(xmm(1, 0));
        |a| a.pslldq(xmm1, 3), xmm(1, 2) => ZEROS;
        |a| a.pslldq(xmm1, 0), xmm(1, 2) => KEPT;
        |a| a.pshufd(xmm1, xmm2, 0x1b), xmm(1, 13) => copied(xmm(2, 1));
        |a| a.pshuflw(xmm1, xmm2, 0x1b), xmm(1, 1) => copied(xmm(2, 7));
        |a| a.pshuflw(xmm1, xmm2, 0x1b), xmm(1, 9) => copied(xmm(2, 9));
        |a| a.pshufhw(xmm1, xmm2, 0x1b), xmm(1, 1) => copied(xmm(2, 1));
        |a| a.pshufhw(xmm1, xmm2, 0x1b), xmm(1, 9) => copied(xmm(2, 15));
        |a| a.shufps(xmm1, xmm2, 0x1b), xmm(1, 0) => copied(xmm(1, 12));
        |a| a.shufps(xmm1, xmm2, 0x1b), xmm(1, 15) => copied(xmm(2, 3));
        |a| a.shufpd(xmm1, xmm2, 1), xmm(1, 0) => copied(xmm(1, 8));
        |a| a.shufpd(xmm1, xmm2, 1), xmm(1, 8) => copied(xmm(2, 0));
        |a| a.punpcklbw(xmm1, xmm2), xmm(1, 2) => copied(xmm(1, 1));
        |a| a.punpcklbw(xmm1, xmm2), xmm(1, 3) => copied(xmm(2, 1));
        |a| a.punpcklwd(xmm1, xmmword_ptr(rbx)), xmm(1, 3) => loaded(1);
        |a| a.punpckhwd(xmm1, xmm2), xmm(1, 3) => copied(xmm(2, 9));
        |a| a.punpckldq(xmm1, xmm2), xmm(1, 4) => copied(xmm(2, 0));
        |a| a.punpckldq(xmm1, xmm2), xmm(1, 3) => KEPT;
        |a| a.punpckhbw(xmm1, xmm2), xmm(1, 14) => copied(xmm(1, 15));
        |a| a.unpcklps(xmm1, xmm2), xmm(1, 8) => copied(xmm(1, 4));
        |a| a.unpckhps(xmm1, xmm2), xmm(1, 15) => copied(xmm(2, 15));
        |a| a.unpckhpd(xmm1, xmm2), xmm(1, 15) => copied(xmm(2, 15));
        |a| a.movsldup(xmm1, xmm2), xmm(1, 5) => copied(xmm(2, 1));
        |a| a.movshdup(xmm1, xmm2), xmm(1, 1) => copied(xmm(2, 5));
        |a| a.pblendw(xmm1, xmm2, 2), xmm(1, 2) => copied(xmm(2, 2));
        |a| a.pblendw(xmm1, xmm2, 2), xmm(1, 1) => KEPT;
        |a| a.blendps(xmm1, xmm2, 2), xmm(1, 4) => copied(xmm(2, 4));
        |a| a.blendpd(xmm1, xmm2, 2), xmm(1, 7) => KEPT;
        |a| a.pshufb(xmm1, xmm2), xmm(1, 0) => COMPUTED;
    }
}

/// The bytes of XMM1 and XMM2 have sixteen values each, and no value is in both. After an instruction, the software
/// CPU's XMM1 shows by these values where each byte came from.
#[test]
fn shuffles_of_vectors_move_the_bytes_that_the_processor_moves() {
    type Encode = fn(&mut CodeAssembler, u32) -> Result<(), IcedError>;
    let with_order: [(&str, Encode); 11] = [
        ("palignr", |a, order| a.palignr(xmm1, xmm2, order)),
        ("psrldq", |a, order| a.psrldq(xmm1, order)),
        ("pslldq", |a, order| a.pslldq(xmm1, order)),
        ("pshufd", |a, order| a.pshufd(xmm1, xmm2, order)),
        ("pshuflw", |a, order| a.pshuflw(xmm1, xmm2, order)),
        ("pshufhw", |a, order| a.pshufhw(xmm1, xmm2, order)),
        ("shufps", |a, order| a.shufps(xmm1, xmm2, order)),
        ("shufpd", |a, order| a.shufpd(xmm1, xmm2, order)),
        ("pblendw", |a, order| a.pblendw(xmm1, xmm2, order)),
        ("blendps", |a, order| a.blendps(xmm1, xmm2, order)),
        ("blendpd", |a, order| a.blendpd(xmm1, xmm2, order)),
    ];
    let without: [(&str, Encode); 15] = [
        ("punpcklbw", |a, _| a.punpcklbw(xmm1, xmm2)),
        ("punpcklwd", |a, _| a.punpcklwd(xmm1, xmm2)),
        ("punpckldq", |a, _| a.punpckldq(xmm1, xmm2)),
        ("unpcklps", |a, _| a.unpcklps(xmm1, xmm2)),
        ("punpcklqdq", |a, _| a.punpcklqdq(xmm1, xmm2)),
        ("unpcklpd", |a, _| a.unpcklpd(xmm1, xmm2)),
        ("punpckhbw", |a, _| a.punpckhbw(xmm1, xmm2)),
        ("punpckhwd", |a, _| a.punpckhwd(xmm1, xmm2)),
        ("punpckhdq", |a, _| a.punpckhdq(xmm1, xmm2)),
        ("unpckhps", |a, _| a.unpckhps(xmm1, xmm2)),
        ("punpckhqdq", |a, _| a.punpckhqdq(xmm1, xmm2)),
        ("unpckhpd", |a, _| a.unpckhpd(xmm1, xmm2)),
        ("movsldup", |a, _| a.movsldup(xmm1, xmm2)),
        ("movshdup", |a, _| a.movshdup(xmm1, xmm2)),
        ("movddup", |a, _| a.movddup(xmm1, xmm2)),
    ];
    for (name, encode) in with_order {
        for order in [0, 1, 2, 4, 5, 7, 8, 15, 16, 17, 0x1b, 31, 32, 33, 0x4e, 0x93, 0xc6, 0xff] {
            check_shuffle(name, order, |a| encode(a, order));
        }
    }
    for (name, encode) in without {
        check_shuffle(name, 0, |a| encode(a, 0));
    }
}

fn check_shuffle(name: &str, order: u32, encode: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
    let mut a = CodeAssembler::new(16).unwrap();
    encode(&mut a).unwrap();
    let code = a.assemble(0x1000).unwrap();
    let mut before = CpuState::reset();
    before.segments[1] = Segment { selector: 0, base: 0, ..before.segments[1] };
    before.rip = 0x1000;
    // SSE needs OSFXSR in CR4.
    before.cr4 |= 1 << 9;
    before.xmm[1] = u128::from_le_bytes(std::array::from_fn(|byte| 0x40 + byte as u8));
    before.xmm[2] = u128::from_le_bytes(std::array::from_fn(|byte| 0x80 + byte as u8));
    let ram = GuestRam::new(1 << 20).unwrap();
    ram.write_bytes(0x1000, &[&code[..], &[0xf4]].concat());
    let mut cpu = Cpu::new(ram);
    cpu.set_state(&before);
    assert_eq!(cpu.run(&mut EmptyBus::default(), 10, 0), Stop::Halted, "{name}");
    let after = cpu.state().xmm[1].to_le_bytes();
    let instruction = Decoder::with_ip(16, &code, 0x1000, DecoderOptions::NONE).decode();
    let executed = Executed { instruction: &instruction, before: &before, loads: &[], stores: &[] };
    let effects = effects(&executed);
    for (byte, value) in (0..).zip(after) {
        let expected = match value {
            0 => ZEROS,
            _ if value == 0x40 + byte => KEPT,
            0x40..0x50 => copied(xmm(1, value - 0x40)),
            _ => copied(xmm(2, value - 0x80)),
        };
        assert_eq!(source_of(&effects, xmm(1, byte)), expected, "{name} {order:#x}, byte {byte}");
    }
}

#[test]
fn a_delivery_pushes_a_frame() {
    let stores: Vec<Access> = (0..6)
        .map(|slot: u64| Access { linear: 0x5000 + slot * 8, physical: 0, bytes: vec![0; 8] })
        .collect();
    let effects = of_delivery(0x5000, true, true, &stores);
    let at = |offset: u64| source_of(&effects, Place::Memory(0x5000 + offset));
    assert_eq!(at(0), Some(Source::Constant("the error code of the exception")));
    assert_eq!(at(8), Some(Source::Constant("the address at which the guest was interrupted")));
    assert_eq!(at(16), Some(Source::Unfollowed("cs".to_string())));
    assert_eq!(at(35), copied(reg(4, 3)));
    assert_eq!(source_of(&effects, reg(4, 0)), COMPUTED);
    assert_eq!(at(0x100), None);
    let effects = of_delivery(0x5000, false, true, &stores);
    let at = |offset: u64| source_of(&effects, Place::Memory(0x5000 + offset));
    assert_eq!(at(7), Some(Source::Constant("the address at which the guest was interrupted")));
    assert_eq!(at(24), copied(reg(4, 0)));
    // The rules do not know the frames of other modes.
    let effects = of_delivery(0x5000, false, false, &stores);
    let at = |offset: u64| source_of(&effects, Place::Memory(0x5000 + offset));
    assert_eq!((at(0), at(24), at(47), at(48)), (COMPUTED, COMPUTED, COMPUTED, None));
}
