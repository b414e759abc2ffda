//! One PCI function.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Error;
use crate::area::{Area, PAGE_BYTES};
use crate::ioctls;

const CONFIG_REGION: u32 = 7;
const IRQ_LINE: u32 = 0;
const IRQ_MSI: u32 = 1;
const IRQ_MSIX: u32 = 2;
/// Index of the interrupt by which the host asks for the device back.
const IRQ_REQUEST: u32 = 4;
const DATA_NONE: u32 = 1;
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_UNMASK: u32 = 1 << 4;
const ACTION_TRIGGER: u32 = 1 << 5;
const MAP_READ: u32 = 1;
const MAP_WRITE: u32 = 2;

/// The kind of interrupts of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// The function does not interrupt.
    Off,
    /// The function interrupts by its interrupt line. After each interrupt the line is masked until
    /// [`Function::unmask_line`].
    Line,
    /// The function interrupts by one message (MSI).
    Msi,
    /// The function interrupts by this many messages (MSI-X).
    Msix(u16),
}

/// An event of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interrupt, with the number of its message, or 0.
    Interrupt(u16),
    /// The host wants the device back: it is being unplugged, or taken by another driver.
    Removal,
}

/// A PCI function. While the value lives, no other program has the function.
pub struct Function {
    address: String,
    regions: Vec<(u64, u64)>,
    mode: Interrupts,
    events: Vec<EventFd>,
    removal: Option<EventFd>,
    epoll: Epoll,
    device: File,
    container: File,
    _group: File,
}

const REMOVAL_TOKEN: u64 = u64::MAX;

