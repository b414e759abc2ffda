//! The difference between two states of a guest: registers, processes, variables of the kernel, memory by its use, disk
//! blocks, and the console.
//!
//! The two states may be of one recording, or of two recordings of guests with equal RAM. Variables are compared by
//! name, so a kernel at other addresses (KASLR) makes no difference. Pages are compared by physical address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter, Result as Written};

use checkpoint::{PAGE_BYTES, Page};
use guest_symbols::page_owners::{Owner, PageOwners};
use guest_symbols::tasks::Tasks;
use guest_symbols::{Access, Symbols};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};
use schemars::JsonSchema;
use serde::Serialize;

use crate::state::Registers;
use crate::tasks::{Task, TaskList};

/// The largest variable that is compared.
const MOST_VARIABLE_BYTES: u64 = 1 << 16;
/// The number of bytes of a variable that are shown, from the first difference on.
const SHOWN_BYTES: usize = 8;

/// The state of a guest, with all memory.
pub struct Side {
    point: Point,
    registers: Vec<(usize, BTreeMap<&'static str, String>)>,
    tasks: Option<TaskList>,
    variables: BTreeMap<String, Vec<u8>>,
    /// The pages of RAM with other contents than zeroes, by number.
    pages: BTreeMap<u64, Box<Page>>,
    /// The written blocks of the disk.
    blocks: BTreeMap<u64, Box<Page>>,
    /// The number of bytes that the console has shown so far, and the last of these bytes.
    console: (u64, Vec<u8>),
}

/// A position of a run.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Point {
    /// The number of instructions executed before this position.
    pub instruction: u64,
    /// The guest's time.
    pub guest_seconds: f64,
}

/// The difference between two states.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Difference {
    /// The first state's position.
    pub from: Point,
    /// The second state's position.
    pub to: Point,
    /// The registers that differ.
    pub registers: Vec<RegisterChange>,
    /// The processes and threads that differ; `None` if one of the states has no known kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskChange>>,
    /// The variables of the kernel that differ, at most as many as the caller wants.
    pub variables: Vec<VariableChange>,
    /// The number of all variables that differ.
    pub variables_changed: usize,
    /// The pages of memory that differ, by their use in the second state.
    pub memory: Vec<PageGroup>,
    /// The number of pages that differ.
    pub pages_changed: usize,
    /// The blocks of the disk (4096 bytes) that differ, at most as many as the caller wants.
    pub disk_blocks: Vec<u64>,
    /// The number of blocks that differ.
    pub blocks_changed: usize,
    /// The text that the console showed after the first state and until the second state. A long text is cut to its
    /// end. `None` if the second state's text does not begin with the first state's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<String>,
}

/// A register that differs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RegisterChange {
    /// The processor's number.
    pub processor: usize,
    /// The register's name.
    pub name: &'static str,
    /// The register's value in the first state, in hex.
    pub old: String,
    /// The register's value in the second state, in hex.
    pub new: String,
}

/// A process or thread that differs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct TaskChange {
    /// The task's number.
    pub pid: u32,
    /// The task's name in the first state; `None` if it does not exist there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The task's name in the second state; `None` if it does not exist there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// What differs, for a task that exists in both states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

/// A variable that differs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct VariableChange {
    /// The variable's name, and the offset of the first difference in it.
    pub name: String,
    /// The variable's bytes in the first state, from the first difference on, in hex.
    pub old: String,
    /// The same bytes of the variable in the second state.
    pub new: String,
}

/// Pages of one use.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PageGroup {
    /// The use of the pages.
    pub what: String,
    /// The number of pages that differ.
    pub pages: usize,
    /// The number of objects that differ, in a cache of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<usize>,
}

