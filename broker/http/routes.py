"""The table of the HTTP API: what is served, by whom, and the OpenAPI document that is made from it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec
from aiohttp import web

from broker.http.admin import (
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    BrokersTold,
    ClusterTold,
    GroupInFull,
    GroupsTold,
    HttpAdministration,
    ObjectsTold,
    SettingsTold,
    TopicInFull,
    TopicsTold,
)
from broker.http.alterations import Deleted, DrainDocument, DrainTold, HttpAlterations, NewTopicDocument, ResetDocument, TopicPatch
from broker.http.cluster_metrics import CLUSTER_METRICS_PATH, ClusterMetrics
from broker.http.consume import ConsumeAnswer, ConsumeByHttp, ConsumeDocument, ConsumedPartition, HttpReading, UnreadPartition
from broker.http.consumers import (
    CommitAnswer,
    CommitDocument,
    GroupOffsetsDocument,
    HttpConsumers,
    LeftGroup,
    NewConsumer,
    PollAnswer,
    PollDocument,
)
from broker.http.group_member import NewConsumerDocument
from broker.http.guard import JSON, NDJSON, SCHEMAS, Access, Asked, Guard, HttpLimits, RouteHandler, json_response
from broker.http.line_stream import LineRecord, StreamHead
from broker.http.parts import HttpParts
from broker.http.produce import FailedPartition, NewProducer, ProduceAnswer, ProduceByHttp, ProduceDocument, ProducedPartition
from broker.http.streams import SSE, HttpStreams, RecordOfLine
from process.accepting import HTTP_CONNECTIONS_MAX
from process.settings.model import Settings, http_address_for_clients, log_api_of
from process.settings.notation import without_secrets
from process.settings.reference import SETTINGS
from runtime.blocking import Blocking
from runtime.version import forebay_version
from storage.catalog.brokers import Role

OPENAPI_PATH: Final = "/openapi.json"
_MS_PER_S: Final = 1_000
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_TEXT: Final = {"type": "string"}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """What is answered to a request that fails as a whole. `error_type` is for programs."""

    error_type: str
    error: str


class HealthTold(msgspec.Struct, frozen=True):
    status: str
    ready: bool
    broker_id: int
    started_at_ms: int
    roles: list[str]


class ApiTold(msgspec.Struct, frozen=True):
    """Where to go from here."""

    name: str
    version: str
    broker_id: int
    cluster_id: str
    log_api: str
    paths: list[str]


class ValidatedTopic(msgspec.Struct, frozen=True):
    """Nothing was created, and nothing speaks against it."""

    topic: str
    validate_only: Literal[True]


class AnsweredLines(msgspec.Struct, frozen=True):
    """The first and the last line of a batch, counted from 1; beside these the fields of its result, or of what ends the stream."""

    lines: tuple[int, int]


class Parameter(NamedTuple):
    name: str
    schema: Mapping[str, Any]
    description: str
    place: str = "query"


_PAGED: Final = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX}, f"how many are told; {PAGE_ITEMS_DEFAULT}"),
    Parameter("after", _TEXT, "go on behind this name"),
)


@dataclass(frozen=True, slots=True)
class Stream:
    """A body or an answer that goes on: a line of NDJSON, or an event's data, is one of `items`."""

    media_type: str
    items: tuple[Any, ...]
    beside: Any = None
    """Its fields are in every item, too."""


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`errors`: the statuses of its own beside those that every route has. `also_good`: a further status, its answer, and what it says."""

    method: str
    path: str
    access: Access
    name: str
    summary: str
    answer: Any
    body: Any = None
    parameters: Sequence[Parameter] = ()
    errors: tuple[int, ...] = ()
    stream_in: Stream | None = None
    stream_out: Stream | None = None
    good: int = 200
    also_good: tuple[int, Any, str] | None = None

    @property
    def content_types(self) -> tuple[str, ...]:
        """Return the types that a body may have."""
        return () if self.body is None else (JSON,) if self.stream_in is None else (JSON, self.stream_in.media_type)


_READ: Final = (RecordOfLine, UnreadPartition, ErrorAnswer)
"""A record, why a partition ended, or why all of them did."""

ROUTES: Final = (
    HttpRoute("GET", "/", Access.OPEN, "index", "what this is, and its paths", ApiTold),
    HttpRoute("GET", "/health", Access.OPEN, "health", "the broker in one line; probes ask /healthz, /readyz", HealthTold),
    HttpRoute("GET", OPENAPI_PATH, Access.OPEN, "openapi", "this document", dict[str, Any]),
    HttpRoute(
        "POST",
        "/produce",
        Access.WRITE,
        "produce",
        "append records: one batch a partition, all of it or nothing",
        ProduceAnswer,
        ProduceDocument,
        errors=(408, 409, 413, 429),
        stream_in=Stream(NDJSON, (LineRecord, StreamHead)),
        stream_out=Stream(NDJSON, (ProducedPartition, FailedPartition, ErrorAnswer), beside=AnsweredLines),
    ),
    HttpRoute("POST", "/producers", Access.WRITE, "new_producer", "an id for a producer that counts its records", NewProducer),
    HttpRoute(
        "POST",
        "/consume",
        Access.READ,
        "consume",
        "read records from an offset, the start, the end or a time",
        ConsumeAnswer,
        ConsumeDocument,
        errors=(408, 409, 413, 429),
        stream_out=Stream(NDJSON, _READ),
    ),
    HttpRoute(
        "GET",
        "/tail/{topic}",
        Access.READ,
        "tail",
        "records as Server-Sent Events, as they come",
        None,
        parameters=(
            Parameter("partition", {"type": "array", "items": {"type": "integer"}}, "these partitions, each named for itself; all"),
            Parameter("from", _TEXT, "start, end, an offset, or @ and milliseconds; end"),
            Parameter("Last-Event-ID", _TEXT, "the id of the last event that the client has: go on behind it", "header"),
        ),
        errors=(404, 429),
        stream_out=Stream(SSE, _READ),
    ),
    HttpRoute(
        "POST",
        "/groups/{group}/consumers",
        Access.READ,
        "create_consumer",
        "join a group: its coordinator answers, other brokers send you there (307)",
        NewConsumer,
        NewConsumerDocument,
        errors=(307, 409, 429),
        good=201,
    ),
    HttpRoute(
        "POST",
        "/groups/{group}/consumers/{consumer}/poll",
        Access.READ,
        "poll",
        "read on in the partitions that the group has given this consumer",
        PollAnswer,
        PollDocument,
        errors=(307, 404, 409),
    ),
    HttpRoute(
        "POST",
        "/groups/{group}/consumers/{consumer}/commit",
        Access.READ,
        "commit",
        "commit what the polls have given, or offsets of your own",
        CommitAnswer,
        CommitDocument,
        errors=(307, 404, 409),
    ),
    HttpRoute(
        "DELETE", "/groups/{group}/consumers/{consumer}", Access.READ, "delete_consumer", "leave the group", LeftGroup, errors=(307, 404)
    ),
    HttpRoute(
        "POST",
        "/groups/{group}/offsets",
        Access.WRITE,
        "commit_offsets",
        "commit offsets for a group in which nobody is",
        CommitAnswer,
        GroupOffsetsDocument,
        errors=(307, 409),
    ),
    HttpRoute("GET", "/api/v1/cluster", Access.READ, "cluster", "the cluster, and the brokers that live", ClusterTold),
    HttpRoute("GET", "/api/v1/brokers", Access.READ, "brokers", "brokers and their addresses", BrokersTold),
    HttpRoute(
        "POST",
        "/api/v1/brokers/{broker}/drain",
        Access.OPERATE,
        "drain",
        "let a broker leave the cluster, and its clients go to others; ask again to hear whether it is done",
        DrainTold,
        DrainDocument,
        errors=(307, 404, 409),
        also_good=(202, DrainTold, "it was begun"),
    ),
    HttpRoute("GET", "/api/v1/topics", Access.READ, "topics", "topics by name", TopicsTold, parameters=_PAGED),
    HttpRoute("GET", "/api/v1/topics/{topic}", Access.READ, "topic", "a topic with its configs and partitions", TopicInFull, errors=(404,)),
    HttpRoute("GET", "/api/v1/groups", Access.READ, "groups", "the groups that this broker coordinates", GroupsTold, parameters=_PAGED),
    HttpRoute("GET", "/api/v1/groups/{group}", Access.READ, "group", "a group and its members", GroupInFull, errors=(307, 404, 409)),
    HttpRoute(
        "POST",
        "/api/v1/topics",
        Access.ALTER,
        "create_topic",
        "create a topic",
        TopicInFull,
        NewTopicDocument,
        errors=(409,),
        good=201,
        also_good=(200, ValidatedTopic, "it can be done"),
    ),
    HttpRoute(
        "PATCH",
        "/api/v1/topics/{topic}",
        Access.ALTER,
        "alter_topic",
        "add partitions, set configs or, with null, take them back",
        TopicInFull,
        TopicPatch,
        errors=(404, 409),
    ),
    HttpRoute("DELETE", "/api/v1/topics/{topic}", Access.ALTER, "delete_topic", "delete a topic with its records", Deleted, errors=(404,)),
    HttpRoute(
        "POST",
        "/api/v1/groups/{group}/offsets",
        Access.ALTER,
        "reset_group",
        "let a group in which nobody is begin at these places",
        CommitAnswer,
        ResetDocument,
        errors=(307, 404, 409),
    ),
    HttpRoute(
        "DELETE", "/api/v1/groups/{group}", Access.ALTER, "delete_group", "delete a group and its offsets", Deleted, errors=(307, 404, 409)
    ),
    HttpRoute(
        "GET",
        "/api/v1/objects",
        Access.READ,
        "objects",
        "objects of the object store by key",
        ObjectsTold,
        parameters=(*_PAGED, Parameter("prefix", _TEXT, "those alone whose key begins so: wal/, segments/; all")),
    ),
    HttpRoute("GET", "/api/v1/settings", Access.READ, "settings", "what the broker was started with", SettingsTold),
)


def routes_of(
    parts: HttpParts, settings: Settings, *, blocking: Blocking, is_ready: Callable[[], bool], limits: HttpLimits | None = None
) -> list[web.RouteDef]:
    """For the server of a broker. `blocking` compresses and decompresses, and stays the caller's; `limits` are those of the settings."""
    limits = limits or limits_of(settings)
    guard = Guard(parts, limits)
    reading = HttpReading(parts, blocking=blocking)
    expires_after_ms = int(settings.kafka.producer_id_expiration.total_seconds() * _MS_PER_S)
    streams = HttpStreams(parts, limits, reading)
    produce = ProduceByHttp(parts, limits, streams, blocking=blocking, expires_after_ms=expires_after_ms)
    administration = HttpAdministration(parts, limits, settings={key: without_secrets(one.show(settings)) for key, one in SETTINGS.items()})
    consume = ConsumeByHttp(reading, limits, streams)
    consumers = HttpConsumers(reading, limits, consume, administration.call, blocking=blocking)
    alterations = HttpAlterations(parts, administration, consumers, reading, drain_s=settings.shutdown.drain.total_seconds())
    about = _About(parts, limits, is_ready)
    handlers: dict[str, RouteHandler] = {
        "index": about.index,
        "health": about.health,
        "openapi": about.openapi,
        "produce": produce.produce,
        "new_producer": produce.new_producer,
        "consume": consume.consume,
        "create_consumer": consumers.create,
        "poll": consumers.poll,
        "commit": consumers.commit,
        "delete_consumer": consumers.end,
        "commit_offsets": consumers.commit_offsets,
        "tail": streams.tail,
        "cluster": administration.cluster,
        "brokers": administration.brokers,
        "topics": administration.topics,
        "topic": administration.topic,
        "groups": administration.groups,
        "group": administration.group,
        "objects": administration.objects,
        "settings": administration.settings,
        "drain": alterations.drain,
        "create_topic": alterations.create_topic,
        "alter_topic": alterations.alter_topic,
        "delete_topic": alterations.delete_topic,
        "reset_group": alterations.reset_group,
        "delete_group": alterations.delete_group,
    }
    cluster = ClusterMetrics(parts, by_partition=settings.metrics.granularity == "partition", blocking=blocking)
    guarded = [
        web.route(route.method, route.path, guard.wrap(route.path, route.access, route.content_types, handlers[route.name]))
        for route in ROUTES
    ]
    # Beside the guard, as /metrics: a Prometheus may know this server by any name.
    return [*guarded, web.get(CLUSTER_METRICS_PATH, cluster.page), *_internal_routes(parts)]


