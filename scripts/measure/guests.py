"""The guests of an endurance run: the benchmark workloads, Debian on a disk with a typist who logs in, an idle guest,
and a guest with several processors."""

import itertools
from dataclasses import dataclass

from measure.process import Typist
from measure.workloads import GUESTS, KERNEL, LAST_MARK, WORKLOADS, machine_options

GUEST_NAMES = [*WORKLOADS, "debian", "idle", "jobs"]
MIB = 1 << 20
# Smaller scales than the workloads' own, so that a round of all workloads takes some minutes. The other workloads have
# no smaller scale.
SHORT_SCALES = {"sys": "5", "rd": "20"}
BUSYBOX = f"{GUESTS}/initrd-busybox-cloud.gz"
DEBIAN = f"{GUESTS}/debian.img"
LOG_IN = [(b"login: ", b"root\n")]
LEAVE = b"systemctl is-system-running; poweroff\n"
SHORT_SESSION = LOG_IN + [(b"~# ", b"python3 -c 'print(sum(range(10**5)))'\n"), (b"4999950000", LEAVE)]
FULL_SESSION = LOG_IN + [(b"~# ", b"./check.sh\n"), (b"CHECK-OK 9.787606036044348", LEAVE)]
# Eight jobs side by side, which share pipes, files and the kernel's lists.
JOBS = (
    "for i in 1 2 3 4 5 6 7 8; do (n=0; while [ $((n += 1)) -lt 3000 ]; do echo $n; done | sort | md5sum;"
    " ls -lR /sys/bus | md5sum; cp -r /etc /tmp/$i; rm -r /tmp/$i) & done; wait; echo all jobs ended"
)
JOBS_PROCESSORS = 4
PROMPT = b"/ # "
# A shell that computes, reads, and now and then has nothing to do, for the whole run.
BUSY_SHELL = [(PROMPT, b"ls -lR /sys | md5sum\n"), (PROMPT, b"sleep 0.3; date\n"), (PROMPT, b"echo $((6 * 7))\n")]


@dataclass
class Guest:
    """A guest, with its options and its expected output."""

    name: str
    options: list
    memory_bytes: int
    shows: bytes
    """Text on the console that shows that the guest did its work."""
    session: list | None = None
    """The prompts and lines of the typist; None without a typist. Two runs of a guest with a typist are not exactly
    equal."""

    def typist(self):
        return Typist(self.session) if self.session else None


def guest_of(name, disk, full=False):
    """The guest with this name, at its full scale or at a smaller scale. `disk` is an empty disk. NAME=SCALE is a workload at
    this scale."""
    name, _, scale = name.partition("=")
    if name in WORKLOADS:
        scale = scale or ("" if full else SHORT_SCALES.get(name, ""))
        return Guest(name, machine_options(name, scale, disk), 256 * MIB, LAST_MARK.encode())
    options = ["--engine", "soft", "--kernel", KERNEL, "--initrd", BUSYBOX, "--cmdline"]
    if name == "idle":
        options += ['console=ttyS0 ttvm.run="sleep 600"', "--memory", "256M", "--unpaced"]
        return Guest(name, options, 256 * MIB, b"exit status 0")
    if name == "jobs":
        options += [f'console=ttyS0 ttvm.run="{JOBS}"', "--memory", "256M", "--cpus", str(JOBS_PROCESSORS)]
        return Guest(name, options, 256 * MIB, b"all jobs ended")
    options += ["console=ttyS0 root=/dev/vda", "--memory", "512M", "--disk", DEBIAN]
    session = FULL_SESSION if full else SHORT_SESSION
    return Guest(name, options, 512 * MIB, session[-1][0], session)


def busy_shell():
    """A boot to a shell into which a typist types commands without end."""
    options = ["--engine", "soft", "--kernel", KERNEL, "--initrd", BUSYBOX, "--cmdline", "console=ttyS0"]
    return Guest("shell", [*options, "--memory", "256M"], 256 * MIB, PROMPT, itertools.cycle(BUSY_SHELL))
