//! Tests whether this host's counter of conditional branches can be trusted, for `ttvm doctor`.
//!
//! Processors, hypervisors and settings each have their way of spoiling the counter (rr's start-up checks
//! found most of them). So the tests here run before the counter is used.

use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::geteuid;

use super::event;
use super::perf::{PerfEvent, Whose};
use crate::kick;

/// The facts about this host's counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterReport {
    /// The raw event, if the processor is known.
    pub event: Option<u64>,
    /// Whether the counter can be opened and counts exactly; otherwise why not.
    pub usable: Result<(), String>,
    /// Advice to the user on what to change.
    pub advice: &'static str,
    /// The results of the other tests of the counter.
    pub tests: Vec<CounterTest>,
}

/// One test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterTest {
    /// Its name.
    pub name: &'static str,
    /// Its result. An error is a reason not to trust the counter, or says that the test was impossible.
    pub found: Result<String, String>,
    /// Advice to the user if the test found an error.
    pub advice: &'static str,
}

/// Conditional branches of the counted loops.
const BRANCHES: u64 = 100_000;
/// Number of extra branches that opening and reading the counter may execute.
const SLACK: u64 = 64;

/// Opens the counter, counts loops whose branches are known, and waits for overflows.
pub fn test_counter() -> CounterReport {
    let event = event::of_this_processor();
    let (usable, advice) = test_event(event);
    let usable_event = event.filter(|_| usable.is_ok());
    let mut tests = vec![overflows(usable_event), locked_instructions(usable_event)];
    tests.extend([freeze_on_smi(), paranoid(), mediated(), hybrid()].into_iter().flatten());
    CounterReport { event, usable, advice, tests }
}

/// Whether there is a counter that counts a loop exactly. Makes only quick tests.
pub fn counter_usable() -> Result<(), String> {
    test_event(event::of_this_processor()).0
}

fn test_event(event: Option<u64>) -> (Result<(), String>, &'static str) {
    match event {
        Some(number) => test_count(number),
        None => (
            Err("no exact counter of conditional branches is known for this processor".to_string()),
            "positions come from exits and hashes instead",
        ),
    }
}

fn test_count(number: u64) -> (Result<(), String>, &'static str) {
    match count_loop(number, spin) {
        Ok(counted) if is_exact(counted) => (Ok(()), ""),
        Ok(counted) => (
            Err(format!("it counts {counted} branches in a loop of {BRANCHES}")),
            "a hypervisor below may be in the way: use a machine of your own",
        ),
        Err(error) => (
            Err(format!("it cannot be opened: {error}")),
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EACCES | Errno::EPERM) => "set kernel.perf_event_paranoid to 1 or less",
                Some(Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV) => {
                    "this (virtual) machine has no performance counters: positions come from exits and hashes instead"
                }
                _ => "see perf_event_open(2)",
            },
        ),
    }
}

fn is_exact(counted: u64) -> bool {
    (BRANCHES..BRANCHES + SLACK).contains(&counted)
}

fn count_loop(number: u64, spin: fn(u64)) -> io::Result<u64> {
    let counter = PerfEvent::open(number, Whose::Thread)?;
    let before = counter.count()?;
    spin(BRANCHES);
    Ok(counter.count()? - before)
}

/// Executes this many conditional branches.
fn spin(branches: u64) {
    // SAFETY: the loop changes a register and flags, nothing else.
    unsafe {
        std::arch::asm!("2: dec {left}", "jnz 2b", left = inout(reg) branches => _, options(nomem, nostack));
    }
}

/// Executes this many conditional branches, each with a locked instruction.
fn spin_locked(branches: u64) {
    let mut word = 0_u64;
    // SAFETY: the loop changes a register, flags and the word, nothing else.
    unsafe {
        std::arch::asm!(
            "2: lock xadd [{word}], {sum}", "dec {left}", "jnz 2b",
            word = in(reg) &raw mut word, sum = inout(reg) 1_u64 => _, left = inout(reg) branches => _,
            options(nostack)
        );
    }
}

const NO_COUNTER: &str = "not tried: there is no counter";

/// Tests how late overflows come. A late overflow costs a repeated landing, and a lost overflow costs the
/// watchdog's time. Without any overflows, every landing would cost both.
fn overflows(event: Option<u64>) -> CounterTest {
    const TRIALS: usize = 200;
    let found = match event {
        None => Err(NO_COUNTER.to_string()),
        Some(number) => match skids(number, TRIALS) {
            Err(error) => Err(error.to_string()),
            Ok(skids) if skids.len() < TRIALS / 2 => Err(format!("{} of {TRIALS} arrived", skids.len())),
            Ok(skids) => Ok(describe(&skids, TRIALS)),
        },
    };
    let advice =
        if event.is_some() { "landing works, but slowly: a watchdog finds lost interrupts" } else { "" };
    CounterTest { name: "counter's overflow", found, advice }
}

