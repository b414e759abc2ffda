"""Rounds of an endurance run: a guest runs, is recorded, and the recording is replayed and compared."""

import json
import re
import shutil
import statistics
from dataclasses import asdict, dataclass

from measure.guests import MIB
from measure.process import run

ENDED = re.compile(r"after (\d+) instructions, (\d+\.\d+) s guest time")
REPLAYED = re.compile(r"ttvm: (.*), at (\d+) instructions, (\d+) branches, (\d+\.\d+) s guest time")
ALL_EQUAL = "replayed to the end: console, counts and hashes are equal"

# The largest allowed costs of recording and replaying, as ratios of CPU time.
MOST_RECORDING = 1.03
MOST_REPLAYING = 1.0
# Allowed memory in addition to the guest's RAM, for the engine's translations and for checkpoints that are being
# written.
MOST_EXTRA_MEMORY = 64 * MIB
# Disk blocks that the guest wrote are held in memory until a checkpoint stores them. After this many blocks, a
# checkpoint comes at the latest (MAX_HELD_BLOCKS in vmm/recording/src/pace.rs).
MOST_HELD_BLOCKS = 96 * MIB
MOST_LOG_OF_BOOT = 64 << 10
MOST_LOG_PER_IDLE_S = 1024


@dataclass
class Round:
    """The result of one round of one guest."""

    guest: str
    number: int
    wrong: list
    """Sentences about faults."""
    instructions: int
    guest_s: float
    log_bytes: int
    run: dict | None
    """Only in rounds that measure what recording costs."""
    record: dict
    replay: dict
    """`run`, `record` and `replay` have the keys `cpu_s`, `peak_bytes` and `instructions`."""

    def recording_costs(self):
        """The ratio of the recording's CPU time per instruction to the CPU time per instruction of the run without
        recording."""
        return cpu_per_instruction(self.record) / cpu_per_instruction(self.run)

    def replaying_costs(self):
        return cpu_per_instruction(self.replay) / cpu_per_instruction(self.record)


def cpu_per_instruction(cost):
    return cost["cpu_s"] / max(cost["instructions"], 1)


def cost_of(done, instructions):
    return {"cpu_s": done.cpu_s, "peak_bytes": done.peak_bytes, "instructions": int(instructions or 0)}


def info_of(ttvm, recording):
    """The output of `ttvm info`, and sentences about faults."""
    done = run([ttvm, "info", recording, "--json"])
    if done.code != 0:
        return {}, [f"info ended with {done.code}: {done.messages.strip()[-300:]}"]
    return json.loads(done.console), []


def play(ttvm, guest, number, recording, costs, record_options):
    """Plays one round. The recording stays at `recording`. With `costs`, the guest also runs without recording."""
    # Each round is a different run, but the run with recording and the run without are the same.
    machine = [*guest.options, "--seed", str(number), "--date", str(1_700_000_000 + 86_400 * number)]
    ran = run([ttvm, "run", *machine], guest.typist()) if costs else None
    recorded = run([ttvm, "record", "--output", recording, *record_options, *machine], guest.typist())
    info, wrong = info_of(ttvm, recording)
    replayed = run([ttvm, "replay", recording, "--verify"])
    recorded_to, replayed_to = ENDED.search(recorded.messages), REPLAYED.search(replayed.messages)
    recording_cost = cost_of(recorded, recorded_to and recorded_to[1])
    run_cost = None
    if ran:
        ran_to = ENDED.search(ran.messages)
        run_cost = cost_of(ran, ran_to and ran_to[1])
        wrong += wrong_run("run", ran, guest)
        both = [(ran.console, run_cost["instructions"]), (recorded.console, recording_cost["instructions"])]
        if guest.session is None and both[0] != both[1]:
            wrong.append("the guest did something else with recording than without")
    wrong += wrong_run("record", recorded, guest) + wrong_recording(info, recorded, recorded_to)
    wrong += wrong_replay(info, recorded.console, replayed, replayed_to)
    replay_cost = cost_of(replayed, replayed_to and replayed_to[2])
    log_bytes, guest_s = info.get("log_bytes", 0), info.get("guest_seconds", 0.0)
    instructions = info.get("instructions", 0)
    return Round(guest.name, number, wrong, instructions, guest_s, log_bytes, run_cost, recording_cost, replay_cost)


def wrong_run(verb, done, guest):
    if done.code != 0:
        return [f"{verb} ended with {done.code}: {done.messages.strip()[-300:]}"]
    if guest.shows not in done.console:
        return [f"{verb}: the guest did not do its work: '{guest.shows.decode()}' is not on its console"]
    return []


def wrong_recording(info, recorded, end):
    if not info or not end:
        return []  # the fault is already reported
    wrong = []
    if not info["complete"]:
        wrong.append("info says that the recording was cut off")
    if (info["instructions"], f"{info['guest_seconds']:.6f}") != (int(end[1]), end[2]):
        wrong.append(f"info and record disagree about the end: {info['instructions']} or {end[1]} instructions")
    if info["console_bytes"] != len(recorded.console):
        wrong.append(f"info counts {info['console_bytes']} bytes on the console, and {len(recorded.console)} came")
    return wrong


