"""Draws a trace of `ttvm trace` with a lane for each thread that ran, like ui.perfetto.dev."""

import json
import subprocess
from html import escape

# This program runs in a Python that has perfetto (scripts/setup), and prints the trace's rows.
DECODE = """
import json, sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
rows, threads, consoles = [], {}, set()
for packet in trace.packet:
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        if track.HasField("thread"):
            threads[track.uuid] = [track.thread.thread_name, track.thread.tid]
        elif track.name == "console":
            consoles.add(track.uuid)
    for event in packet.ftrace_events.event:
        switch = event.sched_switch
        rows.append(["switch", event.timestamp, switch.prev_pid, switch.next_pid])
    if packet.HasField("track_event"):
        event = packet.track_event
        kind = event.categories[0] if event.categories else ""
        thread = None if event.track_uuid in consoles else threads[event.track_uuid][1]
        rows.append([{1: "begin", 2: "end"}.get(event.type, "instant"), packet.timestamp, thread, kind, event.name])
names = {}
for name, tid in threads.values():
    names[tid] = name
print(json.dumps({"rows": rows, "names": names}))
"""
COLOURS = {"syscall": "#4477aa", "interrupt": "#ccbb44", "exception": "#ee6677"}
NAMES = {"syscall": "system call", "interrupt": "interrupt", "exception": "page fault"}
WIDTH, LEFT, LANE, TOP = 1000, 130, 46, 62
CHARACTER = 6.4


def read(python, path):
    """The contents of a trace file."""
    done = subprocess.run([python, "-c", DECODE, path], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def svg(trace):
    """The picture as SVG text."""
    rows = trace["rows"]
    begin, end = min(row[1] for row in rows), max(row[1] for row in rows)
    scale = Scale(begin, end)
    runs, slices, lines = runs_of(rows, begin, end), slices_of(rows, end), [row for row in rows if row[0] == "instant" and row[2] is None]
    threads = list(dict.fromkeys(thread for thread, _, _ in runs))
    bottom = TOP + LANE * (len(threads) + 1)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{WIDTH}" height="{bottom + 34}" fill="#ffffff"/>')
    parts += legend()
    for number, thread in enumerate(threads):
        parts += lane(TOP + LANE * number, f"{trace['names'].get(str(thread), '?')} {thread}", thread, runs, slices, scale)
    parts += console_lane(TOP + LANE * len(threads), lines, scale)
    return "\n".join([*parts, *axis(bottom, scale), "</svg>"]) + "\n"


class Scale:
    """Converts nanoseconds to the picture's units."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def __call__(self, at_ns):
        return LEFT + (at_ns - self.begin) / (self.end - self.begin) * (WIDTH - LEFT - 10)


def runs_of(rows, begin, end):
    """The running threads: thread, begin and end of each period."""
    runs, since, running = [], begin, None
    for kind, at, *rest in rows:
        if kind == "switch":
            runs.append((rest[0], since, at))
            running, since = rest[1], at
    return [*runs, (running, since, end)] if running is not None else runs


def slices_of(rows, end):
    """Thread, kind, name, depth, begin and end of each system call, interrupt and exception."""
    open_ones, slices = {}, []
    for what, at, thread, *rest in rows:
        if what == "begin":
            open_ones.setdefault(thread, []).append((rest[0], rest[1], at))
        elif what == "end" and open_ones.get(thread):
            kind, name, since = open_ones[thread].pop()
            slices.append((thread, kind, name, len(open_ones[thread]), since, at))
        elif what == "instant" and thread is not None:
            slices.append((thread, rest[0], rest[1], 0, at, at))
    left = [(thread, *one[:2], depth, one[2], end) for thread, ones in open_ones.items() for depth, one in enumerate(ones)]
    return slices + left


def legend():
    parts, x = ['<text x="10" y="24" font-size="14">what ran, and why: a program crashes</text>'], LEFT + 250
    for kind, colour in {"a thread runs": "#dddddd", **{NAMES[kind]: colour for kind, colour in COLOURS.items()}}.items():
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="24">{kind}</text>')
        x += 40 + 7 * len(kind)
    return parts


def box(x, y, width, height, colour, name=""):
    """A rectangle, with its name if there is room for it."""
    parts = [f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.7):.1f}" height="{height}" fill="{colour}"><title>{escape(name)}</title></rect>']
    if width > CHARACTER * (len(name) + 1):
        parts.append(f'<text x="{x + 3:.1f}" y="{y + 11}" font-size="11" fill="#ffffff">{escape(name)}</text>')
    return parts


def lane(y, name, thread, runs, slices, scale):
    parts = [f'<text x="10" y="{y + 20}">{escape(name)}</text>']
    for other, since, until in runs:
        if other == thread:
            parts += box(scale(since), y + 2, scale(until) - scale(since), 8, "#dddddd")
    for other, kind, name, depth, since, until in slices:
        if other == thread:
            parts += box(scale(since), y + 12 + 14 * min(depth, 1), scale(until) - scale(since), 13, COLOURS.get(kind, "#888888"), name)
    return parts


def console_lane(y, lines, scale):
    """The lines of the console. A line begins at the time at which it was complete."""
    parts = [f'<text x="10" y="{y + 20}">console</text>']
    for number, (_, at, _, _, text) in enumerate(lines):
        x, height = scale(at), y + 8 + 14 * (number % 3)
        parts.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + LANE}" stroke="#228833"/>')
        # The label goes to the side that has more room.
        side, anchor, room = (3, "start", WIDTH - 10 - x) if 2 * x < WIDTH + LEFT else (-3, "end", x - LEFT)
        words = escape(shortened(text, int(room / CHARACTER)))
        parts.append(f'<text x="{x + side:.1f}" y="{height + 3}" font-size="11" text-anchor="{anchor}" fill="#228833">{words}</text>')
    return parts


def shortened(text, room):
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def axis(y, scale):
    """Guest time below the lanes, ten microseconds times a power of ten apart."""
    step = 10 ** (len(str(int((scale.end - scale.begin) / 4))) - 1)
    while (scale.end - scale.begin) / step > 8:
        step *= 2
    parts = []
    for at in range(-(-scale.begin // step) * step, scale.end, step):
        x = scale(at)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{y}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 20}" text-anchor="middle">{at / 1e9:.4f} s</text>')
    return parts
