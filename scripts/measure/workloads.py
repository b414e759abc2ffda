"""The benchmark guests: where they are, how a machine for one is described, and how all of it is built."""

import os
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUESTS = f"{REPO}/guest-images/out"
KERNEL = f"{GUESTS}/kernel-cloud/vmlinuz"
# The same kernel as an ELF file. In this file, ttvm finds the code that reads the TSC, which KVM cannot trap.
VMLINUX = f"{GUESTS}/kernel-cloud/vmlinux"
TTVM = f"{REPO}/target/release/ttvm"
WORKLOADS = ["boot", "cpu", "sys", "mem", "disk", "rd"]
# Options for every machine monitor; they keep QEMU from losing time while it calibrates clocks.
CMDLINE = "console=ttyS0 panic=-1 reboot=t nokaslr no_timer_check tsc=reliable mitigations=off"
LAST_MARK = "MARK point done"
DISK_BYTES = 256 << 20


def guest_options(workload, scale):
    """Initrd and command line, the same for every machine monitor."""
    initrd = f"{GUESTS}/initrd-{'rd' if workload == 'rd' else 'bench'}.gz"
    cmdline = f"{CMDLINE} w={workload}" + (f" n={scale}" if scale else "")
    return initrd, cmdline


def machine_options(workload, scale, disk, engine="soft"):
    """The machine as ttvm's run and record want it; `disk` is an empty disk for the workload that needs one."""
    initrd, cmdline = guest_options(workload, scale)
    kernel = VMLINUX if engine == "kvm" else KERNEL
    options = ["--engine", engine, "--kernel", kernel, "--initrd", initrd, "--cmdline", cmdline, "--memory", "256M"]
    return options + (["--disk", disk] if workload == "disk" else [])


def make_empty_disk(path):
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)


def build(guests=None):
    """Sets the machine up and builds ttvm; `guests` is the command that builds the guests, if they are wanted."""
    subprocess.run([f"{REPO}/scripts/setup"], check=True)
    if guests:
        subprocess.run(guests, check=True, stdout=subprocess.DEVNULL)
    path = os.environ["PATH"] + ":" + os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo")) + "/bin"
    subprocess.run(
        ["cargo", "build", "--release", "--locked", "--package", "ttvm"],
        cwd=REPO,
        env=dict(os.environ, PATH=path),
        check=True,
    )
