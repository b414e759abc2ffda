//! The kernels of a run, and the decision which kernel runs at a place.
//!
//! A guest starts a second kernel by kexec, or a crash kernel after a panic. Each boot has its own addresses, so a
//! name stands for a different address in each kernel. A breakpoint at such an address is ignored while its kernel
//! is not mapped. At each hit, a filter reads memory to decide this ([`guest_symbols::boot`]). So the timeline need
//! not find the place where one kernel ends and the next begins. `find_kernels.rs` finds the kernels.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use guest_symbols::Symbols;
use guest_symbols::boot::Boot;
use machine::Machine;
use machine::position::Instructions;

use super::condition::{Names, NoNames};
use super::stops::{Filter, Stops};

/// Largest number of kernels in one run.
pub(super) const MOST_KERNELS: usize = 8;
const NUMBERS: [&str; MOST_KERNELS] =
    ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];

/// A kernel of a run.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The kernel's symbols, including symbols of the modules loaded at `seen_at`.
    pub symbols: Arc<Symbols>,
    /// The identity of this boot; `None` if the kernel has no symbols of variables.
    pub boot: Option<Boot>,
    /// The place where the symbols were read.
    pub seen_at: Instructions,
}

/// The kernels of a run up to some place, in the order in which they ran.
#[derive(Clone, Debug, Default)]
pub struct Kernels(pub(super) Arc<[Kernel]>);

/// The name of one of several kernels, for people: "second kernel, 6.1.0-56-cloud-amd64".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// The kernel's number, from 1 on.
    pub number: usize,
    /// The kernel's release, as `uname -r` shows it.
    pub release: String,
}

impl Display for KernelName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let number = self.number.checked_sub(1).and_then(|number| NUMBERS.get(number));
        write!(f, "{} kernel, {}", number.unwrap_or(&"last"), self.release)
    }
}

impl Kernel {
    pub(super) fn is_here(&self, machine: &Machine<Instructions>) -> bool {
        self.boot.as_ref().is_some_and(|boot| boot.is_here(machine))
    }

    fn is_mapped(&self, machine: &Machine<Instructions>) -> bool {
        self.boot.as_ref().is_some_and(|boot| boot.is_mapped(machine))
    }
}

impl Kernels {
    /// The kernels, in the order in which they run.
    pub fn all(&self) -> &[Kernel] {
        &self.0
    }

    /// The index of the kernel that a machine runs. If there is only one kernel, always its index.
    pub fn at(&self, machine: &Machine<Instructions>) -> Option<usize> {
        if self.0.len() <= 1 {
            return (!self.0.is_empty()).then_some(0);
        }
        let here = self.0.iter().rposition(|kernel| kernel.is_here(machine));
        here.or_else(|| self.0.iter().rposition(|kernel| kernel.is_mapped(machine)))
    }

    /// The name of a kernel, if there are several.
    pub fn name(&self, number: usize) -> Option<KernelName> {
        let kernel = self.0.get(number).filter(|_| self.0.len() > 1)?;
        let release = kernel.boot.as_ref().map(Boot::release).unwrap_or_default();
        Some(KernelName { number: number + 1, release })
    }

    /// The name of the kernel that a machine runs, if there are several.
    pub fn name_at(&self, machine: &Machine<Instructions>) -> Option<KernelName> {
        self.name(self.at(machine)?)
    }

    /// The same kernels, but the symbols of kernel `number` are replaced by `symbols`, which were read at `seen_at`.
    pub(super) fn with(&self, number: usize, symbols: Arc<Symbols>, seen_at: Instructions) -> Kernels {
        let mut kernels = self.0.to_vec();
        kernels[number] = Kernel { symbols, seen_at, ..kernels[number].clone() };
        Kernels(kernels.into())
    }

    /// Calls `parse` with the names of each kernel, and joins the results. The stops from a kernel's names are
    /// ignored while this kernel is not mapped. Fails if `parse` fails for each kernel.
    pub fn stops<E>(&self, parse: impl Fn(&dyn Names) -> Result<Stops, E>) -> Result<Stops, E> {
        let [earlier @ .., last] = &self.0[..] else { return parse(&NoNames) };
        let read_last = parse(&*last.symbols);
        if earlier.is_empty() {
            return read_last;
        }
        let read_earlier = earlier.iter().map(|kernel| (kernel, parse(&*kernel.symbols)));
        let mut read: Vec<_> =
            read_earlier.filter_map(|(kernel, stops)| Some((kernel.clone(), stops.ok()?))).collect();
        match read_last {
            Ok(stops) => read.push((last.clone(), stops)),
            Err(error) if read.is_empty() => return Err(error),
            Err(_) => {}
        }
        Ok(union(read, |kernels| {
            Filter::new(move |machine| kernels.iter().any(|kernel| kernel.is_mapped(machine)))
        }))
    }
}

