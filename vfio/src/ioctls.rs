//! The calls into the kernel, each as a safe function.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::{ioctl_none_bad, ioctl_readwrite_bad, ioctl_write_int_bad, ioctl_write_ptr_bad, request_code_none};
use vfio_bindings::bindings::vfio::{
    vfio_device_info, vfio_group_status, vfio_iommu_type1_dma_map, vfio_iommu_type1_dma_unmap,
    vfio_region_info,
};

const TYPE: u8 = b';';
const BASE: u8 = 100;

ioctl_none_bad!(get_api_version, request_code_none!(TYPE, BASE));
ioctl_write_int_bad!(check_extension, request_code_none!(TYPE, BASE + 1));
ioctl_write_int_bad!(set_iommu, request_code_none!(TYPE, BASE + 2));
ioctl_readwrite_bad!(get_group_status, request_code_none!(TYPE, BASE + 3), vfio_group_status);
ioctl_write_ptr_bad!(set_container, request_code_none!(TYPE, BASE + 4), RawFd);
ioctl_write_ptr_bad!(get_device_fd, request_code_none!(TYPE, BASE + 6), libc::c_char);
ioctl_readwrite_bad!(get_device_info, request_code_none!(TYPE, BASE + 7), vfio_device_info);
ioctl_readwrite_bad!(get_region_info, request_code_none!(TYPE, BASE + 8), vfio_region_info);
ioctl_write_ptr_bad!(set_irqs, request_code_none!(TYPE, BASE + 10), u8);
ioctl_none_bad!(reset, request_code_none!(TYPE, BASE + 11));
ioctl_write_ptr_bad!(map_dma, request_code_none!(TYPE, BASE + 13), vfio_iommu_type1_dma_map);
ioctl_readwrite_bad!(unmap_dma, request_code_none!(TYPE, BASE + 14), vfio_iommu_type1_dma_unmap);

const API_VERSION: i32 = 0;
const TYPE1V2_IOMMU: i32 = 3;
const GROUP_VIABLE: u32 = 1;

fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Whether the container has a known VFIO version and the IOMMU interface that this crate uses.
pub fn container_is_usable(container: &File) -> bool {
    // SAFETY: neither call reads or writes memory of this process.
    unsafe {
        get_api_version(container.as_raw_fd()) == Ok(API_VERSION)
            && check_extension(container.as_raw_fd(), TYPE1V2_IOMMU).is_ok_and(|has| has > 0)
    }
}

/// Whether the host's drivers have released all devices of the group.
pub fn group_is_viable(group: &File) -> nix::Result<bool> {
    let mut status = vfio_group_status { argsz: size::<vfio_group_status>(), flags: 0 };
    // SAFETY: the kernel writes at most `argsz` bytes, which is the value's size.
    unsafe { get_group_status(group.as_raw_fd(), &mut status) }?;
    Ok(status.flags & GROUP_VIABLE != 0)
}

/// Adds a group to a container, and then enables the container's IOMMU.
pub fn join(group: &File, container: &File) -> nix::Result<()> {
    // SAFETY: the first call reads one file descriptor, and the second call reads no memory of this process.
    unsafe {
        set_container(group.as_raw_fd(), &container.as_raw_fd())?;
        set_iommu(container.as_raw_fd(), TYPE1V2_IOMMU)?;
    }
    Ok(())
}

/// Opens a device of a group.
pub fn device(group: &File, name: &std::ffi::CStr) -> nix::Result<File> {
    // SAFETY: the kernel reads a zero-terminated text and returns a new file descriptor, which this function owns.
    unsafe {
        let number = get_device_fd(group.as_raw_fd(), name.as_ptr())?;
        Ok(File::from(OwnedFd::from_raw_fd(number)))
    }
}

/// The kernel's information about a device.
pub fn device_info(device: &File) -> nix::Result<vfio_device_info> {
    let mut info = vfio_device_info { argsz: size::<vfio_device_info>(), ..Default::default() };
    // SAFETY: the kernel writes at most `argsz` bytes, which is the value's size.
    unsafe { get_device_info(device.as_raw_fd(), &mut info) }?;
    Ok(info)
}

/// Offset of a region in the device's file, and its length.
pub fn region(device: &File, index: u32) -> nix::Result<(u64, u64)> {
    let mut info = vfio_region_info { argsz: size::<vfio_region_info>(), index, ..Default::default() };
    // SAFETY: the kernel writes at most `argsz` bytes, which is the value's size.
    unsafe { get_region_info(device.as_raw_fd(), &mut info) }?;
    Ok((info.offset, info.size))
}

/// Sets up or removes interrupts: VFIO_DEVICE_SET_IRQS.
pub fn interrupts(device: &File, flags: u32, index: u32, count: u32, events: &[RawFd]) -> nix::Result<()> {
    let length = 20 + 4 * events.len() as u32;
    let mut bytes = Vec::new();
    for field in [length, flags, index, 0, count].into_iter().chain(events.iter().map(|&event| event as u32))
    {
        bytes.extend(field.to_ne_bytes());
    }
    // SAFETY: the kernel reads the number of bytes in the first field, which is the buffer's length.
    unsafe { set_irqs(device.as_raw_fd(), bytes.as_ptr()) }?;
    Ok(())
}

/// Resets a device. Fails if the device has no reset.
pub fn reset_device(device: &File) -> nix::Result<()> {
    // SAFETY: the call reads and writes no memory of this process.
    unsafe { reset(device.as_raw_fd()) }?;
    Ok(())
}

/// Maps `size` bytes of this process's memory for the devices of a container. The caller must keep the memory until it
/// is unmapped or the container is closed. The kernel pins the pages, so that a later mapping never gives devices other
/// memory.
pub fn map(container: &File, iova: u64, address: u64, size_bytes: u64, flags: u32) -> nix::Result<()> {
    let argsz = size::<vfio_iommu_type1_dma_map>();
    let map = vfio_iommu_type1_dma_map { argsz, flags, vaddr: address, iova, size: size_bytes };
    // SAFETY: the kernel reads the value. Then the kernel lets devices write memory that only `Area`
    // accesses.
    unsafe { map_dma(container.as_raw_fd(), &map) }?;
    Ok(())
}

/// Removes a mapping.
pub fn unmap(container: &File, iova: u64, size_bytes: u64) -> nix::Result<()> {
    let argsz = size::<vfio_iommu_type1_dma_unmap>();
    let mut unmap = vfio_iommu_type1_dma_unmap { argsz, iova, size: size_bytes, ..Default::default() };
    // SAFETY: the kernel reads and writes at most `argsz` bytes, which is the value's size.
    unsafe { unmap_dma(container.as_raw_fd(), &mut unmap) }?;
    Ok(())
}
