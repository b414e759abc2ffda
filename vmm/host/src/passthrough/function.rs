//! A PCI function of the host in use by a guest.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use devices::passthrough::{DmaV1, InterruptModeV1};
use guest_ram::RamView;
use vfio::{Event, Function, Interrupts, PAGE_BYTES};

use crate::passthrough::dma::Shadow;
use crate::passthrough::tables::{Shown, shown};
use machine::error::Error;

/// End of a function's address space, which has 39 bits.
const END: u64 = 1 << 39;

/// A PCI function of the host, with its shadow of guest RAM.
pub(super) struct LiveFunction {
    /// The function. `None` once the function has failed and was given back to the host.
    function: Option<Function>,
    address: String,
    slot: u8,
    mode: Interrupts,
    shadow: Shadow,
    /// The pages that the function sees, by its addresses.
    mapped: BTreeMap<u64, Shown>,
    /// Whether the interrupt line is masked. The line is masked from its interrupt until the guest accesses the
    /// function.
    line_masked: bool,
    told_unmapped: bool,
}

impl LiveFunction {
    /// Prepares an opened function for use by the guest. At first the function may interrupt by its line, and sees
    /// no memory.
    pub fn new(mut function: Function, slot: u8, ram_bytes: u64) -> Result<LiveFunction, Error> {
        // Ignores a failure, because a function may have no interrupt line.
        let _ = function.set_interrupts(Interrupts::Line);
        let shadow = Shadow::new(ram_bytes).map_err(|source| Error::Host {
            what: "cannot get memory for passed-through devices".to_string(),
            source,
        })?;
        let address = function.address().to_string();
        Ok(LiveFunction {
            function: Some(function),
            address,
            slot,
            mode: Interrupts::Line,
            shadow,
            mapped: BTreeMap::new(),
            line_masked: false,
            told_unmapped: false,
        })
    }

    /// The descriptor that is readable when the function has an event.
    pub fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.function.as_ref().map(AsFd::as_fd)
    }

    /// Reads from the function for the guest.
    pub fn read(&mut self, bar: Option<u8>, offset: u32, size_bytes: u8) -> u64 {
        let mut bytes = [0; 8];
        let Some(function) = &self.function else { return u64::MAX };
        if let Err(error) = function.read(bar, offset, &mut bytes[..usize::from(size_bytes.min(8))]) {
            self.lose(&error);
            return u64::MAX;
        }
        self.touched(bar);
        u64::from_le_bytes(bytes)
    }

    /// Writes to the function for the guest.
    pub fn write(&mut self, bar: Option<u8>, offset: u32, data: &[u8]) {
        match self.function.as_ref().map(|function| function.write(bar, offset, data)) {
            Some(Ok(())) => self.touched(bar),
            Some(Err(error)) => self.lose(&error),
            None => {}
        }
    }

    /// Unmasks the line after the guest has accessed a BAR. An interrupt handler makes such an access.
    fn touched(&mut self, bar: Option<u8>) {
        if bar.is_some() && std::mem::take(&mut self.line_masked) {
            // If unmasking fails, no more interrupts come, and the guest's driver notices.
            let _ = self.function.as_ref().map(Function::unmask_line);
        }
    }

    /// Sets the interrupt mode that the guest chose.
    pub fn set_interrupts(&mut self, mode: InterruptModeV1) {
        let mode = match mode {
            InterruptModeV1::Off => Interrupts::Off,
            InterruptModeV1::Line => Interrupts::Line,
            InterruptModeV1::Msi => Interrupts::Msi,
            InterruptModeV1::Msix(vectors) => Interrupts::Msix(vectors),
        };
        (self.line_masked, self.mode) = (false, mode);
        let set = self.function.as_mut().map(|function| function.set_interrupts(mode));
        if let Some(Err(errno)) = set {
            log::warn!("the PCI function {} takes no interrupts of the kind {mode:?}: {errno}", self.address);
        }
    }

    /// Returns the interrupts since the last call.
    pub fn take_interrupts(&mut self) -> Vec<u16> {
        let mut vectors = Vec::new();
        for event in self.function.as_ref().map(Function::take_events).unwrap_or_default() {
            match event {
                Event::Interrupt(vector) => vectors.push(vector),
                Event::Removal => self.lose("the host wants it back"),
            }
        }
        self.line_masked |= self.mode == Interrupts::Line && !vectors.is_empty();
        vectors
    }

    /// Returns the function's writes to memory since the last call.
    pub fn take_written(&mut self, ram: &RamView) -> Vec<DmaV1> {
        self.shadow.take_written(ram)
    }

    /// Shows the guest's writes to the function.
    pub fn show_written(&mut self, ram: &RamView) {
        let (mapped, page) = (&self.mapped, PAGE_BYTES as u64);
        let offset_of = |address: u64| Some(mapped.get(&(address - address % page))?.offset + address % page);
        self.shadow.show_written(ram, offset_of);
    }

    /// Shows and hides pages after a change of the guest's IOMMU tables. Returns the function's writes up to now,
    /// because the function may have written to pages that are now hidden.
    pub fn translate(&mut self, ram: &RamView, root: Option<u64>, first: u64, pages: u64) -> Vec<DmaV1> {
        let end = if pages == 0 { END } else { first.saturating_add(pages * PAGE_BYTES as u64).min(END) };
        let root = root.filter(|_| self.function.is_some());
        let wanted = root.map(|root| shown(ram, root, self.slot, first..end)).unwrap_or_default();
        let range = if root.is_some() { first..end } else { 0..END };
        let before: Vec<_> = self.mapped.range(range).map(|(&iova, &shown)| (iova, shown)).collect();
        let taken: Vec<_> =
            before.into_iter().filter(|(iova, shown)| wanted.get(iova) != Some(shown)).collect();
        for (iova, _) in &taken {
            self.mapped.remove(iova);
            if let Some(Err(errno)) = self.function.as_ref().map(|function| function.unmap(*iova)) {
                log::warn!("the PCI function {} keeps a page at {iova:#x}: {errno}", self.address);
            }
        }
        for (iova, page) in wanted {
            if !self.mapped.contains_key(&iova) {
                self.map(ram, iova, page);
            }
        }
        let written = self.shadow.take_written(ram);
        taken.iter().for_each(|(_, page)| self.shadow.hide(page.offset, page.may_write));
        written
    }

    fn map(&mut self, ram: &RamView, iova: u64, page: Shown) {
        let Some(function) = &self.function else { return };
        self.shadow.show(ram, page.offset, page.may_write);
        match function.map(iova, self.shadow.area(), page.offset as usize, page.may_write) {
            Ok(()) => _ = self.mapped.insert(iova, page),
            Err(errno) => {
                self.shadow.hide(page.offset, page.may_write);
                if !std::mem::replace(&mut self.told_unmapped, true) {
                    log::warn!(
                        "the host does not let the PCI function {} see memory at {iova:#x} ({errno}): raise the limit of locked \
                         memory (ulimit -l); the guest's driver may fail",
                        self.address
                    );
                }
            }
        }
    }

    fn lose(&mut self, why: impl std::fmt::Display) {
        self.function = None;
        log::warn!("the PCI function {} is gone ({why}); the guest goes on without it", self.address);
    }
}
