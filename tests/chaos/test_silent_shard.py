"""One of Oxia's four shards says nothing for 20 s: what lives on the other three does not notice.

A broker, as a process, over a real Oxia behind the fault proxy. Each kind of request is asked again and again on a connection of its own,
while others ask for what lives on the silent shard. Measured is a quiet phase, then the silence. The shard is not that of the catalog,
which has the names of topics, the brokers and the claims of coordinators.
"""

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_commit.v8.request import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic

from broker.cluster.leadership import slot_of
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.metadata import keys
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.vocabulary import PartitionId, TopicId
from tests.kit.async_client import AsyncClient, parse_produced
from tests.kit.native import Native, native_services
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served

SHARDS: Final = 4
TOPIC: Final = "t"
PARTITIONS: Final = 24
OF_EACH: Final = 4
"""Partitions that a request names."""
QUIET_S: Final = 15.0
SILENT_S: Final = 20.0
PACE_S: Final = 0.05
SLACK_S: Final = 0.9
"""What p99 may rise by on a busy machine, if twice what it was is less. A request that waits for the shard takes at least a second."""
AFTER_S: Final = 60.0
"""Within which what waited for the shard is done once it speaks again."""
WORST_S: Final = 2.5
"""No answer at all takes this long, unless the machine took as long before: half of what one request to Oxia is given."""
READY_WITHIN_S: Final = 60.0
LOADED_MIN: Final = 100
"""Answers to a kind in each phase, or nothing was measured."""
LOADED_WITHIN_S: Final = 200.0
"""On a busy machine. If each answer waited for the shard for a second, a phase would have fewer."""

_clock = SystemClock()


@dataclass
class Seen:
    """Of one kind of request: how long answers took, in the order they came, and what was wrong with them."""

    quiet_s: list[float] = field(default_factory=list)
    silent_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def of(self, phase: str) -> list[float]:
        return self.quiet_s if phase == "quiet" else self.silent_s


@dataclass
class Places:
    """Partitions and groups of the silent shard, and of the others."""

    silent_shard: int
    silent: list[int]
    healthy: list[int]
    silent_group: str
    healthy_groups: list[str]


@dataclass
class Measured:
    kinds: dict[str, Seen]
    held: int
    """Requests that met the silent shard."""
    after: dict[int, int]
    """By partition of the silent shard: the last error of a produce request when it spoke again."""


