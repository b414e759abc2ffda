"""gdb commands for a recording that ttvm serves: moving along it, and asking it questions.

`ttvm debug --gdb` loads this file. For a gdb of your own: `ttvm debug --print-commands > tt.py`, and in gdb
`source tt.py`. `monitor` commands do the work. The commands here take expressions instead of addresses, and make gdb read
everything again after a movement. They need gdb 12 or newer.
"""

import os
import re
import sys

import gdb

# The modules ttvm_ask and ttvm_symbols lie beside this file. `ttvm debug --print-commands` prints them before this
# file.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ttvm_ask import Interrupted, ask, say
from ttvm_symbols import Files, Guest, MODULE_FILE, MOVED_FILE, add_command, module_name, moved_by, name_program


# The number that ttvm gives to the thread of the first processor.
CPU = 1
NAME = re.compile(r"[A-Za-z_.][A-Za-z0-9_.]*")
# A register's name.
REGISTER = re.compile(r"\$[a-z][a-z0-9]*")
# The filters at the end of a WHAT or CONDITION argument.
FILTERS = re.compile(r"(?:\s+(?:pid|comm|cpu|longer):\S+)+\s*$")
# A system call's name, or a pattern of names.
CALL = re.compile(r"[a-z_*?][a-z0-9_*?]*")
# The line of a breakpoint, or of one of its places, in gdb's table. Matches up to the address.
POINT = re.compile(r"\d+(?:\.\d+)?\s[^\n]*?(0x[0-9a-f]{16})\b")
# A line of `monitor mappings`: start and end address, rights, offset in the file, file.
MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (.+)")
# Bytes of memory in hex.
BYTES = re.compile(r"(?:[0-9a-f]{2})+")
# Memory, a comparison, and a value. The ">" of "->" is no comparison.
COMPARED = re.compile(r"(.*?\S)(?:\s*(==|!=|<=|>=)\s*|\s+([<>])\s+)(\S.*)")


def where():
    """Returns the instruction count here and at the recording's end, whether this is a scratch fork, and the thread of
    the processor that ttvm shows. Returns None if gdb is not connected to ttvm."""
    try:
        position, end, fork, *thread = ask("position").split()
        return int(position), int(end), fork == "1", int(thread[0]) if thread else CPU
    except (gdb.error, gdb.GdbError, ValueError):
        return None


def goes_backward():
    """Whether gdb's direction is backward now. reverse-stepi and similar commands reverse the direction and run the
    forward command, with the forward command's hook."""
    return "everse" in gdb.execute("show exec-direction", to_string=True)


class Told:
    """What gdb told ttvm last: the connection, the addresses of the user's breakpoints, and whether the user has
    selected another thread than the stopped one."""

    connection, addresses, looks = None, None, False


def tell_breakpoints(event=None):
    """Tells ttvm the addresses of the user's breakpoints. All other breakpoints are gdb's own, for one step, and ttvm
    stops at them only in the step's thread."""
    connection = gdb.selected_inferior().connection
    if connection is None:
        return
    table = gdb.execute("info breakpoints", to_string=True).splitlines()
    addresses = {match[1] for match in map(POINT.match, table) if match}
    if (connection, addresses) == (Told.connection, Told.addresses):
        return
    Told.connection, Told.addresses = connection, addresses
    try:
        ask(" ".join(["user-breakpoints"] + sorted(addresses)))
    except (gdb.error, gdb.GdbError):
        pass  # The server is not ttvm, or a ttvm without this command.


def pass_calls():
    """Tells ttvm that the steps of the gdb command that now begins pass over system calls."""
    try:
        ask("pass-calls")
    except (gdb.error, gdb.GdbError):
        pass  # The server is not ttvm, or a ttvm without this command.


def forget():
    """Makes gdb drop its caches, because gdb does not know that the machine has moved."""
    for cache in ("register-cache", "dcache"):
        try:
            gdb.execute("maintenance flush " + cache, to_string=True)
        except gdb.error:
            pass  # Other versions of gdb have other names for it.
    # A watchpoint compares with the last value that it read. Enabling a watchpoint makes gdb read the value here.
    for point in gdb.breakpoints() or ():
        if point.type in (gdb.BP_WATCHPOINT, gdb.BP_HARDWARE_WATCHPOINT) and point.enabled:
            try:
                point.enabled = False
                point.enabled = True
            except gdb.error:
                pass  # gdb cannot evaluate the watchpoint's expression here.


def choose_cpu():
    """Selects the thread of the processor that ttvm shows. Other threads may not exist at another position."""
    place = where()
    for thread in gdb.selected_inferior().threads():
        if thread.ptid[1] == (place[3] if place else CPU) and thread != gdb.selected_thread():
            thread.switch()
    tell_thread()


