"""How gdb's commands ask ttvm: by monitor commands."""

import re
import unicodedata

import gdb


class Interrupted(gdb.GdbError):
    """The user pressed ^C before the answer came."""


def ask(command):
    """Sends a monitor command and gives the answer."""
    try:
        answer = gdb.execute("monitor " + command, to_string=True)
    except KeyboardInterrupt:
        synchronize()
        raise Interrupted("Interrupted.") from None
    # With "set trace-commands on" gdb repeats the command.
    first, _, rest = answer.partition("\n")
    if first.lstrip("+") == "monitor " + command:
        answer = rest
    if answer.startswith("error: "):
        raise gdb.GdbError(answer[7:].rstrip())
    return answer


def synchronize():
    """Makes ttvm drop the command under way, and reads what it has sent so far.

    At ^C gdb stops reading the answer to a monitor command without telling ttvm, and would take the rest for the answer to its
    next request. A request with a word ends the command; until its answer is that word, what comes is from before.
    Requests that are not answered let gdb read on."""
    connection = gdb.selected_inferior().connection
    attempts, wanted, request = 0, None, None
    while True:
        try:
            if request is None:
                attempts += 1
                wanted = b"in-step-%d" % attempts
                request = b"qttvm.sync:" + wanted
            if connection.send_packet(request) == wanted:
                return
            request = b"qttvm.nothing"
        except KeyboardInterrupt:
            request = None  # It may have been sent, or not.
        except gdb.error:
            if connection is None or not connection.is_valid():
                raise
            request = b"qttvm.nothing"  # Nothing came for some seconds.


def visible(text):
    """The text with what would steer a terminal as escapes: names and messages are the guest's. ttvm's own answers are so
    already; texts of gdb and names of files are not."""
    kinds = ("Cc", "Cf", "Zl", "Zp")
    shown = (c if c in "\n\t" or unicodedata.category(c) not in kinds else "\\u%04x" % ord(c) for c in text)
    return "".join(shown)


def say(text):
    """Prints it."""
    gdb.write(visible(text))


def quoted(path):
    """A path as gdb's commands take it."""
    return '"%s"' % re.sub(r'(["\\])', r"\\\1", path)
