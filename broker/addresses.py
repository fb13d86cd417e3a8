"""Clients by address: what those of one address hold, who goes first when something is short, and who gives its place up.

Nothing here limits an address that is alone: many clients may share one (docs/internals/adr/0029-shares-by-address.md). When others wait,
the address that holds least goes first, and within an address whoever came first. Limits of an address (logins, rates)
belong on `ClientAddress`, too.
"""

import weakref
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from runtime.frames import Account

IPV6_PREFIX_BITS: Final = 64
"""One client may use as many IPv6 addresses as it likes of a network of this size."""
COMPARED_MAX: Final = 8
"""How many of the addresses that wait are compared: those at the front, which move behind the others then."""
IN_PLACE: Final = "another client came, there are as many connections as there may be, and its address has the most of them"
LOOKED_AT_MAX: Final = 64
"""Connections of an address that are looked at for one that gives its place up; the next search goes on behind them."""


class ClientAddress(Account):
    """The account of one client address: `held_bytes` of requests, `replies` of replies, and its open connections."""

    __slots__ = ("__weakref__", "replies", "silent", "spoken")

    def __init__(self, requests: Account, replies: Account) -> None:
        super().__init__(requests)
        self.replies = Account(replies)
        self.silent: OrderedDict[HasPlace, None] = OrderedDict()
        """Connections without a request so far, in the order of coming."""
        self.spoken: OrderedDict[HasPlace, None] = OrderedDict()
        """The others, in the order in which they were looked at."""

    @property
    def connection_count(self) -> int:
        return len(self.silent) + len(self.spoken)


class Addresses:
    """Finds the account of an address. One lives for as long as a connection or a request of it does."""

    def __init__(self, *, requests: Account, replies: Account) -> None:
        self._requests = requests
        self._replies = replies
        self._known: weakref.WeakValueDictionary[str, ClientAddress] = weakref.WeakValueDictionary()

    def of(self, host: str) -> ClientAddress:
        name = network_of(host)
        address = self._known.get(name)
        if address is None:
            address = self._known[name] = ClientAddress(self._requests, self._replies)
        return address


def network_of(host: str) -> str:
    """The address, or the network, that counts as one client."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> IPV6_PREFIX_BITS << IPV6_PREFIX_BITS)}/{IPV6_PREFIX_BITS}"


K = TypeVar("K")
W = TypeVar("W")


class First(NamedTuple, Generic[K, W]):
    address: Account
    key: K
    waiting: W


class Line(Generic[K, W]):
    """A line of connections that wait for memory, each with what it waits for."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[Account, OrderedDict[K, W]] = OrderedDict()
        self._address_of: dict[K, Account] = {}
        self._first: First[K, W] | None = None

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, key: K) -> bool:
        return key in self._address_of

    def add(self, address: Account, key: K, waiting: W) -> None:
        self._by_address.setdefault(address, OrderedDict())[key] = waiting
        self._address_of[key] = address

    def remove(self, key: K) -> W:
        address = self._address_of.pop(key)
        line = self._by_address[address]
        waiting = line.pop(key)
        if not line:
            del self._by_address[address]
        if self._first is not None and self._first.key is key:
            self._first = None
        return waiting

    def first(self) -> First[K, W] | None:
        """Return who came first of the address that holds least. Until that is removed, or `look_again`, no other overtakes it."""
        if self._first is None and self._by_address:
            compared = list(islice(self._by_address, COMPARED_MAX))
            address = min(compared, key=lambda one: one.claimed_bytes)
            for one in compared:
                self._by_address.move_to_end(one)
            key, waiting = next(iter(self._by_address[address].items()))
            self._first = First(address, key, waiting)
        return self._first

    def look_again(self) -> None:
        """Let the oldest of an address that holds less go before the first. Others do not: it would have to wait without end for much."""
        before, self._first = self._first, None
        first = self.first()
        if before is not None and first is not None and before.address.claimed_bytes <= first.address.claimed_bytes:
            self._first = before


class HasPlace(Protocol):
    """A connection, as far as its place is concerned."""

    @property
    def address(self) -> ClientAddress: ...

    @property
    def request_count(self) -> int:
        """How many requests of it were begun so far."""
        ...

    @property
    def last_active_s(self) -> float: ...

    @property
    def is_silent(self) -> bool:
        """Nothing is under way that somebody waits for, or its client does not go on with it."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Nothing under way changes anything: it is a long poll, or a reply that is being taken."""
        ...

    def evict(self, reason: str) -> None:
        """Close it."""
        ...


class ConnectionPlaces:
    """Which connections are open. When there are as many as may be, one gives its place to the next: of the address with the most
    connections the oldest of those without a request so far, if there are many of them, else the one that was silent for longest. All steps
    take bounded time, however many there are.
    """

    def __init__(self, *, connections_max: int) -> None:
        self._connections_max = connections_max
        self._by_count: dict[int, OrderedDict[ClientAddress, None]] = {}
        self._most = 0
        self.count = 0
        self.silent_count = 0
        """Connections that no search has found to have sent a request: some may have."""

    def has_room(self, arriving: int) -> bool:
        return self.count + arriving < self._connections_max

    def take(self, connection: HasPlace) -> None:
        connection.address.silent[connection] = None
        self.silent_count += 1
        self._note_count(connection.address, 1)

    def give_back(self, connection: HasPlace) -> None:
        """May be called again."""
        address = connection.address
        if connection in address.silent:
            del address.silent[connection]
            self.silent_count -= 1
        elif connection in address.spoken:
            del address.spoken[connection]
        else:
            return
        self._note_count(address, -1)

    def make_room(self, newcomer: ClientAddress) -> bool:
        """Evict a connection for one of `newcomer`. False: all of the address with the most connections are in use, and it is no other
        one's turn.
        """
        if not self._most:
            return False
        busiest = newcomer if newcomer.connection_count == self._most else next(iter(self._by_count[self._most]))
        found = self._find(busiest, may_wait=busiest.connection_count > newcomer.connection_count + 1)
        if found is None:
            return False
        self.give_back(found)
        found.evict(IN_PLACE)
        return True

    def _find(self, address: ClientAddress, *, may_wait: bool) -> HasPlace | None:
        for connection in list(islice(address.silent, LOOKED_AT_MAX)):
            if not connection.request_count and connection.is_silent:
                if 2 * len(address.silent) > min(address.connection_count, 2 * LOOKED_AT_MAX):
                    return connection
                break  # they are few, so they may just have come
            del address.silent[connection]
            self.silent_count -= 1
            address.spoken[connection] = None
        looked_at = list(islice(address.spoken, LOOKED_AT_MAX))
        for connection in looked_at:
            address.spoken.move_to_end(connection)
        looked_at += islice(address.silent, 1)
        found = [one for one in looked_at if one.is_silent] or [one for one in looked_at if may_wait and one.is_waiting]
        return min(found, key=lambda one: one.last_active_s, default=None)

    def _note_count(self, address: ClientAddress, change: int) -> None:
        count = address.connection_count
        before = self._by_count.get(count - change)
        if before is not None:
            before.pop(address, None)
            if not before:
                del self._by_count[count - change]
        if count:
            self._by_count.setdefault(count, OrderedDict())[address] = None
        self._most = max(self._most, count) if change > 0 else self._most - (self._most not in self._by_count)
        self.count += change
