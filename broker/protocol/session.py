"""One connection's promise, sans-I/O: replies leave in the order of their requests. No sockets, clock or tasks."""

from collections import deque
from collections.abc import Sequence

from storage.vocabulary import Buffer


class Session:
    """Numbers requests as they arrive and releases replies in that order, whatever order they are finished in."""

    __slots__ = ("_awaiting", "_finished", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._awaiting: deque[int] = deque()
        self._finished: dict[int, Sequence[Buffer] | None] = {}

    def begin(self) -> int:
        """A request has arrived; its number is what `reply` takes."""
        number = self._next
        self._next += 1
        self._awaiting.append(number)
        return number

    @property
    def pending_count(self) -> int:
        return len(self._awaiting)

    def reply(self, number: int, payload: Sequence[Buffer] | None) -> list[Buffer]:
        """Finish a request. `payload`: the reply from its header on, or None where the client expects none (acks=0).

        Returns what may be sent now, frame lengths included; empty while an earlier request is unfinished.
        """
        awaiting, finished = self._awaiting, self._finished
        assert number not in finished, f"answered twice: request {number}"
        finished[number] = payload
        ready: list[Buffer] = []
        while awaiting and awaiting[0] in finished:
            body = finished.pop(awaiting.popleft())
            if body is not None:
                ready.append(sum(map(len, body)).to_bytes(4, "big"))
                ready.extend(body)
        return ready
