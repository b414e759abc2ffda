//! The processor's counter of retired conditional branches, through `perf_event_open(2)`.
//!
//! What is here finds out whether there is one that can be trusted. Nothing uses it for positions yet.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// What is known of this host's counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterReport {
    /// The raw event, where the processor is known.
    pub event: Option<u64>,
    /// Whether it can be opened and counts exactly; else why not.
    pub usable: Result<(), String>,
    /// What to do about it.
    pub advice: &'static str,
}

/// `struct perf_event_attr` as of its first version (64 bytes), which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const PERF_TYPE_RAW: u32 = 4;
const PINNED: u64 = 1 << 2;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// Conditional branches of the loop that is counted.
const BRANCHES: u64 = 100_000;
/// Opening and reading the counter executes some of its own.
const SLACK: u64 = 64;

/// Opens the counter and counts a loop whose branches are known.
pub fn test_counter() -> CounterReport {
    let event = event_of_this_processor();
    let Some(number) = event else {
        let why = "no exact counter of conditional branches is known for this processor".to_string();
        return CounterReport {
            event,
            usable: Err(why),
            advice: "positions come from exits and hashes instead",
        };
    };
    match count_loop(number) {
        Ok(counted) if (BRANCHES..BRANCHES + SLACK).contains(&counted) => {
            CounterReport { event, usable: Ok(()), advice: "" }
        }
        Ok(counted) => CounterReport {
            event,
            usable: Err(format!("it counts {counted} branches in a loop of {BRANCHES}")),
            advice: "a hypervisor below may be in the way: use a machine of your own",
        },
        Err(error) => CounterReport {
            event,
            advice: match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => "set kernel.perf_event_paranoid to 1 or less",
                Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
                    "this (virtual) machine has no performance counters: positions come from exits and hashes instead"
                }
                _ => "see perf_event_open(2)",
            },
            usable: Err(format!("it cannot be opened: {error}")),
        },
    }
}

/// The raw event that counts retired conditional branches, exactly.
fn event_of_this_processor() -> Option<u64> {
    let vendor = std::arch::x86_64::__cpuid(0);
    let signature = std::arch::x86_64::__cpuid(1).eax;
    let base_family = signature >> 8 & 0xf;
    let family = if base_family == 0xf { base_family + (signature >> 20 & 0xff) } else { base_family };
    let model = signature >> 4 & 0xf | signature >> 12 & 0xf0;
    event_of(&[vendor.ebx, vendor.edx, vendor.ecx], family, model)
}

/// By vendor, family and model; Intel's event changed its number with Ice Lake.
fn event_of(vendor: &[u32; 3], family: u32, model: u32) -> Option<u64> {
    const INTEL: [u32; 3] = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
    const AMD: [u32; 3] = [0x6874_7541, 0x6974_6e65, 0x444d_4163];
    /// Sandy Bridge to Comet Lake, and Xeons of these years.
    const OLDER: [u32; 24] = [
        0x2a, 0x2d, 0x3a, 0x3e, 0x3c, 0x3f, 0x45, 0x46, 0x3d, 0x47, 0x4f, 0x56, 0x4e, 0x5e, 0x55, 0x8e, 0x9e,
        0xa5, 0xa6, 0x66, 0x1a, 0x1e, 0x2c, 0x2f,
    ];
    /// Ice Lake to Raptor Lake, and Xeons of these years.
    const NEWER: [u32; 12] = [0x7d, 0x7e, 0x6a, 0x6c, 0x8c, 0x8d, 0xa7, 0x97, 0x9a, 0xb7, 0x8f, 0xcf];
    match *vendor {
        AMD if (0x17..=0x1a).contains(&family) => Some(0xd1),
        INTEL if family == 6 && OLDER.contains(&model) => Some(0x01c4),
        INTEL if family == 6 && NEWER.contains(&model) => Some(0x11c4),
        _ => None,
    }
}

fn count_loop(event: u64) -> io::Result<u64> {
    let counter = open(event)?;
    let before = read(&counter)?;
    let mut left = BRANCHES;
    // SAFETY: the loop changes a register and flags, nothing else.
    unsafe {
        std::arch::asm!("2: dec {left}", "jnz 2b", left = inout(reg) left, options(nomem, nostack));
    }
    debug_assert_eq!(left, 0);
    Ok(read(&counter)? - before)
}

fn open(event: u64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: PERF_TYPE_RAW,
        size: size_of::<Attributes>() as u32,
        config: event,
        flags: PINNED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        ..Attributes::default()
    };
    // SAFETY: the structure is as long as it says and lives through the call; 0 and -1: this thread, on any processor.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, libc::O_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

fn read(counter: &OwnedFd) -> io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::from(counter.try_clone()?).read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_by_family() {
        let intel = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
        let amd = [0x6874_7541, 0x6974_6e65, 0x444d_4163];
        for (vendor, family, model, expected) in [
            (intel, 6, 0x9e, Some(0x01c4)),
            (intel, 6, 0x8f, Some(0x11c4)),
            (intel, 6, 0x1c, None),
            (amd, 0x17, 0x31, Some(0xd1)),
            (amd, 0x15, 2, None),
            ([0; 3], 6, 0x9e, None),
        ] {
            assert_eq!(event_of(&vendor, family, model), expected, "{vendor:x?} {family:#x} {model:#x}");
        }
    }

    #[test]
    fn a_counter_is_exact_or_there_is_a_reason() {
        let report = test_counter();
        assert_eq!(report.usable.is_ok(), report.advice.is_empty(), "{report:?}");
    }
}
