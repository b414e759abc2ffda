//! The bus itself: the address register, the slots, and the outputs for the owner.

use vm_memory::GuestMemory;

use super::config::{ConfigSpace, Identity};
use super::error::StateError;
use super::msix::Msi;
use super::passed::PassedThrough;
use super::state::PciBusStateV1;
use super::summary::FunctionSummary;
use crate::layout::{PCI_CONFIG_PORT, PCI_FIRST_GSI, PCI_MMIO_END, PCI_MMIO_START, PCI_PIC_IRQS};
use crate::passthrough::{AskV1, DeviceInputV1, PciDescriptionV1};
use crate::virtio::block_backend::BlockBackend;
use crate::virtio::device::VirtioDevice;
use crate::virtio::function::{ConsolePort, NetworkPort, VirtioFunction};
use crate::virtio::rng::Rng;

/// Slots on the bus, including the host bridge's.
pub const SLOTS: usize = 32;

/// Size of a slot's part of the memory window. At power-on, the BARs of a slot are in the slot's own part.
const WINDOW_PER_SLOT: u32 = 0x1_0000;
const DATA_PORT: u16 = PCI_CONFIG_PORT + 4;
/// Enable, bus, device, function and dword-aligned register; the reserved bits read zero.
const ADDRESS_WRITABLE: u32 = 0x80FF_FFFC;

/// How the bus is wired, and how it is described to guests. A recording's machine keeps its revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PciRevision {
    /// The host bridge passes on only the window that the ACPI tables announce. The tables describe interrupts as
    /// pins of the I/O APIC only. Machines of older recordings have this revision.
    V1,
    /// The host bridge passes on every address that neither RAM nor a chip answers, as on a PC. A kernel that does
    /// not read the tables (`pci=noacpi`) puts BARs right after RAM. Interrupts are described as lines of the 8259
    /// pair, too.
    #[default]
    V2,
}

/// The PCI bus, its slots and its passed-through devices. One thread must make all calls, while the guest is stopped.
/// After every call that takes `&mut self`, the owner must take the messages and read the levels.
pub struct PciBus {
    address: u32,
    /// The revision is a part of the machine's description, not of its state.
    revision: PciRevision,
    host_bridge: ConfigSpace,
    /// Slot `n + 1` holds `functions[n]`.
    functions: Vec<VirtioFunction>,
    passed: PassedThrough,
    msis: Vec<Msi>,
}

impl Default for PciBus {
    fn default() -> PciBus {
        PciBus::new()
    }
}

impl PciBus {
    /// A bus with only the host bridge at 00:00.0.
    pub fn new() -> PciBus {
        let identity = Identity {
            // Red Hat's generic host bridge: no guest has quirks for it.
            vendor: 0x1B36,
            device: 0x0008,
            revision: 0,
            class: 0x06_00_00,
            subsystem_vendor: 0x1AF4,
            subsystem: 0x1100,
        };
        PciBus {
            address: 0,
            revision: PciRevision::default(),
            host_bridge: ConfigSpace::new(&identity),
            functions: Vec::new(),
            passed: PassedThrough::default(),
            msis: Vec::new(),
        }
    }

    /// Chooses the revision, before devices are plugged in.
    pub fn with_revision(self, revision: PciRevision) -> PciBus {
        assert!(
            self.functions.is_empty() && self.passed.is_empty(),
            "a bus has its revision before its devices"
        );
        PciBus { revision, ..self }
    }

    /// Plugs a device into the next slot, assigns its BARs, and returns the slot. Panics if all slots are taken: then
    /// the machine's description is wrong.
    pub fn add(&mut self, device: impl Into<VirtioDevice>) -> usize {
        assert!(self.passed.is_empty(), "passed-through devices come last");
        let slot = self.functions.len() + 1;
        assert!(slot < SLOTS, "the PCI bus has {SLOTS} slots");
        let window = PCI_MMIO_START as u32 + slot as u32 * WINDOW_PER_SLOT;
        let line = self.interrupt_line(slot);
        self.functions.push(VirtioFunction::new(device.into(), window, line));
        slot
    }

    /// Plugs a PCI function of the host into the next slot and assigns its BARs. The first such function adds the
    /// IOMMU.
    pub fn pass_function(&mut self, description: &PciDescriptionV1) -> usize {
        let slot = self.functions.len() + 1 + self.passed.function_count();
        assert!(slot < SLOTS, "the PCI bus has {SLOTS} slots");
        self.passed.add_function(slot, description, self.interrupt_line(slot));
        slot
    }

    /// Passes ports of the host through, perhaps with an ISA interrupt line from
    /// [`FREE_ISA_IRQS`](crate::passthrough::FREE_ISA_IRQS).
    pub fn pass_ports(&mut self, first: u16, last: u16, irq: Option<u8>) {
        self.passed.add_ports(first, last, irq);
    }

    /// Whether any device of the host is passed through.
    pub fn has_passed(&self) -> bool {
        !self.passed.is_empty()
    }

