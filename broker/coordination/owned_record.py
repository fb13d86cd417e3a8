"""A record that one broker owns, in its memory: one job at a time happens to it, and nobody hears of what is not durable yet.

Requests and the passing of time are jobs in a line. A job that writes nothing is done at once; the others wait while a write is under way.
When a write fails, the record is closed: everybody gets an error that makes them ask again, and its owner reads it anew.

What a job does to the record is decided elsewhere. Here is what keeps that decision true: its order, its write, and who is answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import Fenced, StorageError

TIMER_S_MIN: Final = 0.01
"""Between two looks at the clock: a loop's timer may be early by a millisecond."""


class DueTimer:
    """`set` makes it go off when something is due: never before, and only once. Where nothing is due, no timer is set.

    A timer that is too early looks again when it goes off. So whatever only puts off what is due need not tell anybody, and `set` asks
    `next_due_s` again only after `note_change`.
    """

    def __init__(self, next_due_s: Callable[[], float | None], on_due: Callable[[], None], *, clock: Clock) -> None:
        """`next_due_s`: when something is due, by the monotonic clock."""
        self._next_due_s = next_due_s
        self._on_due = on_due
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._handle_due_s = 0.0
        self._may_be_due_earlier = True

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def note_change(self) -> None:
        """Something may be due earlier than it was when the timer was set."""
        self._may_be_due_earlier = True

    def set(self) -> None:
        if self._handle is not None and not self._may_be_due_earlier:
            return
        self._may_be_due_earlier = False
        due_s = self._next_due_s()
        if due_s is None or (self._handle is not None and self._handle_due_s <= due_s):
            return
        self.stop()
        self._handle_due_s = due_s
        delay_s = max(due_s - self._clock.monotonic_s(), TIMER_S_MIN)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        due_s = self._next_due_s()
        if due_s is not None and due_s <= self._clock.monotonic_s():
            self._on_due()
        else:
            self.set()


NOBODY: Final = 0
"""The token of a job that nobody waits for."""

J = TypeVar("J")
K = TypeVar("K")
E = TypeVar("E")


class WriteFirst(NamedTuple):
    """What has to be durable before anybody hears of a job: `write` makes it so, and `then` answers.

    `then` is not called if `write` raises, or if the record was closed meanwhile.
    """

    write: Callable[[], Coroutine[Any, Any, None]]
    then: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals(Generic[E]):
    """The answer to jobs that did not happen, or may not have; `closed` makes it an exception."""

    line_full: E
    fenced: E
    """Another broker owns the record."""
    not_written: E
    """Nobody knows what became of a write, or this broker ends."""
    closed: Callable[[E], Exception]


class OwnedRecord(Generic[J, E]):
    def __init__(
        self,
        start: Callable[[J, int], WriteFirst | None],
        *,
        refusals: Refusals[E],
        jobs_max: int,
        next_due_s: Callable[[], float | None],
        due: J,
        on_not_written: Callable[[StorageError], None],
        on_close: Callable[[], None],
        clock: Clock,
        nursery: Nursery,
        name: str,
    ) -> None:
        """`start` does a job and answers its token, now or later, or returns what has to be written first. `due` is the job for the time
        that `next_due_s` names. `on_not_written` hears why a write failed, unless it was fenced; `on_close` is called once. `name` is what
        the tasks that write are called.
        """
        self._start = start
        self._refusals = refusals
        self._jobs_max = jobs_max
        self._due = due
        self._on_not_written = on_not_written
        self._on_close = on_close
        self._nursery = nursery
        self._name = name
        self._line: deque[tuple[J, int]] = deque()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """The waiters for an answer, by token, be their jobs in the line, being written, or done."""
        self._last_token = NOBODY
        self._is_starting = False
        self._is_writing = False
        self._closed_with: E | None = None
        self._timer = DueTimer(next_due_s, self._on_due, clock=clock)
        self._timer.set()

    @property
    def timer(self) -> DueTimer:
        return self._timer

    @property
    def is_open(self) -> bool:
        return self._closed_with is None

    @property
    def is_at_rest(self) -> bool:
        """Nothing happens to it and nobody waits."""
        return not (self._line or self._asked or self._is_writing or self._is_starting)

    async def ask(self, make: Callable[[int], J], *, deadline_s: float) -> Any:
        """What the job that `make` makes of a token is answered with.

        Raises the `closed` of its refusals, and `TimeoutError` after `deadline_s`. Then, or cancelled: the job has happened, or will, and
        nobody hears of it.
        """
        if self._closed_with is not None:
            raise self._refusals.closed(self._closed_with)
        if len(self._line) >= self._jobs_max:
            raise self._refusals.closed(self._refusals.line_full)
        self._last_token += 1
        token = self._last_token
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[token] = future
        try:
            self._line.append((make(token), token))
            self._advance()
            async with asyncio.timeout(deadline_s):
                return await future
        finally:
            self._asked.pop(token, None)

    def answer(self, token: int, answer: object) -> None:
        """Whoever waits no more, or was answered before, hears nothing."""
        future = self._asked.pop(token, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def take_next(self, fits: Callable[[J], K | None]) -> tuple[K, int] | None:
        """The next job in the line and its token, if it `fits` the one that is being started: it happens with that one. `fits` returns None
        for a job that does not.
        """
        if not self._line:
            return None
        job, token = self._line[0]
        fitting = fits(job)
        if fitting is None:
            return None
        self._line.popleft()
        return fitting, token

    def close(self, error: E) -> None:
        """Answer everybody with `error`, and everybody who asks later. A write that is under way may still land."""
        if self._closed_with is not None:
            return
        self._closed_with = error
        self._timer.stop()
        self._line.clear()
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(self._refusals.closed(error))
        self._on_close()

    def _advance(self) -> None:
        while self._line and not self._is_writing and self._closed_with is None:
            job, token = self._line.popleft()
            self._is_starting = True
            try:
                first = self._start(job, token)
            finally:
                self._is_starting = False
            if first is not None:
                self._begin(first)
        if not self._is_writing and self._closed_with is None:
            # What came during a write counts before the time that has passed.
            self._timer.set()

    def _on_due(self) -> None:
        if not self._is_writing:  # else the timer is set when the write is over
            self._line.append((self._due, NOBODY))
            self._advance()

    def _begin(self, first: WriteFirst) -> None:
        self._is_writing = True
        task = self._nursery.spawn(self._carry_out(first), name=self._name)
        task.add_done_callback(self._note_end)

    async def _carry_out(self, first: WriteFirst) -> None:
        try:
            await first.write()
        except Fenced:
            self.close(self._refusals.fenced)
            return
        except StorageError as failure:
            self._on_not_written(failure)
            self.close(self._refusals.not_written)
            return
        finally:
            self._is_writing = False
        if self._closed_with is None:
            first.then()
            self._advance()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            # The broker ends, perhaps before the first step of the write, or by a mistake of ours: nobody else answers.
            self._is_writing = False
            self.close(self._refusals.not_written)
