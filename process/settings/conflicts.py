"""Settings that are each allowed but not together."""

import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from process.settings.exposure import http_address_for_clients
from process.settings.notation import has_path, is_loopback, is_memory, path_of, show_size
from process.settings.sections import (
    BrokerSettings,
    CompactorSettings,
    GroupsSettings,
    HttpSettings,
    KafkaSettings,
    MetadataSettings,
    ShutdownSettings,
    StorageSettings,
)
from storage.limits import MIB, REQUEST_SHARE_MAX


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
