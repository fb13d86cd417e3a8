from dataclasses import dataclass, field

import pytest

from broker.addresses import COMPARED_MAX, IN_PLACE, LOOKED_AT_MAX, Addresses, ClientAddress, ConnectionPlaces, Line, network_of
from runtime.frames import Account


def addresses() -> Addresses:
    return Addresses(requests=Account(), replies=Account())


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a name", "a name"),
    ],
)
def test_one_client_is_an_address_or_a_network_that_one_client_has(host: str, name: str) -> None:
    known = addresses()

    assert network_of(host) == name
    assert known.of(host) is known.of(host)


def test_an_account_is_forgotten_with_the_last_who_has_it() -> None:
    known = addresses()
    account = known.of("10.0.0.1")
    account.change(100)
    before = known.of("10.0.0.1").held_bytes
    del account

    assert before == 100
    assert known.of("10.0.0.1").held_bytes == 0


@dataclass(eq=False)
class Connected:
    address: ClientAddress
    request_count: int = 0
    last_active_s: float = 0.0
    is_silent: bool = True
    is_waiting: bool = True
    evicted_for: list[str] = field(default_factory=list)

    def evict(self, reason: str) -> None:
        self.evicted_for.append(reason)


def taken(places: ConnectionPlaces, address: ClientAddress, count: int, **facts: object) -> list[Connected]:
    found = [Connected(address, **facts) for _ in range(count)]  # type: ignore[arg-type]
    for one in found:
        places.take(one)
    return found


def test_places_are_counted_and_given_back_once() -> None:
    known, places = addresses(), ConnectionPlaces(connections_max=3)
    first, second = taken(places, known.of("10.0.0.1"), 2)
    at_two = places.has_room(0), places.has_room(1)
    places.give_back(first)
    places.give_back(first)

    assert at_two == (True, False)
    assert places.count == 1
    assert second.address.connection_count == 1


def test_the_oldest_of_many_that_said_nothing_goes_first() -> None:
    known, places = addresses(), ConnectionPlaces(connections_max=10)
    address = known.of("10.0.0.1")
    (speaking,) = taken(places, address, 1, request_count=1)
    silent = taken(places, address, 9)
    for _ in range(5):
        assert places.make_room(address)

    assert [one.evicted_for for one in silent] == [[IN_PLACE]] * 5 + [[]] * 4
    assert speaking.evicted_for == []
    assert places.count == 5


def test_one_that_just_came_is_not_taken_for_one_of_many_that_say_nothing() -> None:
    known, places = addresses(), ConnectionPlaces(connections_max=10)
    address = known.of("10.0.0.1")
    idle = taken(places, address, 9, request_count=1, last_active_s=1.0)
    (newcomer,) = taken(places, address, 1, last_active_s=2.0)

    assert places.make_room(address)
    assert newcomer.evicted_for == []
    assert sum(one.evicted_for == [IN_PLACE] for one in idle) == 1


def test_the_busiest_address_is_known_whoever_comes_and_goes() -> None:
    known, places = addresses(), ConnectionPlaces(connections_max=100)
    few, many, newcomer = known.of("10.0.0.1"), known.of("10.0.0.2"), known.of("10.0.0.3")
    of_few, of_many = taken(places, few, 3, request_count=1), taken(places, many, 5, request_count=1)
    assert places.make_room(newcomer)
    first = [one.evicted_for for one in of_many].count([IN_PLACE])
    for one in of_many:
        places.give_back(one)
    assert places.make_room(newcomer)

    assert first == 1
    assert [one.evicted_for for one in of_few].count([IN_PLACE]) == 1


def test_a_search_looks_at_so_many_connections_and_the_next_goes_on_behind_them() -> None:
    known, places = addresses(), ConnectionPlaces(connections_max=1_000)
    address = known.of("10.0.0.1")
    taken(places, address, 5 * LOOKED_AT_MAX, request_count=1, is_silent=False)
    (idle,) = taken(places, address, 1, request_count=1)
    searches = 0
    while not places.make_room(address):
        searches += 1

    assert 1 <= searches <= 6
    assert idle.evicted_for == [IN_PLACE]


def test_those_in_use_stay_unless_another_address_has_fewer() -> None:
    known, places = addresses(), ConnectionPlaces(connections_max=4)
    many, newcomer = known.of("10.0.0.1"), known.of("10.0.0.2")
    appending = taken(places, many, 3, request_count=1, is_silent=False, is_waiting=False)
    (polling,) = taken(places, many, 1, request_count=1, is_silent=False)
    for_its_own = places.make_room(many)

    assert not for_its_own
    assert places.make_room(newcomer)
    assert polling.evicted_for == [IN_PLACE]
    assert not places.make_room(newcomer)
    assert [one.evicted_for for one in appending] == [[]] * 3


def test_of_many_addresses_that_wait_each_is_compared_in_its_turn() -> None:
    known = addresses()
    line: Line[int, str] = Line()
    waiting = [known.of(f"10.0.0.{number}") for number in range(3 * COMPARED_MAX)]
    for number, address in enumerate(waiting):
        address.change(1_000 - number)
        line.add(address, number, "room")
    served = []
    while (first := line.first()) is not None:
        served.append(first.key)
        assert line.first() is first, "until it is removed"
        line.remove(first.key)

    assert served[0] == COMPARED_MAX - 1
    assert sorted(served) == list(range(len(waiting)))
    assert 0 not in line
