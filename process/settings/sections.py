"""The settings as values: one frozen section per part of the broker.

A field carries its notation and its description; its own default is the one of embedded mode.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal

from process.settings.notation import (
    ADDRESS,
    ADDRESS_OR_NONE,
    ADVERTISED_LISTENERS,
    ASSIGNED_OR_COUNT,
    DOLLARS_OR_NONE,
    FLAG,
    FOLDER_OR_NONE,
    HTTP_URL_OR_NONE,
    LABELS,
    LISTENERS,
    METADATA_URL,
    NAMES,
    PATTERN_OR_NONE,
    RATIO,
    STORAGE_URL,
    TEXT_OR_NONE,
    HttpAddress,
    Listener,
    count,
    duration,
    one_of,
    size,
    size_or_none,
    some_of,
)
from storage.limits import MIB

KAFKA_PORT: Final = 9092
HTTP_PORT: Final = 8070
_KAFKA_LISTENER: Final = Listener("PLAINTEXT", "127.0.0.1", KAFKA_PORT)
_HTTP_ADDRESS: Final = HttpAddress("127.0.0.1", HTTP_PORT)
_ROLES: Final = ("produce", "consume", "groups", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    id: Annotated[int | None, ASSIGNED_OR_COUNT, "the broker's id; without one, a free one is assigned"] = None
    rack: Annotated[str | None, TEXT_OR_NONE, "the zone this broker runs in; clients of that zone are sent here first"] = None
    roles: Annotated[
        tuple[str, ...],
        some_of(*_ROLES),
        "what clients are sent here for: to produce, to consume, for groups, for administration; what none of the live brokers has, each "
        "of them serves. Fewer than all needs format level 4",
    ] = _ROLES


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    listeners: Annotated[tuple[Listener, ...], LISTENERS, "where Kafka clients are served: NAME://host:port, separated by commas"] = (
        _KAFKA_LISTENER,
    )
    advertised_listeners: Annotated[
        tuple[Listener, ...], ADVERTISED_LISTENERS, "the addresses that clients connect to; port 0: the port that was bound"
    ] = ()
    leader: Annotated[
        str,
        one_of("self", "client", "partition"),
        "which broker is named leader of a partition: the one that was asked; one per client (by client.id and host); one per partition. "
        "The last two choose among the brokers of the client's zone, if its client.id names one: app,zone=eu-1a",
    ] = "self"
    auto_create_topics: Annotated[bool, FLAG, "whether naming an unknown topic creates it"] = True
    default_partitions: Annotated[int, count(minimum=1, maximum=10_000), "partitions of a topic that is created without a number"] = 1
    producer_id_expiration: Annotated[
        timedelta,
        duration(minimum="10m", maximum="365d"),
        "an idempotent producer that appends nothing to a partition for this long is forgotten there (producer.id.expiration.ms); "
        "the same in all brokers and compactors of a cluster",
    ] = timedelta(days=1)
    validate_records: Annotated[
        Literal["crc", "full"],
        one_of("crc", "full"),
        "what is looked at before a batch is taken: its header and checksum; or every record too, as Apache Kafka does, which costs CPU "
        "for each (docs/reference/benchmarks.md)",
    ] = "crc"
    max_request_bytes: Annotated[
        int,
        size(minimum="1MiB", maximum="100MiB"),
        "a larger request closes its connection before it is read; at most three quarters of storage.max_buffer_bytes",
    ] = 100 * MIB
    max_connections: Annotated[
        int,
        count(minimum=1, maximum=1_000_000),
        "open client connections; a silent one gives its place to the next, and without one that is closed at once; fewer where the limit "
        "of open files is too low",
    ] = 2000
    idle_timeout: Annotated[timedelta, duration(minimum="1s", maximum="1d"), "a connection without requests is closed after this"] = (
        timedelta(minutes=10)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    url: Annotated[
        str,
        STORAGE_URL,
        "where record bytes live: s3://bucket/prefix?endpoint=…&region=…&path_style=true&ca_file=…, file://./relative, file:///absolute or memory://",
    ] = "file://./forebay-data/objects"
    s3_client: Annotated[
        Literal["obstore", "aioboto3"],
        one_of("obstore", "aioboto3"),
        "what speaks to S3: obstore moves the record bytes and aioboto3 does the rest, or aioboto3 does everything",
    ] = "obstore"
    flush_interval: Annotated[
        timedelta,
        duration(minimum="1ms", maximum="60s"),
        "the shortest time from the start of one flush to the next, unless one is full or its producers wait",
    ] = timedelta(milliseconds=5)
    flush_bytes: Annotated[int, size(minimum="64KiB", maximum="128MiB"), "a WAL object that holds this much is flushed at once"] = 8 * MIB
    early_bytes_per_second: Annotated[
        int | None,
        size_or_none(minimum="0B", maximum="1GiB"),
        "how much a broker commits in a second before its object is stored, each commit counted as 2KiB more: no producer waits for S3, "
        "and one object of 8MiB, or a minute, holds it all; without it: 4MiB on Oxia, 32MiB on SQLite; 0B: all waits for its object",
    ] = None
    max_buffer_bytes: Annotated[
        int, size(minimum="1MiB", maximum="64GiB"), "memory for requests in flight; from three quarters of it on producers are slowed down"
    ] = 256 * MIB
    cache_bytes: Annotated[
        int,
        size(minimum="4MiB", maximum="1024GiB"),
        "memory for the last commits, for blocks of objects that were read, and for replies on their way",
    ] = 256 * MIB
    cache_dir: Annotated[
        str | None,
        FOLDER_OR_NONE,
        "a folder in which all brokers, workers and compactors of this machine keep blocks of objects: what one of them has read from S3, "
        "or written, the others find there; without one: none",
    ] = None
    cache_dir_bytes: Annotated[
        int, size(minimum="64MiB", maximum="256GiB"), "what the files in cache_dir may take together; the same in all processes on it"
    ] = 8 * 1024 * MIB
    zone_cache: Annotated[
        bool,
        FLAG,
        "whether brokers of the same broker.rack read each block of an object from S3 once for all of them: one asks another by its HTTP "
        "port, 50 ms, then S3",
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    url: Annotated[
        str,
        METADATA_URL,
        "where order lives: oxia://host:6648/namespace?tls=true&ca_file=…&token_file=…, sqlite:///./relative, sqlite:////absolute or memory://",
    ] = "sqlite:///./forebay-data/meta.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsSettings:
    """Consumer groups; Kafka's name for each is in parentheses."""

    session_timeout_min: Annotated[
        timedelta,
        duration(minimum="1ms", maximum="1h"),
        "the shortest session timeout a member may ask for (group.min.session.timeout.ms)",
    ] = timedelta(seconds=6)
    session_timeout_max: Annotated[
        timedelta,
        duration(minimum="1ms", maximum="1d"),
        "the longest session timeout a member may ask for (group.max.session.timeout.ms)",
    ] = timedelta(minutes=30)
    initial_rebalance_delay: Annotated[
        timedelta,
        duration(minimum="0ms", maximum="5m"),
        "how long the first members of an empty group wait for further ones (group.initial.rebalance.delay.ms)",
    ] = timedelta(0)
    max_size: Annotated[int, count(minimum=1, maximum=10_000), "members of a group; a further one is refused (group.max.size)"] = 5_000
    member_max_size: Annotated[
        int,
        size(minimum="64KiB", maximum="64MiB"),
        "what one member may say about itself when it joins, and what it may be assigned; more is refused with MESSAGE_TOO_LARGE",
    ] = 2 * MIB
    memory_bytes: Annotated[
        int,
        size(minimum="16MiB", maximum="64GiB"),
        "memory for groups: members, assignments, committed offsets; a quarter of it for the members of one group. more is refused",
    ] = 256 * MIB
    offset_metadata_max_size: Annotated[
        int,
        size(minimum="0B", maximum="8KiB"),
        "characters that a consumer may write beside a committed offset (offset.metadata.max.bytes)",
    ] = 4_096
    offsets_retention: Annotated[
        timedelta,
        duration(minimum="1m", maximum="36500d"),
        "committed offsets are forgotten this long after their group became empty, or after their commit if it never had any, "
        "in whole minutes (offsets.retention.minutes)",
    ] = timedelta(days=7)
    offsets_retention_check_interval: Annotated[
        timedelta,
        duration(minimum="1s", maximum="1d"),
        "how often the broker looks for committed offsets that have expired (offsets.retention.check.interval.ms)",
    ] = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    listen: Annotated[HttpAddress, ADDRESS, "where health, metrics and the HTTP API are served"] = _HTTP_ADDRESS
    insecure: Annotated[bool, FLAG, "allow http.listen beyond this machine, where anybody can read it without a login"] = False
    log_api: Annotated[
        Literal["auto", "read_write", "read", "off"],
        one_of("auto", "read_write", "read", "off"),
        "whether records may be written and read by HTTP; auto: both if http.listen is an address of this machine alone, else neither",
    ] = "auto"
    allow_writes: Annotated[
        bool, FLAG, "whether topics and groups may be changed, and the broker drained, by HTTP; records are a matter of http.log_api"
    ] = False
    hosts: Annotated[
        tuple[str, ...],
        NAMES,
        "names of this server beside localhost and addresses, separated by commas: what was sent to another name is refused",
    ] = ()
    advertised: Annotated[
        HttpAddress | None,
        ADDRESS_OR_NONE,
        "where other brokers send HTTP clients of a group that this one coordinates; without one: http.listen, by this machine's name "
        "where that is every address",
    ] = None
    max_body_bytes: Annotated[int, size(minimum="1KiB", maximum="100MiB"), "a larger body is refused before it is read"] = 16 * MIB
    max_connections: Annotated[
        int, count(minimum=33, maximum=100_000), "open connections of HTTP; above it the oldest idle one gives its place to the next"
    ] = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    labels: Annotated[
        tuple[tuple[str, str], ...], LABELS, "labels of your own, which forebay_labels_info carries: to tell scenarios or teams apart"
    ] = ()
    topics: Annotated[
        str | None,
        PATTERN_OR_NONE,
        'a regular expression: topics whose whole name matches have series of their own, at most 1,000; others count as "(other)", '
        "in the lag of groups, too; "
        "without one all match",
    ] = None
    lag_interval: Annotated[
        timedelta,
        duration(minimum="1s", maximum="1h"),
        "how often the lag of groups is looked at while somebody scrapes; each look reads the ends of what they have committed",
    ] = timedelta(seconds=15)
    granularity: Annotated[
        Literal["partition", "topic"],
        one_of("partition", "topic"),
        "/metrics/cluster: by partition, or sums by topic alone",
    ] = "partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    """Upkeep: entries become segments, old records and unused objects go."""

    run: Annotated[bool, FLAG, "whether forebay serve looks after its cluster, too: by a compactor in a process of its own"] = True
    listen: Annotated[
        HttpAddress | None,
        ADDRESS_OR_NONE,
        "where health and metrics of the compactor are served; without one: 100 ports above http.listen",
    ] = None
    interval: Annotated[
        timedelta,
        duration(minimum="100ms", maximum="1h"),
        "how long the compactor waits from the end of one look at all partitions to the next",
    ] = timedelta(seconds=30)
    segment_bytes: Annotated[
        int, size(minimum="1KiB", maximum="256MiB"), "entries of a partition become a segment when they hold this much"
    ] = 64 * MIB
    segment_entries: Annotated[
        int,
        count(minimum=1, maximum=20_000),
        "or when there are this many of 8KiB on average, or 16 times as many smaller ones",
    ] = 512
    segment_age: Annotated[timedelta, duration(minimum="0ms", maximum="365d"), "or when the first of them is this old"] = timedelta(hours=1)
    delete_interval: Annotated[
        timedelta, duration(minimum="100ms", maximum="1d"), "how often objects that no partition refers to are looked for, and deleted"
    ] = timedelta(minutes=5)
    delete_grace: Annotated[
        timedelta,
        duration(minimum="0ms", maximum="365d"),
        "younger objects and uploads are left alone: most of them are about to be committed. "
        "It saves work; what may be deleted does not depend on it",
    ] = timedelta(minutes=15)
    spool_bytes: Annotated[
        int,
        size(minimum="1MiB", maximum="1024GiB"),
        "what is fetched at a time, so that one GET serves all partitions of an object: room in spool_dir, of which 16 MiB are memory",
    ] = 1024 * MIB
    spool_dir: Annotated[str | None, TEXT_OR_NONE, "a folder for what is fetched; without one: the system's for temporary files"] = None
    memory_bytes: Annotated[
        int, size(minimum="16MiB", maximum="64GiB"), "segments that are being made at a time; one larger than this is made alone"
    ] = 96 * MIB
    io_bytes_per_s: Annotated[
        int,
        size(minimum="1MiB", maximum="64GiB"),
        "how fast objects are read and written, so that brokers do not notice; twice as fast after each 5 minutes that a look takes",
    ] = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """Prices for what is shown of cost (docs/reference/cost.md). They limit nothing."""

    store: Annotated[
        str | None,
        TEXT_OR_NONE,
        "whose prices count, e.g. s3-standard, s3-express, gcs-standard or r2; without one: those of the store that storage.url names, and "
        "of S3 Standard for a disk, memory and any other server",
    ] = None
    prices_file: Annotated[str | None, TEXT_OR_NONE, "a YAML file with prices that change the built-in ones, or add to them"] = None
    budget_per_month: Annotated[
        float | None, DOLLARS_OR_NONE, "dollars that object storage of the whole cluster may cost a month before an alert says so"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    endpoint: Annotated[
        str | None,
        HTTP_URL_OR_NONE,
        "where traces of produced batches are sent, by OTLP over HTTP (the extra otel): a collector's URL, with the path /v1/traces if it "
        "has none; without one there are no traces",
    ] = None
    sample_ratio: Annotated[float, RATIO, "the share of produced batches that are traced"] = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownSettings:
    drain: Annotated[
        timedelta, duration(minimum="0ms", maximum="10m"), "how long clients are still served, and asked to leave, after SIGTERM"
    ] = timedelta(seconds=1)
    deadline: Annotated[timedelta, duration(minimum="1s", maximum="1h"), "the whole shutdown may take this long, then the process ends"] = (
        timedelta(seconds=60)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    format: Annotated[str, one_of("auto", "console", "json"), "auto is console on a terminal, JSON lines elsewhere"] = "auto"
    level: Annotated[str, one_of("debug", "info", "warning", "error"), "log this and above"] = "info"
    audit: Annotated[
        str | None, TEXT_OR_NONE, "a file that gets one JSON line for each change of topics, configs, records and groups, also refused ones"
    ] = None
