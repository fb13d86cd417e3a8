"""A load as a file says it: YAML or JSON → frozen values, and when its events are due.

Every mistake is named with its line and with what may stand there.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.commands.bench.load.routing import CLIENT, LEAST_IN_FLIGHT, OWNERS, ROUND_ROBIN
from forebay.commands.bench.settings import Compression
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.kafka_client.options import parse_duration_ms
from process.settings.reference import SETTINGS

if TYPE_CHECKING:
    import yaml

FILE_BYTES_MAX: Final = 1024 * 1024
NODES_MAX: Final = 10_000
MISTAKES_MAX: Final = 50
RECORDS_MAX: Final = 1_000_000_000
SIZE_BYTES_MIN: Final = 12
"""A value begins with run, producer and sequence."""
SIZE_BYTES_MAX: Final = 1024 * 1024
SIZES: Final = {"tiny": 12, "tweet": 140, "half_k": 560, "k": 1_120, "linked_in_post": 2_940, "blog": 11_760}
BROKERS_MAX: Final = 16
WORKERS_MAX: Final = 8
PROCESSES_MAX: Final = 32
CLIENTS_MAX: Final = 64
PARTITIONS_MAX: Final = 1_000
KEYS_MAX: Final = 100_000
RATE_MAX: Final = 10_000_000
SECONDS_MAX: Final = 7 * 86_400.0

SHORTER: Final = 50
SHORT_PHASE_S: Final = 5.0
SHORT_EVENT_S: Final = 2.0

SENT_AHEAD_PERCENT: Final = 25
"""Producers wait so far behind an event that counts acknowledgements: it happens while records are under way."""

SERVICES: Final = "services"
DISK: Final = "disk"
MEMORY: Final = "memory"
STORES: Final = (SERVICES, DISK, MEMORY)
S3_FAULTS: Final = ("slow_down", "internal_error", "lost_reply")
"""As `python -m services.faults` knows them."""
S3_FAULT_SHARE_MAX: Final = 0.5
LATENCY_MS_MAX: Final = 10_000
RUNNING: Final = "running"
"""The stores of a cluster that runs already are its own."""
LIBRDKAFKA: Final = "librdkafka"
HTTP: Final = "http"
PER_BROKER: Final = ("kill", "stop", "pause", "drain")
OF_SERVICES: Final = ("s3_away", "oxia_away")
EVENTS: Final = (*PER_BROKER, "roll", "add_broker", *OF_SERVICES)

_OWN_SETTINGS: Final = ("storage.url", "metadata.url", "kafka.listeners", "kafka.advertised_listeners", "http.listen", "broker.rack")
_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_NAME_SHOWN_MAX: Final = 100
_DEPTH_MAX: Final = 3
_MISSING: Final = dataclasses.MISSING

T = TypeVar("T")
ValueReader = Callable[[Any], Any]
"""A value as YAML has it → the value of the scenario. Raises `ValueError` with what is allowed."""


def whole(least: int, most: int) -> ValueReader:
    def read(given: Any) -> int:
        if type(given) is not int or not least <= given <= most:
            raise ValueError(f"write a whole number from {least:,} to {most:,}")
        return given

    return read


def one_of(*allowed: str) -> ValueReader:
    def read(given: Any) -> str:
        if given not in allowed:
            raise ValueError(f"write {listed(allowed)}")
        return str(given)

    return read


def text_like(pattern: re.Pattern[str], example: str) -> ValueReader:
    def read(given: Any) -> str:
        if not isinstance(given, str) or not pattern.fullmatch(given):
            raise ValueError(f"write {example}")
        return given

    return read


def names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and _NAME.fullmatch(one) for one in given):
        raise ValueError("write a list of names, for example [load]")
    if len(set(given)) < len(given):
        raise ValueError("write each name once")
    return tuple(given)


def zones(given: Any) -> tuple[str, ...]:
    return names(given) if given else ()


def yes_or_no(given: Any) -> bool:
    if given is not True and given is not False:
        raise ValueError("write true or false")
    return given is True


def texts(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str | int | float | bool) for value in given.values()):
        raise ValueError("write names with one value each, for example {retention.ms: 3600000}")
    return {str(name): str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def shares(given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or not all(name in S3_FAULTS for name in given):
        raise ValueError(f"write a share of requests for {listed(S3_FAULTS)}, for example {{slow_down: 0.01}}")
    for name, share in given.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= S3_FAULT_SHARE_MAX:
            raise ValueError(f"{name} is a share of requests from 0 to {S3_FAULT_SHARE_MAX}, for example 0.01")
    return {name: float(share) for name, share in given.items()}


def size(given: Any) -> int:
    named = SIZES.get(given, given) if isinstance(given, str) else given
    if type(named) is not int or not SIZE_BYTES_MIN <= named <= SIZE_BYTES_MAX:
        raise ValueError(f"write {listed(SIZES)}, or bytes from {SIZE_BYTES_MIN} to {SIZE_BYTES_MAX:,}")
    return named


def rate(given: Any) -> float | None:
    if given == "max":
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= RATE_MAX:
        raise ValueError(f"write max, or records a second, up to {RATE_MAX:,}")
    return float(given)


def factor(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1_000:
        raise ValueError("write a number from 0 to 1,000")
    return float(given)


def keys(given: Any) -> str:
    kind, _, count = given.partition(":") if isinstance(given, str) else ("", "", "")
    if given != "none" and not (kind in {"uniform", "zipf"} and count.isdecimal() and 1 <= int(count) <= KEYS_MAX):
        raise ValueError(f"write none, uniform:N or zipf:N, with N keys, {KEYS_MAX:,} at most")
    return str(given)


def duration_s(given: Any) -> float:
    try:
        found = parse_duration_ms(str(given)) / 1_000 if isinstance(given, str) else -1.0
    except ValueError:
        found = -1.0
    if not 0 <= found <= SECONDS_MAX:
        raise ValueError("write a duration of a week at most, for example 500ms, 20s or 5m")
    return found


def seconds(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= SECONDS_MAX:
        raise ValueError(f"write a number of seconds, more than 0 and at most {SECONDS_MAX:,.0f}")
    return float(given)


def addresses(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and _ADDRESS.fullmatch(one) for one in given):
        raise ValueError("write a list of HOST:PORT, for example [127.0.0.1:9092]")
    if any(not 1 <= int(one.rpartition(":")[2]) <= _PORT_MAX for one in given):
        raise ValueError(f"a port is a number from 1 to {_PORT_MAX:,}")
    if len(given) > BROKERS_MAX:
        raise ValueError(f"name {BROKERS_MAX} brokers at most")
    return tuple(given)


def no_addresses(given: Any) -> tuple[str, ...]:
    return addresses(given) if given else ()


def moment(given: Any) -> "Moment":
    if isinstance(given, str) and given.endswith("%"):
        share = given[:-1]
        if share.isdecimal() and 0 <= int(share) <= 95:
            return Moment(acked_percent=int(share))
    else:
        try:
            return Moment(after_s=duration_s(given))
        except ValueError:
            pass
    raise ValueError("write a time since the load began, for example 20s, or a share of the acknowledged records from 0% to 95%")


def key(read: ValueReader, default: Any = _MISSING) -> Any:
    """A field of a section: how its value is read, and its default. Without one it must be given."""
    return dataclasses.field(default=default, metadata={"read": read})


def section(kind: type[T], default: Any = _MISSING) -> Any:
    return dataclasses.field(default=default, metadata={"section": kind})


def sections(kind: type[T], *, least: int) -> Any:
    return dataclasses.field(default=_MISSING if least else (), metadata={"sections": kind, "least": least})


@dataclass(frozen=True, slots=True)
class Moment:
    """When an event happens: seconds after the load began, or with that share of the records acknowledged."""

    after_s: float | None = None
    acked_percent: int | None = None

    def __str__(self) -> str:
        return f"{self.acked_percent}%" if self.after_s is None else f"{self.after_s:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStores:
    """`latency_ms` is how late every answer of S3 is, and `s3_faults` shares of its requests: both have a proxy in front of it."""

    kind: str = key(one_of(*STORES))
    latency_ms: int = key(whole(0, LATENCY_MS_MAX), 0)
    s3_faults: Mapping[str, float] = key(shares)

    @property
    def has_proxy(self) -> bool:
        return self.latency_ms > 0 or any(self.s3_faults.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCluster:
    """Either brokers to start, each with that many `workers` (`forebay serve --workers`), or the `addresses` of a cluster that runs
    already, with the `http` addresses of all its brokers.
    """

    brokers: int = key(whole(1, BROKERS_MAX), 1)
    workers: int = key(whole(1, WORKERS_MAX), 1)
    zones: tuple[str, ...] = key(zones, ())
    compactors: int = key(whole(0, 4), 0)
    settings: Mapping[str, str] = key(texts)
    addresses: tuple[str, ...] = key(no_addresses, ())
    http: tuple[str, ...] = key(no_addresses, ())

    @property
    def runs_already(self) -> bool:
        return bool(self.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTopic:
    """`count` topics alike: of several, NAME-1 and so on."""

    name: str = key(text_like(_NAME, "a topic's name of letters, digits, dots, dashes and underscores"))
    count: int = key(whole(1, 1_000), 1)
    partitions: int = key(whole(1, PARTITIONS_MAX), 12)
    configs: Mapping[str, str] = key(texts)

    @property
    def all_names(self) -> tuple[str, ...]:
        return (self.name,) if self.count == 1 else tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProducers:
    """`records` and `rate` are those of all `count` producers together."""

    count: int = key(whole(1, CLIENTS_MAX), 1)
    topics: tuple[str, ...] = key(names)
    records: int = key(whole(1, RECORDS_MAX))
    rate: float | None = key(rate, None)
    size: int = key(size, SIZES["k"])
    keys: str = key(keys, "none")
    codec: str = key(one_of(*Compression), "none")
    acks: str = key(one_of("all"), "all")
    idempotent: bool = key(yes_or_no, True)
    linger_ms: int = key(whole(0, 60_000), 5)
    client: str = key(one_of(LIBRDKAFKA, HTTP), LIBRDKAFKA)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    group: str = key(text_like(_NAME, "a group's name"))
    count: int = key(whole(1, CLIENTS_MAX), 1)
    topics: tuple[str, ...] = key(names)
    start: str = key(one_of("start"), "start")
    commit: str = key(one_of("each", "auto"), "each")
    client: str = key(one_of(LIBRDKAFKA, HTTP), LIBRDKAFKA)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRouting:
    """`k`, `pick` and `seed` count with `mode: owners` alone."""

    mode: str = key(one_of(CLIENT, OWNERS), CLIENT)
    k: int = key(whole(1, BROKERS_MAX), 2)
    pick: str = key(one_of(ROUND_ROBIN, LEAST_IN_FLIGHT), ROUND_ROBIN)
    seed: int = key(whole(0, 2**31 - 1), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPhase:
    """`rate_factor` times the producers' rate, for that long; the last one goes on."""

    name: str = key(text_like(_NAME, "a name"), "phase")
    seconds: float = key(seconds)
    rate_factor: float = key(factor, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEvent:
    """`target` counts brokers from 1. `lasts_s`: afterwards it is undone; None where the broker stays away."""

    at: Moment = key(moment)
    do: str = key(one_of(*EVENTS))
    target: int | None = key(whole(1, BROKERS_MAX), None)
    lasts_s: float | None = key(duration_s, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str = key(text_like(_NAME, "a name of letters, digits, dots, dashes and underscores"))
    stores: LoadStores = section(LoadStores, LoadStores(kind=RUNNING, s3_faults={}))
    cluster: LoadCluster = section(LoadCluster, LoadCluster(settings={}))
    topics: tuple[LoadTopic, ...] = sections(LoadTopic, least=1)
    producers: tuple[LoadProducers, ...] = sections(LoadProducers, least=1)
    consumers: tuple[LoadGroup, ...] = sections(LoadGroup, least=0)
    routing: LoadRouting = section(LoadRouting, LoadRouting())
    phases: tuple[LoadPhase, ...] = sections(LoadPhase, least=0)
    events: tuple[LoadEvent, ...] = sections(LoadEvent, least=0)
    sample_every: float = key(duration_s, 5.0)

    def topics_of(self, named: Sequence[str]) -> dict[str, int]:
        """The number of partitions of each topic that an entry of the scenario names."""
        return {name: topic.partitions for topic in self.topics if topic.name in named for name in topic.all_names}

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.producers)

    def shortened(self) -> "Scenario":
        """A fiftieth of the records on embedded stores, with short phases: the same events in seconds."""
        return replace(
            self,
            stores=LoadStores(kind=DISK, s3_faults={}) if self.stores.kind == SERVICES else self.stores,
            producers=tuple(replace(entry, records=max(entry.count, entry.records // SHORTER)) for entry in self.producers),
            phases=tuple(replace(phase, seconds=min(phase.seconds, SHORT_PHASE_S)) for phase in self.phases),
            events=tuple(_shortened(event) for event in self.events if event.do not in OF_SERVICES),
            sample_every=min(self.sample_every, 1.0),
        )


_RENAMED: Final = {("consumers", "start"): "from", ("events", "lasts_s"): "for"}
"""Keys that are words of Python."""


class EventSchedule:
    """Events that wait for their moment, and those that have to end. Pure: times are seconds of the caller's clock."""

    def __init__(self, events: Sequence[LoadEvent], *, records: int) -> None:
        self.pending = sorted(events, key=lambda event: (event.at.acked_percent or 0, event.at.after_s or 0))
        self._records = records
        self._ending: list[tuple[float, LoadEvent]] = []

    @property
    def is_undoing(self) -> bool:
        """True while an event that happened has not ended yet, and will."""
        return bool(self._ending)

    def due(self, elapsed_s: float, acked: int) -> list[LoadEvent]:
        """Events whose moment has come since the last call, with that many records acknowledged."""
        found = [event for event in self.pending if self._is_due(event, elapsed_s, acked)]
        self.pending = [event for event in self.pending if not self._is_due(event, elapsed_s, acked)]
        return found

    def happened(self, event: LoadEvent, now_s: float) -> None:
        if event.lasts_s is not None:
            self._ending.append((now_s + event.lasts_s, event))

    def over(self, now_s: float) -> list[LoadEvent]:
        """Events that have lasted long enough since the last call."""
        found = [event for due_s, event in self._ending if now_s >= due_s]
        self._ending = [(due_s, event) for due_s, event in self._ending if now_s < due_s]
        return found

    def until(self, records: int) -> int:
        """Return how many a producer of `records` may send before the next event that counts acknowledgements has happened."""
        percents = [event.at.acked_percent for event in self.pending if event.at.acked_percent is not None]
        return records if not percents else min(records, -(-records * (min(percents) + SENT_AHEAD_PERCENT) // 100))

    def _is_due(self, event: LoadEvent, elapsed_s: float, acked: int) -> bool:
        if event.at.after_s is not None:
            return elapsed_s >= event.at.after_s
        return acked * 100 >= (event.at.acked_percent or 0) * self._records


def read_scenario(path: Path) -> Scenario:
    """Raise `ClientFailed` with a line for each mistake: FILE:LINE: what is wrong, and what may stand there."""
    name = os.fspath(path)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        mistake = f"{name}: cannot be read ({error.strerror}). Name a scenario, for example scenarios/three-brokers-one-killed.yaml."
        raise _refused([mistake]) from error
    if len(data) > FILE_BYTES_MAX:
        raise _refused([f"{name}: is larger than a scenario may be: {FILE_BYTES_MAX:,} bytes."])
    reading = _Reading(name)
    found = reading.scenario(data)
    if reading.mistakes or found is None:
        raise _refused(reading.mistakes)
    return found


def check_consistent(scenario: Scenario) -> None:
    """For a scenario that was changed after it was read. Raise `ClientFailed` for what does not go together."""
    mistakes = [f"{scenario.name}: {mistake}." for _, mistake in _inconsistencies(scenario)]
    if mistakes:
        raise _refused(mistakes)


def written_out(scenario: Scenario) -> str:
    """The resolved scenario as YAML that `read_scenario` takes."""
    import yaml

    return str(yaml.safe_dump(_plain(scenario, ""), sort_keys=False, default_flow_style=None, width=120))


def listed(allowed: Sequence[str] | Mapping[str, object]) -> str:
    *first, last = [str(one) for one in allowed]
    return f"{', '.join(first)} or {last}" if first else last


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, Moment):
        return str(value)
    if dataclasses.is_dataclass(value):
        found = {}
        for one in dataclasses.fields(value):
            held = getattr(value, one.name)
            if (held is None and one.name != "rate") or held == LoadStores(kind=RUNNING, s3_faults={}):
                continue
            found[_RENAMED.get((place, one.name), one.name)] = _plain(held, one.name)
        return found
    if isinstance(value, tuple):
        return [_plain(one, place) for one in value]
    if isinstance(value, Mapping):
        return dict(value)
    if place == "rate":
        return "max" if value is None else value
    if place in {"lasts_s", "sample_every"}:
        return f"{round(value * 1_000)}ms"
    return value


def _shortened(event: LoadEvent) -> LoadEvent:
    at = event.at if event.at.after_s is None else Moment(after_s=min(event.at.after_s, SHORT_EVENT_S))
    return replace(event, at=at, lasts_s=None if event.lasts_s is None else min(event.lasts_s, SHORT_EVENT_S))


def _refused(mistakes: Sequence[str]) -> ClientFailed:
    more = [f"and {len(mistakes) - MISTAKES_MAX:,} more"] if len(mistakes) > MISTAKES_MAX else []
    return ClientFailed("\n".join([*mistakes[:MISTAKES_MAX], *more]), exit_code=EXIT_USAGE)


class _Reading:
    """One file, and the mistakes that were found in it."""

    def __init__(self, file: str) -> None:
        self.mistakes: list[str] = []
        self._file = file
        self._lines: dict[int, int] = {}
        """The line of a section, by the identity of its value."""
        self._nodes = 0
        self._loader: yaml.SafeLoader | None = None

    def scenario(self, data: bytes) -> Scenario | None:
        import yaml

        try:
            text = data.decode()
            self._loader = yaml.SafeLoader(text)
            root = self._loader.get_single_node()
        except UnicodeDecodeError:
            self._say(1, "is not UTF-8 text")
            return None
        except yaml.MarkedYAMLError as error:
            self._say(error.problem_mark.line + 1 if error.problem_mark else 1, f"is not YAML ({error.problem})")
            return None
        except (yaml.YAMLError, RecursionError) as error:
            self._say(1, f"is not YAML ({str(error).splitlines()[0]})")
            return None
        if root is None:
            self._say(1, "is empty: write name, stores, topics and producers")
            return None
        found: Scenario | None = self._section(Scenario, root, "")
        if found is not None and not self.mistakes:
            for part, mistake in _inconsistencies(found):
                self._say(self._lines.get(id(part), 1), mistake)
        return found

    def _say(self, line: int, mistake: str) -> None:
        self.mistakes.append(f"{self._file}:{line}: {mistake}.")

    def _is_too_much(self, line: int) -> bool:
        """Said once. An alias repeats a section with three characters."""
        self._nodes += 1
        if self._nodes == NODES_MAX + 1:
            self._say(line, f"the scenario has more than {NODES_MAX:,} values: write fewer")
        return self._nodes > NODES_MAX

    def _section(self, kind: type[Any], node: "yaml.Node", place: str) -> Any:
        """An instance of a section, or None after a mistake."""
        import yaml

        line = node.start_mark.line + 1
        if self._is_too_much(line):
            return None
        fields = {_RENAMED.get((place, one.name), one.name): one for one in dataclasses.fields(kind)}
        if not isinstance(node, yaml.MappingNode):
            self._say(line, f"{place or 'a scenario'} is no section: write {listed(list(fields))} with their values")
            return None
        given: dict[str, Any] = {}
        seen: set[str] = set()
        before = len(self.mistakes)
        for key_node, value_node in node.value:
            name, at = str(key_node.value)[:_NAME_SHOWN_MAX], key_node.start_mark.line + 1
            named = f"{place}.{name}" if place else name
            if name not in fields:
                close = difflib.get_close_matches(name, fields, n=1)
                meant = f"did you mean {close[0]}? " if close else ""
                self._say(at, f"{named} is no key of a scenario: {meant}allowed here: {', '.join(fields)}")
            elif name in seen:
                self._say(at, f"{named} is given twice")
            else:
                field = fields[name]
                given[field.name] = self._value(field, value_node, name if not place else named)
            seen.add(name)
        for name, field in fields.items():
            if name not in seen:
                if field.metadata.get("read") in (texts, shares):
                    given[field.name] = {}
                elif field.default is _MISSING:
                    self._say(line, f"{place or 'the scenario'} has no {name}, and needs one")
        if len(self.mistakes) > before:
            return None
        made = kind(**given)
        self._lines[id(made)] = line
        return made

    def _value(self, field: "dataclasses.Field[Any]", node: "yaml.Node", named: str) -> Any:
        import yaml

        line = node.start_mark.line + 1
        if "section" in field.metadata:
            return self._section(field.metadata["section"], node, named)
        if "sections" in field.metadata:
            if not isinstance(node, yaml.SequenceNode):
                self._say(line, f"{named} is no list: write each entry behind a dash")
                return ()
            if len(node.value) < field.metadata["least"]:
                self._say(line, f"{named} is empty: write one entry at least")
            return tuple(self._section(field.metadata["sections"], one, named) for one in node.value)
        try:
            value = self._plain_value(node, depth=0)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError):
            value = node.value if isinstance(node, yaml.ScalarNode) else object()
        try:
            return field.metadata["read"](value)
        except ValueError as error:
            shown = f' "{node.value}"' if isinstance(node, yaml.ScalarNode) and len(str(node.value)) < 100 else ""
            self._say(line, f"{named}{shown} is not allowed: {error}")
            return None

    def _plain_value(self, node: "yaml.Node", *, depth: int) -> Any:
        import yaml

        if self._is_too_much(node.start_mark.line + 1) or depth > _DEPTH_MAX:
            raise ValueError
        if isinstance(node, yaml.SequenceNode):
            return [self._plain_value(one, depth=depth + 1) for one in node.value]
        if isinstance(node, yaml.MappingNode):
            return {str(name.value): self._plain_value(one, depth=depth + 1) for name, one in node.value}
        assert self._loader is not None
        return self._loader.construct_object(node)


def _inconsistencies(scenario: Scenario) -> Iterator[tuple[object, str]]:
    """What no single value can show."""
    cluster, kind = scenario.cluster, scenario.stores.kind
    yield from _wrong_with_stores(scenario)
    if kind == MEMORY and (cluster.brokers > 1 or cluster.workers > 1 or cluster.compactors):
        yield cluster, "stores.kind memory is that of one process: write brokers: 1, workers: 1 and compactors: 0, or kind: disk"
    if cluster.brokers * cluster.workers > PROCESSES_MAX:
        yield cluster, f"cluster: {cluster.brokers} brokers of {cluster.workers} workers are more than {PROCESSES_MAX} processes"
    if cluster.zones and len(cluster.zones) > cluster.brokers:
        yield cluster, f"cluster.zones are more than the {cluster.brokers} brokers"
    for name in cluster.settings:
        close = difflib.get_close_matches(name, SETTINGS, n=1)
        if name not in SETTINGS:
            yield cluster, f"cluster.settings: {name} is no setting{f': did you mean {close[0]}?' if close else ''}"
        elif name in _OWN_SETTINGS:
            yield cluster, f"cluster.settings: {name} is what the load chooses itself: leave it out"
    known = {topic.name for topic in scenario.topics}
    if len(known) < len(scenario.topics):
        yield scenario.topics[-1], "topics: two entries have one name"
    for topic in scenario.topics:
        for config in ("cleanup.policy", "retention.ms", "retention.bytes"):
            if config in topic.configs:
                yield topic, f"topics.configs: {config} makes records go, which would look like a loss: leave it out"
    entries: tuple[LoadProducers | LoadGroup, ...] = (*scenario.producers, *scenario.consumers)
    for entry in entries:
        for name in entry.topics:
            if name not in known:
                yield entry, f"topics: {name} is none of the scenario's: {listed(sorted(known))}"
    if len({group.group for group in scenario.consumers}) < len(scenario.consumers):
        yield scenario.consumers[-1], "consumers: two entries have one group: write a larger count"
    for producers in scenario.producers:
        if producers.records < producers.count:
            yield producers, f"producers.records is less than the {producers.count} producers that share them"
        if producers.client == HTTP and producers.linger_ms != 5:
            yield producers, "producers.linger_ms is librdkafka's: leave it out with client: http"
    yield from _wrong_with_http(scenario)
    if all(entry.rate is None for entry in scenario.producers):
        for phase in scenario.phases:
            if phase.rate_factor != 1:
                yield phase, "phases.rate_factor has nothing to multiply: give the producers a rate"
    for event in () if cluster.runs_already else scenario.events:
        yield from ((event, wrong) for wrong in _wrong_with(event, scenario))


def _wrong_with_stores(scenario: Scenario) -> Iterator[tuple[object, str]]:
    cluster = scenario.cluster
    if not cluster.runs_already:
        if scenario.stores.kind == RUNNING:
            yield scenario, f"the scenario has no stores, and needs one: write stores: {{kind: {DISK}}}"
        if scenario.stores.has_proxy and scenario.stores.kind != SERVICES:
            yield scenario.stores, "stores.latency_ms and s3_faults are those of an S3 server: write kind: services, or leave them out"
        if cluster.http:
            yield cluster, "cluster.http belongs to cluster.addresses: name both, or none"
        return
    if scenario.stores.kind != RUNNING:
        yield scenario.stores, "stores are those of the cluster that runs at cluster.addresses: leave stores out"
    if cluster != LoadCluster(settings={}, addresses=cluster.addresses, http=cluster.http):
        yield cluster, "cluster.addresses name a cluster that runs: leave brokers, workers, zones, compactors and settings out"
    for event in scenario.events:
        yield event, f"events: {event.do} needs a cluster that the load starts itself: leave it out, or leave cluster.addresses out"


def _wrong_with_http(scenario: Scenario) -> Iterator[tuple[object, str]]:
    """Name the clients and the routing that lack an address of HTTP."""
    cluster, routing = scenario.cluster, scenario.routing
    entries: tuple[LoadProducers | LoadGroup, ...] = (*scenario.producers, *scenario.consumers)
    for entry in entries:
        if entry.client == HTTP and cluster.runs_already and not cluster.http:
            yield entry, "client: http needs to know where: write the HTTP addresses of all brokers to cluster.http"
    if routing.mode == CLIENT:
        return
    for producers in scenario.producers:
        if producers.client != HTTP:
            yield producers, "routing.mode owners names the broker of each request, which librdkafka chooses itself: write client: http"
    brokers = len(cluster.http) if cluster.runs_already else cluster.brokers * cluster.workers
    if routing.k > brokers:
        yield routing, f"routing.k {routing.k} is more than the {brokers} brokers"


def _wrong_with(event: LoadEvent, scenario: Scenario) -> Iterator[str]:
    brokers = scenario.cluster.brokers + sum(one.do == "add_broker" for one in scenario.events)
    if (event.do in PER_BROKER) != (event.target is not None):
        yield (
            f"events: {event.do} needs a target, the number of a broker"
            if event.do in PER_BROKER
            else (f"events: {event.do} has no target: leave it out")
        )
    elif event.target is not None and event.target > brokers:
        yield f"events.target {event.target} is none of the {brokers} brokers, which are counted from 1"
    if event.do in ("pause", *OF_SERVICES) and not event.lasts_s:
        yield f"events: {event.do} needs to end: write for: 5s"
    if event.do in ("roll", "add_broker") and event.lasts_s is not None:
        yield f"events: {event.do} has no duration: leave for out"
    if event.do in OF_SERVICES and scenario.stores.kind != SERVICES:
        yield f"events: {event.do} needs stores.kind services"
    for setting in ("http.log_api", "http.allow_writes"):
        if event.do == "drain" and setting in scenario.cluster.settings:
            yield f"events: drain asks by HTTP: leave {setting} out of cluster.settings"
    if scenario.stores.kind == MEMORY and event.do != "pause":
        yield f"events: with stores.kind memory nothing is left after {event.do}: write kind: disk"
