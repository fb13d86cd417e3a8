"""What groups hold in memory: what members say about themselves, what they are assigned, and what was committed (I11).

Clients name all of it: groups, members, protocols, metadata. So it is counted when it comes, and refused when there is no room. What is
larger than SMALL_BYTES may use three quarters of the room, so that ordinary consumers find some when others have used that up.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from sys import getsizeof
from typing import Final

from broker.groups.state import Committed, Group, Member, Protocol
from runtime.telemetry import Metric, Telemetry
from storage.errors import Unavailable
from storage.limits import KIB
from storage.metadata.port import Record

HELD: Final = Metric(
    "forebay_group_memory_bytes",
    "Bytes that groups hold: members, assignments, committed offsets, loads under way, and requests that wait",
    aggregation="sum",
)
REFUSED: Final = Metric(
    "forebay_group_refusals_total",
    "Requests that were refused for what one member (member), its group (group) or all groups hold (memory), or for their number (groups)",
    ("bound",),
)

GROUP_BYTES: Final = 4 * KIB
"""The size of a loaded group without members and offsets."""
MEMBER_BYTES: Final = 2 * KIB
PENDING_BYTES: Final = 256
PROTOCOL_BYTES: Final = 160
OFFSET_BYTES: Final = 400
SMALL_BYTES: Final = 64 * KIB
GROUP_SHARE: Final = 4
"""The members of one group hold at most a quarter of all."""


def brought_bytes(names: Iterable[str | None], protocols: Iterable[Protocol]) -> int:
    """By a member that joins."""
    named = sum(getsizeof(name) for name in names if name is not None)
    return MEMBER_BYTES + named + sum(PROTOCOL_BYTES + len(metadata) + len(name) for name, metadata in protocols)


def member_bytes(member: Member) -> int:
    names = (member.member_id, member.instance_id, member.client_id, member.client_host)
    return brought_bytes(names, member.protocols) + len(member.assignment)


def offset_bytes(committed: Committed) -> int:
    return OFFSET_BYTES + getsizeof(committed.metadata)


def growth_bytes(before: Group, after: Group) -> int:
    """By how much more its members hold, and the ids that were given out."""
    grown = 0
    if before.members is not after.members:
        grown += sum(member_bytes(member) for member_id, member in after.members.items() if before.members.get(member_id) is not member)
        grown -= sum(member_bytes(member) for member_id, member in before.members.items() if after.members.get(member_id) is not member)
    if before.pending is not after.pending:
        grown += sum(PENDING_BYTES + getsizeof(member_id) for member_id in after.pending)
        grown -= sum(PENDING_BYTES + getsizeof(member_id) for member_id in before.pending)
    return grown


class Loading:
    """What a group that is being loaded holds until it is counted as a loaded one."""

    def __init__(self, memory: "GroupMemory") -> None:
        self._memory = memory
        self.size_bytes = 0

    def add(self, record: Record) -> None:
        """An offset, as it was read and as it is kept. Raises `Unavailable` if there is no room for more loads than one."""
        size_bytes = OFFSET_BYTES + getsizeof(record) + getsizeof(record.path) + 2 * getsizeof(record.value)
        self.size_bytes += size_bytes
        self._memory.held_bytes += size_bytes
        self._memory.check(self)

    def begin_again(self) -> None:
        self._memory.held_bytes -= self.size_bytes
        self.size_bytes = 0


class GroupMemory:
    """The memory of all groups that one broker coordinates."""

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, make_room: Callable[[], None]) -> None:
        """`make_room` lets go of groups that nobody is in."""
        self._bytes_max = bytes_max
        self._make_room = make_room
        self._refused = telemetry.counter(REFUSED)
        self.held_bytes = 0
        self._loads: dict[Loading, None] = {}
        telemetry.gauge(HELD).set_function(lambda: self.held_bytes)

    @property
    def group_bytes_max(self) -> int:
        return self._bytes_max // GROUP_SHARE

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self._bytes_max

    def has_room(self, more_bytes: int) -> bool:
        """Room is made if there is none."""
        if more_bytes <= 0 or self._fits(more_bytes):
            return True
        self._make_room()
        return self._fits(more_bytes)

    @contextlib.contextmanager
    def taking(self, size_bytes: int) -> Iterator[None]:
        """While a request waits."""
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes

    @contextlib.contextmanager
    def loading(self) -> Iterator[Loading]:
        """While a group is loaded. One load at a time may hold more than there is, or a large group could never be loaded."""
        load = Loading(self)
        self._loads[load] = None
        try:
            yield load
        finally:
            load.begin_again()
            del self._loads[load]

    def check(self, load: Loading) -> None:
        """Raise `Unavailable` if there is no room for this one, unless it began first and there is some without it."""
        if self._may_hold(load):
            return
        self._make_room()
        if not self._may_hold(load):
            raise Unavailable(f"the memory of groups is full while several are loaded: held_bytes={self.held_bytes} max={self._bytes_max}")

    def _may_hold(self, load: Loading) -> bool:
        is_first = next(iter(self._loads)) is load
        return self.held_bytes - (load.size_bytes if is_first else 0) < self._bytes_max

    def note_refusal(self, bound: str) -> None:
        self._refused.labels(bound).inc()

    def _fits(self, more_bytes: int) -> bool:
        limit = self._bytes_max if more_bytes <= SMALL_BYTES else self._bytes_max * 3 // 4
        return self.held_bytes + more_bytes <= limit