impl Side {
    /// The present state of a machine.
    pub fn of(machine: &mut Machine<Instructions>) -> Result<Side, Error> {
        let symbols = Symbols::of_guest(machine).ok();
        let now = machine.moment();
        let registers =
            machine.all_processors().map(|one| (one.number(), Registers::of(one.state()).values)).collect();
        let mut pages = BTreeMap::new();
        let mut page = Box::new([0; PAGE_BYTES]);
        for number in 0..machine.ram().flags().pages() {
            machine.ram().read_bytes(number * PAGE_BYTES as u64, &mut page[..]);
            if page.iter().any(|&byte| byte != 0) {
                pages.insert(number, page.clone());
            }
        }
        Ok(Side {
            point: Point { instruction: now.count.number(), guest_seconds: now.time_ns as f64 / 1e9 },
            registers,
            tasks: symbols.as_ref().and_then(|symbols| {
                let tasks = Tasks::of_kernel(machine, symbols).ok()?;
                Some(TaskList::of(machine, tasks.list(machine), symbols))
            }),
            variables: symbols.as_ref().map(|symbols| variables(machine, symbols)).unwrap_or_default(),
            pages,
            blocks: blocks(machine)?,
            console: (machine.console().length_bytes(), machine.console().text().to_vec()),
        })
    }

    /// The difference from this state to a machine's present state. Lists at most `limit` variables and blocks.
    pub fn to(&self, machine: &mut Machine<Instructions>, limit: usize) -> Result<Difference, Error> {
        let other = Side::of(machine)?;
        let mut variables = variables_between(&self.variables, &other.variables);
        let variables_changed = variables.len();
        variables.truncate(limit);
        let mut disk_blocks = blocks_between(&self.blocks, &other.blocks, machine)?;
        let blocks_changed = disk_blocks.len();
        disk_blocks.truncate(limit);
        let changed = pages_between(&self.pages, &other.pages);
        Ok(Difference {
            from: self.point,
            to: other.point,
            registers: registers_between(&self.registers, &other.registers),
            tasks: self.tasks.as_ref().zip(other.tasks.as_ref()).map(|(old, new)| tasks_between(old, new)),
            variables,
            variables_changed,
            pages_changed: changed.len(),
            memory: groups(machine, &changed),
            disk_blocks,
            blocks_changed,
            console: new_text(&self.console, &other.console),
        })
    }
}

/// The kernel's variables by name, with their contents. Leaves out the variables that the kernel frees at the end of its
/// boot. Several variables of one name are told apart by a number.
fn variables(machine: &Machine<Instructions>, symbols: &Symbols) -> BTreeMap<String, Vec<u8>> {
    let processor = machine.running_processor();
    let is_data =
        |section: usize| symbols.sections().get(section).is_some_and(|it| it.access == Access::Data);
    let mut found = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let edge = |name: &str| symbols.address_of(name).unwrap_or_default();
    let freed = edge("__init_begin")..edge("__init_end");
    for symbol in symbols.all().iter().filter(|symbol| symbol.section.is_some_and(is_data)) {
        if freed.contains(&symbol.address)
            || symbol.size == 0
            || symbol.size > MOST_VARIABLE_BYTES
            || is_label(&symbol.name)
        {
            continue;
        }
        let mut bytes = vec![0; symbol.size as usize];
        if processor.peek(symbol.address, &mut bytes) != bytes.len() {
            continue;
        }
        let count = counts.entry(&symbol.name).or_default();
        *count += 1;
        let name = if *count == 1 { symbol.name.clone() } else { format!("{} ({count})", symbol.name) };
        found.insert(name, bytes);
    }
    found
}

/// Whether a symbol marks the beginning or the end of a section, and has no variable of its own.
fn is_label(name: &str) -> bool {
    let begins = ["__start_", "__stop_", "__end_", "__bss_", "__brk_", "__per_cpu_", "__init_"];
    begins.iter().any(|begin| name.starts_with(begin))
        || ["_end", "_edata", "_sdata", "_brk_start", "_brk_end"].contains(&name)
}

/// The text that the console showed between two states.
fn new_text(old: &(u64, Vec<u8>), new: &(u64, Vec<u8>)) -> Option<String> {
    let added = new.0.checked_sub(old.0)?;
    let from = (new.1.len() as u64).saturating_sub(added) as usize;
    let (before, text) = new.1.split_at(from);
    old.1.ends_with(before).then(|| String::from_utf8_lossy(text).replace('\r', ""))
}

fn blocks(machine: &mut Machine<Instructions>) -> Result<BTreeMap<u64, Box<Page>>, Error> {
    let written: Vec<u64> = match machine.disk_mut() {
        Some(disk) => disk.version().iter_not_base().map(|(number, _)| number).collect(),
        None => Vec::new(),
    };
    let mut found = BTreeMap::new();
    for number in written {
        let mut block = Box::new([0; PAGE_BYTES]);
        machine.read_block(number, &mut block)?;
        found.insert(number, block);
    }
    Ok(found)
}

