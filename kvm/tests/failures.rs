//! Errors of a vCPU that cannot continue. The tests need a KVM that executes as hardware does.

use cpu::{CpuState, EmptyBus, Segment, Stop};
use engine_contract::{End, Leave};
use guest_ram::{GuestRam, PAGE_SIZE};
use kvm::{Error, KvmCpu};
use vm_memory::{GuestAddress, GuestMemoryBackend};

const CODE: u64 = 0x1000;
const DATA: u64 = 0x8000;

/// A vCPU in real mode at `code`. Skips the test if the host can have no vCPU.
fn guest(code: &[u8]) -> Option<KvmCpu> {
    if let Err(error) = kvm::capabilities().map(|_| ()).and_then(|()| kvm::refuse_imitation()) {
        skip::test(error);
        return None;
    }
    let ram = GuestRam::new(2 << 20).unwrap();
    ram.write_bytes(CODE, code);
    let mut state = CpuState::reset();
    let data = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x93 };
    state.segments = [data; 6];
    state.segments[1] = Segment { attributes: 0x9b, ..data };
    state.rip = CODE;
    let mut cpu = KvmCpu::new(ram, kvm::model().unwrap()).unwrap();
    cpu.set_state(&state);
    Some(cpu)
}

#[test]
fn memory_that_the_host_takes_away_ends_the_run_with_a_sentence() {
    // nop; mov ax, [DATA]; hlt
    let Some(mut cpu) = guest(&[0x90, 0xa1, 0x00, 0x80, 0xf4]) else { return };
    let page = cpu.cpu().ram().memory().get_host_address(GuestAddress(DATA)).unwrap();
    // SAFETY: this page of guest memory is touched only by the guest from here on.
    assert_eq!(unsafe { libc::mprotect(page.cast(), PAGE_SIZE as usize, libc::PROT_NONE) }, 0);
    match cpu.run(&mut EmptyBus::default(), Leave::AtExits) {
        Err(error @ Error::Stuck { .. }) => {
            let told = error.to_string();
            assert!(told.contains("cannot go on at RIP 0x1001") && told.contains("Bad address"), "{told}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_triple_fault_is_the_guests_own_end() {
    // lidt [DATA], which is zero: no vectors; ud2
    let Some(mut cpu) = guest(&[0x0f, 0x01, 0x1e, 0x00, 0x80, 0x0f, 0x0b]) else { return };
    let end = cpu.run(&mut EmptyBus::default(), Leave::AtExits).unwrap();
    assert_eq!(end, End::Stop(Stop::Shutdown));
    assert!(cpu.cpu().state().shut_down);
}
