"""Replies leave in the order of their requests, whatever order they are finished in and however requests and replies interleave."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.connection import ReplyOrder


def frames(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        length = int.from_bytes(stream[:4], "big")
        found.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return found


@given(data=st.data(), bodies=st.lists(st.none() | st.lists(st.binary(max_size=5), max_size=3), max_size=40))
def test_any_interleaving_of_arrivals_and_answers(data: st.DataObject, bodies: Sequence[list[bytes] | None]) -> None:
    order = ReplyOrder()
    sent = bytearray()
    open_numbers: list[int] = []
    arrived = 0
    while arrived < len(bodies) or open_numbers:
        may_arrive = arrived < len(bodies)
        if may_arrive and (not open_numbers or data.draw(st.booleans())):
            assert order.begin() == arrived
            open_numbers.append(arrived)
            arrived += 1
            continue
        number = open_numbers.pop(data.draw(st.integers(0, len(open_numbers) - 1)))
        ready = order.reply(number, bodies[number])
        sent += b"".join(ready)

        released = min(open_numbers, default=arrived)
        assert order.pending_count == arrived - released
        assert frames(bytes(sent)) == [b"".join(body) for body in bodies[:released] if body is not None]
