"""Runs one process, and types at its console or kills it. Returns its output and its cost."""

import contextlib
import os
import pty
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl


class Typist:
    """Waits for a text on the console, types the answer, waits for the next text, and so on. `lines` are pairs of a
    text and its answer, and may be endless."""

    def __init__(self, lines):
        self.lines = iter(lines)
        self.unseen = b""
        self.next_line()

    def next_line(self):
        self.wait_for, self.answer = next(self.lines, (None, None))

    def see(self, output):
        """Returns the answer to type after this output; mostly empty."""
        self.unseen += output
        if self.wait_for is None or (at := self.unseen.find(self.wait_for)) < 0:
            return b""
        self.unseen = self.unseen[at + len(self.wait_for) :]
        answer = self.answer
        self.next_line()
        return answer


@dataclass
class Done:
    """A process that has ended."""

    code: int
    """The exit code, or minus the number of the signal that ended the process."""
    console: bytes
    """The complete standard output."""
    messages: str
    """The complete standard error."""
    cpu_s: float
    """CPU seconds of all threads, in user mode and in the kernel."""
    peak_bytes: int
    """The largest resident memory that the process has had."""
    began_at: float
    """The time of the start, in seconds since 1970."""
    ended_at: float
    """The time at which the process was killed, or was found to have ended, in seconds since 1970."""
    seen: list = field(default_factory=list)
    """Pairs of a time, in seconds since 1970, and the number of output bytes up to this time."""

    def seen_before(self, date):
        """The number of output bytes up to a time."""
        return max((count for at, count in self.seen if at <= date), default=0)


def run(command, typist=None, kill_after_s=None, until=None, limit_s=3600):
    """Runs a command to its end, or kills it: after `kill_after_s`, once the text `until` is on its console, or when
    it has hung for `limit_s`. With a typist, the console is a terminal. Without a typist, the process has no input."""
    with tempfile.TemporaryFile() as messages:
        process, console = start(command, typist, messages)
        try:
            done = watch(process, console, typist, limit_s if kill_after_s is None else kill_after_s, until)
        finally:
            os.close(console)
            if process.returncode is None:
                process.kill()
                process.wait()
        messages.seek(0)
        done.messages = messages.read().decode(errors="replace")
        return done


def start(command, typist, messages):
    """Starts a process. Returns the process, and the descriptor from which its console can be read."""
    if typist is None:
        console, theirs = os.pipe()
        stdin = subprocess.DEVNULL
    else:
        console, theirs = pty.openpty()
        resize(console, 80, 25)
        stdin = theirs
    try:
        return subprocess.Popen(command, stdin=stdin, stdout=theirs, stderr=messages), console
    finally:
        os.close(theirs)


def resize(terminal, columns, rows):
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def watch(process, console, typist, kill_after_s, until):
    output, seen, began_at = bytearray(), [], time.time()
    kill_at, ended_at = time.monotonic() + kill_after_s, None
    while True:
        left_s = kill_at - time.monotonic()
        # The output that a process wrote before it was killed can still be read.
        ready = ended_at or select.select([console], [], [], max(left_s, 0))[0]
        if ended_at is None and (not ready or left_s <= 0 or until and until in output):
            ended_at = time.time()
            process.send_signal(signal.SIGKILL)
            continue
        data = read(console)
        if not data:
            break
        output += data
        seen.append((time.time(), len(output)))
        if typist and ended_at is None and (keys := typist.see(data)):
            answer(process, console, keys, last=typist.wait_for is None)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Done(
        code=process.returncode,
        console=bytes(output),
        messages="",
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss << 10,
        began_at=began_at,
        ended_at=ended_at or time.time(),
        seen=seen,
    )


def answer(process, console, keys, last):
    """Types an answer. Before the last answer, also changes the terminal's size, because a size change is another kind
    of input."""
    if last:
        resize(console, 100, 30)
        process.send_signal(signal.SIGWINCH)
    # If the process has just ended, the code that reads its output notices that.
    with contextlib.suppress(OSError):
        os.write(console, keys)


def read(console):
    """Reads output. Returns no bytes at the end."""
    try:
        return os.read(console, 65536)
    except OSError:
        return b""  # the process has closed its side of the terminal
