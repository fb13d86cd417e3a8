"""All sections composed: what depends on other settings is filled in, and what contradicts them is refused."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from functools import cache
from typing import Any, Final, get_type_hints

from process.settings.conflicts import (
    ConflictError,
    SettingsConflict,
    of_bounds,
    of_cache_dir,
    of_groups,
    of_http,
    of_listeners,
    of_stores,
    of_zone_cache,
)
from process.settings.notation import Notation, advertised_for, parse_listeners, scheme_of
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