class Load:
    """`phase` says where answers are noted; in none at first, until all that is needed is loaded and connected."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.kinds: dict[str, Seen] = {}
        self.is_over = False
        self.phase = ""
        self._ready: set[str] = set()

    async def ready(self) -> None:
        """Return when each kind of request has had a right answer."""
        async with asyncio.timeout(READY_WITHIN_S):
            while self._ready < self.kinds.keys():  # noqa: ASYNC110 - the broker is another process
                await asyncio.sleep(PACE_S)

    async def loaded(self, phase: str, at_least_s: float) -> None:
        """Note answers of this phase for that long, and until each kind has LOADED_MIN of them."""
        self.phase = phase
        give_up_s = _clock.monotonic_s() + LOADED_WITHIN_S
        await asyncio.sleep(at_least_s)
        while min(len(seen.of(phase)) for seen in self.kinds.values()) < LOADED_MIN and _clock.monotonic_s() < give_up_s:  # noqa: ASYNC110
            await asyncio.sleep(PACE_S)
        self.phase = ""

    async def repeat(self, kind: str, act: Callable[[AsyncClient], Awaitable[str]]) -> None:
        """`act` until it is over, at most every `PACE_S`; it returns what is wrong with the answer, or nothing."""
        seen = self.kinds[kind]
        async with contextlib.AsyncExitStack() as closing:
            client = await closing.enter_async_context(await AsyncClient.connect(self.port, client_id=kind))
            while not self.is_over:
                began_s, phase = _clock.monotonic_s(), self.phase
                try:
                    wrong = await act(client)
                except TimeoutError:
                    wrong = "no answer"
                    await closing.aclose()
                    client = await closing.enter_async_context(await AsyncClient.connect(self.port, client_id=kind))
                took_s = _clock.monotonic_s() - began_s
                if not wrong:
                    self._ready.add(kind)
                if phase:
                    if self.phase != phase:
                        # It was under way when the shard fell silent, or when it spoke again.
                        phase = "silent"
                    seen.of(phase).append(took_s)
                    if wrong:
                        seen.wrong.append(f"{phase}: {wrong}")
                await asyncio.sleep(max(0.0, PACE_S - took_s))

    async def bother(self, act: Callable[[AsyncClient], Awaitable[object]]) -> None:
        """Ask for what lives on the silent shard, whatever becomes of it."""
        while not self.is_over:
            with contextlib.suppress(TimeoutError):
                async with await AsyncClient.connect(self.port, client_id="bother") as client:
                    while not self.is_over:
                        await act(client)
                        await asyncio.sleep(PACE_S)


def commit_of(group: str, partition: int) -> Any:
    make_partition: Any = OffsetCommitRequestPartition
    make_topic: Any = OffsetCommitRequestTopic
    request: Any = OffsetCommitRequest
    partitions = (make_partition(partition_index=partition, committed_offset=1, committed_metadata=""),)
    return request(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(make_topic(name=TOPIC, partitions=partitions),))


async def places_of(native: Native, port: int) -> Places:
    request: Any = MetadataRequest
    asked: Any = MetadataRequestTopic
    async with await AsyncClient.connect(port) as client:
        named = (asked(topic_id=None, name=TOPIC),)
        answer = await client.ask(request(topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False))
    topic_id = TopicId(str(answer.topics[0].topic_id))
    async with Nursery() as nursery:
        store = await OxiaMetadataStore.open(parse_oxia_url(native.oxia.url), clock=_clock, chance=random.Random(), nursery=nursery)
        home = store.shard_of(keys.ROOT)
        by_shard: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}
        for partition in range(PARTITIONS):
            by_shard[store.shard_of(keys.PartitionKeys(PartitionId(topic_id, partition)).partition_key)].append(partition)
        groups: dict[int, list[str]] = {shard: [] for shard in range(SHARDS)}
        for number in range(64):
            group = f"g{number}"
            groups[store.shard_of(keys.group_partition_key(slot_of(group)))].append(group)
        await store.close()
    silent_shard = max((shard for shard in by_shard if shard != home), key=lambda shard: len(by_shard[shard]))
    healthy = [partition for shard in by_shard if shard != silent_shard for partition in by_shard[shard]]
    healthy_groups = [group for shard in groups if shard != silent_shard for group in groups[shard][:2]]
    assert len(by_shard[silent_shard]) > 2
    assert len(healthy) > 2 * OF_EACH
    return Places(silent_shard, by_shard[silent_shard], healthy, groups[silent_shard][0], healthy_groups)


async def measure(native: Native, served: Served) -> Measured:
    places = await places_of(native, served.kafka_port)
    load = Load(served.kafka_port)
    chance = random.Random(7)
    ends: dict[int, int] = {}
    listed, fetched, produced = places.healthy[:OF_EACH], places.healthy[OF_EACH : 2 * OF_EACH], places.healthy[-1]
    after: dict[int, int] = {}
    quiet, *others = places.silent
    in_turn = itertools.cycle(others)

    async with await AsyncClient.connect(served.kafka_port) as client:
        for partition, appended in (await client.produce(TOPIC, {p: bytes(record_batch()) for p in range(PARTITIONS)})).items():
            assert appended.error == 0, (partition, appended)
            ends[partition] = appended.base_offset + 1

    async def list_offsets(client: AsyncClient) -> str:
        answers = await client.list_offsets(TOPIC, listed)
        return "" if answers == {partition: (0, ends[partition]) for partition in listed} else str(answers)

    async def fetch_at_the_end(client: AsyncClient) -> str:
        answers = await client.fetch(TOPIC, {partition: ends[partition] for partition in fetched})
        found = {partition: (answer.error, answer.high_watermark) for partition, answer in answers.items()}
        return "" if found == {partition: (0, ends[partition]) for partition in fetched} else str(found)

    async def fetch_of_both(client: AsyncClient) -> str:
        last = {partition: ends[partition] - 1 for partition in fetched}
        # At its end, so that its manifest is looked at.
        answers = await client.fetch(TOPIC, {quiet: ends[quiet]} | last, max_wait_ms=100)
        found = {partition: (answer.error, answer.offsets) for partition, answer in answers.items() if partition != quiet}
        return "" if found == {partition: (0, [offset]) for partition, offset in last.items()} else str(found)

    async def commit(client: AsyncClient) -> str:
        answer = await client.ask(commit_of(chance.choice(places.healthy_groups), 0))
        error = answer.topics[0].partitions[0].error_code
        return "" if not error else str(error)

    async with AsyncClientOf(served.kafka_port) as beside:

        async def produce(client: AsyncClient) -> str:
            # One behind the other: they gather in one flush. Each time another partition: one whose commit hangs is in no further flush.
            beside.send({next(in_turn): bytes(record_batch())})
            (answer,) = (await client.produce(TOPIC, {produced: bytes(record_batch())})).values()
            return "" if not answer.error else str(answer)

        actions = {
            "list_offsets": list_offsets,
            "fetch": fetch_at_the_end,
            "fetch_of_both": fetch_of_both,
            "offset_commit": commit,
            "produce": produce,
        }
        bothers = [
            lambda client: client.list_offsets(TOPIC, places.silent),
            lambda client: client.fetch(TOPIC, {quiet: ends[quiet]}, max_wait_ms=100),
            lambda client: client.list_offsets(TOPIC, [*places.silent, *listed]),
            lambda client: client.ask(commit_of(places.silent_group, 0)),
        ]
        async with asyncio.TaskGroup() as group:
            load.kinds |= {kind: Seen() for kind in actions}
            for kind, act in actions.items():
                group.create_task(load.repeat(kind, act))
            for bother in bothers:
                group.create_task(load.bother(bother))
            await load.ready()
            await load.loaded("quiet", QUIET_S)
            await native_run(native, native.oxia_proxy.silence(places.silent_shard))
            await load.loaded("silent", SILENT_S)
            await native_run(native, native.oxia_proxy.resume(places.silent_shard))
            load.is_over = True
        async with await AsyncClient.connect(served.kafka_port) as client:
            give_up_s = _clock.monotonic_s() + AFTER_S
            while True:
                answers = await client.produce(TOPIC, {partition: bytes(record_batch()) for partition in places.silent})
                after = {partition: answer.error for partition, answer in answers.items()}
                if not any(after.values()) or _clock.monotonic_s() > give_up_s:
                    break
                await asyncio.sleep(PACE_S)
    return Measured(load.kinds, native.oxia_proxy.held[places.silent_shard], after)


async def native_run(native: Native, coroutine: Any) -> None:
    await asyncio.to_thread(native.run_oxia, coroutine)


class AsyncClientOf:
    """A connection whose produce requests nobody waits for."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.acked = 0

    async def __aenter__(self) -> Self:
        self._client = await AsyncClient.connect(self._port, client_id="beside")
        self._reading = asyncio.get_running_loop().create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._client.close()

    def send(self, batches: dict[int, bytes]) -> None:
        self._client.send_produce(TOPIC, batches)

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                self.acked += sum(not answer.error for answer in parse_produced(await self._client.take()).values())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder: Path = tmp_path_factory.mktemp("silent")
    with native_services(folder) as native, native.broker(settings={"storage.flush_interval": "20ms"}) as served:
        admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            future.result(20)
        return asyncio.run(measure(native, served))


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]


