//! Finds the kernels that a guest runs one after the other.
//!
//! The memory of the kernel that runs last says whether another kernel has started it by kexec. Only then does the
//! timeline look for the earlier kernel. Checkpoints narrow down where the later kernel begins. A search then finds the
//! last system call before this place, where the earlier kernel still runs. In a run with one kernel, the timeline
//! reads memory only once.

use std::sync::Arc;

use guest_symbols::boot::Boot;
use guest_symbols::{NoKernel, Symbols};
use machine::Machine;
use machine::error::Error;
use machine::position::Instructions;

use super::kernels::{Kernel, Kernels, MOST_KERNELS};
use super::stops::{Filter, Stops, TravelStop};
use super::travel::Timeline;
use crate::workers::Poll;

/// While no kernel is mapped, the search goes back checkpoint by checkpoint for this number of checkpoints. After them,
/// each step back is twice as long as the step before.
const LOOKS_IN_A_ROW: usize = 8;

impl Timeline {
    /// The symbols of the kernel that the machine runs at its present place.
    pub fn symbols(&mut self) -> Result<Arc<Symbols>, NoKernel> {
        let here = (self.position(), self.forked_at());
        if let Some((_, symbols)) = self.kernels.here.as_ref().filter(|(place, _)| *place == here) {
            return Ok(symbols.clone());
        }
        let symbols = Arc::new(Symbols::of_guest(self.machine())?);
        self.kernels.here = Some((here, symbols.clone()));
        Ok(symbols)
    }

    /// The symbols that were read last, perhaps at another place.
    pub fn last_symbols(&self) -> Option<&Symbols> {
        self.kernels.here.as_ref().map(|(_, symbols)| &**symbols)
    }

    /// The kernels found so far.
    pub fn known_kernels(&self) -> Option<&Kernels> {
        self.kernels.before.as_ref().map(|(_, kernels)| kernels)
    }

    /// The kernels that run before `until`. The list may also have later kernels. The position does not change.
    pub fn kernels(&mut self, until: Instructions, poll: &mut Poll<'_>) -> Result<Kernels, Error> {
        let until = until.min(self.end());
        if let Some((_, kernels)) = self.kernels.before.as_ref().filter(|(known, _)| until <= *known) {
            return Ok(kernels.clone());
        }
        self.must_be_history()?;
        let (begun, stops) = (self.snapshot()?, std::mem::take(&mut self.stops));
        let here = self.position();
        let found = self.find_kernels(until, poll);
        self.stops = stops;
        if self.position() != here {
            self.return_to(&begun)?;
        }
        let kernels = found?;
        self.kernels.before = Some((until, kernels.clone()));
        Ok(kernels)
    }

    /// Does the same as [`Timeline::kernels`], but reads the running kernel's symbols again, so that the symbols
    /// include the modules that are loaded now. In a fork, only this kernel is known.
    pub fn names(&mut self, until: Instructions, poll: &mut Poll<'_>) -> Result<Kernels, Error> {
        if self.forked_at().is_some() {
            return Ok(Kernels(self.kernel_here().into_iter().collect()));
        }
        let kernels = self.kernels(until, poll)?;
        let Some(here) = kernels.at(self.machine()) else { return Ok(kernels) };
        if kernels.all()[here].seen_at == self.position() {
            return Ok(kernels);
        }
        match self.symbols() {
            Ok(symbols) => Ok(kernels.with(here, symbols, self.position())),
            Err(NoKernel) => Ok(kernels),
        }
    }

    fn find_kernels(&mut self, until: Instructions, poll: &mut Poll<'_>) -> Result<Kernels, Error> {
        self.seek(until, poll)?.unless_interrupted()?;
        let known = self.known_kernels().cloned().unwrap_or_default();
        if known.all().last().is_some_and(|last| last.is_here(self.machine())) {
            return Ok(known);
        }
        let mut kernels = Vec::new();
        let mut kernel = self.last_kernel(until, poll)?;
        while let Some(found) = kernel {
            kernel = self.kernel_that_started(&found, poll)?.filter(|_| kernels.len() + 1 < MOST_KERNELS);
            kernels.insert(0, found);
        }
        Ok(Kernels(kernels.into()))
    }

    /// The kernel that the machine runs at its present place.
    fn kernel_here(&mut self) -> Option<Kernel> {
        let symbols = self.symbols().ok()?;
        let boot = Boot::of_kernel(self.machine(), &symbols);
        Some(Kernel { symbols, boot, seen_at: self.position() })
    }

    /// The last kernel before the machine's present place. At the present place itself, perhaps no kernel is mapped.
    fn last_kernel(&mut self, until: Instructions, poll: &mut Poll<'_>) -> Result<Option<Kernel>, Error> {
        if let Some(kernel) = self.kernel_here() {
            return Ok(Some(kernel));
        }
        let heads = self.checkpoint_places();
        let mut distance = 1;
        let before = heads.partition_point(|&at| at < until);
        while distance <= before {
            self.seek(heads[before - distance], poll)?.unless_interrupted()?;
            if let Some(kernel) = self.kernel_here() {
                return Ok(Some(kernel));
            }
            distance += if distance < LOOKS_IN_A_ROW { 1 } else { distance };
        }
        Ok(None)
    }

    /// The kernel that started the kernel `later` by kexec, if this earlier kernel ran in the recording.
    fn kernel_that_started(&mut self, later: &Kernel, poll: &mut Poll<'_>) -> Result<Option<Kernel>, Error> {
        let Some(boot) = later.boot.clone().filter(Boot::is_by_kexec) else { return Ok(None) };
        let Some(begun) = self.first_place_of(&boot, later.seen_at, poll)? else { return Ok(None) };
        self.seek(begun, poll)?.unless_interrupted()?;
        // A program made system calls to load the later kernel. So the search for a system call finds the earlier
        // kernel.
        let is_earlier = Filter::new(move |machine: &Machine<Instructions>| !boot.is_here(machine));
        self.stops = Stops { only: Some(is_earlier), ..Stops::system_call(None) };
        match self.run_backward(poll)?.unless_interrupted()? {
            TravelStop::Hit(_) => Ok(self.kernel_here()),
            _ => Ok(None),
        }
    }

    /// The first place where the kernel of a boot runs, among the recording's start, its checkpoints and `seen_at`.
    /// Returns `None` if this place is the start.
    fn first_place_of(
        &mut self,
        boot: &Boot,
        seen_at: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        let mut places = vec![Instructions(0)];
        places
            .extend(self.checkpoint_places().into_iter().filter(|&at| at > Instructions(0) && at < seen_at));
        let (mut low, mut high) = (0, places.len());
        while low < high {
            let middle = low + (high - low) / 2;
            self.seek(places[middle], poll)?.unless_interrupted()?;
            if boot.is_here(self.machine()) { high = middle } else { low = middle + 1 }
        }
        Ok(if low == 0 { None } else { Some(places.get(low).copied().unwrap_or(seen_at)) })
    }

    /// The places of the recording's checkpoints.
    pub(super) fn checkpoint_places(&self) -> Vec<Instructions> {
        let heads = self.checkpoints().into_iter().flat_map(|checkpoints| checkpoints.heads());
        heads.map(|(&at, _)| at).collect()
    }
}
