"""A request that was answered, or never will be, is let go at once: nothing of it waits for the cyclic collector, which runs rarely.

Errors are what keeps it: a traceback keeps the locals of its frames, and these the bytes of the request.
"""

import asyncio
import contextlib
import datetime
import importlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping

import pytest
from structlog.testing import capture_logs

from broker import dispatch as dispatch_module
from broker.groups.state import Leave, Protocol
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol import produce as produce_wire
from storage.catalog.topics import Topic
from storage.errors import Unavailable
from storage.limits import KIB
from tests.kit.collector import no_collector
from tests.kit.coordinating import join_of
from tests.kit.raw_client import frame_of
from tests.kit.record_batches import record_batch
from tests.unit.broker.connecting import Play, playing, settle
from tests.unit.broker.test_dispatch import Desk, desk, metadata, produced

SOON_S = 25.0
LARGE = bytes(100 * KIB)


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    with no_collector():
        yield


@contextlib.asynccontextmanager
async def served(*, limits: BrokerLimits = DEFAULT_BROKER_LIMITS) -> AsyncIterator[tuple[Desk, Play]]:
    """A connection before the real handlers, with a topic t."""
    async with desk(limits=limits) as made, playing(requests=made.dispatch) as play:
        await made.node.create("t")
        yield made, play


async def replied(play: Play, count: int = 1) -> None:
    async with asyncio.timeout(SOON_S):
        while len(play.replies) < count and not play.transport.is_closing():  # noqa: ASYNC110 - stores tell nobody that they are done
            await asyncio.sleep(0.001)
    await settle()


async def test_a_request_that_was_appended_and_is_too_small_to_be_kept_as_it_came() -> None:
    async with served() as (_, play):
        play.receive(produced("t", record_batch(b"x")))
        await replied(play)

        assert play.admission.held_bytes == 0


@pytest.mark.parametrize("records", [b"no batch" + LARGE, b"", bytes(record_batch(b"x", crc=7))])
async def test_a_request_that_was_refused_by_its_checks(records: bytes) -> None:
    async with served() as (_, play):
        play.receive(produced("t", records))
        await replied(play)

        assert play.admission.held_bytes == 0


async def test_a_request_whose_topic_could_not_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (made, play):

        async def away(names: Collection[str]) -> dict[str, Topic]:
            raise Unavailable("metadata is away") from OSError("connection refused")

        monkeypatch.setattr(made.node.topics, "look_up", away)
        for number in range(20):
            play.receive(produced("unknown", record_batch(LARGE)))
            await replied(play, number + 1)

        assert len(play.replies) == 20
        assert play.admission.held_bytes == 0


async def test_a_request_whose_topic_was_not_looked_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(limits=BrokerLimits(handler_timeout_s=0.01)) as (made, play):

        async def hanging(names: Mapping[str, int]) -> dict[str, Topic]:
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(made.node.produce, "lookup_topics", hanging)
        with capture_logs():
            play.receive(produced("unknown", record_batch(LARGE)))
            await replied(play)

        assert play.transport.is_aborted
        play.lose()
        await settle()
        assert play.admission.held_bytes == 0


async def test_a_request_whose_topic_does_not_exist() -> None:
    async with served() as (_, play):
        play.receive(produced("unknown", record_batch(LARGE)))
        await replied(play)

        assert play.admission.held_bytes == 0


async def test_a_request_that_fails_in_an_unforeseen_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (made, play):
        monkeypatch.setattr(made.node.produce, "_rules_of", lambda topic: 1 / 0)
        with capture_logs():
            play.receive(produced("t", record_batch(LARGE)))
            await replied(play)

        assert play.transport.is_aborted
        play.lose()
        await settle()
        assert play.admission.held_bytes == 0


async def test_a_request_whose_answer_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (_, play):
        monkeypatch.setattr(produce_wire, "write_response", lambda *_: 1 / 0)
        with capture_logs():
            play.receive(produced("t", record_batch(b"x")))
            await replied(play)

        assert play.transport.is_closing()
        assert play.admission.held_bytes == 0