/// The breakpoints and watchpoints of all kernels, each with a filter. The filter is true while one of the kernels
/// with this breakpoint or watchpoint is mapped.
fn union<K: Clone>(read: Vec<(K, Stops)>, filter: impl Fn(Vec<K>) -> Filter) -> Stops {
    let mut all = Stops::default();
    let (mut breakpoints, mut watches) = (BTreeMap::<u64, Vec<K>>::new(), BTreeMap::<u64, Vec<K>>::new());
    for (kernel, stops) in read {
        for point in &stops.breakpoints {
            let kernels = breakpoints.entry(point.address).or_default();
            if kernels.is_empty() {
                all.breakpoints.push(*point);
            }
            kernels.push(kernel.clone());
        }
        for watch in &stops.watches {
            watches.entry(watch.point.address).or_default().push(kernel.clone());
            if !all.watches.contains(watch) {
                all.watches.push(*watch);
            }
        }
    }
    let filters = |points: BTreeMap<u64, Vec<K>>| {
        points.into_iter().map(|(at, kernels)| (at, filter(kernels))).collect()
    };
    Stops { filters: filters(breakpoints), watch_filters: filters(watches), ..all }
}

/// A place, and the beginning of the fork that contains the place. The second value is `None` in the recorded run.
pub(super) type Place = (Instructions, Option<Instructions>);

/// The guest's kernels that the timeline has found so far.
#[derive(Default)]
pub(super) struct Known {
    /// The symbols that were read last, and the place where they were read.
    pub here: Option<(Place, Arc<Symbols>)>,
    /// A place, and the kernels found before this place.
    pub before: Option<(Instructions, Kernels)>,
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use cpu::{AddressKind, WatchKind, Watchpoint};

    use super::*;
    use crate::timeline::stops::{Breakpoint, Watch};

    fn stops(breakpoints: &[u64], watches: &[(u64, u64)]) -> Stops {
        let watch = |&(address, length): &(u64, u64)| {
            Watch::from(Watchpoint { space: AddressKind::Linear, address, length, kind: WatchKind::Write })
        };
        Stops {
            breakpoints: breakpoints.iter().map(|&address| Breakpoint::at(address)).collect(),
            watches: watches.iter().map(watch).collect(),
            ..Stops::default()
        }
    }

    /// In this test, two kernels have a breakpoint at the same address, and a variable with different sizes.
    #[test]
    fn each_place_counts_in_the_kernels_that_have_it() {
        let read =
            vec![("first", stops(&[10, 20], &[(50, 4)])), ("second", stops(&[20, 30], &[(50, 8), (60, 1)]))];
        let asked = RefCell::new(Vec::new());
        let all = union(read, |kernels| {
            asked.borrow_mut().push(kernels);
            Filter::new(|_| true)
        });
        let both = || vec!["first", "second"];
        assert_eq!(
            asked.into_inner(),
            [vec!["first"], both(), vec!["second"], both(), vec!["second"]],
            "by address: breakpoints, then watchpoints"
        );
        assert_eq!(all.filters.keys().copied().collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(all.watch_filters.keys().copied().collect::<Vec<_>>(), [50, 60]);
        let expected = stops(&[10, 20, 30], &[(50, 4), (50, 8), (60, 1)]);
        assert_eq!((all.breakpoints, all.watches), (expected.breakpoints, expected.watches));
    }

    #[test]
    fn kernels_are_counted_in_words() {
        let name = |number| KernelName { number, release: "6.1.0-9-amd64".to_string() }.to_string();
        assert_eq!(name(2), "second kernel, 6.1.0-9-amd64");
        assert_eq!(name(MOST_KERNELS), "eighth kernel, 6.1.0-9-amd64");
    }

    #[test]
    fn without_a_kernel_names_are_refused() {
        let read = |names: &dyn Names| names.named("panic").map(|_| Stops::default()).ok_or("no such name");
        assert_eq!(Kernels::default().stops(read), Err("no such name"));
    }
}
