"""The benchmark guests: their files, the options of their machines, and the commands that build guests and ttvm."""

import os
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUESTS = f"{REPO}/guest-images/out"
KERNEL = f"{GUESTS}/kernel-cloud/vmlinuz"
# The same kernel as an ELF file. In this file, ttvm finds the code that reads the TSC, which KVM cannot trap.
VMLINUX = f"{GUESTS}/kernel-cloud/vmlinux"
TTVM = f"{REPO}/target/release/ttvm"
WORKLOADS = ["boot", "cpu", "sys", "mem", "disk", "rd"]
# Kernel parameters for every machine monitor. Some of them save the time in which a guest under QEMU calibrates its
# clocks.
CMDLINE = "console=ttyS0 panic=-1 reboot=t nokaslr no_timer_check tsc=reliable mitigations=off"
LAST_MARK = "MARK point done"
DISK_BYTES = 256 << 20


def guest_options(workload, scale):
    """The initial RAM disk and the command line, which are the same for every machine monitor."""
    initrd = f"{GUESTS}/initrd-{'rd' if workload == 'rd' else 'bench'}.gz"
    cmdline = f"{CMDLINE} w={workload}" + (f" n={scale}" if scale else "")
    return initrd, cmdline


def machine_options(workload, scale, disk, engine="soft"):
    """The machine's options for ttvm run and ttvm record. `disk` is an empty disk, for the workload that needs a
    disk."""
    initrd, cmdline = guest_options(workload, scale)
    kernel = VMLINUX if engine == "kvm" else KERNEL
    options = ["--engine", engine, "--kernel", kernel, "--initrd", initrd, "--cmdline", cmdline, "--memory", "256M"]
    return options + (["--disk", disk] if workload == "disk" else [])


def make_empty_disk(path):
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)


def build(guests=None):
    """Sets this machine up and builds ttvm. `guests` is the command that builds the guests; None if none are needed."""
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
