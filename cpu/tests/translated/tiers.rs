//! Interpreter and translator give the same results under every cut of a run.

use cpu::{AddressKind, Counts, CpuState, Met, Part, Parts, SegReg, Stop, Tier};
use iced_x86::code_asm::*;

use crate::harness::*;

/// The tiers (interpreter and translators) that run most test machines.
const TIERS: [Tier; 3] =
    [Tier::Interpreter, translator(Parts::ALL), Tier::Translator { after: 3, parts: Parts::ALL }];

/// The translator for all code, with the given optimisations switched on.
const fn translator(parts: Parts) -> Tier {
    Tier::Translator { after: 0, parts }
}

/// The translator without any optimisation, and the translators without one of the optimisations.
fn tiers_without_parts() -> impl Iterator<Item = Tier> {
    let without_each = Part::ALL.map(|part| translator(Parts::ALL.without(part)));
    [translator(Parts::NONE)].into_iter().chain(without_each)
}

fn memory(m: &Machine) -> Vec<u8> {
    let mut bytes = vec![0; 0xa_0000];
    m.ram().read_bytes(0, &mut bytes);
    bytes
}

/// Runs a machine for up to `steps` steps in pieces of `piece` steps, without restoring its state between two pieces.
fn run(make: &impl Fn() -> Machine, tier: Tier, steps: u64, piece: u64) -> ((CpuState, Counts), Vec<u8>) {
    let mut m = make();
    m.cpu.set_tier(tier);
    m.load();
    while m.cpu.steps() < steps {
        let until = steps.min(m.cpu.steps() + piece);
        if m.cpu.run(&mut m.bus, until, u64::MAX) != Stop::Budget {
            break;
        }
    }
    ((m.cpu.state(), m.cpu.counts()), memory(&m))
}

/// Checks that all tiers reach the same state under any cuts. Returns the state.
fn same(make: impl Fn() -> Machine, steps: u64) -> CpuState {
    same_counts(make, steps).0
}

/// As [`same`], but also returns the counts.
fn same_counts(make: impl Fn() -> Machine, steps: u64) -> (CpuState, Counts) {
    let expected = run(&make, Tier::Interpreter, steps, 1);
    let all = [1, 2, 3, 5, 7, 64, steps];
    let all_pieces = TIERS.into_iter().map(|tier| (tier, &all[..]));
    let pieces = [5, steps];
    for (tier, pieces) in all_pieces.chain(tiers_without_parts().map(|tier| (tier, &pieces[..]))) {
        for &piece in pieces {
            let found = run(&make, tier, steps, piece);
            assert!(found.0 == expected.0, "{tier:?} by {piece}: {:#x?}\nnot {:#x?}", found.0, expected.0);
            assert!(found.1 == expected.1, "{tier:?} by {piece}: memory differs");
        }
    }
    expected.0
}

