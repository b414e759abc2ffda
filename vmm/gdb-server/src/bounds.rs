//! Breakpoints and watchpoints (points) that stop only in one process or one address space.
//!
//! At each hit the kernel's running task identifies the process. So a point still stops in the process after the
//! process executes another program with other page tables. A point does not stop in a kernel thread that uses the
//! process's page tables.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use guest_symbols::tasks::Tasks;

use history::timeline::{Filter, address_space};
use machine::Machine;

/// The length of the longest task name that the kernel stores.
const MAX_NAME_BYTES: usize = 15;

/// The restriction of a point.
#[derive(Clone, Debug)]
pub(super) enum Only {
    /// Stop only while the page tables with this physical address of their root are in use. If the kernel is known, a
    /// program's tables and the kernel's tables for this program count as the same.
    Tables(u64, Option<Arc<Tasks>>),
    /// Stop only while the process with this number runs.
    Process(u32, Arc<Tasks>),
    /// Stop only while a process or thread with this name runs.
    Named(String, Arc<Tasks>),
}

impl Only {
    /// Whether the restriction allows a stop at the machine's present place.
    fn holds(&self, machine: &Machine<machine::position::Instructions>) -> bool {
        match self {
            Only::Tables(root, None) => address_space(machine) == *root,
            Only::Tables(root, Some(tasks)) => tasks.address_space(machine) == *root,
            Only::Process(pid, tasks) => {
                tasks.current(machine).is_some_and(|current| current.process == *pid)
            }
            Only::Named(name, tasks) => tasks.current(machine).is_some_and(|current| current.name == *name),
        }
    }

    /// A restriction to a name, which is cut to the length that the kernel stores.
    pub fn named(name: &str, tasks: Arc<Tasks>) -> Only {
        let mut end = name.len().min(MAX_NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Only::Named(name[..end].to_string(), tasks)
    }
}

impl Display for Only {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Only::Tables(root, _) => write!(f, "only in the address space with CR3 {root:#x}"),
            Only::Process(pid, _) => write!(f, "only in process {pid}"),
            Only::Named(name, _) => write!(f, "only in processes named '{name}'"),
        }
    }
}

/// The restrictions of all points.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    /// The restriction of points that are not in `by_address`.
    all: Option<Only>,
    by_address: BTreeMap<u64, Only>,
}

impl Bounds {
    /// Restricts the points at these addresses, or all other points if `addresses` is empty. `None` removes the
    /// restriction.
    pub fn bind(&mut self, only: Option<Only>, addresses: &[u64]) {
        if addresses.is_empty() {
            self.all.clone_from(&only);
        }
        for &address in addresses {
            match &only {
                Some(only) => self.by_address.insert(address, only.clone()),
                None => self.by_address.remove(&address),
            };
        }
    }

    /// The combined filter for a point at an address: its restriction and its condition. `None` if there is neither.
    pub fn filter(&self, address: u64, condition: Option<Filter>) -> Option<Filter> {
        let Some(only) = self.by_address.get(&address).or(self.all.as_ref()).cloned() else {
            return condition;
        };
        let holds = move |machine: &Machine<machine::position::Instructions>| {
            only.holds(machine) && condition.as_ref().is_none_or(|condition| condition.holds(machine))
        };
        Some(Filter::new(holds))
    }
}

impl Display for Bounds {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match &self.all {
            Some(only) => writeln!(f, "break- and watchpoints stop {only}")?,
            None => writeln!(f, "break- and watchpoints stop in all processes")?,
        }
        for (address, only) in &self.by_address {
            writeln!(f, "those at {address:#x} stop {only}")?;
        }
        Ok(())
    }
}