def tell_thread(event=None):
    """Tells ttvm which thread is selected. gdb 18 does not say whose memory it reads, and no gdb says which thread a
    reverse command moves."""
    thread, place = gdb.selected_thread(), where()
    if thread and place and (Told.looks or thread.ptid[1] != place[3]):
        Told.looks = thread.ptid[1] != place[3]
        try:
            ask("threads look-at %d" % thread.ptid[1])
        except (gdb.error, gdb.GdbError):
            pass  # The server is not ttvm, or a ttvm without this command.


def move(command):
    """Runs a monitor command that moves the machine, and shows the new place as gdb does after a stop."""
    before = where()
    choose_cpu()
    try:
        answer = ask(command)
    except Interrupted:
        answer = "Interrupted on the way.\n" + ask("when")
    forget()
    say(answer)
    if where() != before:
        choose_cpu()
        try:
            gdb.execute("frame")
            gdb.execute("display")
        except gdb.error as error:
            say(str(error) + "\n")


def address_and_length(text):
    """The address and the length in bytes of an expression's memory: a variable, or 8 bytes at an address."""
    value = gdb.parse_and_eval(text)
    if value.address is not None and value.type.code != gdb.TYPE_CODE_FUNC:
        return int(value.address), value.type.sizeof
    return number(value), 8


def location(text):
    """A value's location, as `monitor who-set` expects it: a register's name, or an address and a length."""
    if REGISTER.fullmatch(text):
        return text[1:]
    try:
        address, length = address_and_length(text)
    except gdb.error as error:
        # ttvm knows the kernel's names and the sizes of the kernel's variables, which gdb may not know.
        if not NAME.fullmatch(text):
            raise gdb.GdbError(str(error)) from None
        return text
    return "%#x:%d" % (address, min(max(length, 1), 8))


def object_address(text):
    """The address that an expression means: a pointer's or a number's value, or the address of another variable."""
    try:
        value = gdb.parse_and_eval(text)
        scalar = (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_INT)
        if value.type.strip_typedefs().code not in scalar and value.address is not None:
            value = value.address
        return "%#x" % number(value)
    except gdb.error as error:
        # ttvm knows the kernel's names, which gdb may not know.
        if not NAME.fullmatch(text):
            raise gdb.GdbError(str(error)) from None
        return text


def code_address(text):
    """The address that an expression means: a function's first instruction, or the expression's value."""
    value = gdb.parse_and_eval(text)
    if value.type.code == gdb.TYPE_CODE_FUNC:
        value = value.address
    return number(value)


def number(value):
    return int(value.cast(gdb.lookup_type("unsigned long"))) & 0xFFFFFFFFFFFFFFFF


def target(text):
    """Returns a WHAT or CONDITION argument with its expressions evaluated, as ttvm's monitor commands expect it."""
    filters = FILTERS.search(text)
    if filters and not text.strip().startswith("console:"):
        return target(text[: filters.start()]) + filters[0]
    word, _, rest = text.strip().partition(" ")
    kind, rest = word.replace("last-", "").replace("next-", ""), rest.strip()
    try:
        if kind in ("write", "change", "read", "access") and rest:
            compared = COMPARED.fullmatch(rest)
            return watched(kind, compared) if compared else "%s %#x %d" % ((kind,) + address_and_length(rest))
        if kind == "call" and rest:
            return "call %#x" % code_address(rest)
        if kind == "syscall" and CALL.fullmatch(rest):
            return "syscall " + rest
        if kind in ("syscall", "interrupt"):
            return kind + (" %d" % number(gdb.parse_and_eval(rest)) if rest else "")
    except gdb.error as error:
        # ttvm knows the kernel's names and the sizes of the kernel's variables, which gdb may not know.
        if not NAME.fullmatch(rest) or kind == "interrupt":
            raise gdb.GdbError(str(error)) from None
        return kind + " " + rest
    return text


def watched(kind, compared):
    """The condition that an access leaves a value in memory that fulfils the comparison, for example
    write:ADDRESS+LENGTH == VALUE."""
    place, relation, value = compared[1], compared[2] or compared[3], number(gdb.parse_and_eval(compared[4]))
    try:
        address, length = address_and_length(place)
    except gdb.error:
        if not NAME.fullmatch(place):
            raise
        return "%s:%s %s %d" % (kind, place, relation, value)
    return "%s:%#x+%d %s %d" % (kind, address, length, relation, value & (1 << 8 * length) - 1)


class Tt(gdb.Command):
    """Go backwards and forwards in a recording, and ask questions about it.

Examples:
  tt goto panic
  tt back-to last-write jiffies_64

gdb's own reverse commands work as always: reverse-continue, reverse-step, reverse-next, reverse-finish, reverse-stepi.
A change of memory or registers, or a call of a function, begins a scratch fork: see "help tt back"."""

    def __init__(self):
        super().__init__("tt", gdb.COMMAND_RUNNING, gdb.COMPLETE_NONE, True)


