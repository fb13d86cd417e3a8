"""All sections composed: what depends on other settings is filled in, and what contradicts them is refused."""

import socket
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from pydantic import model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from broker.settings.conflicts import ConflictError, of_bounds, of_groups, of_http, of_listeners, of_stores
from broker.settings.listeners import advertised_for, parse_listeners
from broker.settings.sections import (
    BrokerSettings,
    GroupsSettings,
    HttpSettings,
    KafkaSettings,
    LogSettings,
    MetadataSettings,
    ShutdownSettings,
    StorageSettings,
)
from broker.settings.urls import scheme_of

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


class Settings(BaseSettings):
    """All settings of one broker. Built from keyword arguments alone; `loading.load` adds file, environment and flags.

    Raise pydantic's ValidationError for values that are wrong by themselves or together.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    broker: BrokerSettings = BrokerSettings()
    kafka: KafkaSettings = KafkaSettings()
    storage: StorageSettings = StorageSettings()
    metadata: MetadataSettings = MetadataSettings()
    groups: GroupsSettings = GroupsSettings()
    http: HttpSettings = HttpSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The library's own sources forget the line and the variable a value came from, and overlook names they do not know.
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        sections = {name: dict(values) if isinstance(values, Mapping) else asdict(values) for name, values in given.items()}
        derived = derived_defaults(
            storage_url=str(sections.get("storage", {}).get("url", "file://")),
            listeners=sections.get("kafka", {}).get("listeners", KafkaSettings().listeners),
        )
        for key, value in derived.items():
            section, name = key.split(".")
            values = sections.setdefault(section, {})
            if values.get(name) in _NOT_GIVEN:
                values[name] = value
        return sections

    @model_validator(mode="after")
    def _agree(self) -> "Settings":
        found = [
            *of_listeners(self.kafka),
            *of_http(self.http),
            *of_stores(self.storage, self.metadata),
            *of_groups(self.groups),
            *of_bounds(self.kafka, self.storage, self.shutdown),
        ]
        if found:
            raise ConflictError(found)
        return self
