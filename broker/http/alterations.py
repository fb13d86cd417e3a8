"""Changes of topics, groups and this broker by HTTP, behind `http.allow_writes`. Kafka's handlers change topics and groups; the audit log
has all of them like others.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from broker.handling.administration import Requester
from broker.handling.configs import TOPIC
from broker.handling.kio_types import as_i8, as_i16, as_i32, as_topic_name
from broker.handling.topics import TopicPartition
from broker.http.admin import HttpAdministration, location_at, refused
from broker.http.consume import HttpReading, LogPlace
from broker.http.consumers import HttpConsumers, OffsetToCommit
from broker.http.errors import HttpError, invalid
from broker.http.guard import Asked
from broker.http.parts import HttpParts
from broker.http.produce import LISTENER, Count, TopicName
from broker.protocol.codec import as_field
from storage.catalog.topic_configs import Operation
from storage.catalog.topics import PARTITIONS_MAX

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
INCREMENTAL_ALTER_CONFIGS: Final = 44
WITHIN_MS: Final = 30_000
_ID_DIGITS: Final = 10

PartitionCount = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]


class NewTopicDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without a number of partitions there are as many as `kafka.default_partitions` says."""

    topic: TopicName
    partition_count: PartitionCount | None = None
    configs: dict[str, str] = {}
    validate_only: bool = False


class TopicPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`partition_count`: the number of partitions after the change. A config of null goes back to its default."""

    partition_count: PartitionCount | None = None
    configs: dict[str, str | None] = {}


class PlaceToCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: TopicName
    partition: Count
    to: LogPlace


class ResetDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partitions: Annotated[list[PlaceToCommit], msgspec.Meta(min_length=1)]


class Deleted(msgspec.Struct, frozen=True):
    deleted: str


class DrainDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to say: the time that clients have is `shutdown.drain`."""


class DrainTold(msgspec.Struct, frozen=True):
    """`drained`: the broker serves nobody any more, and can be stopped."""

    broker_id: int
    status: Literal["draining", "drained"]


