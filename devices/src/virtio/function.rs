//! A virtio device as a PCI function: configuration space and capabilities, BARs, and interrupts.
//!
//! BAR 0 has the virtio structures, each in its own page. BAR 1 has the MSI-X table and pending bits.
//!
//! VIRTIO 1.2, section 4.1.

use vm_memory::GuestMemory;

use super::block_backend::BlockBackend;
use super::device::VirtioDevice;
use super::device_model::DeviceModel;
use super::net;
use super::rng::Rng;
use super::sent_frame::SentFrame;
use super::state::VirtioFunctionStateV1;
use super::transport::{
    COMMON_BYTES, DriverNotices, ISR_CONFIG, ISR_QUEUE, NOTIFY_STRIDE, Transport, TransportParts,
};
use crate::pci::FunctionSummary;
use crate::pci::config::{ConfigSpace, Identity};
use crate::pci::error::StateError;
use crate::pci::msix::{Control, MAX_VECTORS, MSIX_BAR_BYTES, Msi, Msix, PBA_OFFSET};

const VENDOR: u16 = 0x1AF4;
/// Device id of virtio type 0, and the lowest subsystem id of a modern device.
const FIRST_DEVICE: u16 = 0x1040;
const FIRST_SUBSYSTEM: u16 = 0x40;
const REVISION: u8 = 1;

const VIRTIO_BAR: usize = 0;
const VIRTIO_BAR_BYTES: u32 = 0x4000;
const MSIX_BAR: usize = 1;
/// Offset of BAR 1 in the slot's part of the window.
const MSIX_BAR_AT: u32 = 0x8000;

/// Offsets of the virtio structures in BAR 0.
const COMMON_AT: u32 = 0x0000;
const ISR_AT: u32 = 0x1000;
const CONFIG_AT: u32 = 0x2000;
const NOTIFY_AT: u32 = 0x3000;
const REGION_BYTES: u32 = 0x1000;

const CAP_VENDOR: u8 = 0x09;
const CAP_MSIX: u8 = 0x11;
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;
const CFG_ISR: u8 = 3;
const CFG_DEVICE: u8 = 4;
const CFG_PCI: u8 = 5;

/// Offsets in the PCI configuration access capability.
const PCI_CFG_BAR: usize = 4;
const PCI_CFG_OFFSET: usize = 8;
const PCI_CFG_LENGTH: usize = 12;
const PCI_CFG_DATA: usize = 16;

/// A PCI function with a virtio device.
pub(crate) struct VirtioFunction {
    config: ConfigSpace,
    msix: Msix,
    transport: Transport,
    /// Offsets of the two capabilities whose registers have side effects: MSI-X and PCI configuration access.
    msix_capability: usize,
    pci_cfg_capability: usize,
}

/// Checked contents for [`VirtioFunction::install`].
pub(crate) struct FunctionParts {
    config: ConfigSpace,
    msix: Msix,
    transport: TransportParts,
}

impl VirtioFunction {
    /// A device after power-on, with its BARs at `window` and its interrupt routed to `line`.
    pub fn new(device: VirtioDevice, window: u32, line: u8) -> VirtioFunction {
        let transport = Transport::new(device);
        let vectors = transport.queue_count() + 1;
        assert!(vectors <= MAX_VECTORS);
        let kind = transport.device().kind();
        let mut config = ConfigSpace::new(&Identity {
            vendor: VENDOR,
            device: FIRST_DEVICE + kind.virtio_type,
            revision: REVISION,
            class: kind.pci_class,
            subsystem_vendor: VENDOR,
            subsystem: FIRST_SUBSYSTEM + kind.virtio_type,
        });
        config.add_memory_bar(VIRTIO_BAR, VIRTIO_BAR_BYTES, window);
        config.add_memory_bar(MSIX_BAR, MSIX_BAR_BYTES, window + MSIX_BAR_AT);
        config.add_interrupt_pin(line);
        let notify_bytes = (transport.queue_count() * NOTIFY_STRIDE) as u32;
        add_virtio_capability(&mut config, CFG_COMMON, COMMON_AT, COMMON_BYTES as u32, &[]);
        let stride = (NOTIFY_STRIDE as u32).to_le_bytes();
        add_virtio_capability(&mut config, CFG_NOTIFY, NOTIFY_AT, notify_bytes, &stride);
        add_virtio_capability(&mut config, CFG_ISR, ISR_AT, 1, &[]);
        if kind.config_bytes != 0 {
            add_virtio_capability(&mut config, CFG_DEVICE, CONFIG_AT, kind.config_bytes, &[]);
        }
        let pci_cfg_capability = add_virtio_capability(&mut config, CFG_PCI, 0, 0, &[0; 4]);
        let msix_capability = add_msix_capability(&mut config, vectors as u16);
        VirtioFunction { config, msix: Msix::new(vectors), transport, msix_capability, pci_cfg_capability }
    }

