//! The description of a machine. The description and the recorded events determine a run. The recording stores the
//! description, so replay needs no options.

use std::fs::File;
use std::path::{Path, PathBuf};

use boot::packed_kernel;
use boot::time_reads::{self, Rewriting};
use devices::DebugPortsV1;
use devices::passthrough::{BarDescriptionV1, FREE_ISA_IRQS, PciDescriptionV1};
use guest_ram::PAGE_SIZE;
use serde::Serialize;

use crate::contents_hash::Scheme;
use crate::error::Error;
use crate::format::Format;
use crate::image_file::{open_image, read_image, read_opened, read_recorded};
use crate::profile::Profile;
use crate::start::{self, Images, KernelFile, KernelFiles, KernelImages, ModuleFile, Start};
use crate::starting_state::StartingState;

pub use crate::processors::{MAX_PROCESSORS, Processors};

pub use crate::image_file::{
    FileIdentity, ImageFile, hash_image, hash_image_with, identity_when_hashed, same,
};

/// The smallest size of RAM. No operating system is expected to boot in less RAM.
pub const MIN_MEMORY_BYTES: u64 = 4 << 20;
/// The largest size of RAM. The CPU models have 40 physical address bits, so the limit is far below their address
/// space.
pub const MAX_MEMORY_BYTES: u64 = 256 << 30;

/// The least MTU of a network card. IPv4 requires an MTU of at least 68 bytes.
pub const MIN_MTU: u16 = 68;

/// The network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkConfig {
    /// The card's MAC address.
    pub mac: [u8; 6],
    /// The MTU: the largest number of bytes that a frame carries.
    pub mtu: u16,
    /// Whether the guest may send TCP segments longer than the MTU. The host's side of the network cuts such segments
    /// into frames.
    pub segments: bool,
}

/// A host device that is passed through to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PassedDevice {
    /// A PCI function.
    Function {
        /// The function's address on the host, for messages.
        address: String,
        /// The properties of the function that the machine needs.
        description: PciDescriptionV1,
    },
    /// A range of I/O ports.
    Ports {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// The device's ISA interrupt in the guest, if any.
        irq: Option<u8>,
    },
}

/// The largest space for all BARs together, in bytes. This space, and the gaps between the BARs, fit into the bus's
/// windows.
const MAX_BAR_MEMORY: u64 = 480 << 20;
const MAX_BAR_PORTS: u64 = 4096;
/// Largest number of passed-through devices in a machine.
pub const MAX_PASSED: usize = 8;

/// The machine's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineConfig {
    /// The CPU model's name.
    pub cpu_model: String,
    /// The processors.
    #[serde(flatten)]
    pub processors: Processors,
    /// RAM size.
    pub memory_bytes: u64,
    /// How the machine starts.
    #[serde(flatten)]
    pub start: Start,
    /// The disk's base image. The guest's writes do not change this file.
    pub disk: Option<ImageFile>,
    /// Ports for kernel developers.
    pub debug_ports: DebugPortsV1,
    /// The network card, if there is one.
    pub network: Option<NetworkConfig>,
    /// Passed-through devices of the host.
    pub passthrough: Vec<PassedDevice>,
}

/// The user's options for a machine. [`MachineConfig::from_options`] reads the files that the options name.
#[derive(Clone, Debug, Default)]
pub struct MachineOptions {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Boot modules: the path and the command line of each.
    pub modules: Vec<(PathBuf, String)>,
    /// Command line.
    pub cmdline: String,
    /// Disk image.
    pub disk: Option<PathBuf>,
    /// A disk image that is gathered while the guest reads it, in place of `disk`, and the path of the image's file.
    pub gathered_disk: Option<(gathered_image::Image, PathBuf)>,
    /// The processors.
    pub processors: Processors,
    /// RAM size.
    pub memory_bytes: u64,
    /// Whether bytes that the guest writes to port 0xE9 are printed on the console.
    pub debug_console: bool,
    /// The port that ends the run when the guest writes to it.
    pub debug_exit: Option<u16>,
    /// The network card.
    pub network: Option<NetworkConfig>,
    /// Passed-through devices of the host.
    pub passthrough: Vec<PassedDevice>,
    /// The CPU model. The model also determines the machine's [`Profile`].
    pub model: cpu::CpuModel,
}

