"""aiokafka plays the steps of tests/compat/README.md, in one event loop."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.compat.playing import BOOTSTRAP, KAFKA_ERRORS, PREFIX, Player, RefusedError, digest, line, reached, records, values_of

RECORDS, GROWN, LINE, ONCE, CODECS = (f"{PREFIX}-{name}" for name in ("records", "grown", "line", "once", "codecs"))
PAIR, RESUME = f"{PREFIX}-pair", f"{PREFIX}-resume"
TOOK_MS = 10_000


def error_name(error: BaseException) -> str | None:
    if isinstance(error, RefusedError):
        return KAFKA_ERRORS.get(error.code)
    return KAFKA_ERRORS.get(error.errno) if isinstance(error, KafkaError) else None


player = Player(error_name)


@contextlib.asynccontextmanager
async def admin() -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def consumer_of(*topics: str, group: str | None = None, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
    quick = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 500, "fetch_max_wait_ms": 100}
    wanted = {**quick, "group_id": group, "enable_auto_commit": False, "auto_offset_reset": "earliest", **settings}
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=BOOTSTRAP, **wanted)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


def checked(errors: Iterable[tuple[Any, ...]]) -> None:
    """Raise the first error of (topic, code, …)."""
    for _, code, *more in errors:
        if code:
            raise RefusedError(code, str(more[0] if more else ""))


async def create(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    async with admin() as client:
        checked((await client.create_topics([NewTopic(name, partitions, 1, topic_configs=config or {})])).topic_errors)

        async def is_there() -> bool:
            return await partitions_of(client, name) == partitions

        await reached(is_there, f"{name} is there")


async def partitions_of(client: AIOKafkaAdminClient, name: str) -> int:
    (found,) = await client.describe_topics([name])
    return len(found["partitions"])


async def configs_of(client: AIOKafkaAdminClient, kind: ConfigResourceType, name: str, *wanted: str) -> dict[str, str]:
    (response,) = await client.describe_configs([ConfigResource(kind, name, configs=dict.fromkeys(wanted, "") or None)])
    ((code, message, _, _, entries),) = response.resources
    if code:
        raise RefusedError(code, message)
    return {entry[0]: entry[1] for entry in entries}


async def read(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []

    async def are_read() -> bool:
        for batch in (await consumer.getmany(timeout_ms=200)).values():
            found.extend(batch)
        return len(found) >= count

    await reached(are_read, f"{count} records")
    return found


async def produce(topic: str, sending: list[dict[str, Any]], **settings: Any) -> list[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, **{"acks": "all", **settings})
    try:
        await producer.start()
        sent = [await producer.send(topic, **record) for record in sending]
        return [await future for future in sent]
    finally:
        await producer.stop()


@player.step
async def cluster() -> object:
    async with admin() as client:
        found = await client.describe_cluster()
    return {"brokers": len(found["brokers"]), "controller": found["controller_id"] in {broker["node_id"] for broker in found["brokers"]}}


@player.step
async def create_topic() -> object:
    await create(RECORDS, 3, {"retention.ms": "86400000", "max.message.bytes": "200000"})
    async with admin() as client:
        return {"partitions": await partitions_of(client, RECORDS)}


@player.refused
async def create_existing_topic() -> None:
    await create(RECORDS)


@player.refused
async def create_invalid_topic() -> None:
    await create(f"{PREFIX} bad!")


@player.refused
async def create_invalid_config() -> None:
    await create(f"{PREFIX}-odd", config={"cleanup.policy": "sometimes"})


@player.step
async def create_partitions() -> object:
    await create(GROWN)
    async with admin() as client:
        await client.create_partitions({GROWN: NewPartitions(4)})

        async def has_grown() -> bool:
            return await partitions_of(client, GROWN) == 4

        await reached(has_grown, "4 partitions")
        return {"partitions": await partitions_of(client, GROWN)}


@player.refused
async def create_fewer_partitions() -> None:
    async with admin() as client:
        await client.create_partitions({GROWN: NewPartitions(2)})


@player.step
async def describe_configs() -> object:
    async with admin() as client:
        return await configs_of(client, ConfigResourceType.TOPIC, RECORDS, "retention.ms", "max.message.bytes")


@player.step
async def alter_configs() -> object:
    async with admin() as client:
        (response,) = await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, GROWN, configs={"retention.ms": "3600000"})])
        ((code, message, *_),) = response.resources
        if code:
            raise RefusedError(code, message)

        async def is_altered() -> bool:
            return await configs_of(client, ConfigResourceType.TOPIC, GROWN, "retention.ms") == {"retention.ms": "3600000"}

        await reached(is_altered, "the config altered")
        return await configs_of(client, ConfigResourceType.TOPIC, GROWN, "retention.ms")


@player.step
async def describe_broker_configs() -> object:
    async with admin() as client:
        broker = (await client.describe_cluster())["brokers"][0]["node_id"]
        return {"described": len(await configs_of(client, ConfigResourceType.BROKER, str(broker))) > 0}


@player.step
async def produce_() -> object:
    sending = [
        {"value": sent.value, "key": sent.key, "partition": sent.partition, "timestamp_ms": sent.timestamp_ms, "headers": sent.headers}
        for sent in records()
    ]
    ends = {"0": 0, "1": 0, "2": 0}
    for acknowledged in await produce(RECORDS, sending):
        ends[str(acknowledged.partition)] = max(ends[str(acknowledged.partition)], acknowledged.offset + 1)
    return ends


@player.step
async def codecs() -> object:
    await create(CODECS)
    wanted = {codec: values_of(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    for codec, values in wanted.items():
        await produce(CODECS, [{"value": value} for value in values], compression_type=None if codec == "none" else codec)
    async with consumer_of() as consumer:
        consumer.assign([TopicPartition(CODECS, 0)])
        found = [record.value for record in await read(consumer, 50)]
    return {codec: sum(value in found for value in values) for codec, values in wanted.items()}


@player.step
async def consume() -> object:
    async with consumer_of() as consumer:
        consumer.assign([TopicPartition(RECORDS, partition) for partition in range(3)])
        await consumer.seek_to_beginning()
        found = await read(consumer, 60)
    lines = [line(one.partition, one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in found]
    return {"records": len(found), "digest": digest(lines)}


@player.step
async def seek() -> object:
    async with consumer_of() as consumer:
        consumer.assign([TopicPartition(RECORDS, 1)])
        consumer.seek(TopicPartition(RECORDS, 1), 7)
        found = await consumer.getone()
    return {"offset": found.offset, "key": found.key.decode()}


@player.step
async def offsets() -> object:
    partition = TopicPartition(RECORDS, 0)
    async with consumer_of() as consumer:
        earliest, latest = await consumer.beginning_offsets([partition]), await consumer.end_offsets([partition])
    return {"earliest": earliest[partition], "latest": latest[partition]}


@player.step
async def offsets_by_time() -> object:
    partition = TopicPartition(RECORDS, 0)
    async with consumer_of() as consumer:
        found = (await consumer.offsets_for_times({partition: 1_600_000_006_001}))[partition]
        none = (await consumer.offsets_for_times({partition: 1_700_000_000_000}))[partition]
    return {"found": found.offset, "none": none and none.offset}


async def commit_all(member: AIOKafkaConsumer) -> None:
    """The end of each of its partitions, which it need not have reached itself: the other may have read it before."""
    await member.commit(dict.fromkeys(member.assignment(), 20))


@player.step
async def group_of_two() -> object:
    seen: set[tuple[int, int]] = set()

    async def sizes(*members: AIOKafkaConsumer) -> list[int]:
        for member in members:
            for batch in (await member.getmany(timeout_ms=50)).values():
                seen.update((record.partition, record.offset) for record in batch)
        return sorted(len(member.assignment()) for member in members)

    async with consumer_of(RECORDS, group=PAIR) as first:

        async def has_all() -> bool:
            return await sizes(first) == [3]

        await reached(has_all, "A has all partitions")
        async with consumer_of(RECORDS, group=PAIR) as second:

            async def is_shared() -> bool:
                return await sizes(first, second) == [1, 2] and len(seen) == 60

            await reached(is_shared, "the partitions are shared out and all records are read")
            await commit_all(second)
        await reached(has_all, "A has all partitions again")
        await commit_all(first)
    return {"alone": 3, "together": [1, 2], "again": 3, "records": len(seen)}


@player.step
async def commit_and_resume() -> object:
    await create(LINE)
    await produce(LINE, [{"value": f"line-{number}".encode()} for number in range(20)])
    partition = TopicPartition(LINE, 0)
    async with consumer_of(LINE, group=RESUME) as consumer:
        for _ in range(10):
            await consumer.getone()
        await consumer.commit({partition: 10})
        committed = await consumer.committed(partition)
    async with consumer_of(LINE, group=RESUME) as resuming:
        return {"committed": committed, "resumed": (await resuming.getone()).value.decode()}


@player.step
async def list_groups() -> object:
    async with admin() as client:
        return {"listed": RESUME in {name for name, _ in await client.list_consumer_groups()}}


async def described(client: AIOKafkaAdminClient, group: str) -> tuple[str, str]:
    """Its state and protocol type."""
    (response,) = await client.describe_consumer_groups([group])
    ((code, _, state, protocol_type, *_),) = response.groups
    if code:
        raise RefusedError(code)
    return state, protocol_type


@player.step
async def describe_group() -> object:
    async with admin() as client:
        async with consumer_of(LINE, group=RESUME) as member:

            async def is_member() -> bool:
                await member.getmany(timeout_ms=50)
                return bool(member.assignment())

            await reached(is_member, "the member has its partition")
            state, protocol_type = await described(client, RESUME)
        empty, _ = await described(client, RESUME)
    return {"member": state, "empty": empty, "protocol_type": protocol_type}


@player.step
async def list_group_offsets() -> object:
    async with admin() as client:
        found = await client.list_consumer_group_offsets(RESUME, partitions=[TopicPartition(LINE, 0)])
    return {"offset": found[TopicPartition(LINE, 0)].offset}


@player.step
async def delete_records() -> object:
    partition = TopicPartition(LINE, 0)
    async with admin() as client, consumer_of() as consumer:
        deleted = await client.delete_records({partition: RecordsToDelete(5)})
        earliest = await consumer.beginning_offsets([partition])
    return {"low_watermark": deleted[partition], "earliest": earliest[partition]}


@player.refused
async def fetch_out_of_range() -> None:
    async with consumer_of(auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(LINE, 0)])
        consumer.seek(TopicPartition(LINE, 0), 1_000)
        await consumer.getone()


@player.step
async def idempotent() -> object:
    await create(ONCE)
    await produce(ONCE, [{"value": str(number).encode()} for number in range(100)], enable_idempotence=True)
    async with consumer_of() as consumer:
        return {"latest": (await consumer.end_offsets([TopicPartition(ONCE, 0)]))[TopicPartition(ONCE, 0)]}


@player.refused
async def message_too_large() -> None:
    await produce(RECORDS, [{"value": os.urandom(300_000), "partition": 0}], max_request_size=1_000_000)


@player.refused
async def missing_topic() -> None:
    async with admin() as client:
        (found,) = await client.describe_topics([f"{PREFIX}-nowhere"])
    if found["error_code"]:
        raise RefusedError(found["error_code"])


@player.step
async def delete_topic() -> object:
    async with admin() as client:
        checked((await client.delete_topics([GROWN], TOOK_MS)).topic_error_codes)

        async def is_gone() -> bool:
            return GROWN not in await client.list_topics()

        await reached(is_gone, "the topic is gone")
        return {"listed": GROWN in await client.list_topics()}


@player.refused
async def delete_missing_topic() -> None:
    async with admin() as client:
        checked((await client.delete_topics([f"{PREFIX}-nowhere"], TOOK_MS)).topic_error_codes)


asyncio.run(player.play_all())
