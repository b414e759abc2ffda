"""Runs inside gdb, for scripts/bench-gdb: walks about in a recording of the workload rd and measures how long gdb's user
waits. MEASURE_RESULTS names the file that the measurements are written to, MEASURE_SERVER the process that serves the
recording, whose CPU time is measured as well."""

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
    """CPU seconds that the server has had, those of all its threads."""
    with open(f"/proc/{SERVER}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def timed(command):
    """Wall and CPU seconds of a command, and the distance that it went, in instructions."""
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
    """Steps back: many in a row, and the first after a goto."""
    rows, first = [], []
    goto("end")
    rows += [timed("reverse-stepi") for _ in range(STEPS_IN_A_ROW)]
    for place in places:
        goto(f"insn:{place}")
        first.append(timed("reverse-stepi"))
        rows += [timed("reverse-stepi") for _ in range(5)]
    return rows, first


def after_runs(places):
    """The first step back behind a run forward, which leaves behind other things than a goto does."""
    steps = []
    for place in places:
        goto(f"insn:{place}")
        quietly("tbreak round_fn", "continue", "stepi 100")
        steps.append(timed("reverse-stepi"))
    return steps


def back_over_calls(places):
    """reverse-next over the call of a function that runs for 15 million instructions."""
    calls = []
    for place in places:
        goto(f"insn:{place}")
        quietly("tbreak round_fn", "continue", "finish", "next")
        if function() != "main":
            raise gdb.GdbError(f"this is {function()} and not main")
        calls.append(timed("reverse-next"))
    return calls


def far_back(function_name):
    """reverse-continue from the end to a function that was called once."""
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
    # The part of the recording in which main's loop runs; the boot comes before.
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
