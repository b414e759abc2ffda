//! Manifests of format version 5: [`Manifest`] and the machine's description, field by field in the order of the
//! text.
//!
//! The field names are the names in the text. The hash of a machine's description covers these fields in this order.
//! So nothing in this file may be renamed, moved, added or retyped; `tests/stored_bytes.rs` has a text and hashes.

use std::path::PathBuf;

use devices::DebugPortsV1;
use devices::passthrough::PciDescriptionV1;
use serde::{Deserialize, Serialize};

use crate::manifest::{Cut, Manifest};
use cpu::TurnPolicy;
use machine::Format;
use machine::config::{ImageFile, MachineConfig, NetworkConfig, PassedDevice, Processors};
use machine::start::{KernelFiles, ModuleFile, Start};

/// The stored form of a [`Manifest`].
#[derive(Serialize, Deserialize)]
pub(super) struct ManifestV5 {
    format_version: u32,
    made_by: String,
    engine: String,
    counter: String,
    machine: MachineConfigV5,
    /// This field is left out if the recording was not cut out of a longer recording, so that older recordings keep
    /// their text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut: Option<CutV5>,
}

/// The stored form of a [`Cut`].
#[derive(Serialize, Deserialize)]
struct CutV5 {
    instructions: u64,
    free_pages: u64,
}

/// The stored form of a [`MachineConfig`].
#[derive(Serialize, Deserialize)]
pub(super) struct MachineConfigV5 {
    cpu_model: String,
    memory_bytes: u64,
    kernel: ImageFileV5,
    initrd: Option<ImageFileV5>,
    modules: Vec<ModuleFileV5>,
    cmdline: String,
    disk: Option<ImageFileV5>,
    debug_ports: DebugPortsV1,
    /// This field is left out for machines without a network card, so that older recordings keep their text and
    /// their hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<NetworkConfigV5>,
    /// This field is left out for machines without passed-through devices, so that older recordings keep their text
    /// and their hash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    passthrough: Vec<PassedDeviceV5>,
    /// This field is left out for machines without a starting state, so that older recordings keep their text and
    /// their hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<ImageFileV5>,
    /// This field exists only in format 6, which is for machines with several processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    processors: Option<ProcessorsV6>,
}

/// The stored form of [`Processors`], if there are several.
#[derive(Serialize, Deserialize)]
struct ProcessorsV6 {
    count: u8,
    turn_steps: u64,
    policy: PolicyV6,
    /// This field is left out if CPUID has only the number of processors, as in older recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topology: Option<TopologyV6>,
    /// This field is left out if only PAUSE yields, as in older recordings.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    spins_yield: bool,
}

/// The stored form of a [`cpu::Topology`].
#[derive(Serialize, Deserialize)]
struct TopologyV6 {
    sockets: u8,
    threads: u8,
}

/// The stored form of the policy of turns.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyV6 {
    /// Processors take turns in the order of their numbers.
    Ring,
    /// A generator with this seed draws the processor and the length of each turn.
    Random { seed: u64 },
}

impl From<Processors> for ProcessorsV6 {
    fn from(processors: Processors) -> ProcessorsV6 {
        ProcessorsV6 {
            count: processors.count(),
            turn_steps: processors.turn_rules().ring_steps,
            policy: match processors.turns() {
                TurnPolicy::Ring => PolicyV6::Ring,
                TurnPolicy::Random { seed } => PolicyV6::Random { seed },
            },
            topology: processors
                .topology()
                .map(|topology| TopologyV6 { sockets: topology.sockets(), threads: topology.threads() }),
            spins_yield: processors.turn_rules().spins_yield,
        }
    }
}

impl ProcessorsV6 {
    /// The processors, if this program can run them.
    fn processors(&self) -> Option<Processors> {
        let ProcessorsV6 { count, turn_steps, ref policy, ref topology, spins_yield } = *self;
        let processors = Processors::without_topology(count)?.with_ring_steps(turn_steps)?;
        let processors = match topology {
            Some(TopologyV6 { sockets, threads }) => processors.with_topology(*sockets, *threads)?,
            None => processors,
        };
        processors.with_spins_yield(spins_yield).with_turns(match *policy {
            PolicyV6::Ring => TurnPolicy::Ring,
            PolicyV6::Random { seed } => TurnPolicy::Random { seed },
        })
    }
}

/// The stored form of a [`PassedDevice`].
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PassedDeviceV5 {
    Function {
        address: String,
        description: PciDescriptionV1,
    },
    Ports {
        first: u16,
        last: u16,
        /// This field is left out for ports without an interrupt, so that older recordings keep their text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        irq: Option<u8>,
    },
}

impl From<PassedDevice> for PassedDeviceV5 {
    fn from(passed: PassedDevice) -> PassedDeviceV5 {
        match passed {
            PassedDevice::Function { address, description } => {
                PassedDeviceV5::Function { address, description }
            }
            PassedDevice::Ports { first, last, irq } => PassedDeviceV5::Ports { first, last, irq },
        }
    }
}

impl From<PassedDeviceV5> for PassedDevice {
    fn from(stored: PassedDeviceV5) -> PassedDevice {
        match stored {
            PassedDeviceV5::Function { address, description } => {
                PassedDevice::Function { address, description }
            }
            PassedDeviceV5::Ports { first, last, irq } => PassedDevice::Ports { first, last, irq },
        }
    }
}

