//! Tests host devices that cannot be passed through. One sentence says why, and ttvm does not change the devices.

use std::path::PathBuf;

use crate::common::ttvm;

/// A PCI function of this host that has no IOMMU group, if there is one.
fn function_without_iommu() -> Option<String> {
    let functions = std::fs::read_dir("/sys/bus/pci/devices").ok()?;
    let mut paths = functions.filter_map(|entry| Some(entry.ok()?.path()));
    let path: PathBuf = paths.find(|path| !path.join("iommu_group").exists())?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn said(device: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let kernel = tiny_guest::write_kernel(directory.path(), 1);
    let kernel = kernel.to_str().unwrap();
    let (code, _, said) = ttvm(directory.path(), &["run", "--kernel", kernel, "--passthrough", device]);
    assert_eq!(code, 5, "{said}");
    said
}

#[test]
fn a_function_behind_no_iommu_is_refused_with_what_to_do() {
    let Some(function) = function_without_iommu() else {
        return skip::test("each PCI function of this host is behind an IOMMU, or it has none");
    };
    let said = said(&format!("pci:{function}"));
    assert!(said.contains(&format!("the PCI function {function} is behind no IOMMU")), "{said}");
    assert!(said.contains("intel_iommu=on or amd_iommu=on"), "{said}");
}

#[test]
fn a_function_that_is_not_there_is_refused_with_what_lists_those_that_are() {
    let said = said("pci:ffff:ff:1f.7");
    assert!(
        said.contains("the host has no PCI function ffff:ff:1f.7") && said.contains("lspci -D"),
        "{said}"
    );
}
