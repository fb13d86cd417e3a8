"""The cluster, its topics and groups by `GET /api/v1/…`: the handlers that Kafka's clients use answer here, too."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from aiohttp import web
from kio.schema.errors import ErrorCode

from broker.groups.state import GroupError
from broker.handlers.table import HANDLERS
from broker.handling.context import Context, LargeAnswer
from broker.handling.topics import Located, TopicPartition, read_bounds
from broker.http.errors import HttpError, invalid, text_of, type_of
from broker.http.guard import Asked, HttpLimits
from broker.http.parts import HttpParts
from broker.http.produce import LISTENER
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.brokers import HTTP_LISTENER, Role
from storage.catalog.topic import INTERNAL
from storage.catalog.topics import Topic
from storage.errors import Unavailable
from storage.objects.port import ObjectStat

PAGE_ITEMS_DEFAULT: Final = 100
PAGE_ITEMS_MAX: Final = 1_000
LIMIT_DIGITS: Final = 4
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16

T = TypeVar("T")


class BrokerTold(msgspec.Struct, frozen=True):
    """A live broker. `listeners` are the addresses that it gives to clients."""

    broker_id: int
    rack: str | None
    version: str
    listeners: list[dict[str, str | int]]
    roles: list[str]


class ClusterTold(msgspec.Struct, frozen=True):
    cluster_id: str
    broker_id: int
    format_level: int
    brokers: list[int]


class BrokersTold(msgspec.Struct, frozen=True):
    brokers: list[BrokerTold]


class TopicTold(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partition_count: int
    internal: bool


class TopicsTold(msgspec.Struct, frozen=True):
    """By name. `next`: ask for what is `after` it, null at the end."""

    topics: list[TopicTold]
    next: str | None


class PartitionTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """Offsets and bytes, or the `error` for which they are not known."""

    partition: int
    log_start_offset: int | None = None
    high_watermark: int | None = None
    bytes: int | None = None
    error: str | None = None


class TopicInFull(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partition_count: int
    internal: bool
    configs: Mapping[str, str]
    partitions: list[PartitionTold]


class GroupTold(msgspec.Struct, frozen=True):
    group: str
    state: str
    protocol_type: str


class GroupsTold(msgspec.Struct, frozen=True):
    """The groups that this broker coordinates. `complete`: false while a part of them cannot be read."""

    groups: list[GroupTold]
    complete: bool
    next: str | None


class MemberTold(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str


class GroupInFull(msgspec.Struct, frozen=True):
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberTold]


class ObjectTold(msgspec.Struct, frozen=True):
    """`modified_ms` is by the object store's clock."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectsTold(msgspec.Struct, frozen=True):
    """By key, as the object store lists them: whether something refers to an object is not said."""

    objects: list[ObjectTold]
    next: str | None


class SettingsTold(msgspec.Struct, frozen=True):
    """As they would be written in a file; what is secret in a URL is not shown."""

    settings: Mapping[str, str]


class HttpAdministration:
    """Asks Kafka's handlers in the name of an HTTP client."""

    def __init__(self, parts: HttpParts, limits: HttpLimits, *, settings: Mapping[str, str]) -> None:
        self._parts = parts
        self._limits = limits
        self._settings = settings
        self._large_answers = asyncio.Semaphore()
        self._listing = asyncio.Semaphore()

    async def call(self, asked: Asked, api_key: int, version: int, body: object) -> Any:
        """Return the response of an API's handler."""
        place = LargeAnswer(self._large_answers)
        try:
            context = Context(self._parts.parts, LISTENER, asked.client_host, place)
            return await HANDLERS[api_key](context, Request(api_key, version, 0, None, cast("Any", body)))
        finally:
            place.give_back()

    async def cluster(self, asked: Asked) -> web.StreamResponse:
        parts = self._parts.parts
        live = [broker.broker_id for broker in await parts.brokers.live()]
        return await asked.answer(200, ClusterTold(parts.cluster_id, parts.broker_id, parts.brokers.level, live))

    async def brokers(self, asked: Asked) -> web.StreamResponse:
        told = [
            BrokerTold(
                broker.broker_id,
                broker.rack,
                broker.version,
                [{"name": one.name, "host": one.host, "port": one.port} for one in broker.listeners],
                [role.value for role in Role if broker.has_role(role)],
            )
            for broker in await self._parts.parts.brokers.live()
        ]
        return await asked.answer(200, BrokersTold(told))

    async def topics(self, asked: Asked) -> web.StreamResponse:
        topics = sorted(await self._parts.parts.topics.all(), key=lambda topic: topic.name)
        page, following = page_of(asked, topics, lambda topic: topic.name)
        return await asked.answer(200, TopicsTold([TopicTold(*_facts(topic)) for topic in page], following))

    async def topic(self, asked: Asked) -> web.StreamResponse:
        return await asked.answer(200, await self.topic_in_full(asked.http.match_info["topic"]))

    async def topic_in_full(self, name: str) -> TopicInFull:
        """Raise `HttpError` if there is none, and `StorageError`."""
        found, unread = await self._parts.parts.topics.look_up([name])
        if unread is not None and name not in found:
            raise unread
        topic = found.get(name)
        if topic is None:
            raise HttpError(404, "UnknownTopicOrPartition", f"there is no topic {name[:250]!r}")
        named = [TopicPartition(name, partition) for partition in range(topic.partition_count)]
        bounds = await read_bounds(self._parts.parts, named)
        partitions = await Turns().each(lambda one: _partition(one.partition, bounds[one]), named)
        return TopicInFull(*_facts(topic), dict(topic.configs), partitions)

    async def groups(self, asked: Asked) -> web.StreamResponse:
        from kio.schema.list_groups.v5 import ListGroupsRequest

        answer = await self.call(asked, LIST_GROUPS, 5, ListGroupsRequest(states_filter=(), types_filter=()))
        groups = sorted((GroupTold(one.group_id, one.group_state, one.protocol_type) for one in answer.groups), key=lambda one: one.group)
        page, following = page_of(asked, groups, lambda group: group.group)
        return await asked.answer(200, GroupsTold(page, answer.error_code is ErrorCode.none, following))

    async def group(self, asked: Asked) -> web.StreamResponse:
        from kio.schema.describe_groups.v6 import DescribeGroupsRequest

        name = asked.http.match_info["group"]
        answer = await self.call(asked, DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=(name,), include_authorized_operations=False))  # type: ignore[arg-type]
        (group,) = answer.groups
        if group.error_code is ErrorCode.not_coordinator:
            raise await elsewhere(self._parts, asked, name, GroupError.NOT_COORDINATOR)
        if group.error_code is not ErrorCode.none:
            raise refused(group.error_code, group.error_message)
        members = [MemberTold(one.member_id, one.group_instance_id, one.client_id, one.client_host) for one in group.members]
        return await asked.answer(200, GroupInFull(group.group_id, group.group_state, group.protocol_type, group.protocol_data, members))

    async def objects(self, asked: Asked) -> web.StreamResponse:
        """Objects of the store, a page at a time and one page at a time: a listing is billed, and may be slow."""
        limit, query, within_s = limit_of(asked), asked.http.query, self._limits.listed_within_s
        found: list[ObjectTold] = []
        try:
            async with asyncio.timeout(within_s), self._listing:
                listed = self._parts.objects.list(query.get("prefix", ""), start_after=query.get("after", ""))
                async with contextlib.aclosing(cast("AsyncGenerator[ObjectStat, None]", listed)) as stats:
                    async for stat in stats:
                        found.append(ObjectTold(*stat))
                        if len(found) > limit:
                            break
        except TimeoutError:
            raise Unavailable(f"the object store listed {len(found)} objects within {within_s:.0f} s") from None
        page = found[:limit]
        return await asked.answer(200, ObjectsTold(page, page[-1].key if len(found) > limit else None))

    async def settings(self, asked: Asked) -> web.StreamResponse:
        return await asked.answer(200, SettingsTold(self._settings))


