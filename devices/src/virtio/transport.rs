//! The registers of a modern virtio transport, as virtio-pci lays them out, and the device's life cycle.
//!
//! ```text
//!            FEATURES_OK accepted       DRIVER_OK
//!  reset ───────────────────────► set up ────────► live ──► NEEDS_RESET or FAILED
//!    ▲                                                              │
//!    └───────────────────── status := 0 ────────────────────────────┘
//! ```
//! Queues are served in the live state only. This module sends no interrupts: each access returns its
//! [`DriverNotices`], and the PCI function turns them into messages or a level.
//!
//! VIRTIO 1.2, sections 2.1 to 2.6, 3.1 and 4.1.4.

use virtio_bindings::{virtio_config, virtio_ring};
use vm_memory::GuestMemory;

use super::chain::RingError;
use super::console::{self, Console};
use super::device::VirtioDevice;
use super::device_model::DeviceModel;
use super::feature::feature;
use super::net::{self, Net};
use super::queue::{NO_VECTOR, RingPart, VirtQueue, existing};
use super::state::{DeviceStateV1, QueueStateV1, TransportStateV1};
use super::summary::VirtioSummary;
use crate::pci::error::StateError;

/// Length of the common configuration structure, up to and including `queue_reset`.
pub(crate) const COMMON_BYTES: usize = 0x3C;
/// Distance in bytes between the notification registers of two queues.
pub(crate) const NOTIFY_STRIDE: usize = 4;

/// Interrupt status: a queue has used buffers.
pub(crate) const ISR_QUEUE: u8 = 1;
/// Interrupt status: the configuration changed.
pub(crate) const ISR_CONFIG: u8 = 2;

const S_ACKNOWLEDGE: u8 = virtio_config::VIRTIO_CONFIG_S_ACKNOWLEDGE as u8;
const S_DRIVER: u8 = virtio_config::VIRTIO_CONFIG_S_DRIVER as u8;
const S_DRIVER_OK: u8 = virtio_config::VIRTIO_CONFIG_S_DRIVER_OK as u8;
const S_FEATURES_OK: u8 = virtio_config::VIRTIO_CONFIG_S_FEATURES_OK as u8;
const S_NEEDS_RESET: u8 = virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET as u8;
const S_FAILED: u8 = virtio_config::VIRTIO_CONFIG_S_FAILED as u8;
/// Bits the driver can set.
const S_BY_DRIVER: u8 = S_ACKNOWLEDGE | S_DRIVER | S_DRIVER_OK | S_FEATURES_OK | S_FAILED;

const F_INDIRECT_DESC: u64 = feature(virtio_ring::VIRTIO_RING_F_INDIRECT_DESC);
const F_EVENT_IDX: u64 = feature(virtio_ring::VIRTIO_RING_F_EVENT_IDX);
const F_VERSION_1: u64 = feature(virtio_config::VIRTIO_F_VERSION_1);
const F_RING_RESET: u64 = feature(virtio_config::VIRTIO_F_RING_RESET);
const F_TRANSPORT: u64 = F_INDIRECT_DESC | F_EVENT_IDX | F_VERSION_1 | F_RING_RESET;

/// Notices for the driver after an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverNotices {
    /// Bit n says that queue n has used buffers, and that the driver wants an interrupt for them.
    pub queues: u64,
    /// Whether the configuration changed, or the device began to need a reset.
    pub config: bool,
    /// Whether the device was reset. Earlier notices are then void.
    pub reset: bool,
}

/// The registers of the transport, the queues, and the device model.
pub(crate) struct Transport {
    device: VirtioDevice,
    queues: Vec<VirtQueue>,
    registers: TransportStateV1,
    /// Number of interrupt vectors the driver can choose from.
    vectors: u16,
}

/// Checked contents for [`Transport::install`].
pub(crate) struct TransportParts {
    registers: TransportStateV1,
    queues: Vec<VirtQueue>,
    device: DeviceStateV1,
}

impl Transport {
    /// A device after power-on.
    pub fn new(device: VirtioDevice) -> Transport {
        let queues: Vec<_> = device.kind().queue_sizes.iter().map(|&size| VirtQueue::new(size)).collect();
        let vectors = queues.len() as u16 + 1;
        let registers = TransportStateV1 { config_vector: NO_VECTOR, ..Default::default() };
        Transport { device, queues, registers, vectors }
    }

    /// The device model.
    pub fn device(&self) -> &VirtioDevice {
        &self.device
    }

    /// The device model.
    pub fn device_mut(&mut self) -> &mut VirtioDevice {
        &mut self.device
    }

    /// Number of queues.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Vector of a queue, or [`NO_VECTOR`].
    pub fn queue_vector(&self, index: usize) -> u16 {
        self.queues[index].vector
    }

