"""What leaves a control record to which nobody appends, pure (docs/design/upkeep.md#tidying).

A commit does all of this by itself. In a partition without appends it would stay for ever: a ring of entries, producers that have expired,
entries of `writers` whose brokers are gone.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from storage.formats.control import Control, IndexChunk, LogState
from storage.log.decide import FORGOTTEN_AFTER, drained
from storage.log.producer_pages import forget_expired
from storage.log.trim import decide_trim


class TidyPolicy(NamedTuple):
    """A partition without appends for `idle_ms` is tidied. `producer_expiration_ms` has to be that of the brokers; None: appends alone
    forget producers.
    """

    idle_ms: int = 600_000
    producer_expiration_ms: int | None = None


class Tidied(NamedTuple):
    """`control` is put by CAS, `chunk` beside it and before it, if absent: entries that the record of before had pending."""

    control: Control
    chunk: IndexChunk | None = None


def is_idle(control: Control, policy: TidyPolicy, *, now_ms: int) -> bool:
    return control.log_state is LogState.OPEN and control.last_append_ms < now_ms - policy.idle_ms


def tidied(
    control: Control, log_start: int, policy: TidyPolicy, *, now_ms: int, dead_writers_max: int, gone: Collection[int] = ()
) -> Tidied | None:
    """What to put so that the log begins at `log_start`; None if nothing has to change, or nothing may.

    With it go producers that have expired, entries of the brokers `gone` in `writers`, and, in a partition without appends, the ring. Where
    log_start stays, these are worth a write only if nobody appends: appends do it without one. What was left out once is not there to be
    left out again, so a partition gets one write for each time in which nobody appends, a second when its producers expire. Up to
    `dead_writers_max` entries of brokers are not worth a write: they leave with the next one.

    The ring goes as a whole, by the chunk that a commit would make of it: its entries were committed before, so that chunk is true also if
    the CAS fails (I3). None of it is needed where all of the ring is below the cursor, where segments count (I4), or below log_start.
    """
    if control.log_state is not LogState.OPEN or log_start > control.sequence_counter:  # the latter: an old record
        return None
    trimmed = decide_trim(control, log_start).control
    idle = is_idle(control, policy, now_ms=now_ms)
    if trimmed is None and not idle:
        return None
    made, chunk = trimmed or control, None
    if policy.producer_expiration_ms is not None:
        producers = dict(made.producers)
        pages = forget_expired(made.pages, producers, before_ms=now_ms - FORGOTTEN_AFTER * policy.producer_expiration_ms)
        if len(producers) < len(made.producers) or len(pages) < len(made.pages):
            made = msgspec.structs.replace(made, producers=producers, pages=pages)
    if idle and made.pending:
        is_needed = made.pending[-1].last >= max(made.compaction_cursor, made.log_start)
        chunk = drained(made) if is_needed else None
        made = msgspec.structs.replace(made, pending=())
    dead = control.writers.keys() & gone
    if len(dead) > dead_writers_max or (dead and made is not control):
        made = msgspec.structs.replace(made, writers={epoch: entry for epoch, entry in made.writers.items() if epoch not in dead})
    return None if made is control else Tidied(made, chunk)


def questioned_writers(control: Control, policy: TidyPolicy, *, now_ms: int, dead_writers_max: int) -> Collection[int]:
    """The epochs of which it matters whether their brokers are gone: those of a record that is tidied anyway, or that has many."""
    if not is_idle(control, policy, now_ms=now_ms):
        return ()
    if len(control.writers) <= dead_writers_max:
        made = tidied(control, control.log_start, policy, now_ms=now_ms, dead_writers_max=dead_writers_max)
        return () if made is None else control.writers.keys()
    return control.writers.keys()
