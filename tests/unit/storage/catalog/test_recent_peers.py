"""Who is listed after a loss of the metadata store: all who were registered with this broker and may be about to return."""

from dataclasses import dataclass

import pytest

from storage.catalog.brokers import RETURN_GRACE_S, BrokerRecord, Endpoint, RecentPeers


@dataclass(frozen=True)
class Broker:
    broker_id: int
    kafka_listeners: tuple[str, ...]


def brokers(*numbers: int) -> list[Broker]:
    return [Broker(number, (f"host-{number}",)) for number in numbers]


class Listing:
    """What the recent_peers of broker 1 see second by second."""

    def __init__(self) -> None:
        self.recent_peers: RecentPeers[Broker] = RecentPeers()
        self.now_s = 100.0
        self.returned()

    def note(self, *live: int, is_registered: bool = True, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.recent_peers.note(brokers(*live), is_registered=is_registered, now_s=self.now_s)

    def returned(self, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.recent_peers.returned(now_s=self.now_s)

    def missing(self, *live: int) -> list[int]:
        return [broker.broker_id for broker in self.recent_peers.missing(brokers(*live), now_s=self.now_s)]


@pytest.mark.parametrize("apart_s", [0.0, RETURN_GRACE_S - 0.1])
def test_one_that_lost_its_registration_a_moment_before_this_one_is_waited_for(apart_s: float) -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(1, after_s=1)
    listing.note(1, after_s=apart_s)
    listing.note(is_registered=False)

    assert listing.missing() == [1, 2]


def test_one_that_left_long_before_this_one_lost_its_registration_is_not() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(1, after_s=1)
    listing.note(is_registered=False, after_s=RETURN_GRACE_S)

    assert listing.missing() == [1]


def test_while_nothing_was_lost_nobody_is_missing() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(1, after_s=1)

    assert listing.missing(1) == []


def test_one_that_was_away_and_came_back_before_the_loss_is_waited_for() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(1, after_s=1)
    listing.note(1, 2, after_s=1)
    listing.note(is_registered=False, after_s=2 * RETURN_GRACE_S)

    assert listing.missing(1) == [2]


def test_one_that_came_back_in_the_grace_and_left_again_is_not_waited_for() -> None:
    listing = Listing()
    listing.note(1, 2, 3, after_s=10)
    listing.note(is_registered=False)
    listing.note(1, 2, after_s=1)
    listing.note(1, after_s=1)

    assert listing.missing(1) == [3]


def test_a_second_loss_within_the_grace_forgets_nobody_who_joined_in_it() -> None:
    listing = Listing()
    listing.note(1, after_s=10)
    listing.note(is_registered=False)
    listing.returned(after_s=1)
    listing.note(1, 2, after_s=1)
    listing.note(is_registered=False, after_s=1)

    assert listing.missing() == [1, 2]


def test_a_broker_that_was_never_registered_waits_for_nobody() -> None:
    listing = Listing()
    listing.note(is_registered=False)
    listing.note(1, 2, after_s=1)

    assert listing.missing(1) == []


def test_a_loss_that_lasts_longer_has_a_grace_at_its_end() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(is_registered=False)
    listing.note(is_registered=False, after_s=RETURN_GRACE_S)
    meanwhile = listing.missing(1)
    listing.returned(after_s=1)
    listing.note(1, after_s=1)

    assert (meanwhile, listing.missing(1)) == ([], [2])


def test_one_that_loses_its_registration_a_moment_before_a_second_loss_is_waited_for() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(is_registered=False)
    listing.returned(after_s=1)
    listing.note(1, 2)
    listing.note(1, after_s=1)
    in_between = listing.missing(1)
    listing.note(is_registered=False)

    assert (in_between, listing.missing(1)) == ([], [2])


def test_the_grace_begins_with_the_return_if_nobody_looked_before() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.returned(after_s=60)

    assert listing.missing(1) == [2]


def test_a_place_is_listed_once_though_it_has_another_id_now() -> None:
    listing = Listing()
    listing.note(1, 2, after_s=10)
    listing.note(is_registered=False)
    renamed = [Broker(1, ("host-1",)), Broker(7, ("host-2",))]

    assert listing.recent_peers.missing(renamed, now_s=listing.now_s) == []


def test_brokers_whose_http_addresses_are_alike_are_told_apart() -> None:
    """Each is at port 8070 of its own machine."""
    records = [
        BrokerRecord(
            broker_id=number,
            listeners=(Endpoint("PLAINTEXT", f"host-{number}", 9092), Endpoint("HTTP", "127.0.0.1", 8070)),
            rack=None,
            version="1",
            started_at_ms=0,
            session_id=number,
        )
        for number in (1, 2, 3)
    ]
    recent_peers: RecentPeers[BrokerRecord] = RecentPeers()
    recent_peers.returned(now_s=100.0)
    recent_peers.note(records, is_registered=True, now_s=200.0)
    recent_peers.note(records[:1], is_registered=False, now_s=201.0)
    recent_peers.returned(now_s=202.0)

    assert [one.broker_id for one in recent_peers.missing(records[:1], now_s=202.5)] == [2, 3]