    /// Vector for configuration changes, or [`NO_VECTOR`].
    pub fn config_vector(&self) -> u16 {
        self.registers.config_vector
    }

    /// The interrupt status register, without the side effect of reading it.
    pub fn isr(&self) -> u8 {
        self.registers.isr
    }

    /// Sets bits of the interrupt status register.
    pub fn set_isr(&mut self, bits: u8) {
        self.registers.isr |= bits;
    }

    /// Reads the interrupt status register, which clears it.
    pub fn take_isr(&mut self) -> u8 {
        std::mem::take(&mut self.registers.isr)
    }

    /// Reads the common configuration structure, at any offset and width. Bytes beyond the structure's end
    /// read as zero.
    pub fn read_common(&self, offset: usize, data: &mut [u8]) {
        copy_window(&self.common(), offset, data);
    }

    /// Writes a register of the common configuration structure. The access must be a whole register, or half of a
    /// 64-bit register. Other accesses are ignored.
    pub fn write_common<M: GuestMemory>(
        &mut self,
        mem: &M,
        offset: usize,
        data: &[u8],
        bus_master: bool,
    ) -> DriverNotices {
        match (offset, data) {
            (0x20 | 0x28 | 0x30, &[a, b, c, d, e, f, g, h]) => {
                self.write_u32(offset, u32::from_le_bytes([a, b, c, d]));
                self.write_u32(offset + 4, u32::from_le_bytes([e, f, g, h]));
            }
            (_, &[a, b, c, d]) => self.write_u32(offset, u32::from_le_bytes([a, b, c, d])),
            (_, &[a, b]) => self.write_u16(offset, u16::from_le_bytes([a, b])),
            (0x14, &[status]) => return self.write_status(mem, status, bus_master),
            _ => log::debug!("virtio: ignored a {}-byte write to register {offset:#x}", data.len()),
        }
        DriverNotices::default()
    }

    /// Reads the device configuration. Bytes beyond the structure's end read as zero.
    pub fn read_config(&self, offset: usize, data: &mut [u8]) {
        let mut config = self.device.config();
        config.truncate(self.device.kind().config_bytes as usize);
        copy_window(&config, offset, data);
    }

    /// Writes the device configuration. Writes beyond the structure's end are ignored.
    pub fn write_config(&mut self, offset: usize, data: &[u8]) {
        if offset + data.len() <= self.device.kind().config_bytes as usize {
            self.device.write_config(offset, data);
        }
    }

    /// Handles the driver's notification that a queue has available buffers.
    pub fn notify<M: GuestMemory>(&mut self, mem: &M, index: usize, bus_master: bool) -> DriverNotices {
        let enabled = self.queues.get(index).is_some_and(VirtQueue::enabled);
        if !enabled || !self.live() || !bus_master {
            log::debug!("virtio: ignored a notification for queue {index}");
            return DriverNotices::default();
        }
        match self.device.serve(mem, self.registers.driver_features, index, &mut self.queues[index]) {
            Ok(wanted) => DriverNotices { queues: u64::from(wanted) << index, ..DriverNotices::default() },
            Err(error) => self.need_reset(index, error),
        }
    }

    /// Types bytes at the console. The device must be a console.
    pub fn push_input<M: GuestMemory>(&mut self, mem: &M, bytes: &[u8], bus_master: bool) -> DriverNotices {
        if let Some(console) = self.console_mut() {
            console.queue_input(bytes);
        }
        self.notify(mem, console::RECEIVE_QUEUE, bus_master)
    }

    /// Receives frames from outside. The device must be a network card.
    pub fn push_frames<M: GuestMemory>(
        &mut self,
        mem: &M,
        frames: Vec<Vec<u8>>,
        bus_master: bool,
    ) -> DriverNotices {
        if let Some(net) = self.net_mut() {
            net.queue_frames(frames);
        }
        self.notify(mem, net::RECEIVE_QUEUE, bus_master)
    }

    /// Whether the device is live and the driver has enabled the queue with this number.
    pub fn listens_on(&self, index: usize) -> bool {
        self.live() && self.queues.get(index).is_some_and(VirtQueue::enabled)
    }

    /// Sets the size of the console's terminal.
    pub fn resize(&mut self, columns: u16, rows: u16) -> DriverNotices {
        let changed = self.console_mut().is_some_and(|console| console.resize(columns, rows));
        if changed {
            self.registers.generation = self.registers.generation.wrapping_add(1);
        }
        DriverNotices { config: changed && self.live(), ..DriverNotices::default() }
    }

    /// The model, if it is a console.
    pub fn console_mut(&mut self) -> Option<&mut Console> {
        match &mut self.device {
            VirtioDevice::Console(console) => Some(console),
            _ => None,
        }
    }

