//! A process forks while its CPU is between two runs. Each fork continues with its copy of the translated code, and
//! changes only its own copy.

use cpu::{Counts, CpuState, Stop};
use iced_x86::code_asm::*;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::harness::*;

const ROUNDS: u64 = 600;
/// Functions in pages of their own, whose code the guest changes.
const FUNCTIONS: [u64; 3] = [0x9_0000, 0x9_1000, 0x9_2ffd];
const FORKS: u64 = 10;

/// A guest that changes and calls the functions in turn. The guest's result depends on every call.
fn guest() -> Machine {
    let mut m = Machine::long();
    for function in FUNCTIONS {
        m.code_at(64, function, function, |a| {
            a.mov(eax, 0x0102_0304).unwrap();
            a.ret().unwrap();
        });
    }
    m.code(64, |a| {
        let mut top = a.create_label();
        a.mov(rcx, ROUNDS).unwrap();
        a.xor(ebx, ebx).unwrap();
        a.set_label(&mut top).unwrap();
        for (n, function) in FUNCTIONS.into_iter().enumerate() {
            let mut unchanged = a.create_label();
            a.mov(rdx, function).unwrap();
            a.test(ecx, (1 << (2 * n)) - 1).unwrap();
            a.jne(unchanged).unwrap();
            a.imul_3(eax, ecx, 1_664_525).unwrap();
            a.mov(dword_ptr(rdx + 1), eax).unwrap();
            a.set_label(&mut unchanged).unwrap();
            a.call(rdx).unwrap();
            a.add(rbx, rax).unwrap();
            a.rol(rbx, 7).unwrap();
        }
        a.dec(rcx).unwrap();
        a.jne(top).unwrap();
        a.hlt().unwrap();
    });
    m
}

/// Runs to the end in parts of this many steps, and returns everything that the guest has computed.
fn finish(m: &mut Machine, part: u64) -> (CpuState, Counts, Vec<u64>) {
    while m.cpu.run(&mut m.bus, m.cpu.steps() + part, u64::MAX) == Stop::Budget {}
    let functions = FUNCTIONS.iter().map(|&function| m.ram().load_u64(function)).collect();
    (m.cpu.state(), m.cpu.counts(), functions)
}

#[test]
fn forks_change_code_and_all_come_to_the_same_end() {
    let mut whole = guest();
    whole.load();
    let expected = finish(&mut whole, u64::MAX / 2);
    assert_eq!(expected.0.gpr[1], 0);
    let mut m = guest();
    m.load();
    assert_eq!(m.cpu.run(&mut m.bus, expected.1.steps / 2, u64::MAX), Stop::Budget);
    let forks: Vec<Pid> = (0..FORKS)
        .map(|number| {
            // SAFETY: the fork uses only memory, and ends without running anything else.
            match unsafe { fork() }.unwrap() {
                ForkResult::Parent { child } => child,
                ForkResult::Child => {
                    let is_equal = finish(&mut m, 50 + 1000 * number) == expected;
                    // SAFETY: `_exit` ends the process, and runs no other code of this program.
                    unsafe { nix::libc::_exit(i32::from(!is_equal)) }
                }
            }
        })
        .collect();
    for fork in forks {
        assert_eq!(waitpid(fork, None), Ok(WaitStatus::Exited(fork, 0)));
    }
    assert!(finish(&mut m, 77) == expected, "a fork has changed this process's code");
}
