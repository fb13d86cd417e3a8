"""Settings that are each allowed but not together."""

from datetime import timedelta

from broker.settings.listeners import is_loopback
from broker.settings.sections import GroupsSettings, HttpSettings, KafkaSettings, MetadataSettings, ShutdownSettings, StorageSettings
from broker.settings.urls import is_memory


class ConflictError(ValueError):
    """`found`: (key, what is wrong with its value) pairs."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key} {phrase}" for key, phrase in found))
        self.found = found


def of_listeners(kafka: KafkaSettings) -> list[tuple[str, str]]:
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
    return [("kafka.advertised_listeners", phrase) for phrase in phrases]


def of_http(http: HttpSettings) -> list[tuple[str, str]]:
    if http.insecure or is_loopback(http.listen.host):
        return []
    exposed = "would show metrics and health to everybody who can reach it, without a login"
    return [("http.listen", f"{exposed}. Listen on 127.0.0.1, or set http.insecure: true")]


def of_stores(storage: StorageSettings, metadata: MetadataSettings) -> list[tuple[str, str]]:
    if is_memory(storage.url) == is_memory(metadata.url):
        return []
    ours, theirs = ("is forgotten at the end", "is kept") if is_memory(storage.url) else ("is kept", "is forgotten at the end")
    return [("storage.url", f"{ours} while metadata.url {metadata.url} {theirs}. Use memory:// for both or for neither")]


def of_groups(groups: GroupsSettings) -> list[tuple[str, str]]:
    found = []
    if groups.session_timeout_min > groups.session_timeout_max:
        found.append(("groups.session_timeout_max", "is shorter than groups.session_timeout_min: no member could ever join"))
    if groups.offsets_retention % timedelta(minutes=1):
        found.append(("groups.offsets_retention", "is not a whole number of minutes, which is how Kafka's tools are told of it"))
    return found


def of_bounds(kafka: KafkaSettings, storage: StorageSettings, shutdown: ShutdownSettings) -> list[tuple[str, str]]:
    found = []
    if kafka.max_request_bytes > storage.max_buffer_bytes:
        found.append(("storage.max_buffer_bytes", "is less than kafka.max_request_bytes: such a request could never be served"))
    if storage.flush_bytes > storage.max_buffer_bytes:
        found.append(("storage.max_buffer_bytes", "is less than storage.flush_bytes: no object could ever be full"))
    if shutdown.drain > shutdown.deadline:
        found.append(("shutdown.deadline", "is shorter than shutdown.drain: the drain could never end"))
    return found