    /// Reads configuration space for the guest. The range lies inside configuration space.
    pub fn config_read(&mut self, register: usize, data: &mut [u8]) {
        self.config.read(register, data, self.intx_requested());
        if register == self.pci_cfg_capability + PCI_CFG_DATA {
            data.fill(0);
            if let Some((offset, length)) = self.pci_cfg_target() {
                let length = length.min(data.len());
                self.virtio_read(offset, &mut data[..length]);
            }
        }
    }

    /// Writes configuration space for the guest. The range lies inside configuration space.
    pub fn config_write<M: GuestMemory>(
        &mut self,
        mem: &M,
        register: usize,
        data: &[u8],
        out: &mut Vec<Msi>,
    ) {
        if register == self.pci_cfg_capability + PCI_CFG_DATA {
            if let Some((offset, length)) = self.pci_cfg_target().filter(|&(_, l)| l <= data.len()) {
                self.virtio_write(mem, offset, &data[..length], out);
            }
            return;
        }
        self.config.write(register, data);
        self.msix.control_changed(self.msix_control(), out);
    }

    /// Reads device memory for the guest. Returns false if no BAR of this function contains the access.
    pub fn mmio_read(&mut self, gpa: u64, data: &mut [u8]) -> bool {
        match self.decode(gpa, data.len()) {
            Some((VIRTIO_BAR, offset)) => self.virtio_read(offset, data),
            Some((_, offset)) => self.msix.read(offset as usize, data),
            None => return false,
        }
        true
    }

    /// Writes device memory for the guest. Returns false if no BAR of this function contains the access.
    pub fn mmio_write<M: GuestMemory>(&mut self, mem: &M, gpa: u64, data: &[u8], out: &mut Vec<Msi>) -> bool {
        match self.decode(gpa, data.len()) {
            Some((VIRTIO_BAR, offset)) => self.virtio_write(mem, offset, data, out),
            Some((_, offset)) => self.msix.write(offset as usize, data, self.msix_control(), out),
            None => return false,
        }
        true
    }

    /// Level of the INTx line.
    pub fn irq_level(&self) -> bool {
        self.intx_requested() && !self.config.intx_disabled()
    }

    /// Whether the device is a console, so that a [`ConsolePort`] can be made.
    pub fn is_console(&self) -> bool {
        matches!(self.transport.device(), VirtioDevice::Console(_))
    }

    /// Whether the device is a network card, so that a [`NetworkPort`] can be made.
    pub fn is_network(&self) -> bool {
        self.transport.net().is_some()
    }

    /// Number of further frames that the device's queue can hold, as
    /// [`PciBus::network_room`](crate::pci::PciBus::network_room) returns it.
    pub fn network_room(&self) -> Option<usize> {
        let net = self.transport.net()?;
        self.transport.listens_on(net::RECEIVE_QUEUE).then(|| net.room())
    }

    /// The backend of a block device, if it is a `B`.
    pub fn block_backend_mut<B: BlockBackend>(&mut self) -> Option<&mut B> {
        match self.transport.device_mut() {
            VirtioDevice::Block(block) => block.backend_mut(),
            _ => None,
        }
    }

    /// The source of random numbers, if the device is one.
    pub fn entropy_mut(&mut self) -> Option<&mut Rng> {
        match self.transport.device_mut() {
            VirtioDevice::Rng(rng) => Some(rng),
            _ => None,
        }
    }

