//! Compares lists that a Linux guest prints with ttvm's lists, which come from the guest's memory. The guest prints
//! its symbols (/proc/kallsyms) and its processes (`ps`).

use guest_symbols::Symbols;
use guest_symbols::tasks::{AddressSpace, Processes};

/// The command whose output [`ListedProcess::all`] reads.
pub const PS: &str = "ps -o pid,ppid,stat,comm";

/// A line of the guest's /proc/kallsyms.
#[derive(Debug)]
pub struct ListedSymbol {
    address: u64,
    class: u8,
    name: String,
    /// The symbol's module, if it is in one.
    pub module: Option<String>,
}

impl ListedSymbol {
    /// All lines of the guest's output that have the form of this list.
    pub fn all(console: &str) -> Vec<ListedSymbol> {
        console.lines().filter_map(ListedSymbol::parse).collect()
    }

    fn parse(line: &str) -> Option<ListedSymbol> {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|digits| digits.len() == 16)?;
        let address = u64::from_str_radix(address, 16).ok()?;
        let class = words.next().filter(|class| class.len() == 1)?.as_bytes()[0];
        let name = words.next()?.to_string();
        let module = words.next().map(|name| name.trim_matches(['[', ']']).to_string());
        Some(ListedSymbol { address, class, name, module })
    }

    /// Whether the symbol is a compiler's label. Such labels have no meaning, and ttvm's symbols leave them out.
    pub fn is_label(&self) -> bool {
        self.name.starts_with(".L")
    }

    /// Whether ttvm's symbols include this symbol.
    pub fn is_in(&self, symbols: &Symbols) -> bool {
        symbols.all_named(&self.name).any(|symbol| {
            let module = symbol.module.map(|number| &symbols.modules()[number]);
            (symbol.address, symbol.class) == (self.address, self.class) && module == self.module.as_ref()
        })
    }
}

/// A line of the guest's `ps`.
#[derive(Debug)]
pub struct ListedProcess {
    pid: u32,
    parent: u32,
    state: char,
    name: String,
}

impl ListedProcess {
    /// All lines of the guest's output that have the form of this list.
    pub fn all(console: &str) -> Vec<ListedProcess> {
        console.lines().filter_map(ListedProcess::parse).collect()
    }

    fn parse(line: &str) -> Option<ListedProcess> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [pid, parent, state, name] = words[..] else { return None };
        let (pid, parent, state) = (pid.parse().ok()?, parent.parse().ok()?, state.chars().next()?);
        Some(ListedProcess { pid, parent, state, name: name.to_string() })
    }
}

/// Fails unless the processes equal the guest's latest list. The line of `ps` itself is ignored, because `ps` has
/// ended since then. The list must contain a process `sleep`.
pub fn assert_same_processes(processes: &Processes, listed: &[ListedProcess]) {
    assert_eq!(processes.damage, None);
    for line in listed {
        if line.name == "ps" {
            continue;
        }
        let process = processes.with(line.pid).unwrap_or_else(|| panic!("no {line:?} in {processes:#?}"));
        assert_eq!(process.parent, line.parent, "{process:?}");
        // `ps` shows the current work of a kernel worker after the worker's name.
        assert!(line.name.starts_with(&process.name), "{line:?} {process:?}");
        if line.name == "sleep" {
            assert_eq!(process.state, line.state, "{process:?}");
            assert!(matches!(process.space, AddressSpace::Own(_)), "{process:?}");
        }
        let of_kernel = line.pid == 2 || line.parent == 2;
        assert_eq!(process.space == AddressSpace::KernelThread, of_kernel, "{process:?}");
    }
    assert!(listed.iter().any(|line| line.name == "sleep"), "{listed:#?}");
    assert!(processes.all.len() <= listed.len() + 2, "{processes:#?}");
}
