//! Regressions that the cut fuzzer (`tests/cuts`) found: cases whose result once depended on where a run was cut.

use cpu::{CpuState, Stop};
use iced_x86::code_asm::*;

use crate::harness::*;

/// Runs a machine's steps in one piece, and again step by step with empty caches before each step. Both runs
/// must reach the same state.
fn both_ways(make: impl Fn() -> Machine, steps: u64) -> CpuState {
    let mut whole = make();
    whole.run_steps(steps);
    let mut stepped = make();
    for _ in 0..steps {
        stepped.run_steps(1);
    }
    assert!(whole.state == stepped.state, "{:#x?}\n{:#x?}", whole.state, stepped.state);
    assert_eq!(whole.counts, stepped.counts);
    let memory = |m: &Machine| {
        let mut bytes = vec![0; 0xa_0000];
        m.ram().read_bytes(0, &mut bytes);
        bytes
    };
    assert!(memory(&whole) == memory(&stepped), "memory differs");
    whole.state
}

/// Address of the page-table entry of a page in [`Machine::long`].
fn entry(address: u64) -> u64 {
    TABLES + 0x3000 + 8 * (address >> 12)
}

#[test]
fn code_that_maps_its_page_elsewhere_goes_on_there() {
    let make = || {
        let mut m = Machine::long();
        for (page, value) in [(CODE, 1), (DATA, 2)] {
            m.code_at(64, page, CODE, |a| {
                a.mov(qword_ptr(rbx), rcx).unwrap();
                a.mov(eax, value).unwrap();
            });
        }
        m.state.gpr[3] = entry(CODE);
        m.state.gpr[1] = DATA | 0x67;
        m
    };
    assert_eq!(both_ways(make, 2).gpr[0], 2, "the instruction behind the store is the new page's");
}

#[test]
fn code_that_clears_its_page_s_accessed_bit_sets_it_again() {
    let make = || {
        let mut m = Machine::long();
        m.code(64, |a| {
            a.mov(qword_ptr(rbx), rcx).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
        });
        m.state.gpr[3] = entry(CODE);
        m.state.gpr[1] = CODE | 7;
        m
    };
    assert_eq!(both_ways(make, 2).gpr[0] & 0x20, 0x20);
}

#[test]
fn code_faults_where_its_segment_ends_and_not_before() {
    let make = || {
        let mut m = Machine::protected();
        // Two one-byte instructions lie inside the limit; the third's second byte does not.
        m.put(CODE, &[0x40, 0x40, 0x89, 0xc1, 0x40]);
        m.state.gpr[0] = 0;
        m.state.segments[1].limit = CODE as u32 + 2;
        m
    };
    let state = both_ways(make, 2);
    assert_eq!((state.gpr[0], state.rip), (2, CODE + 2));
    let state = both_ways(make, 3);
    assert_eq!((state.gpr[1], state.rip), (0, handler(13)), "#GP instead of the third");
    let make_shorter = || {
        let mut m = make();
        m.state.segments[1].limit = CODE as u32 + 1;
        m
    };
    let state = both_ways(make_shorter, 3);
    assert_eq!((state.gpr[0], state.rip), (2, handler(13)), "the second ends where the segment does");
}

#[test]
fn accessed_bits_set_in_code_change_the_code() {
    // `nop; mov edx, [rbx]; add al, imm8` ends with the low byte of a page-table entry. The MOV is the first read of
    // that entry's page. The walk sets the accessed bit, 20h, which changes the ADD.
    let make = || {
        let mut m = Machine::long();
        let place = entry(DATA);
        m.put(place - 4, &[0x90, 0x8b, 0x13, 0x04]);
        m.page(DATA, 0x60, 0);
        m.state.rip = place - 4;
        m.state.gpr[0] = 0;
        m.state.gpr[3] = DATA;
        m
    };
    assert_eq!(both_ways(make, 3).gpr[0], 0x27, "ADD AL, 7 has become ADD AL, 27h");
}

/// One page of code at two addresses. The page is also a page table, and the entry of the second address lies in
/// the code. Running the code at the second address sets the entry's accessed bit, which changes an operand.
#[test]
fn accessed_bits_that_a_fetch_sets_in_its_own_code_change_the_code() {
    let make = || {
        let mut m = Machine::long();
        let table = TABLES + 0x3000;
        let second = 0x10_0000;
        let place = entry(second);
        assert_eq!(place & !0xfff, table, "the page table maps itself");
        // `mov al, imm8` ends with the entry's low byte, which is 7, or 27h after use. The rest of the entry
        // decodes as `xor [rcx], al; add [rax], al; add [rax], al`. The entry is followed by `add bl, bl; ret`.
        m.put(place - 1, &[0xb0]);
        m.put64(place, table | 7);
        m.put(place + 8, &[0xdb, 0xc3]);
        m.state.gpr[0] = DATA;
        m.state.gpr[1] = DATA + 0x100;
        m.code(64, |a| {
            a.call(place - 1).unwrap();
            a.mov(edx, eax).unwrap();
            a.call(second | (place - 1) & 0xfff).unwrap();
        });
        m
    };
    let state = both_ways(make, 14);
    assert_eq!((state.gpr[2] as u8, state.gpr[0] as u8), (7, 0x27));
}

