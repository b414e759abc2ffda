"""A small client of gdb's remote protocol, with any number of breakpoints and watchpoints, memory, and runs to the next
stop. gdb itself would send many requests at each stop, which would disturb the measurements."""

import contextlib
import os
import re
import socket
import subprocess
import time

HERTZ = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 600


class RemoteError(Exception):
    """The server refused a request. The text is for the user."""


class Remote:
    """A connection to a server of the protocol at a UNIX socket. Waits until the server has made the socket."""

    def __init__(self, path):
        self.socket, self.received, self.told = connected(path), b"", ""
        self.ask("QStartNoAckMode")
        self.socket.sendall(b"+")

    def ask(self, packet):
        """Sends a packet, and returns the reply."""
        data = packet.encode()
        self.socket.sendall(b"$%s#%02x" % (data, sum(data) & 0xFF))
        return self.reply()

    def reply(self):
        """Returns the next packet that is not a text for the console."""
        while True:
            while b"#" not in self.received or len(self.received) < self.received.index(b"#") + 3:
                data = self.socket.recv(65536)
                if not data:
                    raise RemoteError(f"the server closed the connection after {self.received!r}")
                self.received += data
            packet, _, rest = self.received.partition(b"#")
            self.received = rest[2:]
            text = written_out(packet.partition(b"$")[2].decode("latin1"))
            # `O` followed by hex digits is a text to show; `OK` is not.
            if text[:1] != "O" or text == "OK":
                return text
            self.told += bytes.fromhex(text[1:]).decode(errors="replace")

    def order(self, packet):
        """Sends a request whose reply must be `OK`."""
        if (reply := self.ask(packet)) != "OK":
            raise RemoteError(f"'{packet}' was answered by '{reply}'")

    def set_breakpoint(self, address):
        self.order(f"Z0,{address:x},1")

    def watch_writes(self, address, length):
        self.order(f"Z2,{address:x},{length:x}")

    def memory(self, address, length):
        """Reads the guest's memory. Returns fewer bytes, or none, if the address range is not mapped."""
        reply = self.ask(f"m{address:x},{length:x}")
        return b"" if reply[:1] == "E" else bytes.fromhex(reply)

    def monitor(self, text):
        """Sends a `monitor` command. Returns its output."""
        self.told = ""
        if (reply := self.ask(f"qRcmd,{text.encode().hex()}"))[:1] == "E":
            raise RemoteError(f"'monitor {text}' was answered by '{reply}'")
        return self.told

    def go_on(self):
        """Continues. Returns the reply of the next stop."""
        return self.ask("c")

    def close(self):
        self.socket.close()


def written_out(text):
    """Expands the repetitions in a packet: `0*~` is a zero and 97 more zeros."""
    return re.sub(r"(.)\*(.)", lambda found: found[1] * (ord(found[2]) - 28), text, flags=re.DOTALL)


def connected(path):
    """Waits until a server listens at `path`, and returns a connected socket."""
    patience = time.monotonic() + PATIENCE_S
    while True:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(path)
            return stream
        except OSError:
            stream.close()
            if time.monotonic() > patience:
                raise
            time.sleep(0.02)


class Server:
    """A process that serves the protocol at a socket, and a client that is connected to it."""

    def __init__(self, command, path, messages):
        # An earlier server may be about to remove its own socket at this path.
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages)
        self.remote = None
        try:
            self.remote = Remote(path)
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def cpu_s(self):
        """The CPU seconds so far of all threads of the process, also of threads that have ended."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ

    def stop(self):
        if self.remote:
            self.remote.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