class Verb(gdb.Command):
    """One command below tt."""

    completer = gdb.COMPLETE_NONE

    def __init__(self):
        super().__init__("tt " + self.verb, gdb.COMMAND_RUNNING, self.completer)


class Help(Verb):
    """List the tt commands, or explain one: tt help [NAME]

Examples:
  tt help
  tt help back-to"""

    verb = "help"

    def invoke(self, argument, from_tty):
        gdb.execute("help tt " + argument, from_tty)


class GdbCheckpoint(gdb.Command):
    """Refused: use "tt mark" or "tt checkpoint". gdb's own checkpoint calls fork() in the program."""

    def __init__(self):
        super().__init__("checkpoint", gdb.COMMAND_RUNNING)

    def invoke(self, argument, from_tty):
        raise gdb.GdbError(
            "gdb's checkpoint would call fork() in the guest, and a recording cannot change: use \"tt mark NAME\" and "
            "\"tt goto mark:NAME\"; \"tt checkpoint\" adds a checkpoint to the recording"
        )


class Goto(Verb):
    """Go to a position: tt goto POS

Examples:
  tt goto panic
  tt goto -10ms

Positions:
  start, end               the ends of the recording
  panic, oops              where the kernel reported its panic, or its first oops
  report:N                 where the first line of report N of the kernel is complete
  fault                    the instruction whose exception led to the last oops or panic before here
  insn:N, N                after N instructions; 1_000_000, 1e6, 10k, 3M and 1.5G work
  branch:N                 after N conditional branches
  syscall:N, last-syscall  where the N-th, or the last, system call was entered
  event:N                  at input number N of the log, from 0
  12.5s, 5ms, 30m, 1.5h    at this guest time
  37%                      a share of the instructions
  +N, -N, +10ms, -10ms     this far after or before the current position
  mark:NAME, hit:N         a name from "tt mark", or a line of the last list, from 0

Breakpoints and watchpoints stay. ^C stops the command on its way."""

    verb = "goto"

    def invoke(self, argument, from_tty):
        move("goto " + argument)


class When(Verb):
    """Show the current position: instructions, branches, guest time."""

    verb = "when"

    def invoke(self, argument, from_tty):
        say(ask("when"))


class BackTo(Verb):
    """Go back to just before an event last happened: tt back-to WHAT

Examples:
  tt back-to last-write jiffies_64
  tt back-to last-call schedule

WHAT is one of these, or a condition of "tt search":
  last-write EXPR       the last write to a variable, or to the 8 bytes at an address
  last-change EXPR      the last write that changed the value
  last-read EXPR        the last read
  last-call FUNCTION    the last call of a function
  last-syscall [N]      the last system call, or the last one of this number, name (execve) or pattern (open*)
  last-interrupt [N]    the last interrupt, or the last one of this vector

stepi then executes the instruction that did it. EXPR can have a value: last-write EXPR == 0. !=, <, <=, > and >= work too.
pid:N and comm:NAME at the end choose a process or thread, and cpu:N a processor. Names of kernel symbols work without
debug information.
^C stops the search at the place that it has reached. The same command goes on from there."""

    verb = "back-to"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        move("back-to " + target(argument))


class ForwardTo(Verb):
    """Go forward to just after an event happens next: tt forward-to WHAT

Examples:
  tt forward-to next-write jiffies_64
  tt forward-to next-call schedule

WHAT is as in "help tt back-to", with next- for last-."""

    verb = "forward-to"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        move("forward-to " + target(argument))


class Traps(Verb):
    """List all places where a condition holds: tt traps CONDITION [FROM TO]

Examples:
  tt traps syscall:open*
  tt traps write:jiffies_64 -10ms end

"tt goto hit:N" goes to a place of the list. "help tt search" lists the conditions, and "help tt goto" the positions.
The current position stays. ^C stops the search."""

    verb = "traps"

    def invoke(self, argument, from_tty):
        say(ask("traps " + argument))


class Search(Verb):
    """Show where a condition held last and holds next: tt search CONDITION

Examples:
  tt search write:jiffies_64
  tt search console:sum

Conditions:
  break:ADDR               the guest executes the instruction at ADDR
  write:ADDR[+LEN]         the guest writes to memory
  read:ADDR[+LEN]          the guest reads memory
  access:ADDR[+LEN]        the guest reads or writes memory
  change:ADDR[+LEN]        the guest writes another value than before
  syscall                  any system call
  syscall:NAME, syscall:N  a system call, by name or number
  vector:N                 an interrupt or exception, by vector
  console:TEXT             the console shows a text

The words of "tt back-to" work too. ADDR is a number, a symbol of the kernel, or SYMBOL+OFFSET. With an offset, conditions
on memory also need +LEN. With -phys, as in write-phys:ADDR, the address is physical. Conditions on memory can compare the
value: write:ADDR+4 == 0. Names can be patterns: break:ext4_*, syscall:open*. pid:N and comm:NAME at the end choose a
process or thread, and cpu:N a processor. The current position stays. ^C stops the search."""

    verb = "search"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        say(ask("search " + target(argument)))