/// The name of the disk's image in messages.
const DISK: &str = "disk image";
/// The largest kernel file: with debug information a kernel may be larger than most guests' memory.
const MAX_KERNEL_FILE_BYTES: u64 = 2 << 30;

/// The largest size of a starting state's file, not counting the contents of RAM and disk.
const MAX_STATE_FILE_BYTES: u64 = 64 << 20;

impl MachineConfig {
    /// Reads and hashes all files in `options`.
    pub fn from_options(options: &MachineOptions) -> Result<(MachineConfig, Images), Error> {
        MachineConfig::from_opened(options, &mut |_, path| open_image(path))
    }

    /// Does the same as [`MachineConfig::from_options`], but `open` opens kernel, initial RAM disk and modules.
    /// `open` may return a copy of the file at the path.
    pub fn from_opened(
        options: &MachineOptions,
        open: &mut dyn FnMut(KernelFile, &Path) -> Result<File, Error>,
    ) -> Result<(MachineConfig, Images), Error> {
        let mut read = |which, path: &Path, most_bytes| read_opened(open(which, path)?, path, most_bytes);
        let (kernel_file, kernel) = read(KernelFile::Kernel, &options.kernel, MAX_KERNEL_FILE_BYTES)?;
        // The loader copies these files into memory without unpacking, so they must not be larger than memory.
        let most_bytes = options.memory_bytes;
        let initrd =
            options.initrd.as_deref().map(|path| read(KernelFile::Initrd, path, most_bytes)).transpose()?;
        let modules = options
            .modules
            .iter()
            .enumerate()
            .map(|(number, (path, cmdline))| {
                let (file, bytes) = read(KernelFile::Module(number), path, most_bytes)?;
                Ok((ModuleFile { file, cmdline: cmdline.clone() }, bytes))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let disk = match &options.gathered_disk {
            Some((image, path)) => Some(ImageFile::gathered(path.clone(), image)),
            None => options.disk.as_deref().map(|path| hash_image(path, Scheme::Sparse)).transpose()?,
        };
        // The manifest is JSON, which can only hold UTF-8. So all paths must be UTF-8.
        let paths = [Some(&options.kernel), options.initrd.as_ref(), options.disk.as_ref()];
        let modules_paths = options.modules.iter().map(|(path, _)| path);
        if let Some(path) = paths.into_iter().flatten().chain(modules_paths).find(|p| p.to_str().is_none()) {
            let source = std::io::Error::other("its name is not valid UTF-8; rename it");
            return Err(Error::File { action: "use", path: path.clone(), source });
        }
        let (initrd_file, initrd) = initrd.unzip();
        let (module_files, modules) = modules.into_iter().unzip();
        let config = MachineConfig {
            cpu_model: options.model.name().to_string(),
            processors: options.processors,
            memory_bytes: options.memory_bytes,
            start: Start::Kernel(KernelFiles {
                kernel: kernel_file,
                initrd: initrd_file,
                modules: module_files,
                cmdline: options.cmdline.clone(),
            }),
            disk,
            debug_ports: DebugPortsV1 { console: options.debug_console, exit: options.debug_exit },
            network: options.network.clone(),
            passthrough: options.passthrough.clone(),
        };
        config.validate().map_err(|why| Error::Unsupported(format!("this machine {why}")))?;
        let kernel = config.prepared(kernel);
        let gathered = options.gathered_disk.as_ref().map(|(image, _)| image.clone());
        Ok((config, Images::Kernel(KernelImages { kernel, initrd, modules, gathered })))
    }

    /// The profile of the machine's CPU model.
    pub fn profile(&self) -> Profile {
        Profile::of(self.model())
    }

    /// The CPU model.
    pub fn model(&self) -> cpu::CpuModel {
        cpu::CpuModel::named(&self.cpu_model).unwrap_or_default()
    }

    /// Checks that this program can build the machine.
    pub fn validate(&self) -> Result<(), String> {
        if cpu::CpuModel::named(&self.cpu_model).is_none() {
            let have = cpu::CpuModel::names().collect::<Vec<_>>().join(", ");
            return Err(format!("needs CPU model {:?}; this ttvm has {have}", self.cpu_model));
        }
        let memory = self.memory_bytes;
        if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&memory) || !memory.is_multiple_of(512) {
            return Err(format!("asks for {memory} bytes of memory, which ttvm does not support"));
        }
        if self.passthrough.len() > MAX_PASSED {
            let count = self.passthrough.len();
            return Err(format!("asks for {count} passed-through devices, and the maximum is {MAX_PASSED}"));
        }
        for passed in &self.passthrough {
            match passed {
                PassedDevice::Function { address, description } => description
                    .validate()
                    .map_err(|why| format!("asks for the PCI function {address}, which has {why}"))?,
                PassedDevice::Ports { first, last, .. } if first > last => {
                    return Err(format!("asks for ports {first:#x} to {last:#x}"));
                }
                PassedDevice::Ports { .. } => {}
            }
        }
        self.validate_irqs()?;
        let bars = self.passthrough.iter().flat_map(|passed| match passed {
            PassedDevice::Function { description, .. } => description.bars.as_slice(),
            PassedDevice::Ports { .. } => &[],
        });
        let (ports, memory): (Vec<_>, Vec<_>) = bars.partition(|bar| bar.is_ports);
        let total =
            |bars: Vec<&BarDescriptionV1>| bars.iter().map(|bar| u64::from(bar.size_bytes)).sum::<u64>();
        if total(memory) > MAX_BAR_MEMORY || total(ports) > MAX_BAR_PORTS {
            return Err(
                "asks for devices of the host with more memory than fits below 4 GiB; pass fewer".to_string()
            );
        }
        if let Some(network) = self.network.as_ref().filter(|network| network.mtu < MIN_MTU) {
            return Err(format!(
                "asks for a network card with an MTU of {}, and the minimum is {MIN_MTU}",
                network.mtu
            ));
        }
        Ok(())
    }

    fn validate_irqs(&self) -> Result<(), String> {
        let mut free = FREE_ISA_IRQS.to_vec();
        for passed in &self.passthrough {
            if let PassedDevice::Ports { irq: Some(irq), .. } = passed {
                let Some(at) = free.iter().position(|one| one == irq) else {
                    return Err(format!("asks for IRQ {irq} for ports, and has {free:?} free"));
                };
                free.remove(at);
            }
        }
        Ok(())
    }

    /// The PCI slots of the passed-through functions. These slots follow the slots of the machine's own devices.
    pub fn passed_slots(&self) -> Vec<u8> {
        let own = 2 + u8::from(self.disk.is_some()) + u8::from(self.network.is_some());
        let functions =
            self.passthrough.iter().filter(|passed| matches!(passed, PassedDevice::Function { .. }));
        (own + 1..).zip(functions).map(|(slot, _)| slot).collect()
    }

    /// All image files that the machine is made from, each with its name in messages.
    pub fn images(&self) -> impl Iterator<Item = (&'static str, &ImageFile)> {
        self.start.images().into_iter().chain(self.disk.iter().map(|file| (DISK, file)))
    }

    /// Returns the same as [`MachineConfig::images`], as mutable references.
    pub fn images_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut ImageFile)> {
        self.start.images_mut().into_iter().chain(self.disk.iter_mut().map(|file| (DISK, file)))
    }

