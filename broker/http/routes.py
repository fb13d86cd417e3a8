"""The table of the HTTP API: what is served, by whom, and the OpenAPI document that is made from it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from broker.http.admin import BrokersTold, ClusterTold, GroupInFull, GroupsTold, HttpAdministration, SettingsTold, TopicInFull, TopicsTold
from broker.http.alterations import Deleted, HttpAlterations, NewTopicDocument, ResetDocument, TopicPatch
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
from broker.http.line_stream import LineRecord
from broker.http.parts import HttpParts
from broker.http.produce import FailedPartition, NewProducer, ProduceAnswer, ProduceByHttp, ProduceDocument, ProducedPartition
from broker.http.streams import SSE, HttpStreams, RecordOfLine
from process.accepting import HTTP_CONNECTIONS_MAX
from process.settings.exposure import http_address_for_clients, log_api_of
from process.settings.keys import SETTINGS
from process.settings.model import Settings
from process.settings.urls import without_secrets
from runtime.blocking import Blocking
from runtime.version import forebay_version
from storage.catalog.brokers import Role

OPENAPI_PATH: Final = "/openapi.json"
_MS_PER_S: Final = 1_000
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_PAGED: Final = (("limit", "integer", "how many are told, 1 to 1000; 100"), ("after", "string", "go on behind this name"))


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


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`errors`: the statuses of its own beside those that every route has."""

    method: str
    path: str
    access: Access
    name: str
    summary: str
    answer: Any
    body: Any = None
    content_types: tuple[str, ...] = ()
    query: Sequence[tuple[str, str, str]] = ()
    errors: tuple[int, ...] = ()
    line: Any = None
    """A line of a stream, as a body and as an answer."""
    answer_type: str = JSON
    good: int = 200


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
        (JSON, NDJSON),
        errors=(408, 409, 413, 429),
        line=LineRecord,
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
        (JSON,),
        errors=(408, 409, 413, 429),
    ),
    HttpRoute(
        "GET",
        "/tail/{topic}",
        Access.READ,
        "tail",
        "records as Server-Sent Events, as they come",
        RecordOfLine,
        query=(
            ("partition", "integer", "one of them, may be named several times; all"),
            ("from", "string", "start, end, an offset, or @ and milliseconds; end"),
        ),
        errors=(404, 429),
        answer_type=SSE,
    ),
    HttpRoute(
        "POST",
        "/groups/{group}/consumers",
        Access.READ,
        "create_consumer",
        "join a group: its coordinator answers, other brokers send you there (307)",
        NewConsumer,
        NewConsumerDocument,
        (JSON,),
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
        (JSON,),
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
        (JSON,),
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
        (JSON,),
        errors=(307, 409),
    ),
    HttpRoute("GET", "/api/v1/cluster", Access.READ, "cluster", "the cluster, and the brokers that live", ClusterTold),
    HttpRoute("GET", "/api/v1/brokers", Access.READ, "brokers", "brokers and their addresses", BrokersTold),
    HttpRoute("GET", "/api/v1/topics", Access.READ, "topics", "topics by name", TopicsTold, query=_PAGED),
    HttpRoute("GET", "/api/v1/topics/{topic}", Access.READ, "topic", "a topic with its configs and partitions", TopicInFull, errors=(404,)),
    HttpRoute("GET", "/api/v1/groups", Access.READ, "groups", "the groups that this broker coordinates", GroupsTold, query=_PAGED),
    HttpRoute("GET", "/api/v1/groups/{group}", Access.READ, "group", "a group and its members", GroupInFull, errors=(307, 404, 409)),
    HttpRoute(
        "POST",
        "/api/v1/topics",
        Access.ALTER,
        "create_topic",
        "create a topic",
        TopicInFull,
        NewTopicDocument,
        (JSON,),
        errors=(409,),
        good=201,
    ),
    HttpRoute(
        "PATCH",
        "/api/v1/topics/{topic}",
        Access.ALTER,
        "alter_topic",
        "add partitions, set configs or, with null, take them back",
        TopicInFull,
        TopicPatch,
        (JSON,),
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
        (JSON,),
        errors=(307, 404, 409),
    ),
    HttpRoute(
        "DELETE", "/api/v1/groups/{group}", Access.ALTER, "delete_group", "delete a group and its offsets", Deleted, errors=(307, 404, 409)
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
    administration = HttpAdministration(parts, settings={key: without_secrets(one.show(settings)) for key, one in SETTINGS.items()})
    consume = ConsumeByHttp(reading, limits, streams)
    consumers = HttpConsumers(reading, limits, consume, administration.call, blocking=blocking)
    alterations = HttpAlterations(parts, administration, consumers, reading)
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
        "settings": administration.settings,
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
    return [*guarded, web.get(CLUSTER_METRICS_PATH, cluster.page)]


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
    types: list[Any] = [ErrorAnswer, ProducedPartition, FailedPartition, ConsumedPartition, UnreadPartition]
    for route in routes:
        types += [one for one in (route.body, route.answer, route.line) if one is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMAS)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation: dict[str, Any] = {
            "operationId": route.name,
            "summary": route.summary,
            "responses": _responses(route, schema_of[id(route.answer)], schema_of[id(ErrorAnswer)]),
        }
        parameters = [_parameter(name, "path", "string", "its name") for name in _PARAMETER.findall(route.path)]
        parameters += [_parameter(name, "query", kind, text) for name, kind, text in route.query]
        if parameters:
            operation["parameters"] = parameters
        if route.body is not None:
            content = {kind: {"schema": schema_of[id(route.line if kind == NDJSON else route.body)]} for kind in route.content_types}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    info = {"title": "Forebay", "version": forebay_version(), "description": "The log by HTTP: docs/http.md says the rest."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}


def _parameter(name: str, place: str, kind: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "description": text, "schema": {"type": kind}}


def _responses(route: HttpRoute, answer: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    good = {"description": "it was done", "content": {route.answer_type: {"schema": answer}}}
    bad = {"description": "it was not done, and why", "content": {JSON: {"schema": error}}}
    statuses = {400, 403, 421, 503} | set(route.errors) | ({415} if route.content_types else set())
    responses: dict[str, Any] = {str(route.good): good} | {str(status): bad for status in sorted(statuses)}
    if route.answer is HealthTold:
        responses["503"] = {"description": "it is not ready", "content": {JSON: {"schema": answer}}}
    if route.answer in (ProduceAnswer, ConsumeAnswer, PollAnswer, CommitAnswer):
        responses["409"] = {"description": "at least one partition failed: its result says why", "content": {JSON: {"schema": answer}}}
    return responses