class HttpAlterations:
    def __init__(
        self, parts: HttpParts, administration: HttpAdministration, consumers: HttpConsumers, reading: HttpReading, *, drain_s: float
    ) -> None:
        self._parts = parts
        self._drain_s = drain_s
        self._is_draining = False
        self._administration = administration
        self._consumers = consumers
        self._reading = reading

    async def create_topic(self, asked: Asked) -> web.StreamResponse:
        from kio.schema.create_topics.v7 import CreateTopicsRequest
        from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig

        async with asked.document(_new_topic) as (document, _):
            pass
        topic = CreatableTopic(
            name=as_topic_name(document.topic),
            num_partitions=as_i32(document.partition_count or -1),
            replication_factor=as_i16(-1),
            assignments=(),
            configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in document.configs.items()),
        )
        body = CreateTopicsRequest(topics=(topic,), timeout=as_field(WITHIN_MS), validate_only=document.validate_only)
        answer = await self._administration.call(asked, CREATE_TOPICS, 7, body)
        _check(answer.topics)
        if document.validate_only:
            return await asked.answer(200, {"topic": document.topic, "validate_only": True})
        return await asked.answer(201, await self._administration.topic_in_full(document.topic))

    async def alter_topic(self, asked: Asked) -> web.StreamResponse:
        """Partitions first, then configs: what was done before a refusal stays done."""
        from kio.schema.create_partitions.v3 import CreatePartitionsRequest
        from kio.schema.create_partitions.v3.request import CreatePartitionsTopic
        from kio.schema.incremental_alter_configs.v1 import IncrementalAlterConfigsRequest
        from kio.schema.incremental_alter_configs.v1.request import AlterableConfig, AlterConfigsResource

        name = asked.http.match_info["topic"]
        async with asked.document(_changes) as (document, _):
            pass
        if document.partition_count is None and not document.configs:
            raise invalid("nothing is to be changed: name partition_count, configs, or both")
        if document.partition_count is not None:
            grown = CreatePartitionsTopic(name=as_topic_name(name), count=as_i32(document.partition_count), assignments=None)
            body: object = CreatePartitionsRequest(topics=(grown,), timeout=as_field(WITHIN_MS), validate_only=False)
            _check((await self._administration.call(asked, CREATE_PARTITIONS, 3, body)).results)
        if document.configs:
            configs = tuple(
                AlterableConfig(name=key, config_operation=as_i8(_operation(value).value), value=value)
                for key, value in document.configs.items()
            )
            resource = AlterConfigsResource(resource_type=as_i8(TOPIC), resource_name=name, configs=configs)
            body = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
            _check((await self._administration.call(asked, INCREMENTAL_ALTER_CONFIGS, 1, body)).responses)
        return await asked.answer(200, await self._administration.topic_in_full(name))

    async def delete_topic(self, asked: Asked) -> web.StreamResponse:
        from kio.schema.delete_topics.v6 import DeleteTopicsRequest
        from kio.schema.delete_topics.v6.request import DeleteTopicState

        name = asked.http.match_info["topic"]
        body = DeleteTopicsRequest(topics=(DeleteTopicState(name=as_topic_name(name), topic_id=None),), timeout=as_field(WITHIN_MS))
        _check((await self._administration.call(asked, DELETE_TOPICS, 6, body)).responses)
        return await asked.answer(200, Deleted(name))

    async def reset_group(self, asked: Asked) -> web.StreamResponse:
        """Commit places in logs for a group in which nobody is."""
        async with asked.document(_reset) as (document, _):
            pass
        group = asked.http.match_info["group"]
        await self._consumers.check_here(asked, group)
        places = await self._reading.places({TopicPartition(one.topic, one.partition): one.to for one in document.partitions})
        for one, code in places.items():
            if isinstance(code, ErrorCode):
                raise refused(code, f"{one.topic}-{one.partition}: {code.name.replace('_', ' ')}: nothing is committed")
        offsets = [OffsetToCommit(one.topic, one.partition, offset) for one, offset in _offsets(places)]
        return await self._consumers.commit_as(asked, group, offsets)

    async def delete_group(self, asked: Asked) -> web.StreamResponse:
        from kio.schema.delete_groups.v2 import DeleteGroupsRequest

        group = asked.http.match_info["group"]
        await self._consumers.check_here(asked, group)
        answer = await self._administration.call(asked, DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=(GroupId(group),)))
        _check(answer.results)
        return await asked.answer(200, Deleted(group))

    async def drain(self, asked: Asked) -> web.StreamResponse:
        """Let this broker leave the cluster. Asked again, say how far it is; another broker is asked at its own address."""
        async with asked.document(_drain):
            pass
        named, own_id = asked.http.match_info["broker"], self._parts.parts.broker_id
        if not named.isdecimal() or len(named) > _ID_DIGITS:
            raise invalid(f"broker: {named[:50]!r} is not the id of a broker")
        broker_id = int(named)
        if broker_id != own_id:
            raise await self._other_broker(asked, broker_id)
        is_drained = self._parts.begin_drain(self._drain_s)
        if not self._is_draining:
            self._is_draining = True
            by = Requester(asked.client_host, None, LISTENER)
            self._parts.parts.administration.changed("broker_drain_begun", by, broker_id=own_id, drain_s=self._drain_s)
        return await asked.answer(200 if is_drained else 202, DrainTold(own_id, "drained" if is_drained else "draining"))

    async def _other_broker(self, asked: Asked, broker_id: int) -> HttpError:
        location = await location_at(self._parts, asked, broker_id)
        if location is not None:
            text = f"broker {broker_id} drains itself: ask {location}"
            return HttpError(307, "BrokerElsewhere", text, headers={"Location": location})
        if broker_id in {one.broker_id for one in await self._parts.parts.brokers.live()}:
            text = f"broker {broker_id} drains itself, and has no address for HTTP clients: set http.advertised there, or send it SIGTERM"
            return HttpError(409, "BrokerElsewhere", text)
        return HttpError(404, "UnknownBroker", f"there is no broker {broker_id} that lives: /api/v1/brokers names those that do")


_drain: Final = msgspec.json.Decoder(DrainDocument)
_new_topic: Final = msgspec.json.Decoder(NewTopicDocument)
_changes: Final = msgspec.json.Decoder(TopicPatch)
_reset: Final = msgspec.json.Decoder(ResetDocument)


def _operation(value: str | None) -> Operation:
    return Operation.DELETE if value is None else Operation.SET


def _offsets(places: Mapping[TopicPartition, int | ErrorCode]) -> list[tuple[TopicPartition, int]]:
    return [(one, int(offset)) for one, offset in places.items()]


def _check(results: Sequence[Any]) -> None:
    """Raise `HttpError` if the handler has refused."""
    (result,) = results
    if result.error_code is not ErrorCode.none:
        raise refused(result.error_code, getattr(result, "error_message", None))
