//! Tests this host's KVM with small guests, which show whether this KVM is the processor's own virtualisation.
//!
//! On some hosts, `/dev/kvm` emulates the kernel mode of its guests in software: slowly, incompletely, and
//! with silent errors. No capability shows whether KVM executes as hardware does, but a few executed
//! instructions do.

use std::time::{Duration, Instant};

use cpu::{CpuModel, CpuState, EmptyBus, Segment, Stop, TableRegister, fold_registers};
use guest_ram::GuestRam;
use kvm_ioctls::Cap;

use crate::error::Error;
use crate::run::KvmCpu;
use crate::vm;
use engine_contract::{End, LandingPlace, Leave};

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The guest ran as on hardware.
    Works,
    /// The guest ran differently, and how.
    Fails(String),
}

/// The capabilities that `/dev/kvm` reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The first required capability that is missing.
    pub missing: Option<&'static str>,
    /// Whether written pages can be reported by a ring.
    pub dirty_ring: bool,
    /// The largest number of vCPUs that the kernel recommends.
    pub vcpus: usize,
}

/// Queries `/dev/kvm`.
pub fn capabilities() -> Result<Capabilities, Error> {
    let kvm = vm::open()?;
    let missing = match vm::check(&kvm) {
        Err(Error::Lacks(what)) => Some(what),
        _ => None,
    };
    Ok(Capabilities {
        missing,
        dirty_ring: kvm.check_extension(Cap::DirtyLogRing),
        vcpus: kvm.get_nr_vcpus(),
    })
}

/// Refuses a KVM that does not execute as hardware does. Makes only quick tests.
pub fn refuse_imitation() -> Result<(), Error> {
    kernel_mode().map_err(Error::Imitation)
}

/// The CPU model of KVM's processor. The page fault of an instruction that updates memory shows whether the
/// processor is real hardware.
pub fn model() -> Result<CpuModel, Error> {
    let stuck = |why| Error::Stuck { rip: CODE, why };
    match update_fault().map_err(stuck)?[..] {
        [code] if code & WRITE != 0 => Ok(CpuModel::V2_1Kvm),
        [_] => Ok(CpuModel::V2_1KvmTcg),
        _ => Err(stuck("a page fault did not reach the guest's handler".to_string())),
    }
}

/// Runs the small guests. Returns the guests' names and results.
pub fn probe() -> Vec<(&'static str, Probe)> {
    let guests: [(&str, Guest); 4] = [
        ("kernel-mode instructions", kernel_mode),
        ("SYSCALL", system_call),
        ("breakpoints in user mode", user_breakpoint),
        ("kernel-mode speed", speed),
    ];
    guests.map(|(name, guest)| (name, guest().map_or_else(Probe::Fails, |()| Probe::Works))).into()
}

/// Runs one small guest. An error says what differs from hardware.
type Guest = fn() -> Result<(), String>;

const CODE: u64 = 0x1000;
const USER_CODE: u64 = 0x2000;
const HANDLER: u64 = 0x3000;
const IDT: u64 = 0x4000;
const GDT: u64 = 0x5000;
const STACK: u64 = 0x7000;
const TABLES: u64 = 0x8000;
const RESULT_PORT: u16 = 0x10;
/// This time is longer than a guest of a few instructions takes, even on an emulated and busy host. A guest
/// that hangs is stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// A vCPU at `CODE` in kernel mode, in 64-bit mode with the first 2 MiB mapped for kernel and user mode.
fn guest(kernel: &[u8], user: &[u8]) -> Result<(KvmCpu, CpuState), String> {
    let ram = GuestRam::new(2 << 20).map_err(|error| error.to_string())?;
    ram.write_bytes(CODE, kernel);
    ram.write_bytes(USER_CODE, user);
    // All three entries are present, writable and for user mode. The last entry maps a 2 MiB page.
    for (table, entry) in [(0, TABLES + 0x1007), (0x1000, TABLES + 0x2007), (0x2000, 0x87)] {
        ram.store_u64(TABLES + table, entry);
    }
    let mut cpu = KvmCpu::new(ram, CpuModel::V2Kvm).map_err(|error| error.to_string())?;
    let state = kernel_state();
    cpu.set_state(&state);
    Ok((cpu, state))
}

fn kernel_state() -> CpuState {
    let mut state = CpuState::reset();
    let flat = |selector, attributes| Segment { selector, base: 0, limit: u32::MAX, attributes };
    state.segments = [flat(0x10, 0xc093); 6];
    state.segments[1] = flat(8, 0xa09b);
    state.tr = Segment { selector: 0x40, base: 0x6000, limit: 0x67, attributes: 0x8b };
    state.idtr = TableRegister::default();
    state.gdtr = TableRegister::default();
    state.cr0 = 0x8005_0033;
    state.cr3 = TABLES;
    // PAE, OSFXSR, OSXMMEXCPT.
    state.cr4 = 0x620;
    // SCE, LME, LMA, NXE.
    state.msrs.efer = 0xd01;
    state.gpr = [0; 16];
    state.gpr[4] = STACK;
    state.rip = CODE;
    state
}