impl Function {
    /// Opens the function at `address`, such as 0000:00:1d.0, and resets it if possible. The function must be
    /// bound to vfio-pci.
    pub fn open(address: &str) -> Result<Function, Error> {
        let sysfs = Path::new("/sys/bus/pci/devices").join(address);
        if !sysfs.exists() {
            return Err(Error(format!(
                "the host has no PCI function {address}; lspci -D lists those that it has"
            )));
        }
        let link = std::fs::read_link(sysfs.join("iommu_group")).map_err(|_| {
            Error(format!(
                "the PCI function {address} is behind no IOMMU: enable the IOMMU in the firmware, and boot the host \
                 with intel_iommu=on or amd_iommu=on"
            ))
        })?;
        let number = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let driver = std::fs::read_link(sysfs.join("driver")).ok();
        let driver = driver
            .as_ref()
            .and_then(|driver| driver.file_name())
            .map(|name| name.to_string_lossy().into_owned());
        if driver.as_deref() != Some("vfio-pci") {
            let held =
                driver.map_or("has no driver".to_string(), |name| format!("is held by the driver {name}"));
            return Err(Error(format!(
                "the PCI function {address} {held}: load vfio-pci, and bind the function to it with driver_override"
            )));
        }
        let open = |path: &str| {
            OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => Error(format!(
                    "no permission to open {path}: change its owner with chown, or run ttvm as root"
                )),
                Some(libc::EBUSY) => {
                    Error(format!("{path} is busy: another program has a device of that group; end it"))
                }
                Some(libc::ENOENT) => {
                    Error(format!("there is no {path}: load the modules vfio_iommu_type1 and vfio-pci"))
                }
                _ => Error(format!("cannot open {path}: {error}")),
            })
        };
        let container = open("/dev/vfio/vfio")?;
        if !ioctls::container_is_usable(&container) {
            return Err(Error(
                "this kernel's VFIO has no type 1 IOMMU: load the module vfio_iommu_type1".to_string(),
            ));
        }
        let group = open(&format!("/dev/vfio/{number}"))?;
        let failed = |what: &str, errno| Error(format!("cannot {what} the PCI function {address}: {errno}"));
        if !ioctls::group_is_viable(&group).map_err(|errno| failed("ask for the group of", errno))? {
            return Err(Error(format!(
                "other devices in the IOMMU group {number} of the PCI function {address} have drivers of the host: bind them \
                 to vfio-pci too"
            )));
        }
        ioctls::join(&group, &container).map_err(|errno| failed("set up an IOMMU for", errno))?;
        let name = CString::new(address)
            .map_err(|_| Error("the address of a PCI function has no zeroes".to_string()))?;
        let device = ioctls::device(&group, &name).map_err(|errno| failed("open", errno))?;
        let info = ioctls::device_info(&device).map_err(|errno| failed("describe", errno))?;
        let regions = (0..info.num_regions.min(9))
            .map(|index| ioctls::region(&device, index).unwrap_or_default())
            .collect();
        // A function that cannot be reset stays as its last user left it.
        let _ = ioctls::reset_device(&device);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| failed("wait for", errno))?;
        let mut function = Function {
            address: address.to_string(),
            regions,
            mode: Interrupts::Off,
            events: Vec::new(),
            removal: None,
            epoll,
            device,
            container,
            _group: group,
        };
        function.watch_removal().map_err(|errno| failed("watch", errno))?;
        Ok(function)
    }

    /// The function's address on the host.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The first 256 bytes of configuration space, as the kernel shows them.
    pub fn config(&self) -> std::io::Result<[u8; 256]> {
        let mut bytes = [0; 256];
        let (offset, _) = self.region(CONFIG_REGION)?;
        self.device.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Size of a BAR; 0 if there is none.
    pub fn bar_bytes(&self, index: u8) -> u64 {
        self.regions.get(usize::from(index)).filter(|_| index < 6).map_or(0, |region| region.1)
    }

    /// Reads from a BAR, or from configuration space (`None`).
    pub fn read(&self, bar: Option<u8>, offset: u32, data: &mut [u8]) -> std::io::Result<()> {
        self.device.read_exact_at(data, self.place(bar, offset, data.len())?)
    }

    /// Writes to a BAR, or to configuration space.
    pub fn write(&self, bar: Option<u8>, offset: u32, data: &[u8]) -> std::io::Result<()> {
        self.device.write_all_at(data, self.place(bar, offset, data.len())?)
    }

    fn region(&self, index: u32) -> std::io::Result<(u64, u64)> {
        self.regions
            .get(index as usize)
            .copied()
            .ok_or_else(|| std::io::Error::other("it has no such region"))
    }

    fn place(&self, bar: Option<u8>, offset: u32, length: usize) -> std::io::Result<u64> {
        let (start, bytes) = self.region(bar.map_or(CONFIG_REGION, u32::from))?;
        if u64::from(offset) + length as u64 > bytes {
            return Err(std::io::Error::other("it has no such register"));
        }
        Ok(start + u64::from(offset))
    }

    /// Sets the kind of interrupts.
    pub fn set_interrupts(&mut self, mode: Interrupts) -> nix::Result<()> {
        let index = |mode| match mode {
            Interrupts::Off => None,
            Interrupts::Line => Some((IRQ_LINE, 1)),
            Interrupts::Msi => Some((IRQ_MSI, 1)),
            Interrupts::Msix(count) => Some((IRQ_MSIX, u32::from(count))),
        };
        if let Some((before, _)) = index(self.mode) {
            ioctls::interrupts(&self.device, DATA_NONE | ACTION_TRIGGER, before, 0, &[])?;
        }
        for event in self.events.drain(..) {
            self.epoll.delete(&event)?;
        }
        self.mode = Interrupts::Off;
        let Some((index, count)) = index(mode) else { return Ok(()) };
        for number in 0..count {
            self.events.push(self.event(u64::from(number))?);
        }
        let files: Vec<_> = self.events.iter().map(|event| event.as_fd().as_raw_fd()).collect();
        ioctls::interrupts(&self.device, DATA_EVENTFD | ACTION_TRIGGER, index, count, &files)?;
        self.mode = mode;
        Ok(())
    }

    fn event(&self, token: u64) -> nix::Result<EventFd> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        self.epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(event)
    }

    fn watch_removal(&mut self) -> nix::Result<()> {
        let event = self.event(REMOVAL_TOKEN)?;
        let file = event.as_fd().as_raw_fd();
        // Older kernels do not send this notice.
        if ioctls::interrupts(&self.device, DATA_EVENTFD | ACTION_TRIGGER, IRQ_REQUEST, 1, &[file]).is_ok() {
            self.removal = Some(event);
        }
        Ok(())
    }

    /// Takes the events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        let mut found = [EpollEvent::empty(); 16];
        let mut events = Vec::new();
        let count = self.epoll.wait(&mut found, EpollTimeout::ZERO).unwrap_or(0);
        for token in found[..count].iter().map(EpollEvent::data) {
            if token == REMOVAL_TOKEN {
                events.push(Event::Removal);
            } else if self.events.get(token as usize).is_some_and(|event| event.read().is_ok()) {
                events.push(Event::Interrupt(token as u16));
            }
        }
        events
    }

    /// Unmasks the interrupt line.
    pub fn unmask_line(&self) -> nix::Result<()> {
        ioctls::interrupts(&self.device, DATA_NONE | ACTION_UNMASK, IRQ_LINE, 1, &[])
    }

    /// Makes one page of an area accessible to the function, at the address `iova`.
    pub fn map(&self, iova: u64, area: &Area, offset: usize, may_write: bool) -> nix::Result<()> {
        let flags = if may_write { MAP_READ | MAP_WRITE } else { MAP_READ };
        ioctls::map(&self.container, iova, area.address(offset), PAGE_BYTES as u64, flags)
    }

    /// Removes the mapping of a page.
    pub fn unmap(&self, iova: u64) -> nix::Result<()> {
        ioctls::unmap(&self.container, iova, PAGE_BYTES as u64)
    }
}

/// The descriptor is readable when there are events.
impl AsFd for Function {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
