"""All sections composed: what depends on other settings is filled in, and settings that are each allowed but not together are refused.

`warning_of_listeners` says what others than this machine can reach, while nobody has to log in.
"""

import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

from process.settings.notation import (
    HttpAddress,
    Listener,
    Notation,
    advertised_for,
    has_path,
    is_loopback,
    is_memory,
    is_wildcard,
    parse_listeners,
    path_of,
    scheme_of,
    show_size,
)
from process.settings.sections import (
    BrokerSettings,
    CompactorSettings,
    CostSettings,
    GroupsSettings,
    HttpSettings,
    KafkaSettings,
    LogSettings,
    MetadataSettings,
    MetricsSettings,
    ShutdownSettings,
    StorageSettings,
    TracingSettings,
)
from storage.limits import MIB, REQUEST_SHARE_MAX

FIX: Final = (
    "Listen on 127.0.0.1 if clients are on this machine; otherwise let only machines that you trust reach the port: "
    "a firewall, a private network"
)
OF_A_SHARED_STORE: Final = {
    "kafka.auto_create_topics": False,
    "storage.flush_interval": timedelta(milliseconds=250),
    "groups.initial_rebalance_delay": timedelta(seconds=3),
    "shutdown.drain": timedelta(seconds=10),
}
"""Defaults where objects do not live on this machine: each request costs money there, and a cluster has other users."""
DERIVED_FROM: Final = {"kafka.advertised_listeners": "kafka.listeners"} | dict.fromkeys(OF_A_SHARED_STORE, "storage.url")
_ON_THIS_MACHINE: Final = frozenset({"file", "memory"})
_NOT_GIVEN: Final = (None, "", ())


def log_api_of(http: HttpSettings) -> str:
    """What of the log is served by HTTP: read_write, read or off."""
    if http.log_api != "auto":
        return http.log_api
    return "read_write" if is_loopback(http.listen.host) else "off"


def http_address_for_clients(http: HttpSettings) -> HttpAddress:
    """Return `http.advertised`, or http.listen by a name that others can resolve. Its port may be 0, which nobody can reach."""
    address = http.advertised or http.listen
    return address._replace(host=socket.gethostname()) if is_wildcard(address.host) else address


def exposed(listeners: Sequence[Listener]) -> tuple[Listener, ...]:
    """The listeners that take connections from beyond this machine."""
    return tuple(listener for listener in listeners if not is_loopback(listener.host))


def warning_of_listeners(listeners: Sequence[Listener]) -> str | None:
    """One line that names the listeners, what they allow, and what to do; None if there is nothing to warn of."""
    found = exposed(listeners)
    if not found:
        return None
    names = ", ".join(map(str, found))
    many = len(found) > 1
    return (
        f"Kafka listener{'s' * many} {names} take{'s' * (not many)} connections from beyond this machine, and there is no authentication: "
        f"whoever reaches {'them' if many else 'it'} can read, write and delete every topic and every group. {FIX}."
    )


class SettingsConflict(NamedTuple):
    """What is wrong with the value of `key`, given those of `others`."""

    key: str
    phrase: str
    others: tuple[str, ...] = ()


class ConflictError(ValueError):
    def __init__(self, found: Sequence[SettingsConflict]) -> None:
        super().__init__("; ".join(f"{one.key} {one.phrase}" for one in found))
        self.found = tuple(found)


def of_listeners(kafka: KafkaSettings) -> list[SettingsConflict]:
    bound = {listener.name: listener for listener in kafka.listeners}
    advertised = {listener.name: listener for listener in kafka.advertised_listeners}
    phrases = [f"names {name}, which is not in kafka.listeners. Use {', '.join(bound)}" for name in advertised if name not in bound]
    phrases += [
        f"says nothing about {name}. Add {listener._replace(host='HOST')}" for name, listener in bound.items() if name not in advertised
    ]
    phrases += [
        f"has port 0 for {name}, whose own port is {bound[name].port}. Set the port clients can reach"
        for name, listener in advertised.items()
        if name in bound and listener.port == 0 != bound[name].port
    ]
    return [SettingsConflict("kafka.advertised_listeners", phrase, ("kafka.listeners",)) for phrase in phrases]


def of_http(http: HttpSettings, compactor: CompactorSettings) -> list[SettingsConflict]:
    if http.insecure:
        return []
    exposed = "would show metrics and health to everybody who can reach it, without a login"
    listening = {"http.listen": http.listen} | ({} if compactor.listen is None else {"compactor.listen": compactor.listen})
    return [
        SettingsConflict(key, f"{exposed}. Listen on 127.0.0.1, or set http.insecure: true", ("http.insecure",))
        for key, address in listening.items()
        if not is_loopback(address.host)
    ]


