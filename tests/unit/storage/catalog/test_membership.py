import asyncio
from dataclasses import dataclass

from structlog.testing import capture_logs

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.catalog.brokers import BrokerDirectory, Endpoint, MembershipLog
from storage.metadata.memory import MemoryMetadataStore


@dataclass(frozen=True)
class Broker:
    broker_id: int
    session_id: int = 1
    listeners: tuple[str, ...] = ("PLAINTEXT://a:9092",)
    rack: str | None = None
    version: str = "0"


def said(*lists: list[Broker], own_id: int = 1) -> list[tuple[str, int]]:
    membership = MembershipLog()
    with capture_logs() as logged:
        for live in lists:
            membership.note(live, own_id=own_id)
    return [(line["event"], line["broker_id"]) for line in logged]


def test_who_was_there_from_the_beginning_is_not_said_to_have_joined() -> None:
    assert said([Broker(1), Broker(2)], [Broker(1), Broker(2)]) == []


def test_who_comes_and_who_goes_is_said_once() -> None:
    assert said([Broker(1)], [Broker(1), Broker(2)], [Broker(1), Broker(2)], [Broker(1), Broker(3)], [Broker(1), Broker(3)]) == [
        ("broker_joined", 2),
        ("broker_left", 2),
        ("broker_joined", 3),
    ]


def test_a_broker_with_a_new_session_has_not_left() -> None:
    assert said([Broker(2)], [Broker(2, session_id=7)]) == [("broker_registered_again", 2)]


def test_a_broker_does_not_speak_of_itself() -> None:
    assert said([Broker(1), Broker(2)], [Broker(2)], [Broker(1, session_id=2), Broker(2)]) == []


async def test_a_broker_hears_of_others_without_being_asked_by_a_client() -> None:
    metadata = MemoryMetadataStore(clock=SystemClock())
    first, second = (BrokerDirectory(metadata, clock=SystemClock()) for _ in range(2))
    await first.register(listeners=[Endpoint("PLAINTEXT", "a", 1)], rack=None, version="0", broker_id=1)
    await first.live()
    with capture_logs() as logged:
        async with Nursery() as nursery, asyncio.timeout(25):
            nursery.spawn(first.watch(), name="watch")
            await second.register(listeners=[Endpoint("PLAINTEXT", "b", 2)], rack="zone-b", version="9", broker_id=2)
            while not logged:  # noqa: ASYNC110 - the watch has no event but its lines
                await asyncio.sleep(0.001)
            await second.deregister()
            while len(logged) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    await metadata.close()

    joined, left = logged
    assert joined == {
        "event": "broker_joined",
        "log_level": "info",
        "broker_id": 2,
        "version": "9",
        "rack": "zone-b",
        "listeners": "PLAINTEXT://b:2",
    }
    assert (left["event"], left["broker_id"]) == ("broker_left", 2)
