import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from broker.cluster.liveness import DEATH_S, FRESH_S, PROBE_S, PROBES_MAX, UNREACHED_S, Address, Network, Peers, SystemNetwork
from runtime.clock import Clock, SystemClock
from runtime.supervision import Nursery
from sim.loop import VirtualClock, VirtualLoop
from storage.catalog.brokers import BrokerDirectory, BrokerRecord, Endpoint
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put

HOST = "127.0.0.1"
SOON_S = 25.0
OLD_S = FRESH_S + 0.1
"""After this time what was found is asked again."""


@dataclass
class Doors:
    """A network of which every address opens, unless it refuses, is silent, or is unreachable."""

    refusing: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    nameless: set[str] = field(default_factory=set)
    latency_s: float = 0.001
    probes: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    under_way_max: int = 0

    async def resolve(self, endpoint: Endpoint) -> Sequence[Address]:
        if endpoint.host in self.nameless:
            raise socket.gaierror("no such name")
        return [Address(endpoint.host, endpoint.port)]

    async def probe(self, address: Address) -> None:
        self.probes[address.host] += 1
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        try:
            await asyncio.sleep(3_600 if address.host in self.silent else self.latency_s)
        finally:
            self.under_way -= 1
        if address.host in self.refusing:
            raise ConnectionRefusedError
        if address.host in self.unreachable:
            raise OSError("no route to host")


@dataclass
class World:
    """Broker 1, whose view is asked for, and others that only register."""

    store: MemoryMetadataStore
    clock: Clock
    nursery: Nursery
    peers: Peers
    doors: Doors
    others: dict[int, BrokerDirectory] = field(default_factory=dict)

    async def join(self, broker_id: int, *listeners: Endpoint) -> int:
        """Its session."""
        directory = BrokerDirectory(self.store.client(), clock=self.clock)
        await directory.register(listeners=listeners or (at(f"b{broker_id}"),), rack=None, version="0", broker_id=broker_id)
        self.others[broker_id] = directory
        await asyncio.sleep(0.01)  # hints travel
        assert directory.session is not None
        return directory.session.session_id

    async def standing(self) -> list[int]:
        return [record.broker_id for record in await self.peers.standing()]

    async def met(self) -> None:
        await self.peers.meet()
        await asyncio.sleep(OLD_S)


def at(host: str, port: int = 9092, name: str = "PLAINTEXT") -> Endpoint:
    return Endpoint(name, host, port)


@contextlib.asynccontextmanager
async def world(clock: Clock, network: Network | None = None) -> AsyncIterator[World]:
    doors = Doors()
    store = MemoryMetadataStore(clock=clock, shards=2)
    metadata = store.client()
    directory = BrokerDirectory(metadata, clock=clock)
    await directory.register(listeners=[at("b1")], rack=None, version="0", broker_id=1)
    async with Nursery() as nursery:
        peers = Peers(directory, metadata=metadata, clock=clock, nursery=nursery, network=network or doors)
        made = World(store, clock, nursery, peers, doors)
        yield made
        peers.close()
        for other in [directory, *made.others.values()]:
            other.close()
    await store.close()


