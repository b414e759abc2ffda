"""Makes steps in a program that leaves functions in other ways than by a return, and prints where each step ends."""
import re

import gdb

COMMENT = re.compile(r"/\* (.*) \*/")


def quiet(command):
    return gdb.execute(command, to_string=True)


def place():
    """The comment in the source line of the current place. Without a comment, the source line, and without a source
    line, the function."""
    at = gdb.newest_frame().find_sal()
    if at.symtab is None:
        return gdb.newest_frame().name()
    line = open(at.symtab.fullname()).read().splitlines()[at.line - 1]
    comment = COMMENT.search(line)
    return comment[1] if comment else line.strip()


def value(name):
    return int(gdb.parse_and_eval(name))


def do(*commands):
    said = [quiet(command) for command in commands]
    print(commands[-1], "->", place())
    return said[-1]


def back_to(condition, times=1):
    quiet("tt goto end")
    for _ in range(times):
        quiet("tt back-to last-write " + condition)


print("near")
back_to("x == 10")
do("next", "next")
call = value("$_tt_position()")
print("says so", "by longjmp" in do("next"))
do("reverse-next")
do("next")
do("next")
do("reverse-next")
do("reverse-next")
print("back at the call", value("$_tt_position()") == call)
quiet("break leave")
do("next")
do("finish")
do("next")
do("reverse-next", "reverse-next")
quiet("delete")

print("far")
back_to("x == 20")
do("next")
do("next")
do("reverse-next")
back_to("x == 22", 2)
do("reverse-next", "reverse-next")
do("reverse-next", "reverse-next", "reverse-next")
back_to("part == 2")
do("reverse-next", "reverse-next")

print("signal")
back_to("handled == 14")
quiet("tt back-to last-write x")
begin = value("$_tt_position()")


def loop(command, times):
    names = set()
    for _ in range(times):
        quiet(command)
        names.add(gdb.newest_frame().name())
    print(command, names, value("handled"))


for command in ("next", "step"):
    quiet("tt goto insn:%d" % begin)
    loop(command, 5)
    loop("reverse-" + command, 9)
quiet("break on_signal")
quiet("tt goto insn:%d" % begin)


def until(command, wanted):
    """Repeats a step until it ends at the place `wanted`. The number of steps depends on when the signal comes."""
    for _ in range(9):
        quiet(command)
        if place() == wanted:
            break
    print(command, "->", place())


until("next", "in the handler")
do("finish")
until("next", "was interrupted")
until("reverse-next", "in the handler")
quiet("delete")
back_to("x == 31")
do("reverse-next", "reverse-next")
do("next")
do("next", "next", "next", "next")
do("next")
do("next")
do("reverse-next", "reverse-next")

print("processes")
back_to("part == 5")
do("next", "next")
print("is the parent", value("child") > 1)
back_to("x == 50")
print("says so", "begins here" in do("reverse-next", "reverse-next"))
back_to("part == 6")
print("says so", "executes another program" in do("next", "next"))
back_to("x == 70")
do("next", "next")
print("says so", "has ended" in do("next"))
back_to("x == 40")
do("next", "next")
do("next")
print("no fork", "fork" not in quiet("tt when"))
