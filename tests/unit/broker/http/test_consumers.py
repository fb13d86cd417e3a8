"""Consuming by group over HTTP, with brokers in this process."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from kio.schema.join_group.v3.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.sync_group.v2.request import SyncGroupRequest
from kio.schema.types import GroupId
from kio.static.primitive import i32Timedelta
from yarl import URL

from broker.http.assignors import read_assignment, subscription_bytes
from broker.http.guard import HttpLimits
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Record
from tests.kit.async_client import AsyncClient
from tests.kit.clustering import running_cluster
from tests.kit.http_asking import LOCAL, Http, http_of

WITHIN_S = 60.0


class Consuming:
    """A consumer, as its client has it."""

    def __init__(self, http: Http, url: str) -> None:
        self.http = http
        self.url = url
        self.last_poll = 0

    async def poll(self, **document: Any) -> dict[str, Any]:
        status, answer = await self.http.post(f"{self.url}/poll", {"max_wait_ms": 100} | document)
        assert status == 200, answer
        self.last_poll = answer["poll"]
        return dict(answer)

    async def settled(self, partitions: int) -> dict[str, Any]:
        """Poll until so many partitions are assigned, and commit what comes before."""
        async with asyncio.timeout(WITHIN_S):
            while len((answer := await self.poll(max_wait_ms=0))["assigned"]) != partitions or answer["generation"] < 0:
                await self.commit()
        return answer

    async def values(self, count: int, **document: Any) -> list[Any]:
        """Poll until so many records came."""
        found: list[Any] = []
        async with asyncio.timeout(WITHIN_S):
            while len(found) < count:
                found += values_of(await self.poll(**document))
        return found

    async def commit(self, **document: Any) -> tuple[int, Any]:
        return await self.http.post(f"{self.url}/commit", document)

    async def leave(self) -> int:
        async with self.http.session.delete(self.url) as response:
            return response.status


def values_of(answer: dict[str, Any]) -> list[Any]:
    return [record["value"] for result in answer["results"] for record in result["records"]]


async def joined(http: Http, group: str = "g", topics: tuple[str, ...] = ("orders",), **document: Any) -> Consuming:
    status, answer = await http.post(f"/groups/{group}/consumers", {"topics": list(topics), "from": "start"} | document)
    assert status == 201, answer
    return Consuming(http, answer["url"])


async def make(http: Http, topic: str, partition_count: int) -> None:
    await http.member.broker.http.parts.topics.create(topic, partition_count=partition_count, replication_factor=1, configs={})


async def committed(http: Http, group: str, topic: str) -> dict[int, int]:
    parts = http.member.broker.http.parts
    found = (await parts.topics.lookup_now([topic]))[topic]
    stored = (await parts.groups.checked(group)).stored
    offsets = {number: stored.offset(found.partition(number)) for number in range(found.partition_count)}
    return {number: one.offset for number, one in offsets.items() if one is not None}


async def test_a_consumer_reads_on_where_its_group_has_committed(http: Http) -> None:
    await http.produced("orders", 0, ["a", "b", "c"])
    first = await joined(http)
    assert await first.values(3) == ["a", "b", "c"]
    status, answer = await first.commit()
    assert (status, answer["success_count"]) == (200, 1)
    assert answer["results"] == [{"topic": "orders", "partition": 0, "offset": 3, "ok": True}]
    assert await first.leave() == 200

    await http.produced("orders", 0, ["d"])
    second = await joined(http)
    assert await second.values(1) == ["d"]
    assert await committed(http, "g", "orders") == {0: 3}


async def test_an_answer_that_got_lost_comes_again_and_is_not_committed_meanwhile(http: Http) -> None:
    await http.produced("orders", 0, ["a", "b", "c", "d"])
    consumer = await joined(http)
    assert await consumer.values(1, max_records=1) == ["a"]
    had = consumer.last_poll
    assert values_of(await consumer.poll(max_records=2)) == ["b", "c"]

    assert (await consumer.commit(poll=had))[0] == 409
    again = await consumer.poll(max_records=2, last_poll=had)
    assert (values_of(again), again["poll"]) == (["b", "c"], had + 1)
    assert values_of(await consumer.poll(last_poll=had + 1)) == ["d"]
    status, answer = await consumer.http.post(f"{consumer.url}/poll", {"last_poll": 0})
    assert (status, answer["error_type"]) == (409, "Conflict")
    await consumer.commit(poll=consumer.last_poll)
    assert await committed(http, "g", "orders") == {0: 4}


async def test_two_consumers_share_the_partitions_and_what_was_not_committed_comes_again(http: Http) -> None:
    await make(http, "orders", 2)
    for partition in (0, 1):
        await http.produced("orders", partition, [f"{partition}-{number}" for number in range(3)])
    first = await joined(http)
    assert sorted(await first.values(6)) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    await first.commit(offsets=[{"topic": "orders", "partition": 0, "offset": 2}, {"topic": "orders", "partition": 1, "offset": 1}])
    second = await joined(http)
    seen: list[Any] = []
    async with asyncio.timeout(WITHIN_S):
        while len(seen) < 3:
            for consumer in (first, second):
                answer = await consumer.poll(max_wait_ms=0)
                seen += values_of(answer)

    assert sorted(seen) == ["0-2", "1-1", "1-2"]
    assigned = [(await consumer.poll(max_wait_ms=0))["assigned"] for consumer in (first, second)]
    assert sorted(one["partition"] for both in assigned for one in both) == [0, 1]
    assert await second.leave() == 200
    assert len((await first.settled(2))["assigned"]) == 2


async def test_a_commit_after_a_rebalance_that_the_client_has_not_heard_of_is_refused(http: Http) -> None:
    await make(http, "orders", 2)
    await http.produced("orders", 0, ["a"])
    first = await joined(http)
    await first.values(1)
    second = await joined(http)
    status, answer = 200, dict[str, Any]()
    async with asyncio.timeout(WITHIN_S):
        while status == 200:  # it waits a while with its rejoining
            await second.poll()
            status, answer = await first.commit(offsets=[{"topic": "orders", "partition": 0, "offset": 1}])

    assert (status, answer["error_type"]) == (409, "RebalanceInProgress")
    assert (await first.poll())["rebalanced"]
    assert not (await first.poll())["rebalanced"]
    assert (await first.commit())[0] == 200


async def test_from_the_end_nothing_is_missed_between_polls(http: Http) -> None:
    await http.produced("orders", 0, ["before"])
    given: Any = {"from": "end"}
    consumer = await joined(http, **given)
    await consumer.settled(1)
    for number in range(5):
        await http.produced("orders", 0, [str(number)])
        assert await consumer.values(1) == [str(number)]


async def test_what_was_trimmed_is_told_and_the_consumer_goes_on_where_it_would_begin(http: Http) -> None:
    await http.produced("orders", 0, ["a", "b", "c"])
    status, _ = await http.post("/groups/g/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]})
    assert status == 200
    parts = http.member.broker.http.parts
    partition = (await parts.topics.lookup(["orders"]))["orders"].partition(0)
    await parts.trimmer.trim(partition, 2)
    consumer = await joined(http)
    async with asyncio.timeout(WITHIN_S):
        while True:
            status, answer = await http.post(f"{consumer.url}/poll", {"max_wait_ms": 100})
            if answer["results"]:
                break
    assert status == 409
    assert answer["results"][0]["error_type"] == "OffsetOutOfRange"

    assert await consumer.values(1) == ["c"]


async def test_partitions_that_are_added_are_read_by_the_group_without_anybody_s_help(http: Http) -> None:
    await make(http, "orders", 1)
    consumer = await joined(http)
    await consumer.settled(1)
    parts = http.member.broker.http.parts
    await parts.topics.add_partitions((await parts.topics.lookup(["orders"]))["orders"], 2)
    await http.produced("orders", 1, ["new"])

    assert await consumer.values(1) == ["new"]


async def test_a_consumer_whose_client_is_silent_leaves_its_group(http: Http) -> None:
    await http.produced("orders", 0, ["a"])
    silent = await joined(http, idle_timeout_ms=1_000)
    await silent.settled(1)
    async with asyncio.timeout(WITHIN_S):
        while (await http.get("/api/v1/groups/g"))[1]["members"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    status, answer = await http.post(f"{silent.url}/poll", {})
    assert (status, answer["error_type"]) == (404, "UnknownConsumer")


async def test_one_poll_at_a_time(http: Http) -> None:
    await http.produced("orders", 0, ["a"])
    consumer = await joined(http)
    await consumer.values(1)
    async with asyncio.TaskGroup() as asking:
        long = asking.create_task(consumer.poll(max_wait_ms=1_000))
        statuses = []
        while not long.done() and 409 not in statuses:
            statuses.append((await http.post(f"{consumer.url}/poll", {"max_wait_ms": 0}))[0])
    assert 409 in statuses or long.done()


async def test_offsets_are_committed_for_a_group_in_which_nobody_is_and_refused_beside_members(http: Http) -> None:
    await http.produced("orders", 0, ["a", "b"])
    offsets = {"offsets": [{"topic": "orders", "partition": 0, "offset": 1, "metadata": "by hand"}]}
    status, answer = await http.post("/groups/g/offsets", offsets)
    assert (status, answer["success_count"]) == (200, 1)
    assert await committed(http, "g", "orders") == {0: 1}
    consumer = await joined(http)
    await consumer.settled(1)
    status, answer = await http.post("/groups/g/offsets", offsets)
    assert (status, answer["results"][0]["error_type"]) == (409, "UnknownConsumer")
    status, answer = await http.post("/groups/h/offsets", {"offsets": [{"topic": "none", "partition": 0, "offset": 1}]})
    assert (status, answer["results"][0]["error_type"]) == (409, "UnknownTopicOrPartition")


async def test_no_more_consumers_than_a_broker_may_have() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member, limits=HttpLimits(LOCAL, consumers_max=1)) as http:
            await http.produced("orders", 0, ["a"])
            first = await joined(http)
            status, answer = await http.post("/groups/h/consumers", {"topics": ["orders"]})
            assert (status, answer["error_type"]) == (429, "TooManyConsumers")
            await first.leave()
            await joined(http, "h")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"topics": []}, "topics"),
        ({}, "topics"),
        ({"topics": ["t"], "from": "middle"}, "from"),
        ({"topics": ["t"], "session_timeout_ms": 1}, "invalid session timeout"),
        ({"topics": ["t"], "idle_timeout_ms": 10**9}, "idle_timeout_ms"),
        ({"topics": ["t"], "group": "g"}, "group"),
        ({"topics": ["t" * 300]}, "topics[0]"),
        ({"topics": ["t"] * 1_001}, "topics"),
    ],
)
async def test_a_consumer_that_cannot_be_is_refused_with_its_cause(http: Http, document: dict[str, Any], said: str) -> None:
    status, answer = await http.post("/groups/g/consumers", document)

    assert status == 400, answer
    assert said in answer["error"]


@pytest.mark.parametrize(("own_port", "http_port"), [(0, 0), (0, 8170), (8171, 8170), (8170, 8170)])
async def test_a_client_of_a_group_that_another_broker_coordinates_is_sent_there_if_that_has_an_address_of_its_own(
    own_port: int, http_port: int
) -> None:
    async with running_cluster() as cluster:
        first, second = await cluster.join(http_port=own_port), await cluster.join(http_port=http_port)
        holders = await first.broker.http.parts.groups.slots.holders([f"a b/{number}" for number in range(50)])
        path = f"/groups/{quote(next(group for group, holder in holders.items() if holder == second.broker_id), safe='')}/consumers"
        async with http_of(first) as http:
            given: Any = {"data": b'{"topics":["orders"]}', "headers": {"content-type": "application/json"}}
            async with http.session.post(URL(path, encoded=True), allow_redirects=False, **given) as response:
                status, answer, location = response.status, await response.json(), response.headers.get("Location")

    if http_port != own_port:
        assert (status, location) == (307, f"http://127.0.0.1:{http_port}{path}")
    else:
        assert (status, answer["error_type"]) == (503, "CoordinatorNotAvailable")
        assert f"broker {second.broker_id} coordinates the group and has no address for HTTP clients" in answer["error"]


async def test_a_broker_that_drains_takes_its_consumers_out_of_their_groups_first() -> None:
    async with running_cluster() as cluster:
        first, second = await cluster.join(), await cluster.join()
        holders = await first.broker.http.parts.groups.slots.holders([f"g{number}" for number in range(50)])
        group = next(group for group, holder in holders.items() if holder == first.broker_id)
        async with http_of(first) as http:
            await http.produced("orders", 0, ["a"])
            await (await joined(http, group)).settled(1)
            await cluster.leave(first)
        async with asyncio.timeout(WITHIN_S):
            while second.broker.http.parts.groups.loaded(group) is None:
                async with http_of(second) as http:
                    await http.post(f"/groups/{group}/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]})
        loaded = second.broker.http.parts.groups.loaded(group)

    assert loaded is not None
    assert loaded.group.members == {}


@pytest.mark.parametrize("client_has_it", [True, False])
async def test_an_answer_whose_end_the_broker_did_not_see_counts_if_the_client_has_it(
    http: Http, monkeypatch: pytest.MonkeyPatch, *, client_has_it: bool
) -> None:
    await http.produced("orders", 0, ["a"])
    consumer = await joined(http)
    assert await consumer.values(1) == ["a"]
    await http.produced("orders", 0, ["b", "c"])
    first = consumer.last_poll

    with monkeypatch.context() as cutting:
        cutting.setattr(web.StreamResponse, "write_eof", cut_off)
        assert values_of(await consumer.poll(max_records=1)) == ["b"]
    await http.get("/")  # by another connection

    if client_has_it:
        assert values_of(await consumer.poll(max_records=1, last_poll=first + 1)) == ["c"]
    else:
        assert values_of(await consumer.poll(max_records=1, last_poll=first)) == ["b"]
    assert consumer.last_poll == first + 1 + client_has_it
    status, answer = await consumer.commit(poll=consumer.last_poll)
    assert (status, answer["results"][0]["offset"]) == (200, 2 + client_has_it)


async def test_an_answer_whose_end_the_broker_did_not_see_can_be_committed(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    await http.produced("orders", 0, ["a"])
    consumer = await joined(http)
    assert await consumer.values(1) == ["a"]
    await http.produced("orders", 0, ["b"])
    with monkeypatch.context() as cutting:
        cutting.setattr(web.StreamResponse, "write_eof", cut_off)
        assert values_of(await consumer.poll()) == ["b"]
    await http.get("/")  # by another connection
    assert (await consumer.commit(poll=consumer.last_poll + 1))[0] == 409
    status, answer = await consumer.commit(poll=consumer.last_poll)
    assert (status, answer["results"][0]["offset"]) == (200, 2)
    assert values_of(await consumer.poll(max_wait_ms=0, last_poll=consumer.last_poll)) == []


async def cut_off(_response: web.StreamResponse, _data: bytes = b"") -> None:
    """As when the connection ends behind the last byte of an answer: all of it is there, and whoever writes is told that it is not."""
    raise ConnectionResetError("the client has closed its connection")


async def test_a_lost_answer_is_not_committed_while_the_group_settles(http: Http) -> None:
    await make(http, "orders", 2)
    await http.produced("orders", 0, ["a", "b"])
    first = await joined(http)
    assert await first.values(2) == ["a", "b"]  # this answer is taken to be lost
    lost = first.last_poll
    second = await joined(http)
    async with asyncio.timeout(WITHIN_S):
        while True:
            await second.poll(max_wait_ms=0)
            status, answer = await http.post(f"{first.url}/poll", {"max_wait_ms": 0, "last_poll": lost - 1})
            if status == 200 and answer["generation"] < 0:
                break
            if status == 200 and values_of(answer) == ["a", "b"]:
                lost = answer["poll"]
    await first.commit(poll=answer["poll"])

    assert await committed(http, "g", "orders") == {}


async def test_a_first_answer_from_the_end_that_got_lost_comes_again(http: Http) -> None:
    await http.produced("orders", 0, ["before"])
    given: Any = {"from": "end"}
    consumer = await joined(http, **given)
    await consumer.settled(1)
    had = consumer.last_poll
    await http.produced("orders", 0, ["x", "y"])
    assert await consumer.values(2) == ["x", "y"]
    again = await consumer.poll(last_poll=consumer.last_poll - 1)

    assert values_of(again) == ["x", "y"]
    assert had < again["poll"]


async def test_more_partitions_than_one_poll_reads_are_all_read_in_turn_and_committed() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member, limits=HttpLimits(LOCAL, partitions_max=2)) as http:
            await make(http, "orders", 6)
            for partition in range(6):
                await http.produced("orders", partition, [str(partition)])
            consumer = await joined(http)
            assert sorted(await consumer.values(6)) == ["0", "1", "2", "3", "4", "5"]
            status, answer = await consumer.commit()

    assert (status, answer["success_count"]) == (200, 6)


async def test_offsets_of_partitions_that_are_not_the_consumer_s_are_refused(http: Http) -> None:
    await http.produced("orders", 0, ["a"])
    consumer = await joined(http)
    await consumer.values(1)
    status, answer = await consumer.commit(offsets=[{"topic": "orders", "partition": 7, "offset": 1}])

    assert (status, answer["error_type"]) == (400, "InvalidRequest")
    assert "orders-7 is not assigned" in answer["error"]


async def test_reading_alone_moves_no_group(http: Http) -> None:
    await http.produced("orders", 0, ["a"])
    async with http_of(http.member, log_api="read") as reading:
        status, answer = await reading.post("/groups/g/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]})

    assert (status, answer["error_type"]) == (403, "NotAuthorized")


class CountedReads:
    """Metadata that count the keys that are read."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self._store = store
        self.keys_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        self.keys_read += len(wanted)
        return await self._store.get_many(wanted)