    /// All image files in the description. A machine with a starting state no longer needs some of these
    /// files.
    pub fn files_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut ImageFile)> {
        self.start.files_mut().into_iter().chain(self.disk.iter_mut().map(|file| (DISK, file)))
    }

    /// The largest size of an image that is read into memory.
    fn most_bytes(&self, what: &str) -> u64 {
        match what {
            start::KERNEL => MAX_KERNEL_FILE_BYTES,
            // A starting state contains RAM and disk blocks, and is compressed.
            start::STATE => {
                let disk_bytes = self.disk.as_ref().map_or(0, |disk| disk.size_bytes);
                self.memory_bytes.saturating_add(disk_bytes).saturating_mul(2) + MAX_STATE_FILE_BYTES
            }
            _ => self.memory_bytes,
        }
    }

    /// Reads the images of a recording in this format, and checks that they have not changed since the recording
    /// was made. Skips the disk, which is read block by block while the machine runs: see
    /// [`MachineConfig::check_disk`].
    pub fn read_images(&self, format: Format) -> Result<Images, Error> {
        Ok(match &self.start {
            Start::Kernel(files) => Images::Kernel(self.read_kernel(files)?),
            Start::State { state: file, .. } => {
                let bytes = self.read_same(start::STATE, file)?;
                let state = StartingState::parse(&bytes, format, self.ram_pages(), self.disk_blocks());
                Images::of_state(state.map_err(|why| Error::recording(&file.path, why))?)
            }
        })
    }

    /// Checks by the hash that the disk's image is the recorded image.
    pub fn check_disk(&self) -> Result<(), Error> {
        let Some(disk) = &self.disk else { return Ok(()) };
        if disk.is_gathered() {
            return disk.open_gathered().map(drop);
        }
        let hash = |path: &Path| hash_image(path, Scheme::of(&disk.hash));
        same(DISK, disk, &read_recorded(DISK, disk, hash)?)
    }

    fn read_kernel(&self, files: &KernelFiles) -> Result<KernelImages, Error> {
        let kernel = self.read_same(start::KERNEL, &files.kernel)?;
        let initrd = files.initrd.as_ref().map(|file| self.read_same(start::INITRD, file)).transpose()?;
        let module = |module: &ModuleFile| self.read_same(start::MODULE, &module.file);
        let modules = files.modules.iter().map(module).collect::<Result<_, Error>>()?;
        Ok(KernelImages { kernel: self.prepared(kernel), initrd, modules, gathered: None })
    }

    /// Reads the contents of an image. Fails unless the image is the recorded image.
    fn read_same(&self, what: &str, file: &ImageFile) -> Result<Vec<u8>, Error> {
        let (now, bytes) = read_recorded(what, file, |path| read_image(path, self.most_bytes(what)))?;
        same(what, file, &now)?;
        Ok(bytes)
    }

    /// The kernel image to load. If the profile says so, its RDTSC instructions are rewritten, so that they do not read
    /// the host's clock.
    fn prepared(&self, mut kernel: Vec<u8>) -> Vec<u8> {
        if !self.profile().rewrites_time_reads {
            return kernel;
        }
        let mut why = "it is no ELF file".to_string();
        if boot::is_bzimage(&kernel) {
            match packed_kernel::unpack(&kernel) {
                Ok(unpacked) => kernel = unpacked,
                Err(reason) => why = reason,
            }
        }
        match time_reads::rewrite(&mut kernel) {
            Rewriting::Done(count) => log::debug!("rewrote {count} RDTSC in the kernel"),
            Rewriting::NotElf => log::warn!(
                "ttvm cannot read the kernel's code ({why}), so it cannot control reads of the time stamp counter, \
                 and a replay would differ; use the kernel's vmlinux"
            ),
        }
        kernel
    }

    fn ram_pages(&self) -> u64 {
        self.memory_bytes.div_ceil(PAGE_SIZE)
    }

    fn disk_blocks(&self) -> u64 {
        self.disk.as_ref().map_or(0, |disk| disk.size_bytes.div_ceil(PAGE_SIZE))
    }
}
