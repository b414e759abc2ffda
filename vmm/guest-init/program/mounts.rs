//! Loads modules, and makes the disk the root.

use crate::calls::{self, call, path, sleep_ms};
use crate::setup::Setup;
use crate::{Failure, say};

const MS_NOSUID: usize = 2;
const MS_NODEV: usize = 4;
const MS_NOEXEC: usize = 8;
const MS_NOATIME: usize = 1 << 10;
const MS_MOVE: usize = 1 << 13;

/// How often the process looks for the disk, and the time between.
const MOST_LOOKS: usize = 500;
const LOOK_MS: usize = 10;

/// The file systems below the new root: the source, the path, the type, the flags and the options.
type Mount = (&'static [u8], &'static [u8], &'static [u8], usize, &'static [u8]);
const MOUNTS: &[Mount] = &[
    (b"proc\0", b"/proc\0", b"proc\0", MS_NOSUID | MS_NODEV | MS_NOEXEC, b"\0"),
    (b"sysfs\0", b"/sys\0", b"sysfs\0", MS_NOSUID | MS_NODEV | MS_NOEXEC, b"\0"),
    (b"devtmpfs\0", b"/dev\0", b"devtmpfs\0", MS_NOSUID, b"mode=0755\0"),
    (b"devpts\0", b"/dev/pts\0", b"devpts\0", MS_NOSUID | MS_NOEXEC, b"ptmxmode=0666\0"),
    (b"tmpfs\0", b"/dev/shm\0", b"tmpfs\0", MS_NOSUID | MS_NODEV, b"mode=1777\0"),
    (b"tmpfs\0", b"/run\0", b"tmpfs\0", MS_NOSUID | MS_NODEV, b"mode=0755\0"),
    (b"debugfs\0", b"/sys/kernel/debug\0", b"debugfs\0", MS_NOSUID, b"\0"),
    (b"tracefs\0", b"/sys/kernel/tracing\0", b"tracefs\0", MS_NOSUID, b"\0"),
    (b"securityfs\0", b"/sys/kernel/security\0", b"securityfs\0", MS_NOSUID, b"\0"),
    (b"cgroup2\0", b"/sys/fs/cgroup\0", b"cgroup2\0", MS_NOSUID, b"\0"),
    (b"bpf\0", b"/sys/fs/bpf\0", b"bpf\0", MS_NOSUID, b"\0"),
];
/// Links that programs expect in `/dev`.
const LINKS: &[(&[u8], &[u8])] = &[
    (b"/proc/self/fd\0", b"/dev/fd\0"),
    (b"/proc/self/fd/0\0", b"/dev/stdin\0"),
    (b"/proc/self/fd/1\0", b"/dev/stdout\0"),
    (b"/proc/self/fd/2\0", b"/dev/stderr\0"),
];

/// Loads the modules, mounts the disk, and makes it the root.
pub fn enter_root(setup: &Setup) -> Result<(), Failure> {
    setup.modules().for_each(load);
    make(b"/dev\0");
    // The kernel mounts no devtmpfs for an initial RAM disk, whatever its configuration says.
    let _ = mount(&(b"devtmpfs\0", b"/dev\0", b"devtmpfs\0", 0, b"\0"));
    await_disk()?;
    make(b"/root\0");
    let disk: Mount = (b"/dev/vda\0", b"/root\0", b"ext4\0", MS_NOATIME, b"inode_readahead_blks=0\0");
    mount(&disk).map_err(|errno| {
        let missing: &[u8] = b"the kernel has no ext4: set CONFIG_EXT4_FS=y";
        Failure { text: if errno == calls::ENODEV { missing } else { b"the disk cannot be mounted" }, errno }
    })?;
    call(calls::CHDIR, [path(b"/root\0"), 0, 0, 0, 0, 0]).map_err(|errno| failed(b"no new root", errno))?;
    let moved = [path(b".\0"), path(b"/\0"), 0, MS_MOVE, 0, 0];
    call(calls::MOUNT, moved).map_err(|errno| failed(b"the root cannot be moved", errno))?;
    call(calls::CHROOT, [path(b".\0"), 0, 0, 0, 0, 0]).map_err(|errno| failed(b"no new root", errno))?;
    for one in MOUNTS {
        make(one.1);
        // A kernel may lack some of these file systems.
        let _ = mount(one);
    }
    if setup.own_tmp {
        make(b"/tmp\0");
        let _ = mount(&(b"tmpfs\0", b"/tmp\0", b"tmpfs\0", MS_NOSUID | MS_NODEV, b"mode=1777\0"));
    }
    for (to, at) in LINKS {
        let _ = call(calls::SYMLINK, [path(to), path(at), 0, 0, 0, 0]);
    }
    make(b"/out\0");
    let name = b"ttvm";
    let _ = call(calls::SETHOSTNAME, [path(name), name.len(), 0, 0, 0, 0]);
    Ok(())
}

fn failed(text: &'static [u8], errno: i32) -> Failure {
    Failure { text, errno }
}

fn make(folder: &[u8]) {
    let _ = call(calls::MKDIR, [path(folder), 0o755, 0, 0, 0, 0]);
}

fn mount(&(source, at, kind, flags, options): &Mount) -> Result<(), i32> {
    call(calls::MOUNT, [path(source), path(at), path(kind), flags, path(options), 0]).map(drop)
}

/// Loads a module. A failure shows later, when the disk is missing.
fn load(module: &[u8]) {
    let loaded = call(calls::OPEN, [path(module), 0, 0, 0, 0, 0]).and_then(|file| {
        let loaded = call(calls::FINIT_MODULE, [file, path(b"\0"), 0, 0, 0, 0]);
        let _ = call(calls::CLOSE, [file, 0, 0, 0, 0, 0]);
        loaded
    });
    if loaded.is_err() {
        say(&[b"ttvm: the guest cannot load ", &module[..module.len() - 1], b"\n"]);
    }
}

/// Waits until the kernel has found the disk.
fn await_disk() -> Result<(), Failure> {
    let mut last = calls::ENOENT;
    for _ in 0..MOST_LOOKS {
        match call(calls::OPEN, [path(b"/dev/vda\0"), 0, 0, 0, 0, 0]) {
            Ok(disk) => {
                let _ = call(calls::CLOSE, [disk, 0, 0, 0, 0, 0]);
                return Ok(());
            }
            Err(errno) => last = errno,
        }
        sleep_ms(LOOK_MS);
    }
    const WHY: &[u8] =
        b"there is no disk: set CONFIG_VIRTIO_PCI=y, CONFIG_VIRTIO_BLK=y and CONFIG_DEVTMPFS=y, or give --modules";
    Err(failed(WHY, last))
}
