"""The port between a connection, which knows frames and their order, and what answers them (broker/dispatch.py)."""

from collections.abc import Sequence
from typing import Protocol

from broker.dispatch import Client, Done, Start
from storage.vocabulary import Buffer


class Requests(Protocol):
    """What a connection hands its frames to."""

    def is_overlapping(self, frame: memoryview) -> bool:
        """True for a request that may run beside others of its connection. Raises `ProtocolViolation`."""
        ...

    def is_fetch(self, frame: memoryview) -> bool: ...

    def is_repeated(self, frame: memoryview) -> bool:
        """True for a request that may be answered together with others like it that come next."""
        ...

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        """Begin an overlapping request; `done` is called once. False: it has to wait for something first, use `prepare`.

        Like all of these, raises `ProtocolViolation` or `Unanswerable`: the caller closes the connection.
        """
        ...

    async def prepare(self, frame: memoryview, connection: Client) -> Start | None:
        """Wait for what an overlapping request needs; the answer is a `start` that begins it, or None: `handle` it. Cancelled: nothing was
        begun.
        """
        ...

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        """The reply to a request that does not overlap, from its header on. The frame may be released before it is there."""
        ...

    async def handle_repeated(self, frames: Sequence[memoryview], connection: Client) -> list[Sequence[Buffer] | None]:
        """As `handle`, of several that `is_repeated`, in their order."""
        ...