    /// The question for a guest read of a port, if only a passed-through device knows the answer. The question replaces
    /// the read: the owner must not call [`PciBus::io_read`] as well.
    pub fn port_read_ask(&self, port: u16, size: u8) -> Option<AskV1> {
        if let Some(register) = self.data_register(port, size.into()) {
            return self.passed.function_in(self.target()?)?.config_ask(register, size.into());
        }
        self.passed.port_read_ask(port, size)
    }

    /// Writes a port for the guest. Returns false if the port belongs to no passed-through device.
    pub fn passed_port_write(&mut self, port: u16, data: &[u8]) -> bool {
        self.passed.port_write(port, data, &mut self.msis)
    }

    /// Does the same as [`PciBus::port_read_ask`] for device memory.
    pub fn mmio_read_ask(&self, gpa: u64, size: usize) -> Option<AskV1> {
        if !self.forwards(gpa, size) || self.passed.has_translation_at(gpa, size) {
            return None;
        }
        self.passed.mmio_read_ask(gpa, size)
    }

    /// Takes the guest's writes to passed-through devices since the last call, oldest first. These writes are
    /// not part of the saved state.
    pub fn take_told(&mut self) -> Vec<AskV1> {
        self.passed.take_told()
    }

    /// Takes an input from passed-through devices. The owner has already put the devices' writes to memory into
    /// RAM.
    pub fn take_input(&mut self, input: &DeviceInputV1) {
        self.passed.take_input(input, &mut self.msis);
    }

    /// Reads ports 0xCF8..=0xCFF for the guest. Returns false if the bus does not answer the access.
    ///
    /// Only a dword at 0xCF8 is the address register. Narrower accesses there go to other chips (0xCF9 is the reset
    /// register).
    pub fn io_read(&mut self, port: u16, data: &mut [u8]) -> bool {
        if port == PCI_CONFIG_PORT && data.len() == 4 {
            data.copy_from_slice(&self.address.to_le_bytes());
            return true;
        }
        let Some(register) = self.data_register(port, data.len()) else { return false };
        data.fill(0xFF);
        match self.target() {
            Some(0) => self.host_bridge.read(register, data, false),
            Some(slot) => {
                if let Some(function) = self.functions.get_mut(slot - 1) {
                    function.config_read(register, data);
                } else if let Some(function) = self.passed.function_in(slot) {
                    function.config_read(register, data);
                }
            }
            None => {}
        }
        true
    }

    /// Writes ports 0xCF8..=0xCFF for the guest. Returns false if the bus does not answer the access; see
    /// [`PciBus::io_read`].
    pub fn io_write<M: GuestMemory>(&mut self, mem: &M, port: u16, data: &[u8]) -> bool {
        if let (PCI_CONFIG_PORT, &[a, b, c, d]) = (port, data) {
            self.address = u32::from_le_bytes([a, b, c, d]) & ADDRESS_WRITABLE;
            return true;
        }
        let Some(register) = self.data_register(port, data.len()) else { return false };
        match self.target() {
            Some(0) => self.host_bridge.write(register, data),
            Some(slot) => {
                if let Some(function) = self.functions.get_mut(slot - 1) {
                    function.config_write(mem, register, data, &mut self.msis);
                } else {
                    self.passed.config_write(slot, register, data, &mut self.msis);
                }
            }
            None => {}
        }
        true
    }

    /// Reads device memory for the guest. Returns false if no BAR contains the whole access.
    pub fn mmio_read<M: GuestMemory>(&mut self, _mem: &M, gpa: u64, data: &mut [u8]) -> bool {
        self.passed.translation_read(gpa, data)
            || self.forwards(gpa, data.len())
                && (self.functions.iter_mut().any(|f| f.mmio_read(gpa, data))
                    || self.passed.mmio_read(gpa, data))
    }

    /// Writes device memory for the guest. Returns false if no BAR contains the whole access.
    pub fn mmio_write<M: GuestMemory>(&mut self, mem: &M, gpa: u64, data: &[u8]) -> bool {
        self.passed.translation_write(gpa, data)
            || self.forwards(gpa, data.len())
                && (self.functions.iter_mut().any(|f| f.mmio_write(mem, gpa, data, &mut self.msis))
                    || self.passed.write(false, gpa, data, &mut self.msis))
    }

    /// Takes the messages since the last call, oldest first. The owner hands the messages to the local APIC.
    pub fn take_msis(&mut self) -> Vec<Msi> {
        std::mem::take(&mut self.msis)
    }

    /// Levels of the INTx lines: bit n is I/O APIC pin 16 + n; slot s drives n = s % 4.
    pub fn irq_levels(&self) -> u32 {
        let lines = self.functions.iter().enumerate();
        let levels =
            lines.fold(0, |levels, (i, function)| levels | u32::from(function.irq_level()) << ((i + 1) % 4));
        levels | self.passed.irq_levels()
    }

    /// Levels of the ISA interrupt lines that passed-through ports drive; bit n is line n.
    pub fn isa_levels(&self) -> u32 {
        self.passed.isa_levels()
    }

