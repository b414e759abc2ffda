"""Runs inside gdb, for scripts/bench-gdb. Moves in a recording of the workload rd, and measures how long gdb's user
waits. The environment variable MEASURE_RESULTS names the file for the measurements. MEASURE_SERVER is the number of the
process that serves the recording; the CPU time of this process is measured, too."""

import json
import os
import random
import time

import gdb

SERVER = os.environ["MEASURE_SERVER"]
HERTZ = os.sysconf("SC_CLK_TCK")
STEPS_IN_A_ROW = 200
PLACES = 30
CALLS = 7


def cpu_s():
    """The CPU seconds that the server has used so far, in all its threads."""
    with open(f"/proc/{SERVER}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def timed(command):
    """Executes a command. Returns its wall and CPU seconds, and the distance that it moved, in instructions."""
    before, cpu, wall = position(), cpu_s(), time.monotonic()
    gdb.execute(command, to_string=True)
    wall, cpu = time.monotonic() - wall, cpu_s() - cpu
    return {"wall_s": wall, "cpu_s": cpu, "instructions": abs(position() - before)}


def position():
    return int(gdb.parse_and_eval("$_tt_position()"))


def goto(place):
    gdb.execute(f"tt goto {place}", to_string=True)


def quietly(*commands):
    for command in commands:
        gdb.execute(command, to_string=True)


def function():
    frame = gdb.newest_frame().function()
    return frame.name if frame else None


def single_steps(places):
    """Measures steps back: many steps in a row, and the first step after a goto."""
    rows, first = [], []
    goto("end")
    rows += [timed("reverse-stepi") for _ in range(STEPS_IN_A_ROW)]
    for place in places:
        goto(f"insn:{place}")
        first.append(timed("reverse-stepi"))
        rows += [timed("reverse-stepi") for _ in range(5)]
    return rows, first


def after_runs(places):
    """Measures the first step back after a run forward. ttvm has other states cached than after a goto."""
    steps = []
    for place in places:
        goto(f"insn:{place}")
        quietly("tbreak round_fn", "continue", "stepi 100")
        steps.append(timed("reverse-stepi"))
    return steps


def back_over_calls(places):
    """Measures reverse-next over the call of a function that runs for 15 million instructions."""
    calls = []
    for place in places:
        goto(f"insn:{place}")
        quietly("tbreak round_fn", "continue", "finish", "next")
        if function() != "main":
            raise gdb.GdbError(f"this is {function()} and not main")
        calls.append(timed("reverse-next"))
    return calls


def far_back(function_name):
    """Measures reverse-continue from the end to a function that was called once."""
    goto("end")
    quietly(f"break {function_name}")
    result = timed("reverse-continue")
    if function() != function_name:
        raise gdb.GdbError(f"this is {function()} and not {function_name}")
    quietly("delete")
    return [result]


def gotos(places):
    return [timed(f"tt goto insn:{place}") for place in places]


def measure():
    quietly("set pagination off", "set confirm off")
    goto("end")
    end = position()
    # Choose places in the part of the recording in which main's loop runs, after the boot.
    choose = random.Random(7)
    places = [choose.randrange(end // 10, end - end // 50) for _ in range(PLACES)]
    results = {"end": end}
    results["reverse-stepi"], results["reverse-stepi after tt goto"] = single_steps(places[:10])
    results["reverse-stepi after a run"] = after_runs(places[10:15])
    results["reverse-next over a call"] = back_over_calls(places[:CALLS])
    results["reverse-continue, 0.1e9 back"] = far_back("far01")
    results["reverse-continue, 1e9 back"] = far_back("far1")
    results["reverse-continue, 5e9 back"] = far_back("far5")
    results["tt goto"] = gotos(places)
    with open(os.environ["MEASURE_RESULTS"], "w") as file:
        json.dump(results, file)


measure()