async def test_a_member_that_names_very_many_topics_costs_the_leader_no_look_at_each() -> None:
    names, stores = {f"no-such-{number}" for number in range(50_000)} | {"orders"}, []

    def counted(store: MemoryMetadataStore) -> Any:
        stores.append(CountedReads(store))
        return stores[-1]

    async with running_cluster() as cluster, http_of(member := await cluster.join(wrap=counted)) as http:
        await http.produced("orders", 0, ["a"])
        consumer = await joined(http)
        await consumer.settled(1)
        before = stores[0].keys_read
        async with await AsyncClient.connect(member.port) as foreign:
            protocol = JoinGroupRequestProtocol(name="range", metadata=subscription_bytes(names))
            join = JoinGroupRequest(
                group_id=GroupId("g"),
                session_timeout=i32Timedelta.parse(timedelta(seconds=30)),
                rebalance_timeout=i32Timedelta.parse(timedelta(seconds=60)),
                member_id="",
                protocol_type="consumer",
                protocols=(protocol,),
            )
            async with asyncio.TaskGroup() as group:
                joining = group.create_task(foreign.ask(join))
                while not joining.done():
                    await consumer.poll(max_wait_ms=50)
            answer = joining.result()
            sync = SyncGroupRequest(group_id=GroupId("g"), generation_id=answer.generation_id, member_id=answer.member_id, assignments=())
            share = read_assignment((await foreign.ask(sync)).assignment)
    assert answer.leader != answer.member_id
    assert share in ({}, {"orders": [0]})
    assert stores[0].keys_read - before < 1_000


async def test_a_static_member_that_is_started_again_gets_what_was_added_meanwhile(http: Http) -> None:
    await make(http, "orders", 1)
    await make(http, "other", 1)
    before = await joined(http, instance_id="i")
    await before.settled(1)
    parts = http.member.broker.http.parts
    await parts.topics.add_partitions((await parts.topics.lookup(["orders"]))["orders"], 2)
    again = await joined(http, topics=("orders", "other"), instance_id="i")

    assert len((await again.settled(3))["assigned"]) == 3


async def test_a_group_whose_name_no_url_can_have_is_refused(http: Http) -> None:
    async with http.session.post(
        URL("/groups/%2E%2E/consumers", encoded=True), data=b'{"topics":["t"]}', headers={"content-type": "application/json"}
    ) as response:
        assert (response.status, (await response.json())["error_type"]) == (400, "InvalidRequest")
