"""One ttvm process: its console, what it cost, and the typist who types into it or kills it."""

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
    """Waits for a text on the console, types the answer, and so on. `lines` are pairs of both, perhaps without end."""

    def __init__(self, lines):
        self.lines = iter(lines)
        self.unseen = b""
        self.next_line()

    def next_line(self):
        self.wait_for, self.answer = next(self.lines, (None, None))

    def see(self, output):
        """What to type after this output; nothing, mostly."""
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
    """Exit code; minus the signal, if one ended it."""
    console: bytes
    """All that it wrote to its standard output."""
    messages: str
    """All that it wrote to its standard error."""
    cpu_s: float
    """CPU time of all its threads, that of the kernel on its behalf included."""
    peak_bytes: int
    """The largest resident memory that the process has had."""
    began_at: float
    """Date at which it was started, in seconds since 1970."""
    ended_at: float
    """Date at which it was killed, or else was found to have ended."""
    seen: list = field(default_factory=list)
    """Pairs of a date and how many bytes of the console had come by then."""

    def seen_before(self, date):
        """How many bytes of the console had come by that date."""
        return max((count for at, count in self.seen if at <= date), default=0)


def run(command, typist=None, kill_after_s=None, until=None, limit_s=3600):
    """Runs a command to its end, or kills it: after `kill_after_s`, once the text `until` is on its console, or when
    it has hung for `limit_s`. With a typist its console is a terminal, and without, nothing can be typed."""
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
    """The process and where its console can be read."""
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
    """Types; before the last answer the terminal also changes its size, for that is an input of its own kind."""
    if last:
        resize(console, 100, 30)
        process.send_signal(signal.SIGWINCH)
    # If the process has just ended, the code that reads its output notices that.
    with contextlib.suppress(OSError):
        os.write(console, keys)


def read(console):
    """What has come; nothing at the end."""
    try:
        return os.read(console, 65536)
    except OSError:
        return b""  # a terminal whose other side has gone
