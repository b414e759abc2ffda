//! Examines this host's support for `--passthrough`. Opening a VFIO group and closing it again does not change its
//! devices.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use host::ALLOWED_PORTS;

use super::finding::{Finding, finding};

/// The directories in which the kernel shows devices.
pub(super) struct Host {
    sys: PathBuf,
    dev: PathBuf,
}

impl Host {
    /// The directories of this host.
    pub fn this() -> Host {
        Host { sys: "/sys".into(), dev: "/dev".into() }
    }

    /// The findings, in the order in which a user sets up passthrough.
    pub fn examine(&self) -> Vec<Finding> {
        let functions = self.bound_functions();
        let mut groups: Vec<_> = functions.iter().filter_map(|(_, group)| group.clone()).collect();
        groups.sort();
        groups.dedup();
        let mut findings = vec![self.iommu(), bound(&functions)];
        findings.extend(groups.iter().map(|group| self.group(group)));
        findings.push(self.ports());
        findings
    }

    fn iommu(&self) -> Finding {
        let count = names(&self.sys.join("kernel/iommu_groups")).len();
        match count {
            0 => finding(
                "passthrough: IOMMU",
                false,
                "no device is behind an IOMMU",
                "for PCI functions: enable the IOMMU in the firmware, and boot the host with intel_iommu=on or \
                 amd_iommu=on",
            ),
            _ => finding("passthrough: IOMMU", true, format!("{count} groups of devices"), ""),
        }
    }

    /// The functions bound to vfio-pci, and the IOMMU group of each.
    fn bound_functions(&self) -> Vec<(String, Option<String>)> {
        // Names of functions have colons; skip other files in the folder.
        let functions = names(&self.sys.join("bus/pci/drivers/vfio-pci")).into_iter();
        let functions = functions.filter(|name| name.contains(':'));
        let group = |function: &str| {
            let link = self.sys.join("bus/pci/devices").join(function).join("iommu_group");
            Some(std::fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
        };
        functions.map(|function| (function.clone(), group(&function))).collect()
    }

    /// Tests whether a group can be opened. Only one program can open a group at a time.
    fn group(&self, number: &str) -> Finding {
        let files = [self.dev.join("vfio/vfio"), self.dev.join("vfio").join(number)];
        let failed = files.iter().find_map(|file| Some((file, open(file).err()?)));
        let name = format!("passthrough: group {number}");
        let Some((file, error)) = failed else {
            return finding(&name, true, format!("{} can be opened", files[1].display()), "");
        };
        let advice = match error.kind() {
            ErrorKind::PermissionDenied => "change its owner with chown, or run ttvm as root",
            ErrorKind::NotFound => "load the modules vfio_iommu_type1 and vfio-pci",
            _ => "another program has a device of that group: end it",
        };
        finding(&name, false, format!("cannot open {}: {error}", file.display()), advice)
    }

    fn ports(&self) -> Finding {
        let ports: Vec<_> =
            ALLOWED_PORTS.iter().map(|(first, last)| format!("{first:#x}-{last:#x}")).collect();
        let (ports, name) = (ports.join(" "), "passthrough: ports");
        match open(&self.dev.join("port")) {
            Ok(_) => finding(name, true, ports, ""),
            Err(error) => finding(
                name,
                false,
                format!("cannot open /dev/port: {error}"),
                "run ttvm as root, on a host whose kernel has this file",
            ),
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn bound(functions: &[(String, Option<String>)]) -> Finding {
    let name = "passthrough: PCI functions";
    if functions.is_empty() {
        let advice = "for --passthrough pci: load vfio-pci, and bind the function to it with driver_override";
        return finding(name, false, "none is bound to vfio-pci", advice);
    }
    let list = functions.iter().map(|(function, group)| match group {
        Some(group) => format!("{function} (group {group})"),
        None => format!("{function} (behind no IOMMU)"),
    });
    finding(name, true, list.collect::<Vec<_>>().join(", "), "")
}

/// The names in a folder, sorted; empty if there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn lines(host: &Host) -> Vec<String> {
        let findings = host.examine().into_iter();
        let line = |it: Finding| format!("{} {}: {} {}", it.ok, it.name, it.detail, it.advice);
        findings.map(line).collect()
    }

    #[test]
    fn each_thing_has_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let in_directory = |path: &str| directory.path().join(path);
        let host = Host { sys: in_directory("sys"), dev: in_directory("dev") };
        let found = lines(&host);
        assert_eq!(found.len(), 3, "{found:?}");
        for (line, part) in found.iter().zip(["intel_iommu=on", "none is bound to vfio-pci", "/dev/port"]) {
            assert!(line.starts_with("false ") && line.contains(part), "{line}");
        }

        let (function, group) = ("0000:00:03.0", "sys/kernel/iommu_groups/7");
        for folder in [
            group,
            "sys/kernel/iommu_groups/8",
            "sys/bus/pci/drivers/vfio-pci/module",
            "sys/bus/pci/drivers/vfio-pci/0000:00:03.0",
            "sys/bus/pci/devices/0000:00:03.0",
            "dev/vfio",
        ] {
            std::fs::create_dir_all(in_directory(folder)).unwrap();
        }
        let link = in_directory("sys/bus/pci/devices").join(function).join("iommu_group");
        symlink(in_directory(group), link).unwrap();
        std::fs::write(in_directory("dev/vfio/vfio"), "").unwrap();
        std::fs::write(in_directory("dev/port"), "").unwrap();
        let found = lines(&host);
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[0], "true passthrough: IOMMU: 2 groups of devices ");
        assert_eq!(found[1], "true passthrough: PCI functions: 0000:00:03.0 (group 7) ");
        assert!(found[2].starts_with("false ") && found[2].contains("vfio/7: No such file"), "{}", found[2]);
        assert!(found[3].contains("0x2f8-0x2ff"), "{}", found[3]);

        std::fs::write(in_directory("dev/vfio/7"), "").unwrap();
        assert!(lines(&host)[2].contains("vfio/7 can be opened"));
    }
}
