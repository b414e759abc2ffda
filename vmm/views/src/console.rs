//! The guest's console.

use machine::Machine;
use machine::unit::Unit;

/// The last lines of the console, without carriage returns.
pub fn last_lines<U: Unit>(machine: &Machine<U>, count: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(machine.console().text()).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().map(|line| (*line).to_string()).collect()
}