class WhoSet(Verb):
    """Show where a value came from, back through copies: tt who-set EXPR

Examples:
  tt who-set $rax
  tt who-set jiffies_64
  tt who-set ((struct task_struct *) $rdi)->comm

The answer lists the writes of the value: the last write first, then the write of the value that was copied, and so on. The
list ends where an instruction computed the value, at a constant, or at input from outside. EXPR is a register, a variable
of at most 8 bytes (of a larger one, the first 8 bytes), or an address. The current position stays. ^C stops the search."""

    verb = "who-set"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        say(ask("who-set " + location(argument.strip())))


class WhereTo(Verb):
    """Show where a value went from here on, through copies: tt where-to EXPR [to POS]

Examples:
  tt where-to $rax to +1M
  tt where-to ((struct task_struct *) $rdi)->comm

The answer lists the copies of the value in memory, the instructions that used it, and the devices that got it, in the order of
the run. At its end are the places that still have the value. While a register has the value, ttvm looks at each instruction,
which is slow: "to POS" ends the search earlier. EXPR is as for "tt who-set". The current position stays. ^C stops the search."""

    verb = "where-to"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        expression, _, until = argument.strip().partition(" to ")
        say(ask("where-to " + location(expression.strip()) + " " + until.strip()))


class Origin(Verb):
    """Show who armed the timer, work item or other callback that the kernel executes here: tt origin [FUNCTION]

Examples:
  tt origin
  tt origin wb_workfn

The answer goes from the callback back to the place that armed it. If a callback armed it, the answer goes on from there, until
a program or an interrupt. FUNCTION must be in the kernel's stack; without it, the innermost callback counts. For a function
that was called through any other pointer, the answer lists the writes of the pointer. The current position stays."""

    verb = "origin"
    completer = gdb.COMPLETE_SYMBOL

    def invoke(self, argument, from_tty):
        say(ask("origin " + argument.strip()))


class Calls(Verb):
    """List the calls of a function, with arguments, results and callers: tt calls FUNCTION [FILTER...] [FROM TO]

Examples:
  tt calls vfs_read
  tt calls ext4_* comm:cat -1s end

FUNCTION is a function of the guest's kernel, a pattern, or an expression with an address, such as &main. Filters are
pid:N, comm:NAME and cpu:N. "tt goto hit:N" goes to a call of the list. The current position stays. ^C stops the search."""

    verb = "calls"
    completer = gdb.COMPLETE_SYMBOL

    def invoke(self, argument, from_tty):
        function, blank, rest = argument.strip().partition(" ")
        if not NAME.fullmatch(function) and "*" not in function:
            function = "%#x" % code_address(function)
        say(ask("calls " + function + blank + rest))


class Values(Verb):
    """List all values of a variable, when each was written, and by whom: tt values EXPRESSION

Examples:
  tt values jiffies_64
  tt values init_task.comm
  tt values (struct task_struct)init_task.comm

EXPRESSION is a variable that gdb knows, or one of the kernel's types with a symbol, as in the last example. Pointers are
followed here. "tt goto hit:N" goes to a write of the list. The current position stays. ^C stops the search."""

    verb = "values"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        try:
            value = gdb.parse_and_eval(argument)
            known = value.address is not None and value.type.code != gdb.TYPE_CODE_ERROR
        except gdb.error:
            known = False  # ttvm knows names and types that gdb may not know.
        if not known or not value.type.sizeof:
            say(ask("values " + argument))
            return
        heading, _, rest = ask("values bytes %#x:%d" % (int(value.address), value.type.sizeof)).partition("\n")
        first = heading.partition(", at first ")[2]
        say("%s %s at %#x, at first %s\n" % (value.type, argument, int(value.address), shown(first, value.type)))
        for line in rest.splitlines():
            place, _, digits = line.rpartition("  ")
            say(place + "  " + shown(digits, value.type) + "\n" if BYTES.fullmatch(digits) else line + "\n")


class Tree(Verb):
    """Show the calls of the running thread as a tree: tt tree [FROM] TO

Examples:
  tt tree +20k
  tt tree last-syscall +20k

The tree has the functions of the kernel, with arguments, results and lengths in instructions. It begins here or at FROM. +N
counts from here. The current position stays."""

    verb = "tree"

    def invoke(self, argument, from_tty):
        say(ask("tree " + argument))


