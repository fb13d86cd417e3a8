"""What clients make of a group that has no room for them: they say why, or come again with pauses, and get in when there is room."""

import asyncio
import contextlib
import importlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError as AIOKafkaError
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from storage.limits import KIB
from tests.integration.test_group_memory import join
from tests.kit.raw_client import RawClient
from tests.kit.seen_errors import admin_of
from tests.kit.serving import Served, serving

WITHIN_S = 60.0
LOOKED_AT_S = 4.0
"""How long a client is looked at that is to hear of nothing, or goes on asking."""
RAISED_WITHIN_S = 90.0
ASKED_PER_S_MAX = 50
"""aiokafka comes again after a tenth of a second with JoinGroup and SyncGroup, librdkafka and Java's later. One that spins asks some
thousand times a second."""
TOPIC = "t"
WIDE = ["wide-0", "wide-1"]
WIDE_PARTITIONS = 9_000
"""An assignment of 72 kB."""
LONG = [f"{number:03}" + "x" * 246 for number in range(280)]
REQUESTS = "forebay_kafka_requests_total"
_clock = SystemClock()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    settings = {
        "groups.max_size": "1",
        "groups.member_max_size": "64KiB",
        "groups.memory_bytes": "16MiB",
        "kafka.auto_create_topics": "false",
    }
    with serving(None, settings=settings) as served:
        admin = admin_of(served)
        for topics in (
            [NewTopic(TOPIC, 1, 1), *(NewTopic(name, 1, 1) for name in LONG)],
            *([NewTopic(name, WIDE_PARTITIONS, 1)] for name in WIDE),
        ):
            for created in admin.create_topics(topics).values():
                created.result(WITHIN_S)
        yield served


def consumer(served: Served, group: str, topics: list[str]) -> Consumer:
    made = Consumer({"bootstrap.servers": served.bootstrap, "group.id": group, "log_level": 0})
    made.subscribe(topics)
    return made


def errors_of(one: Consumer, *, awaited: bool = False) -> set[str]:
    """What polling says for LOOKED_AT_S, and until something was said if that is `awaited`."""
    found: set[str] = set()
    began_s = _clock.monotonic_s()
    until_s, give_up_s = began_s + LOOKED_AT_S, began_s + RAISED_WITHIN_S
    while _clock.monotonic_s() < until_s or (awaited and not found and _clock.monotonic_s() < give_up_s):
        message = one.poll(0.1)
        if message is not None:
            found.add(str(message.error().name()))
    return found


def assigned(one: Consumer) -> None:
    until_s = _clock.monotonic_s() + WITHIN_S
    while not one.assignment():
        assert _clock.monotonic_s() < until_s, "no assignment"
        one.poll(0.1)


def until_said(served: Served, event: str, *, group: str) -> None:
    """A thread of the broker's writes its log: a line may come after the answer that it is about."""
    until_s = _clock.monotonic_s() + WITHIN_S
    while not any(line.get("event") == event and line["group"] == group for line in served.events()):
        assert _clock.monotonic_s() < until_s, f"no {event} of {group}"
        time.sleep(0.1)


async def aiokafka_error(served: Served, group: str, topics: list[str], *, within_s: float = RAISED_WITHIN_S) -> str | None:
    """What `start` raises; None if it goes on for as long."""
    one = AIOKafkaConsumer(*topics, bootstrap_servers=served.bootstrap, group_id=group)
    try:
        async with asyncio.timeout(within_s):
            await one.start()
    except TimeoutError:
        return None
    except AIOKafkaError as error:
        return str(error)
    finally:
        await one.stop()
    raise AssertionError("it got in")


def asked(served: Served) -> float:
    time.sleep(1.1)  # metrics are up to a second old
    return sum(
        count for name, count in served.metrics().items() if name.startswith(REQUESTS) and ("JoinGroup" in name or "SyncGroup" in name)
    )


@contextlib.contextmanager
def without_spinning(served: Served) -> Iterator[None]:
    began_s, before = _clock.monotonic_s(), asked(served)
    yield
    assert asked(served) - before < (_clock.monotonic_s() - began_s) * ASKED_PER_S_MAX


def test_one_too_many_for_its_group_is_told_so(served: Served) -> None:
    first = consumer(served, "full", [TOPIC])
    assigned(first)
    second = consumer(served, "full", [TOPIC])
    with without_spinning(served):
        told = errors_of(second, awaited=True)
        raised = asyncio.run(aiokafka_error(served, "full", [TOPIC]))
    first.close()
    assigned(second)
    second.close()

    assert told == {"GROUP_MAX_SIZE_REACHED"}
    assert raised is not None  # aiokafka has no name for it


def test_a_member_that_says_too_much_is_told_so(served: Served) -> None:
    large = consumer(served, "large", LONG)
    with without_spinning(served):
        told = errors_of(large, awaited=True)
        raised = asyncio.run(aiokafka_error(served, "large", LONG))
    large.close()

    assert told == {"MSG_SIZE_TOO_LARGE"}
    assert "MessageSizeTooLarge" in str(raised)


def test_a_leader_whose_assignment_is_too_large_fails_or_tries_again_with_pauses(served: Served) -> None:
    wide = consumer(served, "wide", WIDE)
    with without_spinning(served):
        errors_of(wide)
        wide.close()
        raised = asyncio.run(aiokafka_error(served, "wide", WIDE))

    # librdkafka joins again after any error here, and says nothing: the broker's log does.
    assert "MessageSizeTooLarge" in str(raised)
    until_said(served, "group_member_refused", group="wide")


def test_while_the_memory_of_groups_is_full_clients_wait_and_get_in_when_there_is_room(served: Served) -> None:
    waiting = consumer(served, "waiting", [TOPIC])
    with RawClient(served.kafka_port) as client:
        held = [*filled(client, 60 * KIB), *filled(client, 100)]
        with without_spinning(served):
            told = errors_of(waiting)
            raised = asyncio.run(aiokafka_error(served, "waiting", [TOPIC], within_s=LOOKED_AT_S))
        for group, member_id in held:
            leave: Any = importlib.import_module("kio.schema.leave_group.v2.request")
            assert client.ask(leave.LeaveGroupRequest(group_id=group, member_id=member_id)).error_code is ErrorCode.none
    assigned(waiting)
    waiting.close()

    assert (told, raised) == (set(), None)


def filled(client: RawClient, metadata_bytes: int) -> Iterator[tuple[str, str]]:
    """Groups of one member each, until there is no room for another."""
    for number in range(5_000):
        group = f"fill-{metadata_bytes}-{number}"
        joined = client.ask(join(group, metadata_bytes))
        if joined.error_code is ErrorCode.coordinator_load_in_progress:
            return
        assert joined.error_code is ErrorCode.none
        yield group, joined.member_id
    raise AssertionError("there is room for more than there may be")
