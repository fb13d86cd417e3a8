"""What members of a group are refused, and those who are none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import kio.schema.offset_delete.v0.request as delete_v0
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from tests.kit.seen_errors import (
    TIMEOUT_S,
    TOPIC,
    Scene,
    Seen,
    aiokafka_client,
    node_of,
    of_aiokafka,
    of_confluent,
    of_frame,
)

SESSION_TIMEOUT_MS = 30_000
RANGE = [("range", b"\x00\x01\x00\x00\x00\x01\x00\x07records\x00\x00\x00\x00")]
_clock = SystemClock()


def consumer(scene: Scene, group: str, on_error: Callable[[KafkaError], object] | None = None, **settings: Any) -> Consumer:
    conf: dict[str, Any] = {"bootstrap.servers": scene.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    if on_error is not None:
        conf["error_cb"] = on_error
    return Consumer(conf | {name.replace("_", "."): value for name, value in settings.items()})


class Raw:
    """A member that does what it is told, by aiokafka's requests."""

    def __init__(self, client: Any, group: str, node_id: int) -> None:
        self.client, self.group, self.node_id = client, group, node_id
        self.member_id = ""
        self.generation = -1

    async def join(self) -> int:
        """Until it is a member: the error code."""
        told = await self.ask(JoinGroupRequest(self.group, SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, self.member_id, None, "consumer", RANGE))
        self.member_id = told.member_id
        if told.error_code == ErrorCode.member_id_required:
            return await self.join()
        self.generation = told.generation_id
        return int(told.error_code)

    async def sync(self) -> int:
        """With an assignment of nothing, should it lead."""
        told = await self.ask(SyncGroupRequest(self.group, self.generation, self.member_id, None, [(self.member_id, b"")]))
        return int(told.error_code)

    async def heartbeat(self, generation: int | None = None) -> int:
        told = await self.ask(HeartbeatRequest(self.group, self.generation if generation is None else generation, self.member_id))
        return int(told.error_code)

    async def commit(self, generation: int | None = None) -> int:
        number = self.generation if generation is None else generation
        told = await self.ask(OffsetCommitRequest(self.group, number, self.member_id, -1, [(TOPIC, [(0, 1, "")])]))
        return int(told.topics[0][1][0][1])

    async def leave(self) -> None:
        await self.ask(LeaveGroupRequest(self.group, self.member_id))

    async def ask(self, request: Any) -> Any:
        return await self.client.send(self.node_id, request)


@contextlib.asynccontextmanager
async def member(scene: Scene, group: str) -> AsyncIterator[Raw]:
    """The only member of a group that is stable."""
    async with aiokafka_client(scene.bootstrap) as client:
        made = Raw(client, group, await node_of(client))
        assert await made.join() == 0
        assert await made.sync() == 0
        yield made
        await made.leave()


async def commit_of_who_is_no_member(scene: Scene) -> Seen:
    async with member(scene, "taken"):

        def commit() -> Seen:
            with closing(consumer(scene, "taken")) as bystander:
                return committing(bystander, TopicPartition(TOPIC, 0, 1))

        return await asyncio.to_thread(commit)


async def heartbeat_of_an_old_generation(scene: Scene) -> Seen:
    async with member(scene, "old") as one:
        assert await one.heartbeat() == 0
        assert await one.commit() == 0
        assert await one.commit(one.generation - 1) == await one.heartbeat(one.generation + 1)
        return of_aiokafka(await one.heartbeat(one.generation - 1))


async def heartbeat_while_another_joins(scene: Scene) -> Seen:
    async with member(scene, "joined") as one, aiokafka_client(scene.bootstrap) as client, asyncio.TaskGroup() as tasks:
        other = Raw(client, "joined", one.node_id)
        joining = tasks.create_task(other.join())
        told = await until(one.heartbeat)
        await one.join()
        assert await joining == 0
        await other.leave()
        return of_aiokafka(told)


async def member_with_another_assignor(scene: Scene) -> Seen:
    roundrobin = {"partition_assignment_strategy": "roundrobin"}
    return await asyncio.to_thread(_joined_beside, scene, "mixed", roundrobin, {"partition_assignment_strategy": "range"})