fn run(cpu: &mut KvmCpu, leave: Leave) -> Result<(End, Vec<u8>), String> {
    let mut bus = EmptyBus::default();
    let end = cpu.run(&mut bus, leave).map_err(|error| error.to_string())?;
    if cpu.statistics().emulated > 0 {
        return Err("it cannot execute an instruction that every processor has".to_string());
    }
    let results = bus.written.iter().filter(|(port, _)| *port == RESULT_PORT);
    Ok((end, results.map(|(_, value)| *value as u8).collect()))
}

fn run_to_halt(cpu: &mut KvmCpu) -> Result<Vec<u8>, String> {
    match run(cpu, Leave::After { due: PATIENCE, force: PATIENCE, note: false })? {
        (End::Stop(Stop::Halted), results) => Ok(results),
        (end, _) => Err(format!("a guest of a few instructions did not come to its end ({end:?})")),
    }
}

fn expect(what: &str, found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} instead of {expected:?}"))
}

/// mov ecx, 0xff; popcnt eax, ecx; out 0x10, al; hlt
fn kernel_mode() -> Result<(), String> {
    let code = [0xb9, 0xff, 0, 0, 0, 0xf3, 0x0f, 0xb8, 0xc1, 0xe6, RESULT_PORT as u8, 0xf4];
    let (mut cpu, _) = guest(&code, &[])?;
    expect("POPCNT in kernel mode", &run_to_halt(&mut cpu)?, &[8])
}

const PAGE_FAULT: u64 = 14;
/// Bit of a page fault's error code: the access was a write.
const WRITE: u8 = 1 << 1;

/// inc dword [4 MiB], which is not mapped. Handler: pop rax; out 0x10, al; hlt
fn update_fault() -> Result<Vec<u8>, String> {
    let (mut cpu, mut state) = guest(&[0xff, 0x04, 0x25, 0, 0, 0x40, 0], &[])?;
    let ram = cpu.cpu().ram();
    ram.write_bytes(HANDLER, &[0x58, 0xe6, RESULT_PORT as u8, 0xf4]);
    // A 64-bit code segment like the running one, and an interrupt gate into it.
    ram.store_u64(GDT + 8, 0x00af_9b00_0000_ffff);
    ram.store_u64(IDT + PAGE_FAULT * 16, 0x8e00 << 32 | 8 << 16 | HANDLER);
    state.gdtr = TableRegister { base: GDT, limit: 15 };
    state.idtr = TableRegister { base: IDT, limit: 0xfff };
    cpu.set_state(&state);
    run_to_halt(&mut cpu)
}

/// A state in user mode at `USER_CODE`. SYSCALL leads to `CODE`.
fn user_state(mut state: CpuState) -> CpuState {
    let flat = |selector, attributes| Segment { selector, base: 0, limit: u32::MAX, attributes };
    state.segments = [flat(0x1b, 0xc0f3); 6];
    state.segments[1] = flat(0x23, 0xa0fb);
    state.msrs.star = 0x0010_0008 << 32;
    state.msrs.lstar = CODE;
    state.rip = USER_CODE;
    state
}

/// User: syscall. Kernel: mov eax, cs; and al, 3; out 0x10, al; hlt
fn system_call() -> Result<(), String> {
    let kernel = [0x8c, 0xc8, 0x24, 3, 0xe6, RESULT_PORT as u8, 0xf4];
    let (mut cpu, state) = guest(&kernel, &[0x0f, 0x05])?;
    cpu.set_state(&user_state(state));
    expect("the privilege level behind SYSCALL", &run_to_halt(&mut cpu)?, &[0])
}

/// User: nop; nop; syscall. The landing place is at the second nop.
fn user_breakpoint() -> Result<(), String> {
    let (mut cpu, state) = guest(&[0xf4], &[0x90, 0x90, 0x0f, 0x05])?;
    let state = user_state(state);
    cpu.set_state(&state);
    let registers = fold_registers(&state.gpr);
    let goal = LandingPlace { rip: USER_CODE + 1, registers, branches: None, ..LandingPlace::default() };
    match run(&mut cpu, Leave::At(goal))? {
        (End::LandingPlace, _) if cpu.statistics().landed_by_software == 0 => Ok(()),
        (end, _) => Err(format!("a hardware breakpoint did not hit ({end:?})")),
    }
}

/// Iterations of the loop, two instructions each.
const ITERATIONS: u32 = 500_000;
/// The lowest speed, in millions of instructions per second, that the probe accepts. Even the slowest hardware is a
/// hundred times as fast.
const MILLION_PER_SECOND: u64 = 20;

/// mov ecx, ITERATIONS; 1: dec ecx; jnz 1b; hlt
fn speed() -> Result<(), String> {
    let mut code = vec![0xb9];
    code.extend(ITERATIONS.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc, 0xf4]);
    let (mut cpu, _) = guest(&code, &[])?;
    let before = Instant::now();
    run_to_halt(&mut cpu)?;
    let nanoseconds = before.elapsed().as_nanos().max(1) as u64;
    let found = u64::from(ITERATIONS) * 2 * 1000 / nanoseconds;
    if found >= MILLION_PER_SECOND {
        return Ok(());
    }
    Err(format!("{found} million instructions per second: kernel mode is emulated, not executed"))
}
