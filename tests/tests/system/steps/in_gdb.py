"""Makes steps in a program of the guest, with the kernel's symbols, and prints where each step ends."""
import gdb


def quiet(command):
    return gdb.execute(command, to_string=True)


def frame():
    return gdb.newest_frame().name()


def value(name):
    return int(gdb.parse_and_eval(name))


def count(command, times):
    """Makes this many steps. Returns how many of the steps ended in each function."""
    names = {}
    for _ in range(times):
        quiet(command)
        names[frame()] = names.get(frame(), 0) + 1
    return names


quiet("tt back-to last-write x == 100")
begin = value("$_tt_position()")
print("next", count("next", 400), value("x"))
# Two ticks of the timer are some four million instructions apart.
steps = value("$_tt_position()") - begin
print("enough for ticks", steps > 5000000)

quiet("tt goto end")
for round in range(3):
    quiet("tt back-to last-call spin")
    process, place = value("me"), value("$_tt_position()")
    quiet("finish")
    print("finish", frame(), value("me") == process, int(gdb.history(0)) == process)
    print("nexts", count("next", 3), value("me") == process)
    quiet("tt goto insn:%d" % place)
    quiet("finish")
    quiet("reverse-next")
    print("reverse-next", frame(), value("me") == process)
    quiet("tt goto insn:%d" % (place + 500000))
    if frame() == "spin" and value("me") == process:
        quiet("reverse-finish")
        print("reverse-finish", frame(), value("me") == process)
    quiet("tt goto insn:%d" % place)
    if round == 0:
        # This is the last call in its process. The next steps lead out of the function, and to the process's end.
        quiet("finish")
        for _ in range(8):
            quiet("next")
            if frame() not in ("work", "main"):
                break
        print("end", frame())

# A breakpoint of the user stops a run in any process. A breakpoint in a handler stops a step.
quiet("tt goto insn:%d" % place)
tick = quiet("tt search break:asm_sysvec_apic_timer_interrupt").split("after: insn:")[1].split()[0]
quiet("tt goto insn:%d" % (int(tick) - 20))
quiet("break asm_sysvec_apic_timer_interrupt")
quiet("finish")
print("breakpoint in a handler", frame())
quiet("delete")
quiet("tt step-interrupts on")
quiet("tt goto insn:%d" % (int(tick) - 1))
quiet("stepi")
print("into", frame())
quiet("tt step-interrupts off")