@pytest.mark.parametrize("error", [Unavailable("metadata is away"), KeyError("nobody foresaw this")])
async def test_a_request_that_runs_alone_and_is_not_answered(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object) -> object:
        raise type(error)(*error.args)

    async with served() as (_, play):
        monkeypatch.setitem(dispatch_module.HANDLERS, 3, failing)
        with capture_logs():
            play.receive(metadata("t"))
            await replied(play)

        assert play.transport.is_aborted
        play.lose()
        await settle()
        assert play.admission.held_bytes == 0


async def test_a_request_whose_answer_rests_on_a_read_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> asyncio.Future[object]:
        loop = asyncio.get_running_loop()
        failing: asyncio.Future[object] = loop.create_future()
        loop.call_later(0.001, failing.set_exception, Unavailable("metadata is away"))
        return failing

    async def rests_on_it(*_: object) -> object:
        return await read()

    async with served() as (_, play):
        monkeypatch.setitem(dispatch_module.HANDLERS, 3, rests_on_it)
        with capture_logs():
            play.receive(metadata("t"))
            await replied(play)

        assert play.transport.is_aborted
        play.lose()
        await settle()
        assert play.admission.held_bytes == 0


async def test_requests_that_wait_for_their_turn_when_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (made, play):

        async def hanging(names: Mapping[str, int]) -> dict[str, Topic]:
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(made.node.produce, "lookup_topics", hanging)
        play.receive(produced("unknown", record_batch(LARGE)), produced("t", record_batch(LARGE)), metadata("t"))
        await settle()
        before = play.admission.held_bytes
        play.lose()
        await settle()

        assert before > 2 * len(LARGE)
        assert play.admission.held_bytes == 0


async def test_a_request_under_way_in_the_log_when_the_connection_is_lost() -> None:
    async with served() as (made, play):
        play.receive(produced("t", record_batch(b"x")))
        appender = made.node.log.parts.appender
        async with asyncio.timeout(SOON_S):
            while not appender.buffered_bytes:  # noqa: ASYNC110 - the topic is looked up first
                await asyncio.sleep(0)
        before = play.admission.held_bytes
        play.lose()
        after = play.admission.held_bytes
        async with asyncio.timeout(SOON_S):
            await appender.drain()
        await settle()

        assert before == after > 0
        assert play.admission.held_bytes == 0


async def test_a_request_that_violates_the_protocol() -> None:
    async with served() as (_, play):
        with capture_logs():
            play.receive(produced("t", record_batch(LARGE))[:-1000])
            await replied(play)

        assert play.transport.is_aborted
        play.lose()
        await settle()
        assert play.admission.held_bytes == 0


async def test_a_member_that_waits_for_others_holds_no_request() -> None:
    """It may wait for an hour, and nobody else would be read from."""
    async with served() as (made, play):
        groups = made.dispatch._parts.groups
        first = join_of(protocols=(Protocol("range", b"first"),))
        joined = await groups.join("g", first)
        play.receive(joining("g", LARGE))
        async with asyncio.timeout(SOON_S):
            while len((await groups.find("g")).group.members) < 2:  # noqa: ASYNC110 - a group tells nobody who waits
                await asyncio.sleep(0.001)
        held_while_it_waits = play.admission.held_bytes
        leaving = Leave(token=0, members=((joined.member_id, None),))
        await groups.leave("g", leaving)
        await replied(play)

        assert held_while_it_waits == 0
        assert len(play.replies) == 1


def joining(group: str, metadata: bytes) -> bytes:
    module = importlib.import_module("kio.schema.join_group.v3.request")
    timeout = datetime.timedelta(seconds=10)
    protocol = module.JoinGroupRequestProtocol(name="range", metadata=metadata)
    return frame_of(
        module.JoinGroupRequest(
            group_id=group,
            session_timeout=timeout,
            rebalance_timeout=timeout,
            member_id="",
            protocol_type="consumer",
            protocols=(protocol,),
        )
    )
