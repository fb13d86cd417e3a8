"""One connection's promise, sans-I/O: replies leave in the order of their requests. No sockets, clock or tasks."""

from collections.abc import Sequence

from storage.vocabulary import Buffer


class ReplyOrder:
    """Numbers requests as they arrive and releases replies in that order, whatever order they are finished in."""

    __slots__ = ("_finished", "_next", "_oldest")

    def __init__(self) -> None:
        self._next = 0
        self._oldest = 0
        self._finished: dict[int, Sequence[Buffer] | None] = {}

    def begin(self) -> int:
        """A request has arrived; its number is what `reply` takes."""
        number = self._next
        self._next += 1
        return number

    @property
    def pending_count(self) -> int:
        return self._next - self._oldest

    def reply(self, number: int, payload: Sequence[Buffer] | None) -> list[Buffer]:
        """Finish a request. `payload`: the reply from its header on, or None where the client expects none (acks=0).

        Returns what may be sent now, frame lengths included; empty while an earlier request is unfinished.
        """
        finished = self._finished
        assert self._oldest <= number < self._next, f"not a request that is waited for: {number}"
        assert number not in finished, f"answered twice: request {number}"
        finished[number] = payload
        ready: list[Buffer] = []
        while self._oldest in finished:
            body = finished.pop(self._oldest)
            self._oldest += 1
            if body is not None:
                ready.append(sum(map(len, body)).to_bytes(4, "big"))
                ready.extend(body)
        return ready
