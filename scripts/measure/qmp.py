"""A small client of QEMU's control protocol (QMP)."""

import json

from measure.remote import connected


class QmpError(Exception):
    """QEMU refused a command. The text is for the user."""


class Qmp:
    """A connection to QEMU's control socket. Waits until QEMU has made the socket."""

    def __init__(self, path):
        self.socket = connected(path)
        self.lines = self.socket.makefile("rw")
        self.lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        """Sends a command and returns its result. Raises `EOFError` if QEMU has ended."""
        try:
            self.lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            self.lines.flush()
            while line := self.lines.readline():
                reply = json.loads(line)
                if "error" in reply:
                    raise QmpError(f"QEMU's {command} failed: {reply['error'].get('desc')}")
                if "return" in reply:
                    return reply["return"]
        except ConnectionError:
            pass  # QEMU ended during the command
        raise EOFError

    def instructions(self):
        """The number of instructions so far, while a guest is recorded or replayed."""
        return self.ask("query-replay")["icount"]

    def save_snapshot(self, name):
        """Takes a snapshot of the whole machine."""
        told = self.ask("human-monitor-command", **{"command-line": f"savevm {name}"})
        if told.strip():
            raise QmpError(f"QEMU's savevm failed: {told.strip()}")