def _internal_routes(parts: HttpParts) -> list[web.RouteDef]:
    """For other brokers; in no document of the API. None without `storage.zone_cache`."""
    if parts.zone is None:
        return []
    from broker.http.zone_blocks import ServesZone

    return [ServesZone(parts.zone, parts.blocks, clock=parts.clock, telemetry=parts.telemetry).route()]


def limits_of(settings: Settings) -> HttpLimits:
    http = settings.http
    return HttpLimits(
        listen=http.listen,
        log_api=log_api_of(http),
        allow_writes=http.allow_writes,
        body_bytes_max=http.max_body_bytes,
        hosts=(*http.hosts, http_address_for_clients(http).host),
        idle_timeout_s=settings.kafka.idle_timeout.total_seconds(),
        streams_max=http.max_connections - HTTP_CONNECTIONS_MAX,
    )


class _About:
    """What the API tells of itself."""

    def __init__(self, parts: HttpParts, limits: HttpLimits, is_ready: Callable[[], bool]) -> None:
        self._parts = parts
        self._limits = limits
        self._is_ready = is_ready
        self._started_at_ms = parts.clock.now_ms()

    async def index(self, _: Asked) -> web.Response:
        broker = self._parts.parts
        paths = [f"{route.method} {route.path}" for route in ROUTES] + [f"GET {path}" for path in PROCESS_PATHS]
        told = ApiTold("forebay", forebay_version(), broker.broker_id, broker.cluster_id, self._limits.log_api, paths)
        return json_response(200, told)

    async def health(self, _: Asked) -> web.Response:
        is_ready = self._is_ready()
        parts = self._parts.parts
        roles = [role.value for role in Role if role in parts.roles.own]
        told = HealthTold("ready" if is_ready else "not ready", is_ready, parts.broker_id, self._started_at_ms, roles)
        return json_response(200 if is_ready else 503, told)

    async def openapi(self, _: Asked) -> web.Response:
        return json_response(200, openapi(ROUTES))


