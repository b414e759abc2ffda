//! The guests, by name, as machines that have not run yet.

use std::path::{Path, PathBuf};
use std::process::Command;

use machine::Machine;
use machine::config::{MachineConfig, MachineOptions};
use machine::inputs::PowerOn;
use machine::position::Instructions;
use machine::start::Images;

/// A guest below `guest-images/out`, and the script that builds it.
pub struct Artefact {
    path: &'static str,
    recipe: &'static str,
}

/// Debian's cloud kernel, as Debian ships it.
pub const CLOUD: Artefact = Artefact { path: "kernel-cloud/vmlinuz", recipe: "guest-images/kernel" };
/// The ELF image inside Debian's cloud kernel.
pub const CLOUD_ELF: Artefact = Artefact { path: "kernel-cloud/vmlinux", recipe: "guest-images/kernel" };
/// Debian's ordinary kernel, as Debian ships it.
pub const GENERIC: Artefact = Artefact { path: "kernel-generic/vmlinuz", recipe: "guest-images/kernel" };
/// The ELF image inside Debian's ordinary kernel.
pub const GENERIC_ELF: Artefact = Artefact { path: "kernel-generic/vmlinux", recipe: "guest-images/kernel" };
/// The initial RAM disk with busybox for the cloud kernel.
pub const BUSYBOX: Artefact = Artefact { path: "initrd-busybox-cloud.gz", recipe: "guest-images/initramfs" };
/// The initial RAM disk with busybox for the ordinary kernel.
pub const BUSYBOX_GENERIC: Artefact =
    Artefact { path: "initrd-busybox-generic.gz", recipe: "guest-images/initramfs" };
/// The cloud kernel of Debian 13, and the initial RAM disk for this kernel. The files of this guest and of the next
/// three guests are missing if the package manager does not have the kernels.
pub const TRIXIE: [Artefact; 2] = newer("kernel-trixie/vmlinuz", "initrd-busybox-trixie.gz");
/// The newest cloud kernel of Debian.
pub const SID: [Artefact; 2] = newer("kernel-sid/vmlinuz", "initrd-busybox-sid.gz");
/// The newest real-time kernel.
pub const SID_RT: [Artefact; 2] = newer("kernel-sid-rt/vmlinuz", "initrd-busybox-sid-rt.gz");
/// The real-time kernel of Debian 12.
pub const BOOKWORM_RT: [Artefact; 2] = newer("kernel-bookworm-rt/vmlinuz", "initrd-busybox-bookworm-rt.gz");
/// GNU Mach for amd64. The guest is missing if the package manager does not have this package.
pub const GNU_MACH: Artefact = Artefact { path: "gnumach", recipe: "guest-images/other-kernels" };
/// Xen 4.17. The guest is missing if the package manager does not have this package.
pub const XEN: Artefact = Artefact { path: "xen", recipe: "guest-images/other-kernels" };
/// The busybox program in these initial RAM disks. The host can run this program, too.
pub const BUSYBOX_PROGRAM: Artefact =
    Artefact { path: "busybox/bin/busybox", recipe: "guest-images/initramfs" };
/// The initial RAM disk with the benchmark workloads.
pub const BENCH: Artefact = Artefact { path: "initrd-bench.gz", recipe: "guest-images/workloads/build" };
/// The initial RAM disk with the workload for reverse debugging.
pub const BENCH_RD: Artefact = Artefact { path: "initrd-rd.gz", recipe: "guest-images/workloads/build" };
/// The initial RAM disk with kernel modules, each with a bug. The file is missing if the kernel's headers could not
/// be installed.
pub const BUGS: Artefact = Artefact { path: "initrd-bugs.gz", recipe: "guest-images/bugs/build" };
/// Debian 12 on a disk.
pub const DEBIAN: Artefact = Artefact { path: "debian.img", recipe: "guest-images/debian-disk" };