def virtually(test: Callable[[World], Awaitable[None]]) -> None:
    """In virtual time."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with world(VirtualClock(loop)) as made:
            await test(made)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_who_was_reached_and_refuses_now_is_dead() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        before = await w.peers.is_valid(other)
        await asyncio.sleep(OLD_S)
        w.doors.refusing.add("b2")
        after = await w.peers.is_valid(other)

        assert (before, after) == (True, False)
        assert await w.standing() == [1]

    virtually(test)


def test_an_address_that_never_led_anywhere_proves_nothing() -> None:
    async def test(w: World) -> None:
        w.doors.refusing.add("b2")
        other = await w.join(2)
        verdicts = []
        for _ in range(3):
            verdicts.append(await w.peers.is_valid(other))
            await asyncio.sleep(UNREACHED_S + 1.0)

        assert verdicts == [True] * 3
        assert 1 < w.doors.probes["b2"] <= 3

    virtually(test)


@pytest.mark.parametrize("what", ["silent", "unreachable"])
def test_who_does_not_answer_is_not_dead(what: str) -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        getattr(w.doors, what).add("b2")
        verdicts = [await w.peers.is_valid(other) for _ in range(3)]
        await asyncio.sleep(OLD_S)
        verdicts.append(await w.peers.is_valid(other))

        assert verdicts == [True] * 4

    virtually(test)


def test_a_question_waits_once_for_who_is_silent() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        w.doors.silent.add("b2")
        loop = asyncio.get_running_loop()
        waits_s = []
        for _ in range(4):
            began_s = loop.time()
            await w.peers.is_valid(other)
            waits_s.append(loop.time() - began_s)
            await asyncio.sleep(OLD_S)

        assert waits_s[0] == pytest.approx(PROBE_S, abs=0.01)
        assert waits_s[1:] == pytest.approx([0.0] * 3, abs=1e-6)

    virtually(test)


def test_who_was_silent_and_then_refuses_is_found_dead() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        w.doors.silent.add("b2")
        await w.peers.is_valid(other)
        await asyncio.sleep(OLD_S)
        w.doors.silent.clear()
        w.doors.refusing.add("b2")
        await w.peers.is_valid(other)
        await asyncio.sleep(OLD_S)

        assert not await w.peers.is_valid(other)

    virtually(test)


def test_one_listener_that_refuses_is_not_enough() -> None:
    async def test(w: World) -> None:
        other = await w.join(2, at("b2"), at("b2-tls", 9093, "TLS"))
        await w.met()
        w.doors.refusing.add("b2")
        is_valid = await w.peers.is_valid(other)
        await asyncio.sleep(OLD_S)
        w.doors.refusing.add("b2-tls")

        assert is_valid
        assert not await w.peers.is_valid(other)

    virtually(test)


def test_a_listener_that_cannot_be_reached_beside_one_that_refuses_proves_nothing() -> None:
    async def test(w: World) -> None:
        other = await w.join(2, at("outside", 9093, "TLS"), at("b2"))
        w.doors.unreachable.add("outside")
        await w.met()
        w.doors.refusing.add("b2")

        assert await w.peers.is_valid(other)

    virtually(test)


def test_a_name_that_does_not_resolve_proves_nothing() -> None:
    async def test(w: World) -> None:
        w.doors.nameless.add("b2")
        other = await w.join(2)
        await w.met()

        assert await w.peers.is_valid(other)
        assert not w.doors.probes

    virtually(test)


def test_what_an_earlier_registration_has_accepted_does_not_count() -> None:
    async def test(w: World) -> None:
        await w.join(2)
        await w.met()
        await w.others[2].deregister()
        w.doors.refusing.add("b2")
        again = await w.join(2)
        await w.met()
        await asyncio.sleep(UNREACHED_S + 1.0)

        assert await w.peers.is_valid(again)
        assert await w.standing() == [1, 2]

    virtually(test)


def test_who_was_started_again_on_its_address_is_dead_and_the_new_one_stands() -> None:
    async def test(w: World) -> None:
        former = await w.join(2, at("there"))
        await asyncio.sleep(1.0)
        successor = await w.join(3, at("there"))

        assert await w.standing() == [1, 3]
        assert not await w.peers.is_valid(former)
        assert await w.peers.is_valid(successor)

    virtually(test)


def test_who_has_this_brokers_own_address_is_what_was_there_before_it() -> None:
    async def test(w: World) -> None:
        own = (await w.peers.standing())[0]
        former = BrokerRecord(
            broker_id=2,
            listeners=own.listeners,
            rack=None,
            version="0",
            started_at_ms=own.started_at_ms - 1,
            session_id=own.session_id + 77,
        )
        w.peers._review([own, former])

        assert w.peers._is_dead(former.session_id)
        assert not w.peers._is_dead(own.session_id)

    virtually(test)


def test_brokers_without_listeners_are_not_each_others_successors() -> None:
    async def test(w: World) -> None:
        records = [
            BrokerRecord(broker_id=number, listeners=(), rack=None, version="0", started_at_ms=number, session_id=number)
            for number in (2, 3)
        ]
        w.peers._review(records)

        assert not any(w.peers._is_dead(record.session_id) for record in records)

    virtually(test)


def test_who_is_still_registered_when_its_session_must_have_ended_lives_and_is_not_taken_for_dead_again() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        w.doors.refusing.add("b2")
        dead_at_once = not await w.peers.is_valid(other)
        await asyncio.sleep(DEATH_S - OLD_S)
        still_dead = not await w.peers.is_valid(other)
        await asyncio.sleep(OLD_S)
        probes = w.doors.probes["b2"]
        later = []
        for _ in range(3):
            later.append(await w.peers.is_valid(other))
            await asyncio.sleep(UNREACHED_S + 1.0)

        assert dead_at_once
        assert still_dead
        assert later == [True] * 3
        assert w.doors.probes["b2"] == probes, "nothing that could be learnt would count"
        assert await w.standing() == [1, 2]

    virtually(test)


def test_who_is_dead_stays_so_when_its_address_opens_again() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        w.doors.refusing.add("b2")
        await w.peers.is_valid(other)
        w.doors.refusing.clear()
        await asyncio.sleep(1.0)

        assert not await w.peers.is_valid(other), "a broker that is started again listens before it can register"

    virtually(test)


def test_a_sign_of_life_counts_at_once_and_for_good() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        w.doors.refusing.add("b2")
        dead = not await w.peers.is_valid(other)
        w.peers.note_life(other)
        lives = await w.peers.is_valid(other)
        await asyncio.sleep(1.0)

        assert (dead, lives) == (True, True)
        assert await w.peers.is_valid(other)

    virtually(test)


def test_what_is_fresh_is_not_asked_again_and_questions_share_a_probe() -> None:
    async def test(w: World) -> None:
        other = await w.join(2)
        await w.met()
        first = w.doors.probes["b2"]
        await asyncio.gather(*(w.peers.is_valid(other) for _ in range(20)))
        shared = w.doors.probes["b2"]
        await asyncio.sleep(FRESH_S / 2)
        await asyncio.gather(*(w.peers.is_valid(other) for _ in range(20)))

        assert (first, shared, w.doors.probes["b2"]) == (1, 2, 2)

    virtually(test)


def test_few_are_asked_at_a_time_and_all_in_the_end() -> None:
    async def test(w: World) -> None:
        count = 3 * PROBES_MAX
        for number in range(2, count + 2):
            await w.join(number)
        await w.met()

        assert w.doors.under_way_max == PROBES_MAX
        assert set(w.doors.probes.values()) == {1}
        assert len(w.doors.probes) == count

    virtually(test)


def test_who_has_left_is_forgotten_with_its_probe() -> None:
    async def test(w: World) -> None:
        await w.join(2)
        w.doors.silent.add("b2")
        await w.peers.meet()
        await asyncio.sleep(0.01)
        asked = w.doors.under_way
        await w.others[2].deregister()
        await asyncio.sleep(0.01)
        await w.peers.standing()
        await asyncio.sleep(0.01)

        assert (asked, w.doors.under_way) == (1, 0)
        assert not w.peers._known

    virtually(test)


def test_nobody_is_asked_while_there_are_no_groups() -> None:
    async def test(w: World) -> None:
        w.nursery.spawn(w.peers.run(), name="peers")
        await w.join(2)
        for _ in range(10):
            await w.peers.standing()
            await asyncio.sleep(60.0)

        assert not w.doors.probes

    virtually(test)


def test_the_others_are_met_once_when_somebody_claims_a_slot() -> None:
    async def test(w: World) -> None:
        w.nursery.spawn(w.peers.run(), name="peers")
        session = await w.join(2)
        await w.store.write([Put(keys.coordinator(7), b"{}", None, session=session)])
        await asyncio.sleep(600.0)

        assert w.doors.probes == {"b2": 1}

    virtually(test)


def test_who_starts_late_meets_the_others_if_there_are_claims() -> None:
    async def test(w: World) -> None:
        session = await w.join(2)
        await w.store.write([Put(keys.coordinator(7), b"{}", None, session=session)])
        await asyncio.sleep(1.0)
        w.nursery.spawn(w.peers.run(), name="peers")
        await asyncio.sleep(1.0)

        assert w.doors.probes == {"b2": 1}

    virtually(test)


@pytest.fixture(params=[HOST, "localhost"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, socket.socket]]:
    """A host as it is advertised, and a socket there whose backlog takes connections, as a broker's that is too busy to accept any."""
    with socket.create_server((HOST, 0)) as server:
        yield request.param, server