class Profile(Verb):
    """Count the calls and instructions of the kernel's functions: tt profile [FROM] TO

Examples:
  tt profile +1M
  tt profile 50% 60%

The profile begins here or at FROM. +N counts from here. "own" counts the instructions of the function itself, "total" also the
functions that it called. The counts are exact. The current position stays."""

    verb = "profile"

    def invoke(self, argument, from_tty):
        say(ask("profile " + argument))


class Diff(Verb):
    """Compare the guest at two positions, or at a position and here: tt diff POS [POS]

Examples:
  tt diff -1s
  tt diff fault panic

Shows registers, processes, variables of the kernel, memory by its use, disk blocks, and the console's new text. The current
position stays."""

    verb = "diff"

    def invoke(self, argument, from_tty):
        say(ask("diff " + argument))


class Object(Verb):
    """Show which object of the kernel is at an address here, who allocated it, and who freed it: tt object EXPR

Examples:
  tt object $rdi
  tt object caller->next_waiting
  tt object *(void **) &waiting

The answer has the object at this position, the object before it and the object after it, with the functions that allocated and
freed each. EXPR is a pointer, a number, or a structure or array whose address is meant. The current position stays. ^C stops the search."""

    verb = "object"
    completer = gdb.COMPLETE_EXPRESSION

    def invoke(self, argument, from_tty):
        say(ask("object " + object_address(argument.strip())))


def shown(digits, kind):
    """A value of a type as gdb shows it, from its bytes in hex. Other texts stay as they are."""
    if not BYTES.fullmatch(digits):
        return digits
    return gdb.Value(bytes.fromhex(digits), kind).format_string(max_elements=64)


class Disk(Verb):
    """Show the guest's disk at this position: tt disk info, tt disk ls [PATH], tt disk cat PATH

Examples:
  tt disk ls /var/log
  tt disk cat /etc/fstab
  tt disk ls / partition:1

"ls" lists a folder of an ext2, ext3 or ext4 file system. "cat" shows the first 64 KiB of a file. The guest may have newer
data in its memory, which it has not written to the disk. "partition:N" chooses a partition."""

    verb = "disk"

    def invoke(self, argument, from_tty):
        say(ask("disk " + argument.strip()))


class Mark(Verb):
    """Name the current position: tt mark [NAME]

Examples:
  tt mark before
  tt goto mark:before

Without NAME, lists the names. They last as long as the connection."""

    verb = "mark"

    def invoke(self, argument, from_tty):
        say(ask("mark " + argument))


class Checkpoint(Verb):
    """Add a checkpoint to the recording here, so the next session gets here fast."""

    verb = "checkpoint"

    def invoke(self, argument, from_tty):
        say(ask("checkpoint"))


class Console(Verb):
    """Show the guest's console at this position: tt console [LINES]"""

    verb = "console"

    def invoke(self, argument, from_tty):
        say(ask("console " + argument))


class Board(Verb):
    """Show the chips and devices at this position: tt board

The answer has the interrupt controllers, the timers, the serial port, the PCI functions and their virtio queues. At the end it
has the next events: timers that expire, and the next event of the recording."""

    verb = "board"

    def invoke(self, argument, from_tty):
        say(ask("board"))


class Physical(Verb):
    """Show physical memory: tt physical ADDR LEN

Example:
  tt physical 0x1000 64

ADDR and LEN are expressions without blanks."""

    verb = "physical"

    def invoke(self, argument, from_tty):
        words = gdb.string_to_argv(argument)
        if len(words) != 2:
            raise gdb.GdbError("write: tt physical ADDR LEN")
        try:
            address, length = (number(gdb.parse_and_eval(word)) for word in words)
        except gdb.error as error:
            raise gdb.GdbError(str(error)) from None
        say(ask("physical %#x %d" % (address, length)))


class Ps(Verb):
    """Show the guest's processes at this position: tt ps

* marks the running process. WAITS IN is the kernel function that called the scheduler. Kernel threads have no address space
of their own. "tt break-in" takes the numbers and names.
STATE is as in ps: R running or ready, S sleeping, D in uninterruptible sleep, I idle, T stopped, t traced, Z zombie, X dead,
P parked."""

    verb = "ps"

    def invoke(self, argument, from_tty):
        say(ask("ps"))


class Threads(Verb):
    """Show the guest's threads in gdb: tt threads [on|off]

Examples:
  tt threads on
  info threads

"info threads" lists each thread with its name, its number in the guest, and its state. Thread 1 is the CPU; with N processors,
threads 1 to N are the processors. All other threads do not run. "thread N" chooses a thread. bt, info registers, print and x then
show its kernel stack, its saved registers and the memory of its process. Only processors move, and only the one that executes the
next instruction can be changed. bt needs "tt symbols"."""

    verb = "threads"

    def invoke(self, argument, from_tty):
        answer = ask("threads " + argument)
        if argument:
            # gdb believes that all threads share their memory. So gdb would use stack or code that it has read in one
            # thread for another. And gdb would print a line for each new thread after each movement.
            for setting in ("stack-cache", "code-cache", "print thread-events"):
                gdb.execute("set %s %s" % (setting, "off" if argument == "on" else "on"), to_string=True)
            choose_cpu()
            forget()
        say(answer)


