"""Kills recorders at random moments. The recording that remains must open, and replay up to the kill."""

import os
import shutil
from dataclasses import asdict, dataclass

from measure.guests import PROMPT, busy_shell
from measure.process import run
from measure.rounds import REPLAYED, info_of

# A recording may lack events of at most the last second of host time before the kill.
MOST_LOST_S = 1.0
# Kills happen during the boot, and during the first part of the session: this share of its length.
SESSION_SHARE = 0.4
CUT_OFF = "replayed without a difference to where the recording was cut off"
NOT_BEGUN = "cut off before it began"


@dataclass
class Kill:
    """The result of one kill."""

    number: int
    after_s: float
    begun: bool
    """Whether the recording existed at the kill. A recorder first reads the images."""
    wrong: list
    """Sentences about faults."""
    instructions: int
    checkpoints: int
    lost_s: float
    """Seconds of the host's time between the last write of the log and the kill."""


def record(ttvm, recording, **when):
    guest = busy_shell()
    dense = ["--checkpoint-interval", "50ms"]
    return run([ttvm, "record", "--output", recording, *dense, *guest.options], guest.typist(), **when)


def boot_s(ttvm, recording):
    """The seconds from the start until the guest's prompt, on this machine at this time."""
    done = record(ttvm, recording, until=PROMPT, limit_s=600)
    shutil.rmtree(recording)
    if PROMPT not in done.console:
        raise RuntimeError(f"the guest never came to its prompt: {done.messages.strip()[-300:]}")
    return done.ended_at - done.began_at


def kill_one(ttvm, number, after_s, recording):
    """Records to `recording`, kills the recorder after `after_s` seconds, and checks the recording that remains."""
    killed = record(ttvm, recording, kill_after_s=after_s)
    log = f"{recording}/events.log"
    if killed.code != -9:
        wrong = [f"record ended with {killed.code} before the kill: {killed.messages.strip()[-300:]}"]
        return Kill(number, after_s, True, wrong, 0, 0, 0.0)
    if not os.path.exists(log):
        return Kill(number, after_s, False, [], 0, 0, 0.0)
    lost_s = killed.ended_at - os.stat(log).st_mtime
    info, wrong = info_of(ttvm, recording)
    if wrong:
        begun = NOT_BEGUN not in wrong[0]
        return Kill(number, after_s, begun, wrong if begun else [], 0, 0, lost_s)
    replayed = run([ttvm, "replay", recording, "--verify"])
    wrong += wrong_replay(info, killed, replayed)
    # Compares every checkpoint with the replayed machine.
    verified = run([ttvm, "verify", recording])
    if verified.code != 0:
        wrong.append(f"verify ended with {verified.code}: {verified.messages.strip()[-1000:]}")
    if lost_s > MOST_LOST_S:
        # A recorder that gets hardly any CPU cannot write in time. The message has the load average, because it shows
        # this case.
        load = os.getloadavg()[0]
        wrong.append(f"the last record was written {lost_s:.3f} s before the kill (load average {load:.1f})")
    return Kill(number, after_s, True, wrong, info["instructions"], (info["checkpoints"] or {}).get("count", 0), lost_s)


def wrong_replay(info, killed, replayed):
    end = REPLAYED.search(replayed.messages)
    if replayed.code != 0 or not end:
        return [f"replay ended with {replayed.code}: {replayed.messages.strip()[-1000:]}"]
    wrong = []
    if info["complete"] or end[1] != CUT_OFF:
        wrong.append(f"a recording that was cut off says: complete {info['complete']}, {end[1]}")
    # A replay goes one instruction further, to see that nothing follows the last record.
    if int(end[2]) - info["instructions"] not in (0, 1):
        wrong.append(f"replay ended at {end[2]} instructions, info says {info['instructions']}")
    if not killed.console.startswith(replayed.console):
        wrong.append("replay printed other bytes than record")
    early = killed.seen_before(killed.ended_at - MOST_LOST_S)
    if len(replayed.console) < early:
        wrong.append(
            f"replay printed {len(replayed.console)} bytes, and {early} were there {MOST_LOST_S} s before the kill"
        )
    return wrong


def kill_many(ttvm, count, random, keep):
    """Kills `count` recorders at moments from `random`. Prints the faults, and keeps the recordings that have a
    fault."""
    longest_s = boot_s(ttvm, f"{keep}/boot.ttvm") * (1 + SESSION_SHARE)
    kills = []
    while sum(kill.begun for kill in kills) < count:
        number = len(kills) + 1
        recording = f"{keep}/killed-{number}.ttvm"
        kill = kill_one(ttvm, number, random.uniform(0, longest_s), recording)
        kills.append(kill)
        for sentence in kill.wrong:
            print(f"WRONG kill {number}: {sentence}; see {ttvm} replay --verify {recording}")
        if not kill.wrong:
            shutil.rmtree(recording, ignore_errors=True)
        print(line_of(kill), flush=True)
    return kills


def line_of(kill):
    if not kill.begun:
        return f"kill {kill.number} after {kill.after_s:.3f} s: before the recording began, does not count"
    result = "WRONG" if kill.wrong else "opens and replays"
    return (
        f"kill {kill.number} after {kill.after_s:.3f} s: {result}, {kill.instructions / 1e6:.1f} Minsn,"
        f" {kill.checkpoints} checkpoints,"
        f" the last {kill.lost_s * 1000:.0f} ms lost"
    )


def summary_of(kills):
    begun = [kill for kill in kills if kill.begun]
    failed = sum(bool(kill.wrong) for kill in begun)
    most = max((kill.lost_s for kill in begun), default=0)
    return f"{len(begun)} recordings killed: {failed} failed; at most {most * 1000:.0f} ms were lost"


def as_json(kills):
    return [asdict(kill) for kill in kills]
