"""Asks ttvm, by monitor commands of gdb."""

import re
import unicodedata

import gdb


class Interrupted(gdb.GdbError):
    """The user pressed ^C before the answer came."""


def ask(command):
    """Sends a monitor command and returns the answer. Raises an error if the answer is an error."""
    try:
        answer = gdb.execute("monitor " + command, to_string=True)
    except KeyboardInterrupt:
        synchronize()
        raise Interrupted("Interrupted.") from None
    # With "set trace-commands on" gdb prints the command before the answer.
    first, _, rest = answer.partition("\n")
    if first.lstrip("+") == "monitor " + command:
        answer = rest
    if answer.startswith("error: "):
        raise gdb.GdbError(answer[7:].rstrip())
    return answer


def synchronize():
    """Makes ttvm end the running command, and reads the rest of its answer.

    At ^C gdb stops reading the answer to a monitor command without telling ttvm. gdb would take the rest of the answer
    for the answer to its next request. The request qttvm.sync, with a word, ends the command, and ttvm answers with the
    word. Packets before this answer belong to the ended command. The request qttvm.nothing gets no answer, and lets gdb
    read one more packet."""
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
            request = None  # Whether the request was sent is not known.
        except gdb.error:
            if connection is None or not connection.is_valid():
                raise
            request = b"qttvm.nothing"  # No packet came for some seconds.


def visible(text):
    """Returns the text with escapes in place of characters that control a terminal, because names and messages come
    from the guest. ttvm's answers have no such characters, but gdb's texts and names of files may have."""
    kinds = ("Cc", "Cf", "Zl", "Zp")
    shown = (c if c in "\n\t" or unicodedata.category(c) not in kinds else "\\u%04x" % ord(c) for c in text)
    return "".join(shown)


def say(text):
    """Prints a text, with escapes for control characters."""
    gdb.write(visible(text))


def quoted(path):
    """A path as gdb's commands take it."""
    return '"%s"' % re.sub(r'(["\\])', r"\\\1", path)