class Backtrace(Verb):
    """Show the kernel's call stack, from the kernel's own unwind tables (ORC): tt backtrace

It needs no debug information and no symbols in gdb. With "tt symbols", gdb's own bt shows the same functions."""

    verb = "backtrace"

    def invoke(self, argument, from_tty):
        say(ask("backtrace"))


class Dmesg(Verb):
    """Show the kernel's messages at this position: tt dmesg [LINES]"""

    verb = "dmesg"

    def invoke(self, argument, from_tty):
        say(ask("dmesg " + argument))


class Reports(Verb):
    """List the kernel's panics, oopses, BUG, WARNING, KASAN and lockdep reports in the whole recording: tt reports

Examples:
  tt reports
  tt goto report:1

The first list takes a while."""

    verb = "reports"

    def invoke(self, argument, from_tty):
        say(ask("reports"))


class Symbols(Verb):
    """Load the symbols of the guest's kernel and its modules: tt symbols [FILE]

Examples:
  tt symbols
  tt symbols vmlinux

Without FILE, the symbols come from the guest's memory: functions, variables, types (ptype struct task_struct) and call frames
(bt, finish). They have no source lines and no local variables. Repeat the command when the guest has loaded or removed modules.

FILE adds debug information:
  a vmlinux            goes to the kernel's address in the guest (KASLR is no problem); it replaces the guest's own symbols
  a module (.ko)       goes to the module's address in the guest
  a program            goes to its own fixed addresses; see "help tt program" for other programs and libraries

"tt symbols none" removes all files, and keeps the guest's own symbols."""

    verb = "symbols"
    completer = gdb.COMPLETE_FILENAME

    def invoke(self, argument, from_tty):
        words = gdb.string_to_argv(argument)
        if words == ["none"]:
            Files.kernel, Files.added = "", {}
        file = os.path.realpath(os.path.expanduser(words[0])) if words and words != ["none"] else ""
        try:
            said = self.load(file)
        finally:
            ask("symbols loaded")
        say("".join(line + "\n" for line in said))
        try:
            gdb.execute("frame")
        except gdb.error as error:
            say(str(error) + "\n")

    def load(self, file):
        """Loads the symbols of the guest's kernel and modules, the files given earlier, and `file`, if given. Returns
        the lines to print."""
        said, added = [], dict(Files.added)
        if file:
            added.pop(file, None)
            added[file] = None
        try:
            own = ask("symbols").splitlines()
        except Interrupted:
            raise
        except gdb.GdbError as error:
            if not file:
                raise
            # Without a running kernel here, nothing tells where the file belongs.
            self.taken_as_it_is(file)
            Files.added = added
            return ["%s: gdb loads the file at its own addresses" % error]
        guest = Guest(own)
        kernel = Files.kernel or guest.unmoved_kernel()
        for path in [path for path, how in added.items() if how is None]:
            if self.is_kernel(path, guest, path == file, said):
                kernel = path
                del added[path]
        commands = [self.command(path, how, guest, path == file, said) for path, how in added.items()]
        base = own
        if kernel:
            own = base = ask("symbols modules").splitlines()
            if guest.distance(kernel) or not Files.are_others(kernel):
                base = [guest.command_of(kernel)] + base
        commands = [line for line in base if line.startswith("add-symbol-file ")] + [line for line in commands if line]
        # The file that ends backtraces in programs comes last.
        commands.sort(key=lambda line: line in own[1:2])
        others = Files.are_others(kernel) if kernel and guest.distance(kernel) else []
        Files.load(commands, own[1] if own[1] in commands else None)
        Files.drop(others)
        Files.kernel, Files.added = kernel, added
        return [line[2:] for line in base if line.startswith("# ")] + said

    def is_kernel(self, file, guest, is_new, said):
        try:
            return guest.is_kernel(file)
        except gdb.GdbError as error:
            if is_new:
                raise
            said.append(str(error))
            return False

    def taken_as_it_is(self, file):
        Files.load([line for line in Files.loaded if gdb.string_to_argv(line)[1] != file] + [add_command(file)], Files.last)
        Files.keep_last()

    def command(self, file, how, guest, is_new, said):
        """The gdb command that loads a file beside the kernel's symbols. None if the file cannot be loaded at this
        position."""
        if how is not None:
            return how
        try:
            symbols = guest.table_of(file)
            if symbols.kind == MODULE_FILE:
                places = symbols.place(guest.sections(module_name(file)), guest.symbols)
                return add_command(file, sections=places.items())
        except Interrupted:
            raise
        except gdb.GdbError as error:
            if is_new:
                raise
            said.append(str(error))
            return None
        if is_new and symbols.kind == MOVED_FILE:
            said.append(
                "%s has another address in each process: \"tt program %s\" loads it for the running process" % (file, file)
            )
        return add_command(file)