def of_stores(storage: StorageSettings, metadata: MetadataSettings) -> list[SettingsConflict]:
    if is_memory(storage.url) == is_memory(metadata.url):
        return []
    ours, theirs = ("is forgotten at the end", "is kept") if is_memory(storage.url) else ("is kept", "is forgotten at the end")
    phrase = f"{ours} while metadata.url {metadata.url} {theirs}. Use memory:// for both or for neither"
    return [SettingsConflict("storage.url", phrase, ("metadata.url",))]


def of_cache_dir(storage: StorageSettings) -> list[SettingsConflict]:
    if storage.cache_dir is None:
        return []
    if is_memory(storage.url):
        phrase = f"is of no use where storage.url is {storage.url}: no other process reads these objects. Leave it out"
        return [SettingsConflict("storage.cache_dir", phrase, ("storage.url",))]
    if has_path(storage.url) and Path(storage.cache_dir).absolute().is_relative_to(path_of(storage.url).absolute()):
        phrase = f"lies in the folder of storage.url ({storage.url}), where its files would be taken for objects. Choose another folder"
        return [SettingsConflict("storage.cache_dir", phrase, ("storage.url",))]
    return []


def of_zone_cache(storage: StorageSettings, broker: BrokerSettings, kafka: KafkaSettings, http: HttpSettings) -> list[SettingsConflict]:
    if not storage.zone_cache:
        return []
    found = []
    if is_memory(storage.url):
        phrase = f"is of no use where storage.url is {storage.url}: no other broker reads these objects. Leave it out"
        found.append(SettingsConflict("storage.zone_cache", phrase, ("storage.url",)))
    if broker.rack is None:
        phrase = "needs to know which brokers are of one zone. Set broker.rack to the zone of this broker, or leave it out"
        found.append(SettingsConflict("storage.zone_cache", phrase, ("broker.rack",)))
    address = http_address_for_clients(http)
    others = ("http.listen", "http.advertised")
    if not address.port:
        phrase = f"needs an HTTP port that other brokers can know, and http.listen is {http.listen}. Set a port there, or leave it out"
        found.append(SettingsConflict("storage.zone_cache", phrase, others))
    elif is_loopback(address.host) and not all(is_loopback(one.host) for one in kafka.advertised_listeners):
        phrase = (
            f"needs an HTTP address that other machines of the zone reach, and theirs for this broker would be {address}. Set http.listen "
            "(and http.insecure) or http.advertised, or leave it out"
        )
        found.append(SettingsConflict("storage.zone_cache", phrase, (*others, "kafka.advertised_listeners")))
    return found


def of_groups(groups: GroupsSettings) -> list[SettingsConflict]:
    found = []
    if groups.session_timeout_min > groups.session_timeout_max:
        phrase = "is shorter than groups.session_timeout_min: no member could ever join"
        found.append(SettingsConflict("groups.session_timeout_max", phrase, ("groups.session_timeout_min",)))
    if groups.offsets_retention % timedelta(minutes=1):
        phrase = "is not a whole number of minutes, and Kafka's tools know minutes only"
        found.append(SettingsConflict("groups.offsets_retention", phrase))
    return found


def of_bounds(kafka: KafkaSettings, storage: StorageSettings, shutdown: ShutdownSettings) -> list[SettingsConflict]:
    found = []
    if kafka.max_request_bytes > storage.max_buffer_bytes * REQUEST_SHARE_MAX:
        needed_mib = math.ceil(kafka.max_request_bytes / REQUEST_SHARE_MAX / MIB)
        phrase = (
            f"is too little for kafka.max_request_bytes ({show_size(kafka.max_request_bytes)}): a request may take three quarters of it at "
            f"most, or it might never find room. Set storage.max_buffer_bytes to {needed_mib}MiB or more, or lower kafka.max_request_bytes"
        )
        found.append(SettingsConflict("storage.max_buffer_bytes", phrase, ("kafka.max_request_bytes",)))
    if storage.flush_bytes > storage.max_buffer_bytes:
        phrase = "is less than storage.flush_bytes: no object could ever be full"
        found.append(SettingsConflict("storage.max_buffer_bytes", phrase, ("storage.flush_bytes",)))
    if shutdown.drain > shutdown.deadline:
        phrase = "is shorter than shutdown.drain: the drain could never end"
        found.append(SettingsConflict("shutdown.deadline", phrase, ("shutdown.drain",)))
    return found


def derived_defaults(*, storage_url: str, listeners: object) -> dict[str, Any]:
    """Defaults that depend on other settings, by key. Listeners that are wrong give none: they are reported where they stand."""
    derived: dict[str, Any] = {} if scheme_of(storage_url) in _ON_THIS_MACHINE else dict(OF_A_SHARED_STORE)
    try:
        bound = parse_listeners(listeners)
    except ValueError:
        return derived
    return derived | {"kafka.advertised_listeners": advertised_for(bound, hostname=socket.gethostname())}