    /// The first console on the bus.
    pub fn console_mut(&mut self) -> Option<ConsolePort<'_>> {
        let console = self.functions.iter_mut().find(|function| function.is_console())?;
        Some(ConsolePort::new(console, &mut self.msis))
    }

    /// The first network card on the bus.
    pub fn network_mut(&mut self) -> Option<NetworkPort<'_>> {
        let card = self.functions.iter_mut().find(|function| function.is_network())?;
        Some(NetworkPort::new(card, &mut self.msis))
    }

    /// The first source of random numbers on the bus.
    pub fn entropy_mut(&mut self) -> Option<&mut Rng> {
        self.functions.iter_mut().find_map(|function| function.entropy_mut())
    }

    /// Number of further frames that fit into the queue of the first network card. `None` if the card's driver has not
    /// enabled its receive queue, or if there is no card.
    pub fn network_room(&self) -> Option<usize> {
        self.functions.iter().find(|function| function.is_network())?.network_room()
    }

    /// The backend of the block device in a slot, if it is a `B`. The owner may change how the backend stores its
    /// sectors. Except in a restore, the owner must never change the contents of the sectors.
    pub fn block_backend_mut<B: BlockBackend>(&mut self, slot: usize) -> Option<&mut B> {
        self.functions.get_mut(slot.checked_sub(1)?)?.block_backend_mut()
    }

    /// All functions on the bus, by slot. Slot 0 has the host bridge.
    pub fn functions(&self) -> Vec<FunctionSummary> {
        let virtio = (1..).zip(&self.functions).map(|(slot, function)| function.summary(slot));
        [self.host_bridge.summary(0)].into_iter().chain(virtio).chain(self.passed.summaries()).collect()
    }

    /// The state that the guest can see now or later, except disk contents.
    pub fn state(&self) -> PciBusStateV1 {
        PciBusStateV1 {
            address: self.address,
            host_bridge: self.host_bridge.bytes(),
            functions: self.functions.iter().map(VirtioFunction::state).chain(self.passed.states()).collect(),
            msis: self.msis.iter().map(|msi| (msi.address, msi.data)).collect(),
        }
    }

    /// Installs a saved state. The caller must have added the same devices in the same order. An error
    /// changes nothing.
    pub fn restore(&mut self, state: &PciBusStateV1) -> Result<(), StateError> {
        if state.functions.len() != self.functions.len() + self.passed.state_count() {
            return Err(StateError::new(format!(
                "{} PCI devices were saved, this machine has {}",
                state.functions.len(),
                self.functions.len() + self.passed.state_count()
            )));
        }
        if state.address & !ADDRESS_WRITABLE != 0 {
            return Err(StateError::new("the PCI configuration address has reserved bits set"));
        }
        let host_bridge = self.host_bridge.restored(&state.host_bridge)?;
        let pairs = self.functions.iter().zip(&state.functions).enumerate();
        let parts = pairs
            .map(|(i, (function, state))| function.check(state).map_err(|e| e.in_slot(i + 1)))
            .collect::<Result<Vec<_>, _>>()?;
        let passed = self.passed.check(&state.functions[self.functions.len()..])?;
        self.passed.install(passed);
        for (function, parts) in self.functions.iter_mut().zip(parts) {
            function.install(parts);
        }
        self.address = state.address;
        self.host_bridge = host_bridge;
        self.msis = state.msis.iter().map(|&(address, data)| Msi { address, data }).collect();
        Ok(())
    }

    /// The configuration register of a data-port access, or `None` if the access is to another port.
    fn data_register(&self, port: u16, length: usize) -> Option<usize> {
        let within = usize::from(port.checked_sub(DATA_PORT)?);
        let enabled = self.address & 1 << 31 != 0;
        (enabled && matches!(length, 1 | 2 | 4) && within + length <= 4)
            .then_some((self.address & 0xFC) as usize + within)
    }

    /// The slot in the address register. Only function 0 on bus 0 can exist.
    fn target(&self) -> Option<usize> {
        let (bus, function) = (self.address >> 16 & 0xFF, self.address >> 8 & 7);
        (bus == 0 && function == 0).then_some((self.address >> 11 & 0x1F) as usize)
    }

    /// Whether the host bridge passes an access on to the bus.
    fn forwards(&self, gpa: u64, length: usize) -> bool {
        let Some(end) = gpa.checked_add(length as u64).filter(|end| *end > gpa) else { return false };
        match self.revision {
            PciRevision::V1 => gpa >= PCI_MMIO_START && end <= PCI_MMIO_END,
            PciRevision::V2 => true,
        }
    }

    /// What firmware writes to a slot's interrupt line register: the number of the 8259's line. A kernel that does not
    /// use the ACPI tables takes the line from this register.
    fn interrupt_line(&self, slot: usize) -> u8 {
        match self.revision {
            PciRevision::V1 => PCI_FIRST_GSI + (slot % 4) as u8,
            PciRevision::V2 => PCI_PIC_IRQS[slot % 4],
        }
    }
}