/// The stored form of a [`NetworkConfig`].
#[derive(Serialize, Deserialize)]
struct NetworkConfigV5 {
    mac: [u8; 6],
    mtu: u16,
    segments: bool,
}

/// The stored form of an [`ImageFile`].
#[derive(Serialize, Deserialize)]
struct ImageFileV5 {
    path: PathBuf,
    hash: String,
    size_bytes: u64,
}

/// The stored form of a [`ModuleFile`].
#[derive(Serialize, Deserialize)]
struct ModuleFileV5 {
    file: ImageFileV5,
    cmdline: String,
}

impl From<Manifest> for ManifestV5 {
    fn from(manifest: Manifest) -> ManifestV5 {
        let Manifest { format, made_by, engine, counter, machine, cut } = manifest;
        let cut = cut.map(|Cut { instructions, free_pages }| CutV5 { instructions, free_pages });
        ManifestV5 {
            format_version: format.version(),
            made_by,
            engine,
            counter,
            machine: machine.into(),
            cut,
        }
    }
}

impl ManifestV5 {
    /// The manifest, unless its processors do not fit its format.
    pub fn checked(self, format: Format) -> Result<Manifest, String> {
        let ManifestV5 { format_version: _, made_by, engine, counter, machine, cut } = self;
        let is_right = match (format, &machine.processors) {
            (Format::V5, processors) => processors.is_none(),
            (Format::V6, Some(stored)) => stored.processors().is_some(),
            (Format::V6, None) => false,
        };
        if !is_right {
            return Err("its processors are not what this ttvm can run".to_string());
        }
        let cut = cut.map(|CutV5 { instructions, free_pages }| Cut { instructions, free_pages });
        Ok(Manifest { format, made_by, engine, counter, machine: machine.into(), cut })
    }
}

impl From<MachineConfig> for MachineConfigV5 {
    fn from(config: MachineConfig) -> MachineConfigV5 {
        let MachineConfig {
            cpu_model,
            processors,
            memory_bytes,
            start,
            disk,
            debug_ports,
            network,
            passthrough,
        } = config;
        let processors = (processors != Processors::default()).then(|| processors.into());
        let (booted, state) = match start {
            Start::Kernel(files) => (files, None),
            Start::State { state, booted } => (booted, Some(state)),
        };
        let KernelFiles { kernel, initrd, modules, cmdline } = booted;
        MachineConfigV5 {
            cpu_model,
            memory_bytes,
            kernel: kernel.into(),
            initrd: initrd.map(Into::into),
            modules: modules.into_iter().map(Into::into).collect(),
            cmdline,
            disk: disk.map(Into::into),
            debug_ports,
            network: network.map(Into::into),
            passthrough: passthrough.into_iter().map(Into::into).collect(),
            start: state.map(Into::into),
            processors,
        }
    }
}

impl From<MachineConfigV5> for MachineConfig {
    fn from(stored: MachineConfigV5) -> MachineConfig {
        let MachineConfigV5 {
            cpu_model,
            memory_bytes,
            kernel,
            initrd,
            modules,
            cmdline,
            disk,
            debug_ports,
            network,
            passthrough,
            start,
            processors,
        } = stored;
        let files = KernelFiles {
            kernel: kernel.into(),
            initrd: initrd.map(Into::into),
            modules: modules.into_iter().map(Into::into).collect(),
            cmdline,
        };
        MachineConfig {
            cpu_model,
            processors: processors.and_then(|stored| stored.processors()).unwrap_or_default(),
            memory_bytes,
            start: match start {
                None => Start::Kernel(files),
                Some(state) => Start::State { state: state.into(), booted: files },
            },
            disk: disk.map(Into::into),
            debug_ports,
            network: network.map(Into::into),
            passthrough: passthrough.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<NetworkConfig> for NetworkConfigV5 {
    fn from(network: NetworkConfig) -> NetworkConfigV5 {
        let NetworkConfig { mac, mtu, segments } = network;
        NetworkConfigV5 { mac, mtu, segments }
    }
}

impl From<NetworkConfigV5> for NetworkConfig {
    fn from(stored: NetworkConfigV5) -> NetworkConfig {
        let NetworkConfigV5 { mac, mtu, segments } = stored;
        NetworkConfig { mac, mtu, segments }
    }
}

impl From<ImageFile> for ImageFileV5 {
    fn from(image: ImageFile) -> ImageFileV5 {
        let ImageFile { path, hash, size_bytes } = image;
        ImageFileV5 { path, hash, size_bytes }
    }
}

impl From<ImageFileV5> for ImageFile {
    fn from(stored: ImageFileV5) -> ImageFile {
        let ImageFileV5 { path, hash, size_bytes } = stored;
        ImageFile { path, hash, size_bytes }
    }
}

impl From<ModuleFile> for ModuleFileV5 {
    fn from(module: ModuleFile) -> ModuleFileV5 {
        let ModuleFile { file, cmdline } = module;
        ModuleFileV5 { file: file.into(), cmdline }
    }
}

impl From<ModuleFileV5> for ModuleFile {
    fn from(stored: ModuleFileV5) -> ModuleFile {
        let ModuleFileV5 { file, cmdline } = stored;
        ModuleFile { file: file.into(), cmdline }
    }
}