fn describe(sorted: &[u64], trials: usize) -> String {
    let share = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
    let lost = trials - sorted.len();
    format!(
        "comes {} branches late (median), 99% within {}, at most {}; {lost} of {trials} lost",
        share(50),
        share(99),
        share(100)
    )
}

/// Measures how many branches late each overflow comes. Returns the delays in ascending order. Overflows that did not
/// come are left out.
fn skids(number: u64, trials: usize) -> io::Result<Vec<u64>> {
    /// Branches between two checks of the handler's flag, which limit the precision.
    const GRAIN: u64 = 8;
    const PERIOD: u64 = 10_000;
    const PATIENCE: Duration = Duration::from_millis(20);
    let counter = PerfEvent::open(number, Whose::Thread)?;
    let mut skids = Vec::new();
    for _ in 0..trials {
        kick::forget_overflow();
        counter.set_period(PERIOD)?;
        let due = counter.count()? + PERIOD;
        let until = Instant::now() + PATIENCE;
        while !kick::overflow_came() && Instant::now() < until {
            spin(GRAIN);
        }
        if kick::overflow_came() {
            skids.push(counter.count()?.saturating_sub(due));
        }
    }
    skids.sort_unstable();
    Ok(skids)
}

/// Tests locked instructions. On Zen, speculation over locked instructions counts branches twice, unless a
/// chicken bit forbids the speculation.
fn locked_instructions(event: Option<u64>) -> CounterTest {
    let found = match event.map(|number| count_loop(number, spin_locked)) {
        None => Err(NO_COUNTER.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        Some(Ok(counted)) if is_exact(counted) => Ok("counted exactly".to_string()),
        Some(Ok(counted)) => Err(format!("{counted} branches counted in a loop of {BRANCHES}")),
    };
    let advice = match (event, event::is_zen()) {
        (None, _) => "",
        (_, true) => "set bit 54 of MSR 0xc0011020 on every processor (rr's zen_workaround.py does)",
        (_, false) => "a hypervisor below may be in the way: use a machine of your own",
    };
    CounterTest { name: "locked instructions", found, advice }
}

fn setting(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_string())
}

/// The result for a setting that is right or wrong.
fn judge(name: &'static str, value: String, good: bool, advice: &'static str) -> CounterTest {
    CounterTest { name, found: if good { Ok(value) } else { Err(value) }, advice }
}

/// Intel only: unless `freeze_on_smi` is set, the counters also count firmware in system management mode.
fn freeze_on_smi() -> Option<CounterTest> {
    let value = setting("/sys/devices/cpu/freeze_on_smi")?;
    let good = value != "0";
    let advice = "write 1 to /sys/devices/cpu/freeze_on_smi, else firmware's branches count too";
    Some(judge("freeze_on_smi", value, good, advice))
}

fn paranoid() -> Option<CounterTest> {
    let value = setting("/proc/sys/kernel/perf_event_paranoid")?;
    let privileged = geteuid().is_root();
    let open = value.parse::<i32>().is_ok_and(|level| level <= 1);
    let value = if privileged && !open { format!("{value}, which does not bind root") } else { value };
    let good = privileged || open;
    let advice = "set kernel.perf_event_paranoid to 1 or less: a guest's kernel counts as kernel";
    Some(judge("perf_event_paranoid", value, good, advice))
}

/// With a mediated PMU, the kernel gives the counters to guests. Other programs then get none that count guests.
fn mediated() -> Option<CounterTest> {
    let value = setting("/sys/module/kvm/parameters/enable_mediated_pmu")?;
    let good = value == "N" || value == "0";
    Some(judge("kvm.enable_mediated_pmu", value, good, "load the module kvm with enable_mediated_pmu=0"))
}

/// A processor with two kinds of cores has two counters.
fn hybrid() -> Option<CounterTest> {
    let cores = setting("/sys/devices/cpu_core/cpus")?;
    let found = Err(format!("this processor has cores of two kinds; the counter is that of {cores}"));
    Some(CounterTest {
        name: "hybrid processor",
        found,
        advice: "start ttvm with taskset, on these cores only",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_exact_or_there_is_a_reason() {
        let report = test_counter();
        assert_eq!(report.usable.is_ok(), report.advice.is_empty(), "{report:?}");
        for test in &report.tests {
            let untried = test.found == Err(NO_COUNTER.to_string());
            assert!(test.found.is_ok() || untried || !test.advice.is_empty(), "{test:?}");
            assert!(!(untried && report.usable.is_ok()), "{test:?}");
        }
    }

    #[test]
    fn lateness_is_told_by_its_order() {
        let sorted: Vec<u64> = (0..100).collect();
        let expected = "comes 49 branches late (median), 99% within 98, at most 99; 2 of 102 lost";
        assert_eq!(describe(&sorted, 102), expected);
    }
}