PROCESS_PATHS: Final = ("/healthz", "/readyz", "/metrics", "/metrics.json", CLUSTER_METRICS_PATH, "/api/v1/broker", "/api/v1/cost")
"""Served beside these, all but CLUSTER_METRICS_PATH by every process (process/http/server.py)."""


def openapi(routes: Iterable[HttpRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a table of routes."""
    routes = tuple(routes)
    kinds = {kind: None for route in routes for kind in _kinds(route)}
    schemas, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": _responses(route, schema_of)}
        parameters = [Parameter(name, _TEXT, "its name", "path") for name in _PARAMETER.findall(route.path)]
        parameters += route.parameters
        if parameters:
            operation["parameters"] = [
                {"name": one.name, "in": one.place, "required": one.place == "path", "description": one.description, "schema": one.schema}
                for one in parameters
            ]
        if route.body is not None:
            content = {JSON: {"schema": schema_of[route.body]}}
            if route.stream_in is not None:
                content[route.stream_in.media_type] = {"schema": _stream(route.stream_in, schema_of) | {"format": "binary"}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    info = {"title": "Forebay", "version": forebay_version(), "description": "The log by HTTP: docs/reference/http.md says the rest."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": _for_generators(components)}}


def _kinds(route: HttpRoute) -> list[Any]:
    """The types whose schemas an operation names, and those that its answers' lists name."""
    kinds = [ErrorAnswer, ProducedPartition, FailedPartition, ConsumedPartition, UnreadPartition, route.answer, route.body]
    for stream in (route.stream_in, route.stream_out):
        kinds += [] if stream is None else [*stream.items, stream.beside]
    kinds += [] if route.also_good is None else [route.also_good[1]]
    return [kind for kind in kinds if kind is not None]


def _stream(stream: Stream, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    """A text that is cut into items, as OpenAPI 3.2 models it: NDJSON into lines, events into fields whose data are JSON."""
    items: dict[str, Any] = {"oneOf": [schema_of[kind] for kind in stream.items]}
    if stream.beside is not None:
        items = {"allOf": [schema_of[stream.beside], items]}
    if stream.media_type == SSE:
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": items}
        event = {"event": {"enum": ["record", "error"]}, "id": _TEXT, "retry": {"type": "integer"}, "data": data}
        items = {"type": "object", "properties": event}
    return {"type": "string", "contentMediaType": stream.media_type, "contentSchema": {"type": "array", "items": items}}


def _for_generators(schema: Any) -> Any:
    """The same in words that generators of clients know: a literal is a const, and `maxItems` alone bounds a tuple."""
    if isinstance(schema, list):
        return [_for_generators(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    told = {name: _for_generators(one) for name, one in schema.items() if not (name == "items" and one is False)}
    if set(told) <= {"enum", "default"} and len(told.get("enum", ())) == 1:
        (only,) = told["enum"]
        return {"const": only}
    return told


def _responses(route: HttpRoute, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    error = {"schema": schema_of[ErrorAnswer]}
    content = {} if route.answer is None else {JSON: {"schema": schema_of[route.answer]}}
    if route.stream_out is not None:
        content[route.stream_out.media_type] = {"schema": _stream(route.stream_out, schema_of)}
    good = {"description": "it was done", "content": content}
    bad = {"description": "it was not done, and why", "content": {JSON: error}}
    statuses = {400, 403, 421, 503} | set(route.errors) | ({415} if route.body is not None else set())
    responses: dict[str, Any] = {str(route.good): good} | {str(status): bad for status in sorted(statuses)}
    if route.also_good is not None:
        status, answer, text = route.also_good
        responses[str(status)] = {"description": text, "content": {JSON: {"schema": schema_of[answer]}}}
    if route.answer is HealthTold:
        responses["503"] = {"description": "it is not ready", "content": {JSON: {"schema": schema_of[HealthTold]}}}
    if route.answer in (ProduceAnswer, ConsumeAnswer, PollAnswer, CommitAnswer):
        either = {"oneOf": [schema_of[route.answer], schema_of[ErrorAnswer]]}
        text = "at least one partition failed: its result says why; or all of it did"
        responses["409"] = {"description": text, "content": {JSON: {"schema": either}}}
    return responses
