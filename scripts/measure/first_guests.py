"""The guests of scripts/bench-first: fifteen workloads, each for a random time, each with a random end."""

import random
import signal
from dataclasses import dataclass

from measure.guests import BUSYBOX, DEBIAN
from measure.workloads import GUESTS, KERNEL, guest_options

# Commands that a shell of the busybox guest repeats until something ends the run.
SHELL_LOADS = {
    "idle": "sleep 1000",
    "list": "while :; do ls -lR /sys /proc/sys | md5sum; done",
    "fork": "while :; do (:); (:); (:); true | true; done",
    "zero": "while :; do dd if=/dev/zero bs=64k count=200 | md5sum; done",
    "write": "while :; do dd if=/dev/urandom of=/run/file bs=64k count=400; rm /run/file; done",
    "tiny": "while :; do echo $((6 * 7)); sleep 0.1; done",
    "text": "i=0; while :; do i=$((i + 1)); cat /proc/kallsyms | sort -r | tail -n 1; echo $i; done",
    "archive": "while :; do tar c /bin /sys/kernel | gzip | gunzip | wc -c; done",
}
# Guests with another kernel, each with the name of the load above that it runs.
OTHER_KERNELS = {"trixie": "list", "sid": "fork"}
BENCHES = ["cpu", "sys", "mem", "rd"]
NAMES = [*SHELL_LOADS, *OTHER_KERNELS, *BENCHES, "debian"]

# The ways in which the guest itself ends a load.
INNER_ENDS = {"power-off": "poweroff -f", "panic": "echo c >/proc/sysrq-trigger"}
OUTER_ENDS = {"kill": signal.SIGKILL, "^C": signal.SIGINT}


@dataclass
class FirstGuest:
    """A guest, the length of its run, and the way in which it ends."""

    name: str
    options: list
    end: str
    length_s: float
    """In seconds of guest time if the guest ends the run itself, else in seconds of the host's time."""
    signal: int | None
    """The signal that ends the recorder; None if the guest ends the run."""


def random_guest(chance: random.Random, number):
    """The guest with this number. The names take turns. The lengths are between 0.5 and 60 seconds, with as many short
    lengths as long ones."""
    name = NAMES[number % len(NAMES)]
    length_s = 0.5 * 120 ** chance.random()
    within = name in SHELL_LOADS or name in OTHER_KERNELS
    end = chance.choice([*INNER_ENDS, *OUTER_ENDS] if within else [*OUTER_ENDS])
    options = ["--engine", "soft", "--memory", "256M"]
    if within:
        kernel = f"{GUESTS}/kernel-{name}/vmlinuz" if name in OTHER_KERNELS else KERNEL
        initrd = f"{GUESTS}/initrd-busybox-{name}.gz" if name in OTHER_KERNELS else BUSYBOX
        load = SHELL_LOADS[OTHER_KERNELS.get(name, name)]
        ended = f"sleep {length_s:.2f}; {INNER_ENDS[end]}" if end in INNER_ENDS else "sleep 10000"
        command = f"({load}) >/dev/null 2>&1 & {ended}"
        options += ["--unpaced", "--kernel", kernel, "--initrd", initrd]
        options += ["--cmdline", f'console=ttyS0 panic=0 ttvm.run="{command}"']
    elif name == "debian":
        options[-1] = "512M"
        options += ["--unpaced", "--kernel", KERNEL, "--initrd", BUSYBOX, "--disk", DEBIAN]
        options += ["--cmdline", "console=ttyS0 root=/dev/vda"]
    else:
        initrd, cmdline = guest_options(name, "100000")
        options += ["--kernel", KERNEL, "--initrd", initrd, "--cmdline", cmdline]
    return FirstGuest(name, options, end, length_s, OUTER_ENDS.get(end))