fn blocks_between(
    old: &BTreeMap<u64, Box<Page>>,
    new: &BTreeMap<u64, Box<Page>>,
    machine: &mut Machine<Instructions>,
) -> Result<Vec<u64>, Error> {
    let numbers: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
    let mut found = Vec::new();
    for number in numbers {
        let differs = match (old.get(&number), new.get(&number)) {
            (Some(old), Some(new)) => old != new,
            // The block was not written in the first state, so it was as in the image. A write of equal contents is
            // listed too, because the image is not read here.
            (None, Some(_)) => true,
            (Some(old), None) => {
                let mut block = [0; PAGE_BYTES];
                machine.read_block(number, &mut block)?;
                **old != block
            }
            (None, None) => false,
        };
        if differs {
            found.push(number);
        }
    }
    Ok(found)
}

fn registers_between(
    old: &[(usize, BTreeMap<&'static str, String>)],
    new: &[(usize, BTreeMap<&'static str, String>)],
) -> Vec<RegisterChange> {
    let pairs = old.iter().zip(new).flat_map(|((processor, old), (_, new))| {
        new.iter().filter_map(move |(name, value)| {
            let before = old.get(name).filter(|&before| before != value)?;
            Some(RegisterChange { processor: *processor, name, old: before.clone(), new: value.clone() })
        })
    });
    pairs.collect()
}

fn tasks_between(old: &TaskList, new: &TaskList) -> Vec<TaskChange> {
    let by_pid = |list: &TaskList| -> BTreeMap<u32, Task> {
        list.tasks.iter().map(|task| (task.pid, task.clone())).collect()
    };
    let (old, new) = (by_pid(old), by_pid(new));
    let pids: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
    let name = |task: Option<&Task>| task.map(|task| task.name.clone());
    let change = |pid: u32| {
        let (old, new) = (old.get(&pid), new.get(&pid));
        let changes = old.zip(new).map(|(old, new)| changes_of(old, new)).unwrap_or_default();
        let differs = old.is_none() || new.is_none() || !changes.is_empty();
        differs.then(|| TaskChange { pid, old: name(old), new: name(new), changes })
    };
    pids.into_iter().filter_map(change).collect()
}

fn changes_of(old: &Task, new: &Task) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |what: &str, old: Option<String>, new: Option<String>| {
        if old != new {
            let text = |value: Option<String>| value.unwrap_or_else(|| "none".to_string());
            found.push(format!("{what} {} -> {}", text(old), text(new)));
        }
    };
    note("name", Some(old.name.clone()), Some(new.name.clone()));
    note("state", old.state.map(String::from), new.state.map(String::from));
    note("parent", old.parent.map(|pid| pid.to_string()), new.parent.map(|pid| pid.to_string()));
    note("page tables", old.cr3.clone(), new.cr3.clone());
    note("waits in", old.waits_in.clone(), new.waits_in.clone());
    found
}

fn variables_between(
    old: &BTreeMap<String, Vec<u8>>,
    new: &BTreeMap<String, Vec<u8>>,
) -> Vec<VariableChange> {
    let changed = new.iter().filter_map(|(name, bytes)| {
        let before = old.get(name)?;
        let at = before.iter().zip(bytes).position(|(old, new)| old != new)? & !(SHOWN_BYTES - 1);
        let shown = |bytes: &[u8]| {
            let part = &bytes[at..bytes.len().min(at + SHOWN_BYTES)];
            let number = part.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
            format!("{number:#x}")
        };
        let name = if at == 0 { name.clone() } else { format!("{name}+{at:#x}") };
        Some(VariableChange { name, old: shown(before), new: shown(bytes) })
    });
    changed.collect()
}

/// The numbers of the pages that differ, each with the offsets of the bytes that differ.
fn pages_between(old: &BTreeMap<u64, Box<Page>>, new: &BTreeMap<u64, Box<Page>>) -> Vec<(u64, Vec<usize>)> {
    let zeroes = Box::new([0; PAGE_BYTES]);
    let numbers: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
    let changed = numbers.into_iter().filter_map(|number| {
        let (old, new) = (old.get(&number).unwrap_or(&zeroes), new.get(&number).unwrap_or(&zeroes));
        if old == new {
            return None;
        }
        let offsets = old.iter().zip(new.iter()).enumerate().filter(|(_, (old, new))| old != new);
        Some((number, offsets.map(|(offset, _)| offset).collect()))
    });
    changed.collect()
}

/// Groups pages by their use in the machine's present state.
fn groups(machine: &Machine<Instructions>, changed: &[(u64, Vec<usize>)]) -> Vec<PageGroup> {
    let owners =
        Symbols::of_guest(machine).ok().and_then(|symbols| PageOwners::of_kernel(machine, &symbols).ok());
    let layout = machine.ram().layout();
    let mut found: BTreeMap<String, (usize, Option<BTreeSet<u64>>)> = BTreeMap::new();
    for (number, offsets) in changed {
        let address = layout.gpa_of(number * PAGE_BYTES as u64);
        let owner = owners.as_ref().and_then(|owners| owners.owner(machine, address));
        let (pages, objects) = found
            .entry(owner.as_ref().map_or_else(|| "memory of unknown use".to_string(), Owner::to_string))
            .or_default();
        *pages += 1;
        if let Some(Owner::Slab(slab)) = &owner {
            let object = |&offset: &usize| {
                let distance = (address + offset as u64).wrapping_sub(slab.start);
                slab.start.wrapping_add(distance / slab.object_bytes * slab.object_bytes)
            };
            objects.get_or_insert_default().extend(offsets.iter().map(object));
        }
    }
    let group = |(what, (pages, objects)): (String, (usize, Option<BTreeSet<u64>>))| PageGroup {
        what,
        pages,
        objects: objects.map(|objects| objects.len()),
    };
    let mut groups: Vec<PageGroup> = found.into_iter().map(group).collect();
    groups.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.what.cmp(&b.what)));
    groups
}

impl Display for TaskChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let TaskChange { pid, old, new, changes } = self;
        match (old, new) {
            (None, Some(name)) => write!(f, "{pid} ({name}) is new"),
            (Some(name), None) => write!(f, "{pid} ({name}) is gone"),
            (_, name) => write!(f, "{pid} ({}): {}", name.as_deref().unwrap_or("?"), changes.join(", ")),
        }
    }
}

