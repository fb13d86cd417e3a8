"""Virtual time: a loop that never sleeps, and clocks that read it. Equal programs with equal seeds take equal turns.

Sets and tasks that end together are taken in an order of their own, so that a run depends on its seed alone.
"""

import asyncio
import contextlib
import contextvars
import gc
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack
from unittest import mock

from runtime.supervision import Nursery
from storage.log.partition import PartitionLog

Ts = TypeVarTuple("Ts")

EPOCH_MS = 1_700_000_000_000
TOGETHER_S: Final = 1e-9
"""Sums of floats miss their target by less than this; timers due within it run together."""
CANCELLED_KEPT: Final = 100
"""Cancelled timers that wait for their time are let go when they are more than half of all, and all are more than this."""
T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is runnable and nothing is scheduled, though somebody waits."""


class _Call(asyncio.TimerHandle):
    """What is to run, at its time or as soon as it is its turn. Nothing of its base is used."""

    __slots__ = ("args", "callback", "context", "due_s", "is_cancelled", "loop", "waits")

    def __init__(
        self, loop: "VirtualLoop", callback: Callable[..., object], args: Sequence[Any], context: contextvars.Context | None
    ) -> None:
        self.loop = loop
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.due_s = 0.0
        self.waits = False
        """For its time to come."""
        self.is_cancelled = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            # What it would have used may live for no other reason.
            self.callback = None
            self.args = ()
            if self.waits:
                self.loop.cancelled_count += 1

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.due_s

    def get_context(self) -> contextvars.Context:
        return self.context

    def __repr__(self) -> str:
        return f"<{self.callback!r} at {self.due_s:.6f}>"

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _Due(float):
    """A time, as a heap compares it, and what is due then."""

    __slots__ = ("call",)
    call: _Call


class VirtualLoop(asyncio.SelectorEventLoop):
    """No threads, no sockets, no signals: what is ready runs in its order, and then the clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._on_turn: Callable[[], None] = _nothing
        self._calls: deque[_Call] = deque()
        self._timers: list[_Due] = []
        self._is_asked_to_stop = False
        self.cancelled_count = 0
        """No more timers than this are cancelled and wait for their time."""

    def watch(self, on_turn: Callable[[], None]) -> None:
        """Call it between every two turns, when nothing is running."""
        self._on_turn = on_turn

    def time(self) -> float:
        return self._now_s

    def stop(self) -> None:
        super().stop()
        self._is_asked_to_stop = True

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None) -> asyncio.Handle:
        call = _Call(self, callback, args, context)
        self._calls.append(call)
        return call

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(self, callback, args, context)
        call.due_s = when
        call.waits = True
        due = _Due(when)
        due.call = call
        heapq.heappush(self._timers, due)
        return call

    def _run_once(self) -> None:
        """Turn after turn until the loop is to stop; asyncio's runs one."""
        calls = self._calls
        while True:
            if self.cancelled_count:
                self._drop_cancelled()
            timers = self._timers
            self._on_turn()
            if not (calls or self._is_asked_to_stop):
                if not timers:
                    raise Deadlock(f"nothing is runnable and nothing is scheduled: now_s={self._now_s:.6f}")
                wait_s = timers[0] - self._now_s
                if wait_s > 0:
                    self._now_s += wait_s
            until_s = self._now_s + TOGETHER_S
            while timers and timers[0] < until_s:
                call = heapq.heappop(timers).call
                call.waits = False
                calls.append(call)
            # What these make ready runs in the next turn.
            for _ in range(len(calls)):
                call = calls.popleft()
                if call.callback is not None:
                    try:
                        call.context.run(call.callback, *call.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - the loop goes on, as asyncio's does
                        self.call_exception_handler({"message": f"Exception in callback {call!r}", "exception": error, "handle": call})
            call = None  # type: ignore[assignment]  # between turns nothing is held by the loop
            if self._is_asked_to_stop:
                self._is_asked_to_stop = False
                return

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > CANCELLED_KEPT and self.cancelled_count / len(timers) > 0.5:
            for due in timers:
                due.call.waits = not due.call.is_cancelled
            self._timers = [due for due in timers if due.call.waits]
            heapq.heapify(self._timers)
            self.cancelled_count = 0
        else:
            while timers and timers[0].call.is_cancelled:
                self.cancelled_count -= 1
                heapq.heappop(timers).call.waits = False


def _nothing() -> None:
    pass


class VirtualClock:
    """The loop's time as a `Clock`. `skew_ms` sets the wall clock apart, and may change at any moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1_000)


class OrderedSet(set[T]):
    """A set that iterates in the order of insertion."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[T, None] = {}

    def add(self, item: T, /) -> None:
        super().add(item)
        self._order[item] = None

    def discard(self, item: object, /) -> None:
        super().discard(item)
        self._order.pop(item, None)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        return iter(self._order)


class OrderedTaskGroup(asyncio.TaskGroup):
    """Cancels its tasks in the order in which they were created."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks = OrderedSet()


class OrderedNursery(Nursery):
    """Cancels its tasks in the order in which they were spawned. Once dead it starts nothing: timers of a killed process do not fire, those
    of a loop that it shared do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tasks = OrderedSet()
        self._last: asyncio.Task[None] | None = None
        self.is_dead = False

    def spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        if self.is_dead and self._last is not None:
            coroutine.close()
            return self._last
        try:
            self._last = super().spawn(coroutine, name=name)
        except RuntimeError:
            # A broker of which a part has failed is as good as dead while its other tasks end: what others ask of it meanwhile is lost.
            if self._last is None:
                raise
        return self._last


def _stable_hash(log: PartitionLog) -> int:
    return int(log.partition.topic_id[-6:], 16) << 8 | log.partition.partition


@contextlib.contextmanager
def stable_order() -> Iterator[None]:
    """Sets of partitions, and of the tasks of a group, iterate alike in every run."""
    with mock.patch.object(PartitionLog, "__hash__", _stable_hash), mock.patch.object(asyncio, "TaskGroup", OrderedTaskGroup):
        yield


@contextlib.contextmanager
def no_collection_of_cycles() -> Iterator[None]:
    """None before the end, where those of the seed are collected: a task whose exception nobody retrieved says so then."""
    was_enabled = gc.isenabled()
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # where no collection runs, all that is new is in the youngest generation
        if was_enabled:
            gc.enable()