async def second_client_with_an_instance_id(scene: Scene) -> Seen:
    same = {"group_instance_id": "same"}
    return await asyncio.to_thread(_joined_beside, scene, "static", same, same)


async def session_timeout_of_a_millisecond(scene: Scene) -> Seen:
    return await asyncio.to_thread(_joined_beside, scene, "hasty", {"session_timeout_ms": 2, "heartbeat_interval_ms": 1}, None)


async def long_metadata_with_an_offset(scene: Scene) -> Seen:
    def commit() -> Seen:
        with closing(consumer(scene, "wordy")) as one:
            return committing(one, TopicPartition(TOPIC, 0, 1, "x" * 5_000))

    return await asyncio.to_thread(commit)


async def group_without_a_name(scene: Scene) -> Seen:
    async with aiokafka_client(scene.bootstrap) as client:
        return of_aiokafka(await Raw(client, "", await node_of(client)).join())


async def member_without_an_id(scene: Scene) -> Seen:
    async with aiokafka_client(scene.bootstrap) as client:
        told = await client.send(
            await node_of(client), JoinGroupRequest("anonymous", SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, "", None, "consumer", RANGE)
        )
        return of_aiokafka(told.error_code)


async def deletion_of_a_group_with_members(scene: Scene) -> Seen:
    async with member(scene, "busy"):
        return await scene.admin_told(scene.admin.delete_consumer_groups(["busy"])["busy"])


async def deletion_of_no_group(scene: Scene) -> Seen:
    return await scene.admin_told(scene.admin.delete_consumer_groups(["nobody"])["nobody"])


async def deletion_of_offsets_of_a_topic_that_is_read(scene: Scene) -> Seen:
    async with member(scene, "reading") as one:
        assert await one.commit() == 0
        made: Any = delete_v0
        topic = made.OffsetDeleteRequestTopic(name=TOPIC, partitions=(made.OffsetDeleteRequestPartition(partition_index=0),))
        answer = await asyncio.to_thread(scene.raw, made.OffsetDeleteRequest(group_id="reading", topics=(topic,)))
        assert answer.error_code == 0
        return of_frame(answer.topics[0].partitions[0].error_code)


async def until(ask: Callable[[], Any]) -> int:
    """The first error code but NONE."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (told := await ask()):  # noqa: ASYNC110 - asked as members ask
            await asyncio.sleep(0.01)
        return int(told)


def committing(one: Consumer, offset: TopicPartition) -> Seen:
    try:
        done = one.commit(offsets=[offset], asynchronous=False)
    except KafkaException as error:
        return of_confluent(error.args[0])
    assert done is not None
    (told,) = done
    assert told.error is not None, "it was taken"
    return of_confluent(told.error)


def _joined_beside(scene: Scene, group: str, second: dict[str, Any], first: dict[str, Any] | None) -> Seen:
    """The first error that either of two members gets; `first` None: there is one only."""
    errors: list[KafkaError] = []
    with contextlib.ExitStack() as leaving:
        members = [] if first is None else [leaving.enter_context(closing(consumer(scene, group, on_error=errors.append, **first)))]
        for one in members:
            one.subscribe([TOPIC])
            deadline_s = _clock.monotonic_s() + TIMEOUT_S
            while not one.assignment():
                assert _clock.monotonic_s() < deadline_s
                one.poll(0.05)
        members.append(leaving.enter_context(closing(consumer(scene, group, on_error=errors.append, **second))))
        members[-1].subscribe([TOPIC])
        deadline_s = _clock.monotonic_s() + TIMEOUT_S
        while not errors:
            assert _clock.monotonic_s() < deadline_s
            for one in members:
                message = one.poll(0.05)
                if message is not None and (error := message.error()) is not None:
                    errors.append(error)
    return of_confluent(errors[0])


@contextlib.contextmanager
def closing(one: Consumer) -> Iterator[Consumer]:
    try:
        yield one
    finally:
        one.close()