class Program(Verb):
    """Load the symbols of a process's program and libraries: tt program [PID] [FILE... | --root DIR]

Examples:
  tt program
  tt program --root /mnt/guest

The process is the running one, or PID (see "tt ps"). Without more words, lists the files in the process's memory, as
/proc/PID/maps does. FILE goes to the address where the process has the file of this name. --root DIR loads all files of the
process that are below DIR, such as a copy of the guest's disk."""

    verb = "program"
    completer = gdb.COMPLETE_FILENAME

    def invoke(self, argument, from_tty):
        words = gdb.string_to_argv(argument)
        pid = words.pop(0) if words and words[0].isdecimal() else ""
        listed = ask("mappings " + pid)
        if not words:
            say(listed)
            return
        process, *lines = listed.splitlines()
        # Start, end, rights, offset in the file, and the file.
        mapped = [match.groups() for match in map(MAPPED.fullmatch, lines) if match]
        mapped = [(int(start, 16), rights, int(offset, 16), path) for start, _, rights, offset, path in mapped]
        if words[0] == "--root":
            if len(words) != 2:
                raise gdb.GdbError("write: tt program --root DIR")
            files = self.below(os.path.realpath(os.path.expanduser(words[1])), mapped)
        else:
            files = [self.named(os.path.realpath(os.path.expanduser(word)), process, mapped) for word in words]
        for file, parts in files:
            try:
                distance = moved_by(file, parts)
            except gdb.GdbError as error:
                if words[0] != "--root":
                    raise
                say("%s\n" % error)
                continue
            Files.add(file, add_command(file, distance))
            say("%s is at %#x\n" % (file, distance))

    def below(self, root, mapped):
        """The process's files that have code in its memory and are below the folder `root`. Each with its parts in
        memory."""
        found = []
        for path in dict.fromkeys(path for _, rights, _, path in mapped if "x" in rights):
            file = os.path.realpath(root + "/" + path)
            if os.path.commonpath([root, file]) == root and os.path.isfile(file):
                found.append((file, [part for part in mapped if part[3] == path]))
        if not found:
            raise gdb.GdbError("none of the process's files is below %s: \"tt program\" lists them" % root)
        return found

    def named(self, file, process, mapped):
        """A file, with the parts of the file in the process's memory."""
        name = os.path.basename(file)
        parts = [part for part in mapped if os.path.basename(part[3]) == name]
        if not parts:
            raise gdb.GdbError("%s has no '%s' in its memory: \"tt program\" lists what it has" % (process, name))
        return file, parts


class BreakIn(Verb):
    """Limit breakpoints and watchpoints to one process: tt break-in PID|NAME|here|CR3|anywhere [NUMBER...]

Examples:
  tt break-in sh
  tt break-in anywhere

  PID         a process, or one of its threads
  NAME        all processes of this name (see "tt ps"), later ones too
  here        the current address space
  CR3         an address space, by its page tables: 0x..., or an expression that begins with $
  anywhere    no limit

NUMBER chooses breakpoints and watchpoints. Without it, the limit is for all that have no limit of their own. Without any word,
shows the limits. Kernel threads have no address space, so breakpoints and watchpoints also stop in them."""

    verb = "break-in"

    def invoke(self, argument, from_tty):
        wanted, *numbers = gdb.string_to_argv(argument) or [""]
        if wanted.startswith(("$", "(", "0x")):
            wanted = "%#x" % number(gdb.parse_and_eval(wanted))
        elif wanted:
            wanted = '"%s"' % wanted
        addresses = [address for text in numbers for address in self.addresses(int(text))]
        say(ask(" ".join(["break-in", wanted] + ["%#x" % address for address in addresses])))

    def addresses(self, wanted):
        for point in gdb.breakpoints():
            if point.number == wanted:
                if point.location is None:
                    return [address_and_length(point.expression)[0]]
                if hasattr(point, "locations"):
                    return [location.address for location in point.locations]
                return [place.pc for place in gdb.decode_line(point.location)[1]]
        raise gdb.GdbError("there is no breakpoint %d" % wanted)


class StepInterrupts(Verb):
    """Choose whether steps go into interrupts, faults and other threads: tt step-interrupts [on|off]

With off, the default, a step follows its thread, forward and backward. In other code gdb stops only at breakpoints and
watchpoints. This is for stepi, step, next, finish, until, advance and their reverse commands."""

    verb = "step-interrupts"

    def invoke(self, argument, from_tty):
        say(ask("step-interrupts " + argument))