def _partition(partition: int, found: Located | ErrorCode) -> PartitionTold:
    if isinstance(found, ErrorCode):
        return PartitionTold(partition, error=text_of(found))
    return PartitionTold(partition, found.bounds.log_start, found.bounds.high_watermark, found.bounds.bytes_total)


def refused(code: ErrorCode, message: str | None) -> HttpError:
    """A handler's refusal as an answer as a whole."""
    text = message or text_of(code)
    if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.group_id_not_found):
        return HttpError(404, type_of(code), text)
    if code.retriable:
        return HttpError(503, type_of(code), text, headers={"Retry-After": "1"})
    return HttpError(400 if code.name.startswith("invalid_") else 409, type_of(code), text)


def limit_of(asked: Asked) -> int:
    given = asked.http.query.get("limit", str(PAGE_ITEMS_DEFAULT))
    if not given.isdecimal() or len(given) > LIMIT_DIGITS or not 1 <= int(given) <= PAGE_ITEMS_MAX:
        raise invalid(f"limit: {given[:50]!r} is not a number from 1 to {PAGE_ITEMS_MAX}")
    return int(given)


def page_of(asked: Asked, sorted_items: Sequence[T], name_of: Any) -> tuple[list[T], str | None]:
    """The items that `limit` and `after` of the query ask for, and the name of the last if there are more."""
    after, limit = asked.http.query.get("after"), limit_of(asked)
    wanted = [one for one in sorted_items if after is None or name_of(one) > after]
    page = wanted[:limit]
    return page, name_of(page[-1]) if len(wanted) > len(page) else None


def _facts(topic: Topic) -> tuple[str, str, int, bool]:
    return topic.name, str(topic.topic_id), topic.partition_count, topic.name in INTERNAL


async def elsewhere(parts: HttpParts, asked: Asked, group: str, error: GroupError) -> HttpError:
    """The refusal of a group's coordinator as an answer: where another broker is it, a redirection to that one."""
    code = ErrorCode(error)
    if error is not GroupError.NOT_COORDINATOR:
        status = 503 if code.retriable else 400 if code.name.startswith("invalid_") else 409
        return HttpError(status, type_of(code), f"the group cannot be used: {code.name.replace('_', ' ')}", headers=_later(status))
    holder = (await parts.parts.groups.slots.holders([group]))[group]
    location = await location_at(parts, asked, holder)
    if location is None:
        text = f"broker {holder} coordinates the group and has no address for HTTP clients: set http.advertised there"
        if holder == parts.parts.broker_id or holder not in {one.broker_id for one in await parts.parts.brokers.live()}:
            text = "nobody coordinates the group now"
        return HttpError(503, type_of(code), text, headers=_later(503))
    return HttpError(307, "CoordinatorElsewhere", f"broker {holder} coordinates the group: ask {location}", headers={"Location": location})


async def location_at(parts: HttpParts, asked: Asked, broker_id: int | None) -> str | None:
    """The URL of the same at another broker. None if that does not live, is this one, or tells no address of its own."""
    endpoints = {one.broker_id: one.endpoint(HTTP_LISTENER) for one in await parts.parts.brokers.live()}
    address = None if broker_id in (None, parts.parts.broker_id) else endpoints.get(broker_id)
    if address is None or address == endpoints.get(parts.parts.broker_id):
        return None
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{address.port}{asked.http.rel_url}"


def _later(status: int) -> dict[str, str]:
    return {"Retry-After": "1"} if status == 503 else {}