const fn newer(kernel: &'static str, busybox: &'static str) -> [Artefact; 2] {
    let recipe = "guest-images/initramfs";
    [Artefact { path: kernel, recipe }, Artefact { path: busybox, recipe }]
}

/// Returns the path of a tiny test kernel: `mb1`, `mb2`, `pvh`, `elf64`, `pae`, `real16`.
pub fn test_kernel(name: &str) -> PathBuf {
    existing(&format!("kernels/{name}.elf"), "guest-images/kernels/build.sh")
}

impl Artefact {
    /// The guest's path. Fails and names the recipe if the guest has not been built.
    pub fn path(&self) -> PathBuf {
        existing(self.path, self.recipe)
    }

    /// Whether the guest has been built.
    pub fn exists(&self) -> bool {
        repository().join("guest-images/out").join(self.path).exists()
    }
}

/// The top of the repository.
pub fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in the repository").to_path_buf()
}

fn existing(path: &str, recipe: &str) -> PathBuf {
    let path = repository().join("guest-images/out").join(path);
    assert!(path.exists(), "{} has not been built: run {recipe} (or scripts/guests) first", path.display());
    path
}

/// The power-on event of every test machine: always the same date and seed.
pub fn power_on() -> PowerOn {
    PowerOn { unix_seconds: 1_700_000_000, seed: [0x5a; 32], columns: 80, rows: 25 }
}

/// A machine's description with its images.
pub struct Guest {
    /// The description.
    pub config: MachineConfig,
    /// The images' contents.
    pub images: Images,
}

impl Guest {
    /// Reads the images.
    pub fn new(options: &MachineOptions) -> Guest {
        let (config, images) = MachineConfig::from_options(options).unwrap_or_else(|error| panic!("{error}"));
        Guest { config, images }
    }

    /// Describes a Linux guest with an initial RAM disk and the serial console. `parameters` are added to the
    /// kernel's command line.
    pub fn linux(kernel: &Artefact, initrd: &Artefact, parameters: &str, memory_mib: u64) -> Guest {
        Guest::new(&linux_options(kernel, initrd, parameters, memory_mib))
    }

    /// Creates the machine, before its first instruction.
    pub fn machine(&self) -> Machine<Instructions> {
        Machine::new(&self.config, &self.images, &power_on()).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Returns the options of a machine that runs Linux. The kernel's parameters are the serial console and
/// `parameters`.
pub fn linux_options(
    kernel: &Artefact,
    initrd: &Artefact,
    parameters: &str,
    memory_mib: u64,
) -> MachineOptions {
    MachineOptions {
        kernel: kernel.path(),
        initrd: Some(initrd.path()),
        cmdline: format!("console=ttyS0 {parameters}").trim_end().to_string(),
        memory_bytes: memory_mib << 20,
        ..MachineOptions::default()
    }
}

/// Makes an initial RAM disk that has the contents of another initial RAM disk and all files of a folder.
pub fn with_files(initrd: &Artefact, folder: &Path, to: &Path) {
    let packed = Command::new("sh")
        .args(["-c", "find . | cpio --quiet -o -H newc | gzip -1 | cat \"$0\" -"])
        .arg(initrd.path())
        .current_dir(folder)
        .output()
        .expect("the host has sh");
    assert!(
        packed.status.success(),
        "scripts/setup installs cpio: {}",
        String::from_utf8_lossy(&packed.stderr)
    );
    std::fs::write(to, packed.stdout).expect("the folder is ours");
}

/// Makes the kernel of a few instructions (`small_guest.s`). The kernel ends its run by a write to the debug-exit
/// port, and runs for a second at most.
pub fn small_kernel(directory: &Path) -> PathBuf {
    let path = directory.join("small");
    let made = Command::new("gcc")
        .args(["-m32", "-nostdlib", "-static", "-Wl,-Ttext=0x100000,--build-id=none,--oformat=binary", "-o"])
        .arg(&path)
        .arg(repository().join("tests/src/small_guest.s"))
        .status();
    assert!(made.expect("the host has gcc").success());
    path
}