async def test_a_real_socket_that_accepted_and_is_closed_is_the_end_of_a_broker(listening: tuple[str, socket.socket]) -> None:
    host, server = listening
    async with world(SystemClock(), SystemNetwork()) as w:
        other = await w.join(2, at(host, server.getsockname()[1]))
        verdicts = [await w.peers.is_valid(other)]
        await asyncio.sleep(OLD_S)
        verdicts.append(await w.peers.is_valid(other))
        server.close()
        async with asyncio.timeout(SOON_S):
            while await w.peers.is_valid(other):  # noqa: ASYNC110 - it is asked again when what was found is old
                await asyncio.sleep(0.05)

    assert verdicts == [True, True]


async def test_a_real_socket_that_was_never_there_proves_nothing(listening: tuple[str, socket.socket]) -> None:
    host, server = listening
    port = server.getsockname()[1]
    server.close()
    async with world(SystemClock(), SystemNetwork()) as w:
        other = await w.join(2, at(host, port))
        await w.met()

        assert await w.peers.is_valid(other)
        assert await w.standing() == [1, 2]


@pytest.mark.parametrize("host", ["no.such.name.invalid", "a" * 70, "."])
async def test_names_that_mean_nothing_are_an_os_error(host: str) -> None:
    with pytest.raises(OSError):
        await SystemNetwork().resolve(at(host))