    /// The function's state, decoded.
    pub fn summary(&self, slot: usize) -> FunctionSummary {
        FunctionSummary {
            is_line_up: self.irq_level(),
            msix: Some(self.msix.summary(self.msix_control())),
            virtio: Some(self.transport.summary()),
            ..self.config.summary(slot)
        }
    }

    /// The saved state.
    pub fn state(&self) -> VirtioFunctionStateV1 {
        let (transport, queues, device) = self.transport.state();
        VirtioFunctionStateV1 {
            config: self.config.bytes(),
            msix: self.msix.state(),
            transport,
            queues,
            device,
        }
    }

    /// Checks a saved state without changing anything.
    pub fn check(&self, state: &VirtioFunctionStateV1) -> Result<FunctionParts, StateError> {
        Ok(FunctionParts {
            config: self.config.restored(&state.config)?,
            msix: self.msix.restored(&state.msix)?,
            transport: self.transport.check(&state.transport, &state.queues, &state.device)?,
        })
    }

    /// Installs the contents that [`VirtioFunction::check`] accepted.
    pub fn install(&mut self, parts: FunctionParts) {
        self.config = parts.config;
        self.msix = parts.msix;
        self.transport.install(parts.transport);
    }

    /// The number of the BAR that contains the whole access, and the offset in this BAR. `None` if no BAR contains
    /// the access.
    fn decode(&self, gpa: u64, length: usize) -> Option<(usize, u32)> {
        if !self.config.memory_enabled() {
            return None;
        }
        [(VIRTIO_BAR, VIRTIO_BAR_BYTES), (MSIX_BAR, MSIX_BAR_BYTES)].into_iter().find_map(|(bar, size)| {
            let offset = gpa.checked_sub(self.config.bar_base(bar))?;
            let inside = offset < u64::from(size) && length as u64 <= u64::from(size) - offset;
            inside.then_some((bar, offset as u32))
        })
    }

    fn virtio_read(&mut self, offset: u32, data: &mut [u8]) {
        let within = (offset % REGION_BYTES) as usize;
        match offset - offset % REGION_BYTES {
            COMMON_AT => self.transport.read_common(within, data),
            CONFIG_AT => self.transport.read_config(within, data),
            ISR_AT if within == 0 => {
                data.fill(0);
                data[0] = self.transport.take_isr();
            }
            _ => data.fill(0),
        }
    }

    fn virtio_write<M: GuestMemory>(&mut self, mem: &M, offset: u32, data: &[u8], out: &mut Vec<Msi>) {
        let within = (offset % REGION_BYTES) as usize;
        let bus_master = self.config.bus_master();
        let notices = match offset - offset % REGION_BYTES {
            COMMON_AT => self.transport.write_common(mem, within, data, bus_master),
            NOTIFY_AT => self.transport.notify(mem, within / NOTIFY_STRIDE, bus_master),
            CONFIG_AT => {
                self.transport.write_config(within, data);
                DriverNotices::default()
            }
            _ => DriverNotices::default(),
        };
        self.deliver(notices, out);
    }

    /// Turns notices into messages or interrupt status bits (section 4.1.5).
    fn deliver(&mut self, notices: DriverNotices, out: &mut Vec<Msi>) {
        if notices.reset {
            self.msix.clear_pending();
        }
        let control = self.msix_control();
        if notices.config {
            self.transport.set_isr(ISR_CONFIG);
            self.msix.fire(self.transport.config_vector(), control, out);
        }
        if notices.queues != 0 && !control.enabled() {
            self.transport.set_isr(ISR_QUEUE);
        }
        for index in (0..self.transport.queue_count()).filter(|index| notices.queues & 1 << index != 0) {
            self.msix.fire(self.transport.queue_vector(index), control, out);
        }
    }

    fn intx_requested(&self) -> bool {
        self.transport.isr() != 0 && !self.msix_control().enabled()
    }

    fn msix_control(&self) -> Control {
        Control::new(self.config.u16_at(self.msix_capability + 2), self.config.bus_master())
    }

