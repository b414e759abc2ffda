"""A small client of gdb's remote protocol: break- and watchpoints in any number, memory, and runs to the next stop. gdb
itself would ask at each stop for much that no measurement needs."""

import contextlib
import os
import re
import socket
import subprocess
import time

HERTZ = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 600


class RemoteError(Exception):
    """The server did not do what was asked; the text is for the user."""


class Remote:
    """A connection to a server of the protocol at a UNIX socket, which may be about to come."""

    def __init__(self, path):
        self.socket, self.received, self.told = connected(path), b"", ""
        self.ask("QStartNoAckMode")
        self.socket.sendall(b"+")

    def ask(self, packet):
        """Sends a packet, and gives the reply."""
        data = packet.encode()
        self.socket.sendall(b"$%s#%02x" % (data, sum(data) & 0xFF))
        return self.reply()

    def reply(self):
        """The next packet that is no text for the console."""
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
        """Asks for something whose reply is `OK`."""
        if (reply := self.ask(packet)) != "OK":
            raise RemoteError(f"'{packet}' was answered by '{reply}'")

    def set_breakpoint(self, address):
        self.order(f"Z0,{address:x},1")

    def watch_writes(self, address, length):
        self.order(f"Z2,{address:x},{length:x}")

    def memory(self, address, length):
        """Bytes of the guest's memory; fewer, or none, where it has none."""
        reply = self.ask(f"m{address:x},{length:x}")
        return b"" if reply[:1] == "E" else bytes.fromhex(reply)

    def monitor(self, text):
        """What gdb's `monitor` command does; gives what it prints."""
        self.told = ""
        if (reply := self.ask(f"qRcmd,{text.encode().hex()}"))[:1] == "E":
            raise RemoteError(f"'monitor {text}' was answered by '{reply}'")
        return self.told

    def go_on(self):
        """Continues, and gives the next stop."""
        return self.ask("c")

    def close(self):
        self.socket.close()


def written_out(text):
    """A packet whose repetitions are written out: `0*~` is a zero and then 97 more."""
    return re.sub(r"(.)\*(.)", lambda found: found[1] * (ord(found[2]) - 28), text, flags=re.DOTALL)


def connected(path):
    """A socket that is connected to `path` once a server listens there."""
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
    """A process that serves the protocol at a socket, with a client."""

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
        """CPU time so far of all its threads, those that have ended among them."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ

    def stop(self):
        if self.remote:
            self.remote.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
