"""Prints what gdb shows of the threads of a guest with four processors, and where steps end."""
import gdb


def quiet(command):
    return gdb.execute(command, to_string=True)


def value(name):
    return int(gdb.parse_and_eval(name)) & 0xFFFFFFFFFFFFFFFF


def number(thread):
    return thread.ptid[1]


def threads():
    return sorted(gdb.selected_inferior().threads(), key=number)


def selected():
    return number(gdb.selected_thread())


def places():
    """The RIP and RSP of each processor. The selected thread stays the same."""
    before = gdb.selected_thread()
    found = []
    for thread in threads():
        thread.switch()
        found.append((value("$rip"), value("$rsp")))
    before.switch()
    return found


def choose(wanted):
    [thread] = [thread for thread in threads() if number(thread) == wanted]
    thread.switch()


# Each step is a step of the selected processor, also if an interrupt comes.
quiet("tt step-interrupts on")
for share in (70, 80, 90, 95):
    quiet("tt goto %d%%" % share)
    here, seat = value("$_tt_position()"), selected()
    print("at", here, seat, places())
    for wanted in (1, 2, 3, 4):
        quiet("tt goto insn:%d" % here)
        choose(wanted)
        begin = value("$rip"), value("$rsp")
        quiet("stepi")
        after, there = value("$_tt_position()"), (value("$rip"), value("$rsp"))
        thread = selected()
        quiet("reverse-stepi")
        back = (value("$rip"), value("$rsp")) == begin and selected() == wanted
        print("step", here, wanted, thread, after, there, back)
        quiet("tt goto insn:%d" % here)
        choose(wanted)
        quiet("reverse-stepi")
        print("back", here, wanted, selected(), value("$_tt_position()"), (value("$rip"), value("$rsp")))

quiet("tt goto 90%")
seat = selected()
choose(seat % 4 + 1)
try:
    quiet("set $rax = 1")
    print("changed")
except gdb.error as error:
    print("refused:", error)
print(quiet("info threads"))
quiet("tt threads on")
print("threads", len(threads()) > 20, [number(thread) for thread in threads()][:4])
[shell] = [thread for thread in threads() if thread.ptid[1] == (1 << 22) + 1]
shell.switch()
print("init", value("$rip") >> 32 == 0xFFFFFFFF)