/// The text for people.
impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Difference { from, to, .. } = self;
        writeln!(
            f,
            "from insn:{} at {:.9} s to insn:{} at {:.9} s",
            from.instruction, from.guest_seconds, to.instruction, to.guest_seconds
        )?;
        if !self.registers.is_empty() {
            writeln!(f, "\nregisters")?;
        }
        for RegisterChange { processor, name, old, new } in &self.registers {
            let on = if self.registers.iter().any(|it| it.processor > 0) {
                format!("{processor}: ")
            } else {
                String::new()
            };
            writeln!(f, "  {on}{name} {old} -> {new}")?;
        }
        if let Some(tasks) = self.tasks.as_ref().filter(|tasks| !tasks.is_empty()) {
            writeln!(f, "\nprocesses")?;
            tasks.iter().try_for_each(|task| writeln!(f, "  {task}"))?;
        }
        if self.variables_changed > 0 {
            let most =
                if self.variables.len() < self.variables_changed { ", of which the first" } else { "" };
            writeln!(f, "\n{} variables of the kernel{most}", self.variables_changed)?;
        }
        for VariableChange { name, old, new } in &self.variables {
            writeln!(f, "  {name} {old} -> {new}")?;
        }
        if self.pages_changed > 0 {
            writeln!(f, "\n{} pages of memory", self.pages_changed)?;
        }
        for PageGroup { what, pages, objects } in &self.memory {
            let objects = objects.map(|count| format!(", {count} objects")).unwrap_or_default();
            writeln!(f, "  {pages:6}  {what}{objects}")?;
        }
        if self.blocks_changed > 0 {
            let numbers: Vec<String> = self.disk_blocks.iter().map(u64::to_string).collect();
            let rest = if self.disk_blocks.len() < self.blocks_changed { " ..." } else { "" };
            writeln!(f, "\n{} blocks of the disk: {}{rest}", self.blocks_changed, numbers.join(" "))?;
        }
        match self.console.as_deref() {
            None => write!(f, "\nthe consoles show different texts"),
            Some("") => write!(f, "\nthe console shows nothing new"),
            Some(text) => {
                let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
                write!(f, "\nconsole\n{}", lines.join("\n"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(bytes: &[(usize, u8)]) -> Box<Page> {
        let mut page = Box::new([0; PAGE_BYTES]);
        bytes.iter().for_each(|&(at, byte)| page[at] = byte);
        page
    }

    #[test]
    fn pages_differ_at_their_bytes_and_absent_pages_are_zero() {
        let old = [(1, page(&[(0, 1)])), (2, page(&[(5, 1)])), (4, page(&[(9, 9)]))].into();
        let new = [(1, page(&[(0, 1)])), (2, page(&[(5, 2), (7, 7)])), (3, page(&[(4095, 1)]))].into();
        let expected = [(2, vec![5, 7]), (3, vec![4095]), (4, vec![9])];
        assert_eq!(pages_between(&old, &new), expected);
    }

    #[test]
    fn variables_are_compared_by_name_from_the_first_difference_on() {
        let long = |byte: u8| [vec![0; 19], vec![byte], vec![0; 4]].concat();
        let variables = |pairs: &[(&str, Vec<u8>)]| {
            pairs.iter().map(|(name, bytes)| (name.to_string(), bytes.clone())).collect()
        };
        let old = variables(&[("a", vec![1, 2]), ("b", vec![1]), ("long", long(1)), ("gone", vec![1])]);
        let new = variables(&[("a", vec![1, 3]), ("b", vec![1]), ("long", long(2)), ("new", vec![1])]);
        let change = |name: &str, old: &str, new: &str| VariableChange {
            name: name.into(),
            old: old.into(),
            new: new.into(),
        };
        let expected = [change("a", "0x201", "0x301"), change("long+0x10", "0x1000000", "0x2000000")];
        assert_eq!(variables_between(&old, &new), expected);
        assert!(
            is_label("__end_rodata") && is_label("_end") && !is_label("__endless") && !is_label("jiffies_64")
        );
    }

    #[test]
    fn tasks_are_new_or_gone_or_have_changed() {
        let task = |pid: u32, name: &str, state: char| Task {
            pid,
            thread_of: None,
            parent: Some(1),
            state: Some(state),
            cr3: None,
            kernel_thread: false,
            current: false,
            processor: None,
            name: name.to_string(),
            waits_in: None,
        };
        let list = |tasks: &[Task]| TaskList { tasks: tasks.to_vec(), damage: None };
        let old = list(&[task(1, "init", 'S'), task(2, "sh", 'S'), task(3, "cat", 'R')]);
        let new = list(&[task(1, "init", 'S'), task(2, "ls", 'R'), task(4, "wc", 'R')]);
        let told: Vec<String> = tasks_between(&old, &new).iter().map(TaskChange::to_string).collect();
        assert_eq!(told, ["2 (ls): name sh -> ls, state S -> R", "3 (cat) is gone", "4 (wc) is new"]);
    }

    #[test]
    fn the_new_text_of_the_console_is_behind_the_old_text() {
        let text = |old: (u64, &[u8]), new: (u64, &[u8])| {
            new_text(&(old.0, old.1.to_vec()), &(new.0, new.1.to_vec()))
        };
        assert_eq!(text((3, b"abc"), (5, b"abcd\n")).as_deref(), Some("d\n"));
        // Only the last four bytes are kept.
        assert_eq!(text((6, b"cdef"), (8, b"efgh")).as_deref(), Some("gh"));
        assert_eq!(text((6, b"cdef"), (20, b"wxyz")).as_deref(), Some("wxyz"));
        assert_eq!(text((3, b"abc"), (3, b"abc")).as_deref(), Some(""));
        assert_eq!(text((3, b"abc"), (5, b"abxde")), None);
        assert_eq!(text((3, b"abc"), (2, b"ab")), None);
    }

    #[test]
    fn registers_are_named_with_their_processor() {
        let registers = |rax: &str| BTreeMap::from([("rax", rax.to_string()), ("rbx", "0x1".to_string())]);
        let (old, new) =
            ([(0, registers("0x1")), (1, registers("0x2"))], [(0, registers("0x1")), (1, registers("0x3"))]);
        let expected = RegisterChange { processor: 1, name: "rax", old: "0x2".into(), new: "0x3".into() };
        assert_eq!(registers_between(&old, &new), [expected]);
    }
}