#[test]
fn an_entry_read_in_two_widths_is_dropped_by_a_change_of_either_half() {
    // A page table of 32-bit paging becomes one of PAE paging. Then the high half of an 8-byte entry changes.
    let mut m = Machine::protected();
    let (directory, table, pointers, pae_directory) =
        (TABLES, TABLES + 0x1000, TABLES + 0x2000, TABLES + 0x4000);
    m.put32(directory, table as u32 | 7);
    for page in 0..1024_u32 {
        m.put32(table + 4 * u64::from(page), page << 12 | 7);
    }
    m.state.cr3 = directory;
    m.state.cr0 |= 1 << 31;
    m.put(CODE, &[0x8b, 0x03]);
    m.state.gpr[3] = DATA;
    m.load();
    m.cpu.run(&mut m.bus, 1, 0);
    // The same CPU now uses the same page as a table of 8-byte entries.
    m.put64(pointers, pae_directory | 1);
    m.put64(pae_directory, table | 7);
    for page in 0..512 {
        m.put64(table + 8 * page, page << 12 | 7);
    }
    m.put32(DATA, 0x1234);
    let mut state = m.cpu.state();
    state.cr4 |= 0x20;
    state.pdptes = [pae_directory | 1, 0, 0, 0];
    state.rip = CODE;
    state.gpr[1] = 1;
    state.gpr[2] = table + 8 * (DATA >> 12) + 4;
    m.ram().replace_bytes(CODE, &[0x8b, 0x03, 0x89, 0x0a, 0x8b, 0x03]);
    m.cpu.set_registers(&state);
    m.cpu.run(&mut m.bus, 4, 1);
    let state = m.cpu.state();
    assert_eq!(state.gpr[0] as u32, u32::MAX, "bit 32 of the address leads out of RAM: {:#x?}", state.gpr);
}

#[test]
fn an_interrupt_behind_an_nmi_comes_before_the_handler_s_first_instruction() {
    let make = || {
        let mut m = Machine::long();
        m.long_gate(2, handler(2), 0x8f00, 0);
        m.put(handler(2), &[0x90, 0x90, 0xf4]);
        m.put(CODE, &[0x90, 0x90, 0x90]);
        m.state.rflags |= 0x200;
        m.bus.signals.nmi = true;
        m.bus.signals.interrupt = true;
        m.bus.vector = 0x30;
        m
    };
    assert_eq!(both_ways(make, 2).rip, handler(0x30));
}

#[test]
fn an_interrupt_that_cannot_be_delivered_shuts_down() {
    let mut m = Machine::long();
    m.put(CODE, &[0x90, 0x90]);
    m.state.rflags |= 0x200;
    m.state.idtr.limit = 0;
    m.bus.signals.interrupt = true;
    m.bus.vector = 0x30;
    assert_eq!(m.run(), Stop::Shutdown);
    assert_eq!(m.counts.steps, 1);
}

#[test]
fn an_instruction_crosses_pages_where_its_linear_address_does() {
    let mut m = Machine::real();
    // CS begins 20h bytes into a page.
    m.state.segments[1].base = CODE + 0x20;
    m.state.rip = 0xfdf;
    m.put(CODE + 0xfff, &[0xb0, 0x11]);
    m.put(CODE + 0x1020, &[0x22]);
    m.run_steps(1);
    assert_eq!((m.state.gpr[0] & 0xff, m.state.rip), (0x11, 0xfe1));
}

#[test]
fn what_a_device_writes_between_two_runs_is_executed() {
    let mut m = Machine::long();
    m.put(CODE, &[0xff, 0xc0, 0xeb, 0xfc]);
    m.state.gpr[0] = 0;
    m.load();
    m.cpu.run(&mut m.bus, 4, 0);
    // DEC instead of INC.
    m.ram().replace_bytes(CODE + 1, &[0xc8]);
    m.cpu.run(&mut m.bus, 8, 4);
    assert_eq!(m.cpu.state().gpr[0], 0, "twice up, twice down");
}

#[test]
fn what_comes_between_two_runs_is_seen() {
    let mut m = Machine::long();
    m.put(CODE, &[0x90; 16]);
    m.state.rflags |= 0x200;
    m.load();
    assert_eq!(m.cpu.run(&mut m.bus, 3, 0), Stop::Budget);
    m.bus.signals.stop = true;
    assert_eq!(m.cpu.run(&mut m.bus, 6, 3), Stop::Bus);
    m.bus.signals.stop = false;
    m.bus.signals.interrupt = true;
    m.bus.vector = 0x30;
    assert_eq!(m.cpu.run(&mut m.bus, 6, 3), Stop::Halted);
    assert_eq!((m.cpu.rip(), m.cpu.steps()), (handler(0x30) + 1, 5));
}

/// The delivery of an interrupt is a step. So an interrupt is not delivered if the budget has no step left.
#[test]
fn an_interrupt_waits_where_the_budget_ends() {
    let mut m = Machine::long();
    m.put(CODE, &[0x90; 16]);
    m.state.rflags |= 0x200;
    m.load();
    assert_eq!(m.cpu.run(&mut m.bus, 3, 0), Stop::Budget);
    m.bus.signals.interrupt = true;
    assert_eq!(m.cpu.run(&mut m.bus, 3, 0), Stop::Budget);
    assert_eq!((m.cpu.rip(), m.cpu.steps(), m.bus.acknowledged), (CODE + 3, 3, 0));
}

/// The routine's first byte, 40h, is INC EAX in 32-bit code, and a prefix in 64-bit code.
#[test]
fn the_same_bytes_are_other_code_in_another_mode() {
    let mut m = Machine::long();
    let routine = CODE + 0x100;
    m.put(routine, &[0x40, 0x90, 0xcb]);
    for (at, selector) in [(DATA, KERNEL_CS), (DATA + 8, KERNEL_CS32)] {
        m.put64(at, routine | u64::from(selector) << 32);
    }
    m.state.gpr[0] = 0;
    m.state.gpr[1] = DATA;
    // Far calls through 6-byte pointers in memory.
    m.put(CODE, &[0xff, 0x19, 0xff, 0x59, 8, 0xff, 0x19, 0xf4]);
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!((m.state.gpr[0], m.state.rip), (1, CODE + 8));
}