#[test]
fn steps_and_branches_are_counted_exactly() {
    let make = || {
        let mut m = Machine::long();
        m.code(64, |a| {
            let (mut outer, mut inner, mut even) = (a.create_label(), a.create_label(), a.create_label());
            a.mov(ecx, 40).unwrap();
            a.set_label(&mut outer).unwrap();
            a.mov(edx, ecx).unwrap();
            a.set_label(&mut inner).unwrap();
            a.test(edx, 1).unwrap();
            a.jz(even).unwrap();
            a.add(qword_ptr(DATA), rdx).unwrap();
            a.set_label(&mut even).unwrap();
            a.push(rdx).unwrap();
            a.pop(rbx).unwrap();
            a.dec(edx).unwrap();
            a.jnz(inner).unwrap();
            a.loop_(outer).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let (end, counts) = same_counts(make, 100_000);
    assert!(end.halted);
    // Each of the 40 + 39 + ... + 1 inner rounds has two branches, and each outer round has one.
    assert_eq!(counts.branches, 2 * 820 + 40);
}

#[test]
fn code_that_code_writes_is_executed_as_written() {
    let make = || {
        let mut m = Machine::long();
        m.code(64, |a| {
            let (mut again, mut changed) = (a.create_label(), a.create_label());
            a.mov(ecx, 30).unwrap();
            a.xor(ebx, ebx).unwrap();
            a.set_label(&mut again).unwrap();
            a.lea(rdx, qword_ptr(changed)).unwrap();
            a.set_label(&mut changed).unwrap();
            // The immediate grows by one in each round, right before it is executed.
            a.mov(eax, 0x100).unwrap();
            a.add(ebx, eax).unwrap();
            a.inc(dword_ptr(rdx + 1)).unwrap();
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let sum = (0..30).map(|n| 0x100 + n).sum::<u64>();
    assert_eq!(same(make, 1000).gpr[3], sum);
}

#[test]
fn one_page_is_executed_at_two_addresses() {
    const ALIAS: u64 = 0x9_0000;
    let make = || {
        let mut m = Machine::long();
        m.put64(TABLES + 0x3000 + 8 * (ALIAS >> 12), DATA | 7);
        // The result shows the address at which the code runs.
        m.code_at(64, DATA, DATA, |a| {
            let mut here = a.create_label();
            a.set_label(&mut here).unwrap();
            a.lea(rax, qword_ptr(here)).unwrap();
            a.add(rbx, rax).unwrap();
            a.ret().unwrap();
        });
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, 20).unwrap();
            a.set_label(&mut again).unwrap();
            for address in [DATA, ALIAS] {
                a.mov(edx, address as u32).unwrap();
                a.call(rdx).unwrap();
            }
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    assert_eq!(same(make, 1000).gpr[3], 20 * (DATA + ALIAS));
}

#[test]
fn a_page_mapped_elsewhere_is_executed_there() {
    const OTHER: u64 = 0x9_0000;
    let entry = TABLES + 0x3000 + 8 * (DATA >> 12);
    let make = || {
        let mut m = Machine::long();
        for (page, value) in [(DATA, 1), (OTHER, 2)] {
            m.code_at(64, page, DATA, |a| {
                a.add(ebx, value).unwrap();
                a.ret().unwrap();
            });
        }
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, 21).unwrap();
            a.mov(esi, entry as u32).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(edx, DATA as u32).unwrap();
            a.call(rdx).unwrap();
            a.xor(qword_ptr(rsi), (DATA ^ OTHER) as i32).unwrap();
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    assert_eq!(same(make, 1000).gpr[3], 11 + 2 * 10);
}

#[test]
fn instructions_and_data_that_cross_pages_are_as_elsewhere() {
    const END: u64 = CODE + 0x1000;
    let make = || {
        let mut m = Machine::long();
        m.state.rip = END - 12;
        m.code_at(64, END - 12, END - 12, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.add(rbx, 1).unwrap();
            a.inc(qword_ptr(DATA + 0xffd)).unwrap();
            a.mov(rax, 0x1122_3344_5566_7788_u64).unwrap();
            a.cmp(ebx, 25).unwrap();
            a.jne(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let end = same(make, 1000);
    assert_eq!((end.gpr[3], end.gpr[0]), (25, 0x1122_3344_5566_7788));
}

#[test]
fn code_that_a_device_writes_is_executed_as_written() {
    for tier in TIERS {
        let mut m = Machine::long();
        m.cpu.set_tier(tier);
        m.code(64, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.add(ebx, 1).unwrap();
            a.jmp(again).unwrap();
        });
        m.load();
        assert_eq!(m.cpu.run(&mut m.bus, 100, u64::MAX), Stop::Budget);
        assert_eq!(m.cpu.gpr()[3], 50);
        // ADD EBX, 1 becomes ADD EBX, 3.
        m.ram().replace_bytes(CODE + 2, &[3]);
        assert_eq!(m.cpu.run(&mut m.bus, 200, u64::MAX), Stop::Budget);
        assert_eq!(m.cpu.gpr()[3], 50 + 150, "{tier:?}");
    }
}

#[test]
fn breakpoints_stop_code_that_is_translated_already() {
    for tier in TIERS {
        let mut m = Machine::long();
        m.cpu.set_tier(tier);
        m.code(64, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.add(ebx, 1).unwrap();
            a.sub(ecx, 1).unwrap();
            a.jmp(again).unwrap();
        });
        m.load();
        assert_eq!(m.cpu.run(&mut m.bus, 300, u64::MAX), Stop::Budget);
        m.cpu.set_breakpoints([(AddressKind::Linear, CODE + 3)]);
        assert_eq!(m.cpu.run(&mut m.bus, 1000, u64::MAX), Stop::Met(Met::Breakpoint));
        assert_eq!((m.cpu.steps(), m.cpu.rip()), (301, CODE + 3), "{tier:?}");
        m.cpu.set_breakpoints([]);
        assert_eq!(m.cpu.run(&mut m.bus, 1000, 301), Stop::Budget);
        assert_eq!(m.cpu.steps(), 1000);
    }
}

#[test]
fn a_branch_out_of_the_canonical_addresses_faults_itself() {
    // The last page below the hole, mapped by the tables of the lowest 2 MiB.
    const LAST: u64 = 0x7fff_ffff_f000;
    let make = || {
        let mut m = Machine::long();
        m.put64(TABLES + 8 * 255, (TABLES + 0x1000) | 7);
        m.put64(TABLES + 0x1000 + 8 * 511, (TABLES + 0x2000) | 7);
        m.put64(TABLES + 0x2000 + 8 * 511, (TABLES + 0x3000) | 7);
        // ADD EBX, 1, then a JMP 1000h further on, to a non-canonical address.
        m.put(0x1f_f000, &[0x83, 0xc3, 1, 0xe9, 0, 0x10, 0, 0]);
        m.state.rip = LAST;
        m
    };
    let end = same(make, 10);
    assert!(end.halted);
    assert_eq!((end.gpr[3], end.rip), (1, handler(13) + 1));
    let mut m = make();
    m.run();
    assert_eq!(m.ram().load_u64(end.gpr[4] + 8), LAST + 3, "RIP that the handler finds");
}

#[test]
fn one_page_at_many_addresses_is_executed_as_written_at_all_of_them() {
    // The number of addresses of the page. A block can have its code at fewer addresses at one time.
    const ALIASES: u64 = 7;
    let make = || {
        let mut m = Machine::long();
        let alias = |n: u64| 0x9_0000 + 0x1000 * n;
        for n in 0..ALIASES {
            m.put64(TABLES + 0x3000 + 8 * (alias(n) >> 12), DATA | 7);
        }
        m.code_at(64, DATA, DATA, |a| {
            a.add(ebx, 1).unwrap();
            a.ret().unwrap();
        });
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, 10).unwrap();
            a.set_label(&mut again).unwrap();
            for n in 0..ALIASES {
                a.mov(edx, alias(n) as u32).unwrap();
                a.call(rdx).unwrap();
            }
            // The added value grows by one in each round.
            a.inc(byte_ptr(DATA + 2)).unwrap();
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    assert_eq!(same(make, 10_000).gpr[3], ALIASES * (1..=10).sum::<u64>());
}

/// Maps some pages of RAM at a linear address. New tables begin at `free`.
fn map(m: &Machine, linear: u64, ram: u64, pages: u64, free: &mut u64) {
    for page in 0..pages {
        let address = linear + 0x1000 * page;
        let mut table = TABLES;
        for shift in [39, 30, 21] {
            let entry = table + 8 * (address >> shift & 511);
            if m.ram().load_u64(entry) == 0 {
                m.put64(entry, *free | 7);
                *free += 0x1000;
            }
            table = m.ram().load_u64(entry) & !0xfff;
        }
        m.put64(table + 8 * (address >> 12 & 511), (ram + 0x1000 * page) | 7);
    }
}

#[test]
fn a_library_is_at_home_at_every_address() {
    // The addresses of the library. Together they need all encodings of an address. There are more addresses than a
    // block can have its code at, and a round uses some addresses twice.
    let bases = [
        0x7f12_3456_7000,
        0x7f12_3470_1000,
        0x5555_5555_4000,
        0x7fff_ffff_9000,
        0xffff_ffff_8123_4000,
        0xffff_ffff_a000_0000,
        0xffff_8880_0012_3000,
        0x9000_0000,
        0xfff0_1000,
        0x2000_0000,
        0x7f12_3456_7000,
        0x5555_5555_4000,
        0x7eee_0000_0000,
        0x7123_0000_3000,
    ];
    const ROUNDS: u64 = 12;
    let make = || {
        let mut m = Machine::long();
        let mut free = 0x10_0000;
        for base in bases {
            map(&m, base, DATA, 3, &mut free);
        }
        m.code_at(64, DATA, bases[0], |a| {
            let [mut even, mut other, mut last, mut word] = [(); 4].map(|()| a.create_label());
            a.lea(rax, qword_ptr(word)).unwrap();
            a.add(rsi, rax).unwrap();
            a.mov(r10, qword_ptr(word)).unwrap();
            a.add(qword_ptr(word), 3).unwrap();
            a.test(r10, 1).unwrap();
            a.jz(even).unwrap();
            a.call(other).unwrap();
            a.set_label(&mut even).unwrap();
            a.jmp(last).unwrap();
            a.nops_with_size(0x1000).unwrap();
            a.set_label(&mut other).unwrap();
            a.add(rsi, qword_ptr(rsp)).unwrap();
            a.ret().unwrap();
            a.set_label(&mut last).unwrap();
            a.inc(rdi).unwrap();
            a.ret().unwrap();
            a.nops_with_size(0x1000).unwrap();
            a.set_label(&mut word).unwrap();
            a.dq(&[1]).unwrap();
        });
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, ROUNDS as u32).unwrap();
            a.set_label(&mut again).unwrap();
            for base in bases {
                a.mov(rdx, base).unwrap();
                a.call(rdx).unwrap();
            }
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let end = same(make, 100_000);
    assert_eq!(end.gpr[7], ROUNDS * bases.len() as u64);
    let mut library = vec![0; 0x3000];
    make().ram().read_bytes(DATA, &mut library);
    // The library begins with a seven-byte LEA and has a five-byte call. Each call of the library added the address
    // of its word to RSI, and every second call added a return address.
    let displacement = i32::from_le_bytes(library[3..7].try_into().expect("there are four")) as u64;
    let call = library.iter().position(|&byte| byte == 0xe8).expect("there is a call") as u64;
    let calls = std::iter::repeat_n(bases, ROUNDS as usize).flatten();
    let found = |(base, odd): (u64, u64)| {
        base.wrapping_add(displacement + 7).wrapping_add(odd.wrapping_mul(base.wrapping_add(call + 5)))
    };
    let sum = calls.zip([1, 0].into_iter().cycle()).map(found).fold(0, u64::wrapping_add);
    assert_eq!(end.gpr[6], sum);
}

#[test]
fn pages_that_share_slots_of_the_tlb_are_told_apart() {
    // All page numbers are equal modulo the number of second slots.
    const PAGES: u32 = 5;
    const ROUNDS: u32 = 20;
    let linear = |n: u32| DATA as u32 + (n << 21);
    let ram = |n: u32| 0x9_0000 + 0x1000 * n;
    let table = |n: u32| if n == 0 { TABLES as u32 + 0x3000 } else { 0x9_8000 + 0x1000 * n };
    let entry = |n: u32| table(n) + 8 * (DATA as u32 >> 12);
    let make = || {
        let mut m = Machine::long();
        for n in 0..PAGES {
            m.put64(TABLES + 0x2000 + 8 * u64::from(n), u64::from(table(n)) | 7);
            m.put64(entry(n).into(), u64::from(ram(n)) | 7);
            m.code_at(64, ram(n).into(), linear(n).into(), |a| {
                a.lea(ebx, dword_ptr(ebx + ebx * 2 + n as i32)).unwrap();
                a.ret().unwrap();
            });
        }
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, ROUNDS).unwrap();
            a.set_label(&mut again).unwrap();
            for n in 0..PAGES {
                a.mov(edx, linear(n)).unwrap();
                a.call(rdx).unwrap();
                a.add(dword_ptr(linear(n) + 0x800), ebx).unwrap();
                a.add(esi, dword_ptr(linear(n) + 0x800)).unwrap();
            }
            // Two of the pages are swapped in each round.
            for n in [1, 3] {
                a.xor(dword_ptr(entry(n)), (ram(1) ^ ram(3)) as i32).unwrap();
            }
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let (mut order, mut sums) = ([0, 1, 2, 3, 4], [0u32; PAGES as usize]);
    let (mut value, mut total) = (0u32, 0u32);
    for _ in 0..ROUNDS {
        for n in order {
            value = value.wrapping_mul(3).wrapping_add(n);
            sums[n as usize] = sums[n as usize].wrapping_add(value);
            total = total.wrapping_add(sums[n as usize]);
        }
        order.swap(1, 3);
    }
    let end = same(make, 10_000);
    assert_eq!((end.gpr[3], end.gpr[6]), (value.into(), total.into()));
}

#[test]
fn breakpoints_at_one_offset_of_two_pages_come_and_go() {
    const OTHER: u64 = 0x9_0000;
    for tier in TIERS {
        let mut m = Machine::long();
        m.cpu.set_tier(tier);
        for page in [DATA, OTHER] {
            m.code_at(64, page, page, |a| {
                a.add(ebx, 1).unwrap();
                a.add(ebx, 2).unwrap();
                a.ret().unwrap();
            });
        }
        m.code(64, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            for page in [DATA, OTHER] {
                a.mov(edx, page as u32).unwrap();
                a.call(rdx).unwrap();
            }
            a.jmp(again).unwrap();
        });
        m.load();
        assert_eq!(m.cpu.run(&mut m.bus, 500, u64::MAX), Stop::Budget);
        for (n, space) in [AddressKind::Linear, AddressKind::Physical].into_iter().cycle().take(6).enumerate()
        {
            let page = if n % 3 == 0 { OTHER } else { DATA };
            let nowhere = (AddressKind::Linear, CODE + 0x1003);
            m.cpu.set_breakpoints([(space, page + 3), nowhere]);
            // During these runs, the CPU translates code in another page again that has the breakpoints' page
            // offset.
            for _ in 0..20 {
                let origin = m.cpu.steps();
                assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, origin), Stop::Met(Met::Breakpoint));
                assert_eq!(m.cpu.rip(), page + 3, "{tier:?}");
                assert!(m.cpu.steps() - origin <= 11, "{tier:?} passed over one");
            }
        }
        m.cpu.set_breakpoints([]);
        let until = m.cpu.steps() + 500;
        assert_eq!(m.cpu.run(&mut m.bus, until, u64::MAX), Stop::Budget);
    }
}

#[test]
fn operands_that_are_not_aligned_fault_before_their_pages_are_looked_at() {
    let entry = TABLES + 0x3000 + 8 * (DATA >> 12);
    for (base, vector) in [(DATA + 8, 13), (1 << 63 | 8, 13)] {
        let make = || {
            let mut m = Machine::long();
            // An entry without accessed and dirty bits.
            m.put64(entry, DATA | 7);
            m.state.cr4 |= 1 << 9;
            m.state.gpr[5] = base;
            m.code(64, |a| {
                a.movaps(xmmword_ptr(rbp), xmm0).unwrap();
                a.hlt().unwrap();
            });
            m
        };
        let end = same(make, 10);
        assert_eq!(end.rip, handler(vector) + 1);
        let mut m = make();
        m.run();
        assert_eq!(m.ram().load_u64(entry), DATA | 7, "accessed and dirty bits");
    }
}

/// The page-table entry of the page of `address`.
fn entry_of(address: u64) -> u64 {
    TABLES + 0x3000 + 8 * (address >> 12)
}

#[test]
fn accesses_that_share_a_check_may_lie_in_two_pages_or_in_one_that_is_not_there() {
    // The second page is mapped to another physical page, read-only, or absent.
    for second in [DATA + 0x8007, DATA + 0x8005, 0] {
        let make = || {
            let mut m = Machine::long();
            m.put64(entry_of(DATA + 0x1000), second);
            for n in 0..0x2000 / 8 {
                m.put64(DATA + 8 * n, 0x0101_0101_0101_0101 * (n % 251));
                m.put64(DATA + 0x8000 + 8 * n, 0x0303_0303_0303_0303 * (n % 83));
            }
            m.state.cr0 |= 1 << 16;
            m.code(64, |a| {
                let mut again = a.create_label();
                a.mov(r8d, 90).unwrap();
                a.mov(rbx, DATA + 0xf80).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rsp, rbx).unwrap();
                a.mov(rax, qword_ptr(rbx + 8)).unwrap();
                a.add(rax, qword_ptr(rsp + 16)).unwrap();
                a.cmp(rax, rdx).unwrap();
                a.push(rax).unwrap();
                a.adc(qword_ptr(rbx), rcx).unwrap();
                a.mov(r13, rbx).unwrap();
                a.pop(rdx).unwrap();
                a.movzx(ecx, byte_ptr(r13 + 9)).unwrap();
                a.xchg(qword_ptr(rbx - 16), rdx).unwrap();
                a.add(rbx, 1).unwrap();
                a.bts(dword_ptr(rbx + 4), 7).unwrap();
                a.setc(byte_ptr(rbx + 3)).unwrap();
                a.cmovs(rdx, qword_ptr(rsp + 32)).unwrap();
                a.dec(r8d).unwrap();
                a.jnz(again).unwrap();
                a.hlt().unwrap();
            });
            m
        };
        let end = same(make, 5000);
        assert!(end.halted);
    }
}

#[test]
fn a_page_that_is_mapped_elsewhere_between_accesses_that_share_a_check_is_the_new_one() {
    let (page, left, right) = (DATA, 0xa_0000, 0xb_0000);
    let make = || {
        let mut m = Machine::long();
        m.put64(entry_of(page), left | 7);
        m.put64(left + 24, 1);
        m.put64(right + 24, 2);
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, 20).unwrap();
            a.mov(rbx, page).unwrap();
            a.mov(rsi, left | 7).unwrap();
            a.mov(rdi, right | 7).unwrap();
            a.mov(rdx, entry_of(page)).unwrap();
            a.set_label(&mut again).unwrap();
            a.add(r8, qword_ptr(rbx + 24)).unwrap();
            a.add(r8, qword_ptr(rbx + 24)).unwrap();
            a.mov(qword_ptr(rdx), rdi).unwrap();
            a.add(r9, qword_ptr(rbx + 24)).unwrap();
            a.add(qword_ptr(rbx + 32), 5).unwrap();
            a.add(r9, qword_ptr(rbx + 24)).unwrap();
            a.mov(qword_ptr(rdx), rsi).unwrap();
            a.add(r10, qword_ptr(rbx + 24)).unwrap();
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let end = same(make, 5000);
    assert_eq!((end.gpr[8], end.gpr[9], end.gpr[10]), (40, 80, 20));
}

#[test]
fn a_loop_reads_from_pages_that_lie_anywhere_in_turn() {
    let make = || {
        let mut m = Machine::long();
        m.put64(entry_of(DATA + 0x1000), 0x9_5007);
        for n in 0..0x200 {
            m.put64(DATA + 8 * n, n * n);
            m.put64(0x9_5000 + 8 * n, n ^ 0x5555);
        }
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, 400).unwrap();
            a.mov(ebx, DATA as u32).unwrap();
            a.xor(edx, edx).unwrap();
            a.set_label(&mut again).unwrap();
            a.imul_3(edx, edx, 1_664_525).unwrap();
            a.add(edx, 0x3c6e_f35f).unwrap();
            a.mov(esi, edx).unwrap();
            a.shr(esi, 22).unwrap();
            a.xor(rdi, qword_ptr(rbx + rsi * 8)).unwrap();
            a.add(edx, edi).unwrap();
            a.add(rax, qword_ptr(rbx + rcx * 8)).unwrap();
            a.add(rax, qword_ptr(rbx + rcx * 8 + 16)).unwrap();
            a.sub(rax, qword_ptr(rbx + rcx * 8 + 1024)).unwrap();
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    assert!(same(make, 10_000).halted);
}

#[test]
fn what_iopl_allows_makes_nothing_else_privileged() {
    for sets in [false, true] {
        let make = || {
            let mut m = Machine::long().in_user_mode();
            m.state.rflags |= 3 << 12;
            m.state.msrs.kernel_gs_base = 0x1234_5000;
            m.code(64, |a| {
                a.mov(eax, 5).unwrap();
                if sets {
                    a.sti().unwrap()
                } else {
                    a.cli().unwrap()
                }
                a.add(rbx, rax).unwrap();
                a.swapgs().unwrap();
                a.add(rbx, rax).unwrap();
                a.ud2().unwrap();
            });
            m
        };
        let end = same(make, 100);
        assert_eq!(end.rip, handler(13) + 1, "SWAPGS faults");
        assert_eq!((end.gpr[3], end.msrs.kernel_gs_base), (5, 0x1234_5000));
    }
}

/// A page table is executed. A store sets the dirty bit of its page's entry. This entry is part of the code after
/// the store.
#[test]
fn an_entry_that_a_walk_changes_is_executed_as_changed() {
    let (page, other) = (DATA + 0x4000, DATA + 0x2000);
    let code = entry_of(page) - 8;
    let make = || {
        let mut m = Machine::long();
        // First ADD [RDI],AH and NOPs. The entry begins with 27h, which is no instruction. With the dirty bit it begins
        // with 67h, a prefix of ADD [EBX],CL. Then follow ADD [RAX],AL twice, ADD AL,AL and HLT.
        m.put64(code, 0x9090_9090_9090_2700);
        m.put64(code + 8, 0xb_0027);
        m.put64(code + 16, 0x9090_9090_9090_f4c0);
        (m.state.rip, m.state.gpr[7], m.state.gpr[1]) = (code, page, 5);
        (m.state.gpr[0], m.state.gpr[3]) = (other, other + 8);
        m
    };
    let end = same(make, 40);
    assert!(end.halted && end.rip == code + 18, "{:#x}", end.rip);
}

/// A page table is executed. The last byte of the page before, and the entry of page 0, which is 7, make ADD
/// [RDI],AL. The lookup of page 0 changes the entry to 67h, which would make ADD [RDI],AH. But the CPU has
/// fetched the instruction before the change.
#[test]
fn an_entry_that_its_own_instruction_looks_up_is_executed_as_fetched() {
    let make = || {
        let mut m = Machine::long();
        m.put64(entry_of(0), 7);
        m.put(0x80, &[0]);
        (m.state.rip, m.state.gpr[7], m.state.gpr[0]) = (entry_of(0) - 1, 0x80, DATA + 0x412);
        m
    };
    let mut byte = [0];
    make().ram().read_bytes(entry_of(0) - 1, &mut byte);
    assert_eq!(byte, [0], "what ADD begins with");
    for steps in [1, 2, 3] {
        assert_eq!(same(make, steps).rip, entry_of(0) + 2 * steps - 1);
        assert_eq!(run(&make, translator(Parts::ALL), steps, steps).1[0x80], 0x12);
    }
}

#[test]
fn flags_that_nobody_wrote_are_found_wherever_a_block_is_left() {
    type Part = fn(&mut CodeAssembler);
    // Instructions that set flags from RDX and RBX at a block's end.
    let setters: [Part; 6] = [
        |a| a.cmp(rdx, rbx).unwrap(),
        |a| a.add(rdx, rbx).unwrap(),
        |a| a.sub(edx, 7).unwrap(),
        |a| a.xor(edx, ebx).unwrap(),
        |a| a.test(dl, bl).unwrap(),
        |a| a.shr(rdx, 3).unwrap(),
    ];
    // The next block changes an operand, reads some flags, sets some flags, or exits, and then pushes the flags.
    let others: [Part; 10] = [
        |_| {},
        |a| a.mov(rdx, r12).unwrap(),
        |a| a.mov(bl, 1).unwrap(),
        |a| a.mov(rdx, qword_ptr(r13)).unwrap(),
        |a| a.sete(al).unwrap(),
        |a| a.adc(rsi, rdi).unwrap(),
        |a| a.inc(rsi).unwrap(),
        |a| a.rol(rsi, 3).unwrap(),
        |a| a.bt(rsi, 3).unwrap(),
        |a| a.shl(rsi, cl).unwrap(),
    ];
    // Setter and reader are in one block or in two. Generated code or the interpreter pushes the flags.
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    for (setter, other) in setters.iter().flat_map(|setter| others.map(|other| (setter, other))) {
        for (branches, interpreted) in ways {
            let make = || {
                let mut m = Machine::long();
                m.code(64, |a| {
                    let (mut again, mut next) = (a.create_label(), a.create_label());
                    a.mov(r12d, 24).unwrap();
                    a.mov(r13d, DATA as u32).unwrap();
                    a.set_label(&mut again).unwrap();
                    a.mov(rdx, r10).unwrap();
                    a.mov(ebx, r12d).unwrap();
                    a.mov(ecx, r12d).unwrap();
                    setter(a);
                    if branches {
                        a.jl(next).unwrap();
                        a.nop().unwrap();
                        a.set_label(&mut next).unwrap();
                    }
                    other(a);
                    a.mov(rax, qword_ptr(r13 + 0x1000)).unwrap();
                    if interpreted {
                        a.mov(r11d, 0).unwrap();
                        a.pushf().unwrap();
                        a.pop(r11w).unwrap();
                    } else {
                        a.pushfq().unwrap();
                        a.pop(r11).unwrap();
                    }
                    a.lea(r10, qword_ptr(r10 + r11 + 1)).unwrap();
                    a.rol(r10, 59).unwrap();
                    a.dec(r12d).unwrap();
                    a.jne(again).unwrap();
                    a.hlt().unwrap();
                });
                m
            };
            assert!(same(make, 1000).halted);
        }
    }
}

#[test]
fn bit_manipulation_of_anything_into_anything() {
    type Part = fn(&mut CodeAssembler);
    // Operands of both sizes are in memory, in guest registers that have a host register, and in guest registers in
    // the frame.
    let parts: [Part; 22] = [
        |a| a.andn(eax, ebx, dword_ptr(r13)).unwrap(),
        |a| a.andn(r9, r10, rdx).unwrap(),
        |a| a.bextr(r9, qword_ptr(r13 + 8), rbx).unwrap(),
        |a| a.bextr(edx, r10d, r12d).unwrap(),
        |a| a.blsi(rbx, r10).unwrap(),
        |a| a.blsmsk(r9d, dword_ptr(r13 + 4)).unwrap(),
        |a| a.blsr(rax, rax).unwrap(),
        |a| a.blsr(r10, r10).unwrap(),
        |a| a.bzhi(rdx, rax, r12).unwrap(),
        |a| a.bzhi(r11d, dword_ptr(r13), r12d).unwrap(),
        |a| a.shlx(rbx, rbx, rbx).unwrap(),
        |a| a.shlx(r9d, dword_ptr(r13), r12d).unwrap(),
        |a| a.shrx(r10, rdx, r12).unwrap(),
        |a| a.shrx(eax, eax, r10d).unwrap(),
        |a| a.sarx(rax, qword_ptr(r13), r12).unwrap(),
        |a| a.sarx(r11d, r10d, ebx).unwrap(),
        |a| a.pdep(rax, rbx, r10).unwrap(),
        |a| a.pext(r9d, ebx, dword_ptr(r13 + 12)).unwrap(),
        |a| a.rorx(r10d, edx, 7).unwrap(),
        |a| a.rorx(rdx, qword_ptr(r13), 71).unwrap(),
        |a| a.mulx(rbx, r9, qword_ptr(r13)).unwrap(),
        |a| a.mulx(edx, edx, r10d).unwrap(),
    ];
    for part in parts {
        let make = || {
            let mut m = Machine::long();
            m.put64(DATA, 0x8000_0001_9234_5678);
            m.put64(DATA + 8, 0xff00_ff00_1111_0000);
            for (n, register) in m.state.gpr.iter_mut().enumerate().filter(|&(n, _)| n != 4) {
                *register = 0x0123_4567_89ab_cdef_u64.rotate_left(7 * n as u32);
            }
            m.code(64, |a| {
                let mut again = a.create_label();
                a.mov(r12d, 70).unwrap();
                a.mov(r13d, DATA as u32).unwrap();
                a.set_label(&mut again).unwrap();
                a.cmp(rax, rdx).unwrap();
                part(a);
                a.pushfq().unwrap();
                a.pop(r15).unwrap();
                a.lea(r14, qword_ptr(r14 + r15)).unwrap();
                a.rol(r14, 5).unwrap();
                for register in [rax, rbx, rdx, r9, r10, r11] {
                    a.add(r14, register).unwrap();
                    a.rol(r14, 5).unwrap();
                    a.lea(register, qword_ptr(register + r14)).unwrap();
                }
                a.dec(r12d).unwrap();
                a.jne(again).unwrap();
                // Nothing needs the flags.
                part(a);
                a.xor(esi, esi).unwrap();
                a.hlt().unwrap();
            });
            m
        };
        assert!(same(make, 5000).halted);
    }
}

#[test]
fn selectors_are_read_as_they_were_loaded() {
    let make = || {
        let mut m = Machine::long();
        m.code(64, |a| {
            let mut again = a.create_label();
            a.mov(ecx, 8).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(rax, u64::MAX).unwrap();
            a.mov(rbx, rax).unwrap();
            a.mov(rdx, rax).unwrap();
            a.mov(r9, rax).unwrap();
            a.mov(eax, cs).unwrap();
            a.mov(rbx, ss).unwrap();
            a.mov(dx, ds).unwrap();
            a.mov(r9d, es).unwrap();
            a.lea(rsi, qword_ptr(rax + rbx)).unwrap();
            a.lea(rdi, qword_ptr(rdx + r9)).unwrap();
            a.mov(r10d, 0).unwrap();
            a.mov(es, r10d).unwrap();
            a.mov(r11d, es).unwrap();
            a.mov(es, ebx).unwrap();
            a.dec(ecx).unwrap();
            a.jne(again).unwrap();
            a.hlt().unwrap();
        });
        m
    };
    let end = same(make, 1000);
    assert!(end.halted);
    let selectors = |register: SegReg| u64::from(end.segments[register as usize].selector);
    let [code, stack, data] = [SegReg::Cs, SegReg::Ss, SegReg::Ds].map(selectors);
    assert_eq!((end.gpr[0], end.gpr[3], end.gpr[11]), (code, stack, 0));
    assert_eq!(end.gpr[2], u64::MAX << 16 | data);
}
