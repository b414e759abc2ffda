//! What manifests of format version 4 say: [`Manifest`] and the machine's description, field by field in the
//! order of the text.
//!
//! The names are those in the text, and the hash of a machine's description is one of these fields in this
//! order, so nothing in here may be renamed, moved, added or retyped; `tests/stored_bytes.rs` has a text and
//! hashes.

use std::path::PathBuf;

use devices::DebugPortsV1;
use serde::{Deserialize, Serialize};

use crate::machine::config::{ImageFile, MachineConfig, ModuleFile};
use crate::recording::manifest::Manifest;

/// What is stored of a [`Manifest`]: all of it.
#[derive(Serialize, Deserialize)]
pub(super) struct ManifestV4 {
    format_version: u32,
    made_by: String,
    engine: String,
    counter: String,
    machine: MachineConfigV4,
}

/// What is stored of a [`MachineConfig`].
#[derive(Serialize, Deserialize)]
pub(super) struct MachineConfigV4 {
    cpu_model: String,
    memory_bytes: u64,
    kernel: ImageFileV4,
    initrd: Option<ImageFileV4>,
    modules: Vec<ModuleFileV4>,
    cmdline: String,
    disk: Option<ImageFileV4>,
    debug_ports: DebugPortsV1,
}

/// What is stored of an [`ImageFile`].
#[derive(Serialize, Deserialize)]
struct ImageFileV4 {
    path: PathBuf,
    hash: String,
    size_bytes: u64,
}

/// What is stored of a [`ModuleFile`].
#[derive(Serialize, Deserialize)]
struct ModuleFileV4 {
    file: ImageFileV4,
    cmdline: String,
}

impl From<Manifest> for ManifestV4 {
    fn from(manifest: Manifest) -> ManifestV4 {
        let Manifest { format_version, made_by, engine, counter, machine } = manifest;
        ManifestV4 { format_version, made_by, engine, counter, machine: machine.into() }
    }
}

impl From<ManifestV4> for Manifest {
    fn from(stored: ManifestV4) -> Manifest {
        let ManifestV4 { format_version, made_by, engine, counter, machine } = stored;
        Manifest { format_version, made_by, engine, counter, machine: machine.into() }
    }
}

impl From<MachineConfig> for MachineConfigV4 {
    fn from(config: MachineConfig) -> MachineConfigV4 {
        let MachineConfig { cpu_model, memory_bytes, kernel, initrd, modules, cmdline, disk, debug_ports } =
            config;
        MachineConfigV4 {
            cpu_model,
            memory_bytes,
            kernel: kernel.into(),
            initrd: initrd.map(Into::into),
            modules: modules.into_iter().map(Into::into).collect(),
            cmdline,
            disk: disk.map(Into::into),
            debug_ports,
        }
    }
}

impl From<MachineConfigV4> for MachineConfig {
    fn from(stored: MachineConfigV4) -> MachineConfig {
        let MachineConfigV4 { cpu_model, memory_bytes, kernel, initrd, modules, cmdline, disk, debug_ports } =
            stored;
        MachineConfig {
            cpu_model,
            memory_bytes,
            kernel: kernel.into(),
            initrd: initrd.map(Into::into),
            modules: modules.into_iter().map(Into::into).collect(),
            cmdline,
            disk: disk.map(Into::into),
            debug_ports,
        }
    }
}

impl From<ImageFile> for ImageFileV4 {
    fn from(image: ImageFile) -> ImageFileV4 {
        let ImageFile { path, hash, size_bytes } = image;
        ImageFileV4 { path, hash, size_bytes }
    }
}

impl From<ImageFileV4> for ImageFile {
    fn from(stored: ImageFileV4) -> ImageFile {
        let ImageFileV4 { path, hash, size_bytes } = stored;
        ImageFile { path, hash, size_bytes }
    }
}

impl From<ModuleFile> for ModuleFileV4 {
    fn from(module: ModuleFile) -> ModuleFileV4 {
        let ModuleFile { file, cmdline } = module;
        ModuleFileV4 { file: file.into(), cmdline }
    }
}

impl From<ModuleFileV4> for ModuleFile {
    fn from(stored: ModuleFileV4) -> ModuleFile {
        let ModuleFileV4 { file, cmdline } = stored;
        ModuleFile { file: file.into(), cmdline }
    }
}
