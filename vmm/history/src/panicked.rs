//! Finds out from the machine's present state whether the guest's kernel has panicked.

use guest_symbols::messages;
use guest_symbols::reports::{Kind, Sifter, without_time};
use guest_symbols::{GuestView, KernelView, Symbols};
use machine::Machine;
use machine::unit::Unit;

/// The command line of a crash kernel contains this text. Only a panic starts a crash kernel.
const CRASH_KERNEL: &str = "elfcorehdr=";
/// The largest size in bytes of a kernel's command line.
const COMMAND_LINE_BYTES: usize = 4096;

/// The first line of the last panic on the console or in the kernel's log. A running crash kernel means that the kernel
/// before it panicked.
pub fn last_panic<U: Unit>(machine: &Machine<U>) -> Option<String> {
    panic_on_console(machine).or_else(|| {
        let symbols = Symbols::of_guest(machine).ok()?;
        let messages = messages::of_kernel(machine, &symbols).unwrap_or_default();
        let lines = messages.iter().flat_map(|message| message.text.lines());
        panic_in(lines).or_else(|| crash_kernel(machine, &symbols))
    })
}

/// The first lines of all reports in the kernel's log: panics, oopses, warnings and the findings of sanitizers. Empty if the log
/// cannot be read.
pub fn reports_in_log<U: Unit>(machine: &Machine<U>) -> Vec<String> {
    let Ok(symbols) = Symbols::of_guest(machine) else { return Vec::new() };
    let messages = messages::of_kernel(machine, &symbols).unwrap_or_default();
    let mut sifter = Sifter::default();
    let lines = messages.iter().flat_map(|message| message.text.lines());
    lines.filter(|line| sifter.begins(line).is_some()).map(without_control).collect()
}

/// The first line of the last panic at the end of the console.
pub fn panic_on_console<U: Unit>(machine: &Machine<U>) -> Option<String> {
    let console = String::from_utf8_lossy(machine.console().text()).into_owned();
    panic_in(console.lines().map(without_time))
}

fn panic_in<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut sifter = Sifter::default();
    let last = lines.filter(|line| sifter.begins(line) == Some(Kind::Panic)).last()?;
    Some(without_control(last))
}

fn without_control(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn crash_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Option<String> {
    let pointer = symbols.address_of("saved_command_line")?;
    let line = KernelView::all(guest).find_map(|view| {
        let mut address = [0; 8];
        (view.read(pointer, &mut address) == 8).then_some(())?;
        let mut bytes = vec![0; COMMAND_LINE_BYTES];
        let count = view.read(u64::from_le_bytes(address), &mut bytes);
        let end = bytes[..count].iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    })?;
    let is_one = line.split_whitespace().any(|word| word.starts_with(CRASH_KERNEL));
    is_one.then(|| "a crash kernel runs".to_string())
}