class InvalidSettings(ValueError):
    """`found`: (key, what is wrong with its value) pairs; the cause says more to who tells its kinds apart.

    `conflicts` are among the other values.
    """

    def __init__(self, found: Sequence[tuple[str, ValueError]], conflicts: Sequence[SettingsConflict]) -> None:
        super().__init__("; ".join([*(f"{key} {cause}" for key, cause in found), *(f"{one.key} {one.phrase}" for one in conflicts)]))
        self.found = tuple(found)
        self.conflicts = tuple(conflicts)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Settings:
    """All settings of one broker. Built from values alone; `loading.load` adds file, environment and flags."""

    broker: BrokerSettings
    kafka: KafkaSettings
    storage: StorageSettings
    metadata: MetadataSettings
    groups: GroupsSettings
    http: HttpSettings
    metrics: MetricsSettings
    compactor: CompactorSettings
    cost: CostSettings
    tracing: TracingSettings
    shutdown: ShutdownSettings
    log: LogSettings

    def __init__(self, **given: Any) -> None:
        """Sections by name, as values or as mappings of what is set in them, written or not.

        Raise `InvalidSettings` if values are wrong by themselves, `ConflictError` if they are only wrong together.
        """
        values, derived = _with_derived({name: _as_mapping(section) for name, section in given.items()})
        found: list[tuple[str, ValueError]] = [(name, ValueError("is not a section")) for name in values if name not in SECTIONS]
        for name, section in SECTIONS.items():
            object.__setattr__(self, name, _parsed(section, name, values.get(name, {}), found))
        conflicts = [
            *of_listeners(self.kafka),
            *of_http(self.http, self.compactor),
            *of_stores(self.storage, self.metadata),
            *of_cache_dir(self.storage),
            *of_zone_cache(self.storage, self.broker, self.kafka, self.http),
            *of_groups(self.groups),
            *of_bounds(self.kafka, self.storage, self.shutdown),
        ]
        if found:
            # What is wrong has its default for now, and what is derived from it may be derived from that: neither contradicts anything.
            wrong = {key for key, _ in found}
            wrong |= {key for key in derived if DERIVED_FROM[key] in wrong}
            raise InvalidSettings(found, [one for one in conflicts if wrong.isdisjoint({one.key, *one.others})])
        if conflicts:
            raise ConflictError(conflicts)

    @classmethod
    def model_validate(cls, given: Mapping[str, Any]) -> "Settings":
        """As the constructor."""
        return cls(**given)


SECTIONS: Final[Mapping[str, Any]] = {field.name: field.type for field in fields(Settings)}
"""The class of each section, in order."""


@cache
def notations(section: type) -> Mapping[str, tuple[Notation, str]]:
    """For each field of a section, how it is written and what it is."""
    hints = get_type_hints(section, include_extras=True)
    return {name: (hint.__metadata__[0], hint.__metadata__[1]) for name, hint in hints.items()}


@dataclass(frozen=True, slots=True)
class Accepted:
    """What an operator has said to go on with: see `forebay serve --help`."""

    accept_new_store: bool = False
    accept_older_metadata: bool = False

    def options(self) -> list[str]:
        """As the command line has them."""
        names = {"--accept-new-store": self.accept_new_store, "--accept-older-metadata": self.accept_older_metadata}
        return [name for name, is_given in names.items() if is_given]


NOTHING_ACCEPTED: Final = Accepted()


def _as_mapping(section: Any) -> dict[str, Any]:
    return dict(section) if isinstance(section, Mapping) else asdict(section)


def _with_derived(sections: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """All values, and the keys of those that nobody gave and others imply."""
    filled = set()
    derived = derived_defaults(
        storage_url=str(sections.get("storage", {}).get("url", "file://")),
        listeners=sections.get("kafka", {}).get("listeners", KafkaSettings().listeners),
    )
    for key, value in derived.items():
        section, name = key.split(".")
        values = sections.setdefault(section, {})
        if values.get(name) in _NOT_GIVEN:
            values[name] = value
            filled.add(key)
    return sections, filled


def _parsed(section: Any, name: str, values: Mapping[str, Any], found: list[tuple[str, ValueError]]) -> Any:
    """The section, or its defaults; what is wrong is added to `found`."""
    parsed: dict[str, Any] = {}
    known = notations(section)
    for field, value in values.items():
        try:
            if field not in known:
                raise ValueError("is not a setting")
            parsed[field] = known[field][0].parse(value)
        except ValueError as error:
            found.append((f"{name}.{field}", error))
    return section(**parsed)