def wrong_replay(info, console, replayed, end):
    if replayed.code != 0 or not end:
        return [f"replay ended with {replayed.code}: {replayed.messages.strip()[-1000:]}"]
    wrong = []
    if end[1] != ALL_EQUAL:
        wrong.append(f"replay says: {end[1]}")
    if replayed.console != console:
        at = first_difference(replayed.console, console)
        wrong.append(f"replay printed other bytes than record, from byte {at} on")
    if info and (info["instructions"], info["branches"]) != (int(end[2]), int(end[3])):
        wrong.append(f"replay ended at {end[2]} instructions, {end[3]} branches; info says otherwise")
    return wrong


def first_difference(left, right):
    pairs = enumerate(zip(left, right))
    return next((at for at, (l, r) in pairs if l != r), min(len(left), len(right)))


@dataclass
class Summary:
    """The summary of all rounds of one guest: medians, and the number of rounds with a fault."""

    guest: str
    rounds: int
    failed: int
    instructions: int
    run_s: float
    record_s: float
    replay_s: float
    recording: float
    replaying: float
    log_bytes: int
    log_bytes_per_s: float
    run_peak: int
    record_peak: int
    replay_peak: int


def summary_of(rounds):
    def median(value, rounds=rounds):
        return statistics.median(value(r) for r in rounds)

    def most(value, rounds=rounds):
        return max(value(r) for r in rounds)

    with_run = [r for r in rounds if r.run]

    return Summary(
        guest=rounds[0].guest,
        rounds=len(rounds),
        failed=sum(bool(r.wrong) for r in rounds),
        instructions=int(median(lambda r: r.instructions)),
        run_s=median(lambda r: r.run["cpu_s"], with_run),
        record_s=median(lambda r: r.record["cpu_s"]),
        replay_s=median(lambda r: r.replay["cpu_s"]),
        recording=median(Round.recording_costs, with_run),
        replaying=median(Round.replaying_costs),
        log_bytes=most(lambda r: r.log_bytes),
        log_bytes_per_s=most(lambda r: r.log_bytes / r.guest_s if r.guest_s else 0),
        run_peak=most(lambda r: r.run["peak_bytes"], with_run),
        record_peak=most(lambda r: r.record["peak_bytes"]),
        replay_peak=most(lambda r: r.replay["peak_bytes"]),
    )


HEADING = (
    f"{'guest':7} {'rounds':>6} {'failed':>6} {'Minsn':>8} {'run s':>7} {'rec s':>7} {'repl s':>7} {'rec/run':>8}"
    f" {'repl/rec':>8} {'log B':>8} {'B/guest s':>9} {'run MiB':>8} {'rec MiB':>8} {'repl MiB':>8}"
)


def line_of(s):
    """The guest's line in the table below HEADING."""
    return (
        f"{s.guest:7} {s.rounds:6} {s.failed:6} {s.instructions / 1e6:8.0f} {s.run_s:7.2f} {s.record_s:7.2f}"
        f" {s.replay_s:7.2f} {s.recording:8.3f} {s.replaying:8.3f} {s.log_bytes:8} {s.log_bytes_per_s:9.0f}"
        f" {s.run_peak / MIB:8.1f} {s.record_peak / MIB:8.1f} {s.replay_peak / MIB:8.1f}"
    )


def over_limits(summary, guest):
    """Two lists of sentences about exceeded limits: of exact values (log, memory), and of CPU times, which other work
    on the machine changes."""
    exact, measured = [], []
    if summary.guest == "boot" and summary.log_bytes > MOST_LOG_OF_BOOT:
        exact.append(f"boot: the log has {summary.log_bytes} bytes, more than {MOST_LOG_OF_BOOT}")
    if summary.guest == "idle" and summary.log_bytes_per_s > MOST_LOG_PER_IDLE_S:
        exact.append(f"idle: the log grows by {summary.log_bytes_per_s:.0f} bytes per guest second")
    most = guest.memory_bytes + MOST_EXTRA_MEMORY + (MOST_HELD_BLOCKS if "--disk" in guest.options else 0)
    for verb, peak in (("record", summary.record_peak), ("replay", summary.replay_peak)):
        if peak > most:
            ram = guest.memory_bytes / MIB
            exact.append(f"{summary.guest}: {verb} took {peak / MIB:.1f} MiB for {ram:.0f} MiB of RAM")
    if summary.recording > MOST_RECORDING:
        measured.append(f"{summary.guest}: recording took {summary.recording:.3f} times the CPU time of a run")
    if summary.replaying > MOST_REPLAYING:
        measured.append(f"{summary.guest}: replaying took {summary.replaying:.3f} times the CPU time of recording")
    return exact, measured


def play_and_report(ttvm, guest, number, keep, costs, record_options):
    """Plays one round and prints its faults. Keeps the recording only if there is a fault."""
    recording = f"{keep}/{guest.name}-{number}.ttvm"
    result = play(ttvm, guest, number, recording, costs, record_options)
    if not result.wrong:
        shutil.rmtree(recording)
    for sentence in result.wrong:
        print(f"WRONG {guest.name}, round {number}: {sentence}; see {ttvm} replay --verify {recording}")
    played = [(verb, getattr(result, verb)) for verb in ("run", "record", "replay")]
    times = ", ".join(f"{verb} {cost['cpu_s']:.2f} s" for verb, cost in played if cost)
    print(f"round {number} {guest.name}: {'WRONG' if result.wrong else 'equal'}; {times}", flush=True)
    return result


def as_json(rounds):
    return [asdict(r) for r in rounds]