    /// The target of an access to the data field of the PCI configuration access capability: offset in BAR 0 and
    /// length. Returns `None` if the driver has not set offset and length properly (section 4.1.4.9).
    fn pci_cfg_target(&self) -> Option<(u32, usize)> {
        let at = |field| self.config.u32_at(self.pci_cfg_capability + field);
        let (offset, length) = (at(PCI_CFG_OFFSET), at(PCI_CFG_LENGTH));
        let bar = usize::from(self.config.u8_at(self.pci_cfg_capability + PCI_CFG_BAR));
        let valid = bar == VIRTIO_BAR && matches!(length, 1 | 2 | 4) && offset.is_multiple_of(length);
        (valid && offset < VIRTIO_BAR_BYTES).then_some((offset, length as usize))
    }
}

/// The owner's end of a console: the keyboard and the screen.
pub struct ConsolePort<'a> {
    function: &'a mut VirtioFunction,
    msis: &'a mut Vec<Msi>,
}

impl<'a> ConsolePort<'a> {
    pub(crate) fn new(function: &'a mut VirtioFunction, msis: &'a mut Vec<Msi>) -> ConsolePort<'a> {
        ConsolePort { function, msis }
    }

    /// Types bytes. Bytes that the guest has no buffers for wait inside the device.
    pub fn push_input<M: GuestMemory>(&mut self, mem: &M, bytes: &[u8]) {
        let bus_master = self.function.config.bus_master();
        let notices = self.function.transport.push_input(mem, bytes, bus_master);
        self.function.deliver(notices, self.msis);
    }

    /// Number of typed bytes that wait inside the device.
    pub fn pending_input(&mut self) -> usize {
        self.function.transport.console_mut().map_or(0, |console| console.pending_input())
    }

    /// Takes the guest's output since the last call. The output is not part of the saved state: the owner must take the
    /// output before it saves the state.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.function.transport.console_mut().map(|console| console.take_output()).unwrap_or_default()
    }

    /// Sets the terminal's size in characters.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let notices = self.function.transport.resize(columns, rows);
        self.function.deliver(notices, self.msis);
    }
}

/// The owner's end of a network card: the wire.
pub struct NetworkPort<'a> {
    function: &'a mut VirtioFunction,
    msis: &'a mut Vec<Msi>,
}

impl<'a> NetworkPort<'a> {
    pub(crate) fn new(function: &'a mut VirtioFunction, msis: &'a mut Vec<Msi>) -> NetworkPort<'a> {
        NetworkPort { function, msis }
    }

    /// Receives frames from outside. The caller checks that there is room. Frames that the guest has no buffers for
    /// wait inside the device.
    pub fn push_frames<M: GuestMemory>(&mut self, mem: &M, frames: Vec<Vec<u8>>) {
        let bus_master = self.function.config.bus_master();
        let notices = self.function.transport.push_frames(mem, frames, bus_master);
        self.function.deliver(notices, self.msis);
    }

    /// Takes the frames that the guest has sent since the last call. The frames are not part of the saved state: the
    /// owner must take the frames before it saves the state.
    pub fn take_sent(&mut self) -> Vec<SentFrame> {
        self.function.transport.net_mut().map(|net| net.take_sent()).unwrap_or_default()
    }
}

/// Adds a virtio structure's capability (section 4.1.4), and returns its offset.
fn add_virtio_capability(
    config: &mut ConfigSpace,
    kind: u8,
    offset: u32,
    length: u32,
    extra: &[u8],
) -> usize {
    let total_bytes = 16 + extra.len() as u8;
    let mut body = vec![total_bytes, kind, VIRTIO_BAR as u8, 0, 0, 0];
    body.extend(offset.to_le_bytes());
    body.extend(length.to_le_bytes());
    body.extend(extra);
    // In the configuration access capability the driver sets bar, offset and length.
    let all = [0, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF];
    config.add_capability(CAP_VENDOR, &body, if kind == CFG_PCI { &all } else { &[] })
}

fn add_msix_capability(config: &mut ConfigSpace, vectors: u16) -> usize {
    let mut body = (vectors - 1).to_le_bytes().to_vec();
    body.extend((MSIX_BAR as u32).to_le_bytes());
    body.extend((PBA_OFFSET | MSIX_BAR as u32).to_le_bytes());
    config.add_capability(CAP_MSIX, &body, &Control::WRITABLE.to_le_bytes())
}
