"""Runs, records and replays the benchmark workloads under ttvm and under QEMU's TCG. Returns each mark on the console
with the CPU time at the mark."""

import contextlib
import glob
import json
import os
import signal
import subprocess
import threading

from measure.process import run
from measure.workloads import KERNEL, guest_options, machine_options

QEMU = "qemu-system-x86_64"
KINDS = ["run", "record", "replay"]
# A machine monitor that has hung for this long will not continue.
LIMIT_S = 600


class BenchError(Exception):
    """The run cannot be used. The text, for the user, says why."""


def checked(command):
    """Runs a command that must succeed. Returns its output."""
    done = run(command)
    if done.code != 0:
        raise BenchError(f"{' '.join(command[:2])} ended with {done.code}: {done.messages[-500:].strip()}")
    return done.console


def cpu_ns(pid):
    """CPU time of all threads of a process so far."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                total += int(file.read().split()[0])
        except OSError:
            pass  # the thread has ended
    return total


def marks_of(name, command, messages_file, on_mark=None, limit_s=LIMIT_S):
    """Runs a command. Returns the marks on its console as (text, None, CPU nanoseconds when the line appeared). Calls
    `on_mark` with the text of each mark. `on_mark` must not wait."""
    with open(messages_file, "wb") as messages:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages)
    timer = threading.Timer(limit_s, process.send_signal, [signal.SIGKILL])
    timer.start()
    marks, rest = [], b""
    while data := os.read(process.stdout.fileno(), 65536):
        now_ns = cpu_ns(process.pid)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if (at := line.find(b"MARK ")) >= 0:
                marks.append((line[at:].decode("latin1").strip(), None, now_ns))
                if on_mark:
                    on_mark(marks[-1][0])
    code = process.wait()
    timer.cancel()
    if code != 0:
        with open(messages_file, errors="replace") as messages:
            raise BenchError(f"{name} ended with {code}: {messages.read()[-500:].strip()}")
    return marks


def qemu_command(workload, scale):
    """The command of QEMU's TCG with the machine of a workload. The caller adds the option for the console."""
    initrd, cmdline = guest_options(workload, scale)
    command = [QEMU, "-accel", "tcg", "-M", "pc", "-cpu", "qemu64", "-smp", "1", "-m", "256", "-nodefaults"]
    command += ["-display", "none", "-no-reboot", "-net", "none"]
    return command + ["-kernel", KERNEL, "-initrd", initrd, "-append", cmdline]


class Ttvm:
    """Plays workloads with a build of ttvm."""

    name = "ttvm"

    def __init__(self, binary):
        self.binary = binary

    def play(self, kind, workload, scale, disk, scratch):
        """Plays a workload. Returns its marks as (text, instructions or None, CPU nanoseconds). The kind `replay`
        replays the last recording."""
        recording, stats_file = f"{scratch}/recording.ttvm", f"{scratch}/stats.json"
        machine = machine_options(workload, scale, disk)
        if kind == "record":
            subprocess.run(["rm", "-rf", recording], check=True)
        what = {
            "run": ["run", *machine],
            "record": ["record", "-o", recording, *machine],
            "replay": ["replay", recording],
        }[kind]
        marks_of(f"ttvm {kind}", [self.binary, *what, "--stats-json", stats_file], f"{scratch}/messages")
        with open(stats_file) as file:
            return [(mark["text"], mark.get("insns"), mark["cpu_ns"]) for mark in json.load(file)["marks"]]

    @contextlib.contextmanager
    def background_replay(self, scratch, core):
        """A context in which a replay of the last recording runs on this core. The replay ends at the end of the
        context, or earlier."""
        command = [self.binary, "replay", f"{scratch}/recording.ttvm", "--quiet"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, {core})
        try:
            yield
        finally:
            process.kill()
            process.wait()


class Qemu:
    """Plays workloads with QEMU's TCG. While recording and replaying, QEMU counts instructions."""

    name = "QEMU"

    def play(self, kind, workload, scale, disk, scratch):
        """As `Ttvm.play`."""
        command = [*qemu_command(workload, scale), "-serial", "stdio"]
        drive = "d0"
        if kind != "run":
            command += ["-icount", f"shift=auto,rr={kind},rrfile={scratch}/qemu.rr"]
            drive = "d1"
        if workload == "disk":
            command += ["-drive", f"file={disk},format=raw,if=none,id=d0,snapshot=on"]
            if drive == "d1":
                command += ["-drive", "driver=blkreplay,if=none,image=d0,id=d1"]
            command += ["-device", f"virtio-blk-pci,drive={drive}"]
        return marks_of(f"QEMU ({kind})", command, f"{scratch}/messages")