    /// The model, if it is a network card.
    pub fn net(&self) -> Option<&Net> {
        match &self.device {
            VirtioDevice::Net(net) => Some(net),
            _ => None,
        }
    }

    /// The model, if it is a network card.
    pub fn net_mut(&mut self) -> Option<&mut Net> {
        match &mut self.device {
            VirtioDevice::Net(net) => Some(net),
            _ => None,
        }
    }

    /// The device's state, decoded.
    pub fn summary(&self) -> VirtioSummary {
        VirtioSummary {
            virtio_type: self.device.kind().virtio_type,
            status: self.registers.status,
            offered: self.offered(),
            accepted: self.registers.driver_features,
            config_vector: existing(self.registers.config_vector),
            queues: self.queues.iter().map(VirtQueue::summary).collect(),
            device: self.device.state(),
        }
    }

    /// Saved form of registers, queues and device.
    pub fn state(&self) -> (TransportStateV1, Vec<QueueStateV1>, DeviceStateV1) {
        let queues = self.queues.iter().map(VirtQueue::state).collect();
        (self.registers.clone(), queues, self.device.state())
    }

    /// Checks a saved state without changing anything.
    pub fn check(
        &self,
        registers: &TransportStateV1,
        queues: &[QueueStateV1],
        device: &DeviceStateV1,
    ) -> Result<TransportParts, StateError> {
        self.device.check(device)?;
        self.check_registers(registers)?;
        if queues.len() != self.queues.len() {
            return Err(StateError::new("the device has another number of queues"));
        }
        let set_up = registers.status & S_FEATURES_OK != 0;
        if queues.iter().any(|queue| !self.vector_exists(queue.vector) || queue.enabled && !set_up) {
            return Err(StateError::new("a queue has an impossible vector or is enabled too early"));
        }
        let event_idx = registers.driver_features & F_EVENT_IDX != 0;
        let pairs = self.queues.iter().zip(queues);
        let queues =
            pairs.map(|(queue, state)| queue.restored(state, event_idx)).collect::<Result<_, _>>()?;
        Ok(TransportParts { registers: registers.clone(), queues, device: device.clone() })
    }

    /// Installs the contents that [`Transport::check`] accepted.
    pub fn install(&mut self, parts: TransportParts) {
        self.registers = parts.registers;
        self.queues = parts.queues;
        self.device.install(&parts.device);
    }

    fn check_registers(&self, registers: &TransportStateV1) -> Result<(), StateError> {
        let status = registers.status;
        let set_up = status & S_FEATURES_OK != 0;
        if status & !(S_BY_DRIVER | S_NEEDS_RESET) != 0 || status & S_DRIVER_OK != 0 && !set_up {
            return Err(StateError::new(format!("device status {status:#x} cannot occur")));
        }
        if set_up && !self.acceptable(registers.driver_features) {
            return Err(StateError::new("the driver uses features that the device does not have"));
        }
        if registers.isr & !(ISR_QUEUE | ISR_CONFIG) != 0 || !self.vector_exists(registers.config_vector) {
            return Err(StateError::new("impossible interrupt status or configuration vector"));
        }
        Ok(())
    }

    fn vector_exists(&self, vector: u16) -> bool {
        vector < self.vectors || vector == NO_VECTOR
    }

    fn offered(&self) -> u64 {
        self.device.features() | F_TRANSPORT
    }

    fn acceptable(&self, features: u64) -> bool {
        features & !self.offered() == 0 && features & F_VERSION_1 != 0
    }

    fn live(&self) -> bool {
        self.registers.status & (S_DRIVER_OK | S_NEEDS_RESET | S_FAILED) == S_DRIVER_OK
    }

    fn set_up(&self) -> bool {
        self.registers.status & S_FEATURES_OK != 0
    }

    fn selected(&mut self) -> Option<&mut VirtQueue> {
        self.queues.get_mut(usize::from(self.registers.queue_select))
    }

    /// All common registers as the driver sees them.
    fn common(&self) -> [u8; COMMON_BYTES] {
        let registers = &self.registers;
        let mut image = [0; COMMON_BYTES];
        let mut put =
            |offset: usize, value: &[u8]| image[offset..offset + value.len()].copy_from_slice(value);
        put(0x00, &registers.device_feature_select.to_le_bytes());
        put(0x04, &half(self.offered(), registers.device_feature_select).to_le_bytes());
        put(0x08, &registers.driver_feature_select.to_le_bytes());
        put(0x0C, &half(registers.driver_features, registers.driver_feature_select).to_le_bytes());
        put(0x10, &registers.config_vector.to_le_bytes());
        put(0x12, &(self.queues.len() as u16).to_le_bytes());
        put(0x14, &[registers.status, registers.generation]);
        put(0x16, &registers.queue_select.to_le_bytes());
        if let Some(queue) = self.queues.get(usize::from(registers.queue_select)) {
            put(0x18, &queue.size().to_le_bytes());
            put(0x1A, &queue.vector.to_le_bytes());
            put(0x1C, &u16::from(queue.enabled()).to_le_bytes());
            put(0x1E, &registers.queue_select.to_le_bytes()); // queue_notify_off
            put(0x20, &queue.address(RingPart::Descriptors).to_le_bytes());
            put(0x28, &queue.address(RingPart::Available).to_le_bytes());
            put(0x30, &queue.address(RingPart::Used).to_le_bytes());
        }
        image
    }