class Back(Verb):
    """Leave a scratch fork, and return to the position where it began: tt back

A fork begins when you write memory or registers, or call a function. It gets no input from outside and goes forward only. The
recording never changes."""

    verb = "back"

    def invoke(self, argument, from_tty):
        move("back")


class GuardBackward(Verb):
    """Raise an error at the start of the recording. The reverse commands use this, so a script that goes back in a loop ends."""

    verb = "guard-backward"

    def invoke(self, argument, from_tty):
        tell_breakpoints()
        tell_thread()
        place = where()
        if place and place[0] == 0:
            raise gdb.GdbError("This is the start of the recording: there is nothing before it.")
        if place and place[2]:
            raise gdb.GdbError("This is a scratch fork, and it only goes forward: 'tt back' leaves it.")


class GuardForward(Verb):
    """Raise an error at the end of the recording. The forward commands use this."""

    verb = "guard-forward"

    def invoke(self, argument, from_tty):
        tell_breakpoints()
        tell_thread()
        if argument:
            pass_calls()
        # gdb makes a reverse command of the forward one, with all its hooks.
        if goes_backward():
            return
        place = where()
        if place and place[0] >= place[1] and not place[2]:
            raise gdb.GdbError("This is the end of the recording: there is nothing after it.")


class ReverseSource(gdb.Command):
    """Step backward to the start of another source line.

In code without line information, this goes back to the call of the function."""

    def __init__(self, forward):
        self.forward = forward
        super().__init__("reverse-" + forward, gdb.COMMAND_RUNNING)

    def invoke(self, argument, from_tty):
        if not argument and self.has_caller() and not has_line():
            gdb.execute("reverse-finish", from_tty)
            # The call is in the middle of a source line. Step on to the line's start.
            if not has_line(lambda line: line.pc != gdb.selected_frame().pc()):
                return
        gdb.execute("set exec-direction reverse")
        pass_calls()
        try:
            gdb.execute("%s %s" % (self.forward, argument), from_tty)
        finally:
            gdb.execute("set exec-direction forward")

    def has_caller(self):
        try:
            return gdb.selected_frame().name() is not None and gdb.newest_frame().older() is not None
        except gdb.error:
            return False


def has_line(holds=lambda line: True):
    """Whether the source line of this place is known, and `holds` returns true for the line."""
    line = gdb.selected_frame().find_sal()
    return line.symtab is not None and line.line != 0 and holds(line)


class Position(gdb.Function):
    """$_tt_position(): the instruction count here."""

    def __init__(self):
        super().__init__("_tt_position")

    def invoke(self):
        place = where()
        if place is None:
            raise gdb.GdbError("no recording is connected: use \"target remote\"")
        return place[0]


for command in (Tt, Help, Goto, When, BackTo, ForwardTo, Traps, Search, WhoSet, WhereTo, Origin, Calls, Tree, Profile, Values, Diff, Object):
    command()
for command in (Disk, Board, Mark, Checkpoint, Console, Physical, Ps, Threads, BreakIn, Backtrace, Dmesg, Reports, Symbols):
    command()
for command in (Program, StepInterrupts, Back, GdbCheckpoint, GuardBackward, GuardForward, Position):
    command()
for name in ("step", "next"):
    ReverseSource(name)
for event in (gdb.events.breakpoint_created, gdb.events.breakpoint_modified, gdb.events.breakpoint_deleted):
    event.connect(tell_breakpoints)
gdb.events.new_objfile.connect(Files.keep_last)
if hasattr(gdb.events, "selected_context"):
    gdb.events.selected_context.connect(tell_thread)
for name in ("finish", "until", "advance"):
    gdb.execute("define hook-%s\ntt guard-forward\nend" % name, to_string=True)
for name in ("stepi", "step", "nexti", "next", "continue"):
    words = "" if name in ("stepi", "continue") else " past-calls"
    gdb.execute("define hook-%s\ntt guard-forward%s\nend" % (name, words), to_string=True)
    gdb.execute("define hook-reverse-%s\ntt guard-backward\nend" % name, to_string=True)
gdb.execute("define hook-reverse-finish\ntt guard-backward\nend", to_string=True)
# While a gdb connects, it sends this request. ttvm answers with a line that says how to load this file.
try:
    gdb.execute("set remote trace-status-packet off", to_string=True)
except gdb.error:
    pass  # Another version of gdb has another name for this setting. The user then sees the line.
name_program()
# By default gdb gives up if the server is silent for two seconds, which is too short on a busy machine.
if (gdb.parameter("remotetimeout") or 0) < 30:
    gdb.execute("set remotetimeout 30")
