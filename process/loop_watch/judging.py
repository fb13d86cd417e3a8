"""Whether the event loop was held: what lateness of a beat is the broker's own doing, and what the machine's.

A beat that is late while the thread of the loop waited for a processor, or while the whole process stood still (stopped, suspended,
starved), says that the machine is busy. Only what is left counts: CPU of the loop's thread, and what it waited for something else that a
second thread of the process could see it wait for.
"""

from typing import Final, NamedTuple

HELD_S_MIN: Final = 0.05
"""What is shorter is no news."""


class LoopReading(NamedTuple):
    """The state of the loop's thread at one time: CPU it has used, and how long it was ready to run and had no processor."""

    at_s: float
    cpu_s: float
    waited_s: float
    gc_s: float
    """Counted for the whole process: a collection in any thread keeps all others from running Python."""


class Held(NamedTuple):
    """`held_s` is what counts; the others say how it came about. All of them are of the time from when the beat was due until it came,
    but for those of CPU, which begin with the beat before."""

    held_s: float
    late_s: float
    cpu_s: float
    waited_s: float
    gc_s: float


def judge(before: LoopReading, after: LoopReading, *, due_s: float, unseen_s: float) -> Held | None:
    """`before` was read at the last beat, `after` at the one that was due at `due_s`; for `unseen_s` of the time between nobody else in the
    process could run either. None if the loop was held for less than HELD_S_MIN.
    """
    late_s = after.at_s - due_s
    cpu_s, waited_s, gc_s = after.cpu_s - before.cpu_s, after.waited_s - before.waited_s, after.gc_s - before.gc_s
    own_s = late_s - waited_s
    blocked_s = max(0.0, own_s - cpu_s - unseen_s)
    held_s = min(own_s, max(cpu_s + blocked_s, gc_s))
    return Held(held_s, late_s, cpu_s, waited_s, gc_s) if held_s >= HELD_S_MIN else None