def check_unnoticed(measured: Measured, kind: str) -> None:
    seen = measured.kinds[kind]
    quiet_s, silent_s = p99(seen.quiet_s), p99(seen.silent_s)
    said = (
        f"{kind}: p99 {quiet_s * 1e3:.0f} ms of {len(seen.quiet_s)} before (worst {max(seen.quiet_s) * 1e3:.0f}), "
        f"{silent_s * 1e3:.0f} ms of {len(seen.silent_s)} meanwhile (worst {max(seen.silent_s) * 1e3:.0f})"
    )
    assert measured.held > 0, "nobody asked the silent shard"
    assert not seen.wrong, seen.wrong[:3]
    assert silent_s <= max(2 * quiet_s, quiet_s + SLACK_S), said
    assert max(seen.silent_s) < max(WORST_S, 2 * max(seen.quiet_s)), said
    assert min(len(seen.quiet_s), len(seen.silent_s)) >= LOADED_MIN, said


@pytest.mark.alone
@pytest.mark.timeout(700)
@pytest.mark.parametrize("kind", ["list_offsets", "fetch", "fetch_of_both", "offset_commit", "produce"])
def test_what_lives_on_other_shards_does_not_notice_a_silent_one(measured: Measured, kind: str) -> None:
    check_unnoticed(measured, kind)


@pytest.mark.alone  # it may be the one for which all is measured
@pytest.mark.timeout(700)
def test_what_lives_on_the_silent_shard_goes_on_when_it_speaks_again(measured: Measured) -> None:
    assert set(measured.after.values()) == {0}