    fn write_u32(&mut self, offset: usize, value: u32) {
        let (part, high) = match offset {
            0x00 => return self.registers.device_feature_select = value,
            0x08 => return self.registers.driver_feature_select = value,
            0x0C => return self.write_features(value),
            0x20 | 0x24 => (RingPart::Descriptors, offset == 0x24),
            0x28 | 0x2C => (RingPart::Available, offset == 0x2C),
            0x30 | 0x34 => (RingPart::Used, offset == 0x34),
            _ => return log::debug!("virtio: ignored a dword write to register {offset:#x}"),
        };
        if let Some(queue) = self.selected() {
            queue.set_address_half(part, high, value);
        }
    }

    fn write_features(&mut self, value: u32) {
        let shift = match self.registers.driver_feature_select {
            0 => 0,
            1 => 32,
            _ => return,
        };
        if self.set_up() {
            return log::debug!("virtio: features written after they were agreed on");
        }
        let other_half = self.registers.driver_features & !(0xFFFF_FFFF << shift);
        self.registers.driver_features = other_half | u64::from(value) << shift;
    }

    fn write_u16(&mut self, offset: usize, value: u16) {
        let vector = if value < self.vectors { value } else { NO_VECTOR };
        let event_idx = self.registers.driver_features & F_EVENT_IDX != 0;
        let ring_reset = self.registers.driver_features & F_RING_RESET != 0;
        let set_up = self.set_up();
        match offset {
            0x10 => return self.registers.config_vector = vector,
            0x16 => return self.registers.queue_select = value,
            _ => {}
        }
        let Some(queue) = self.selected() else { return };
        match offset {
            0x18 => queue.set_size(value),
            0x1A => queue.vector = vector,
            0x1C if value == 1 && set_up => queue.enable(event_idx),
            0x3A if value == 1 && set_up && ring_reset => queue.reset(),
            _ => log::debug!("virtio: ignored {value:#x} written to register {offset:#x}"),
        }
    }

    fn write_status<M: GuestMemory>(&mut self, mem: &M, value: u8, bus_master: bool) -> DriverNotices {
        if value == 0 {
            self.reset();
            return DriverNotices { reset: true, ..DriverNotices::default() };
        }
        // The driver can set status bits one by one or all at once. Only a reset clears status bits.
        let was_live = self.live();
        let mut status = self.registers.status | value & S_BY_DRIVER;
        if !self.set_up() && !self.acceptable(self.registers.driver_features) {
            status &= !S_FEATURES_OK;
        }
        if status & S_FEATURES_OK == 0 {
            status &= !S_DRIVER_OK;
        }
        self.registers.status = status;
        if self.live() && !was_live { self.serve_all(mem, bus_master) } else { DriverNotices::default() }
    }

    /// Serves the buffers that the driver made available before it set DRIVER_OK.
    fn serve_all<M: GuestMemory>(&mut self, mem: &M, bus_master: bool) -> DriverNotices {
        let mut all = DriverNotices::default();
        for index in 0..self.queues.len() {
            if self.queues[index].enabled() {
                let notices = self.notify(mem, index, bus_master);
                all.queues |= notices.queues;
                all.config |= notices.config;
            }
        }
        all
    }

    fn reset(&mut self) {
        self.queues.iter_mut().for_each(VirtQueue::reset);
        self.registers = TransportStateV1 {
            config_vector: NO_VECTOR,
            // A reset does not change the generation, so that a driver cannot mix two configurations in one read.
            generation: self.registers.generation,
            ..Default::default()
        };
    }

    fn need_reset(&mut self, index: usize, error: RingError) -> DriverNotices {
        log::debug!("virtio: queue {index} needs a reset: {error}");
        self.registers.status |= S_NEEDS_RESET;
        DriverNotices { config: true, ..DriverNotices::default() }
    }
}

/// The low or high half of a feature word. For any other selector the result is zero.
fn half(features: u64, select: u32) -> u32 {
    match select {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}

/// Copies from a structure. Bytes beyond the structure's end read as zero.
fn copy_window(image: &[u8], offset: usize, data: &mut [u8]) {
    for (i, byte) in data.iter_mut().enumerate() {
        *byte = image.get(offset + i).copied().unwrap_or(0);
    }
}
