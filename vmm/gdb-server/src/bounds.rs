//! Break- and watchpoints that stop in one process, or one address space, only.
//!
//! A process is told by what the kernel says it runs, at each hit: that holds when the process executes
//! another program, which gives it other page tables, and while a kernel thread borrows its tables, which is
//! not the process.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use guest_symbols::tasks::Tasks;

use history::timeline::{Filter, address_space};
use machine::Machine;

/// Bytes of a name that the kernel keeps.
const MAX_NAME_BYTES: usize = 15;

/// Where a point counts.
#[derive(Clone, Debug)]
pub(super) enum Only {
    /// While these page tables are in use, by the physical address of their root. With what is known of the
    /// kernel, a program's own tables and those that the kernel uses for it are the same.
    Tables(u64, Option<Arc<Tasks>>),
    /// While the process with this number runs.
    Process(u32, Arc<Tasks>),
    /// While a process or thread with this name runs.
    Named(String, Arc<Tasks>),
}

impl Only {
    /// Whether it holds where the machine stands.
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

    /// By a name, as far as the kernel keeps it.
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

/// Which points count where.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    /// For points that are not named below.
    all: Option<Only>,
    by_address: BTreeMap<u64, Only>,
}

impl Bounds {
    /// Binds the points at these addresses, or without any all others; `None` lets them loose.
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

    /// What must hold for a point at an address, beside a condition of its own; `None` where nothing must.
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
