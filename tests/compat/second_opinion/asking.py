"""One broker that is asked: every answer is kept under the words of its probe, without what no two brokers have in common."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Self

from broker.protocol import apis
from tests.kit.kafka_messages import frame, plain
from tests.kit.raw_client import RawClient

_LEFT_OUT: Final = frozenset(
    {"throttle_time", "throttle_time_ms", "cluster_id", "host", "client_host", "port", "current_leader", "node_endpoints"}
)
_TEXTS: Final = frozenset({"error_message", "documentation", "batch_index_error_message"})
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MADE: Final = frozenset({"producer_id", "member_id", "leader", "topic_id"})
_ORDERED_BY: Final = (
    *("name", "group_id", "topic", "resource_name", "index", "partition_index", "partition_id", "partition"),
    *("group_instance_id", "member_assignment"),
)
_NOWS: Final = frozenset({"log_append_time", "last_timestamp", "log_append_time_ms", "last_fetch_timestamp", "last_caught_up_timestamp"})
_SIZES: Final = frozenset({"total_bytes", "usable_bytes"})
_GROWING: Final = {"DescribeQuorum": frozenset({"log_end_offset", "high_watermark"})}
"""By API: where a log ends to which a controller writes all the time."""
TIMEOUT_S: Final = 30.0
ASK_EVERY_S: Final = 0.02
_NOW_MIN_MS: Final = 1_700_000_100_000
"""Probes write records of earlier times: what is later is a clock."""


@dataclass
class Asked:
    """The answers of one broker so far: probe → comparable answer. `None`: it closed the connection."""

    port: int
    answers: dict[str, Any] = field(default_factory=dict)
    correlation_id: int = 0

    def connect(self) -> "Line":
        return Line(self, RawClient(self.port))

    def keep(self, title: str, api: str, version: int, answer: Mapping[str, Any] | None) -> None:
        key = f"{api} {version}: {title}"
        assert key not in self.answers, f"two probes of one name: {key}"
        self.answers[key] = None if answer is None else self._comparable("", answer, _GROWING.get(api, frozenset()))

    def _comparable(self, name: str, value: Any, growing: AbstractSet[str]) -> Any:
        if isinstance(value, Mapping):
            return {key: self._comparable(key, one, growing) for key, one in value.items() if key not in _LEFT_OUT}
        if isinstance(value, list):
            return sorted((self._comparable(name, one, growing) for one in value), key=_order)
        if name in _TEXTS:
            return "text" if value else None
        if name in _MADE and _is_made(value):
            return f"a {name}"
        if name in _NOWS and isinstance(value, int) and value > _NOW_MIN_MS:
            return "now"
        if name == "session_id" and value:
            return "a session_id"
        if name in growing and value:
            return "an end"
        if name in _SIZES:
            return "bytes"
        if name == "log_dir":
            return "folder"
        return value


@dataclass
class Line:
    """A connection to the broker, opened again after the broker closed it."""

    asked: Asked
    client: RawClient

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask(self, title: str, api: str, version: int, fields: Mapping[str, Any] | None = None, *, kept: bool = True) -> dict[str, Any]:
        """The answer as it came; {} when the connection was closed instead."""
        self.send(api, version, fields)
        return self.take(title, api, version, kept=kept)

    def ask_all(self, title: str, api: str, fields: Mapping[str, Any] | None = None) -> None:
        """The same in every version that both sides know; `fields` may be a function of the version in the values that are callable."""
        for version in versions(api):
            self.ask(title, api, version, {name: value(version) if callable(value) else value for name, value in (fields or {}).items()})

    def send(self, api: str, version: int, fields: Mapping[str, Any] | None = None) -> None:
        self.asked.correlation_id += 1
        self.client.send(frame(api_key(api), version, fields or {}, correlation_id=self.asked.correlation_id))

    def take(self, title: str, api: str, version: int, *, kept: bool = True) -> dict[str, Any]:
        received = self.client.receive()
        if received is None:
            self.client.close()
            self.client = RawClient(self.asked.port)
        answer = None if received is None else plain(api_key(api), version, received)
        if kept:
            self.asked.keep(title, api, version, answer)
        return answer or {}


def _is_made(value: Any) -> bool:
    """Whether a broker made this name or id, and not the probe."""
    if isinstance(value, int):
        return value >= 0
    return bool(value) and bool(_UUID.search(value)) and not value.startswith("00000000-0000-0000-0000-0000")


def _order(value: Any) -> tuple[str, ...]:
    """Lists of other order are no difference. What these fields do not tell apart, all of them do."""
    return (*(str(value.get(key)) for key in _ORDERED_BY), repr(sorted(value.items()))) if isinstance(value, Mapping) else (str(value),)


def until(holds: Callable[[], bool]) -> None:
    """Ask until it holds: what Apache Kafka does after it has answered. Raise TimeoutError."""
    for _ in range(int(TIMEOUT_S / ASK_EVERY_S)):
        if holds():
            return
        time.sleep(ASK_EVERY_S)
    raise TimeoutError(f"not within {TIMEOUT_S:.0f} s")


def api_key(name: str) -> int:
    return next(api.key for api in apis.APIS if api.name == name)


def versions(name: str) -> Iterator[int]:
    """Those that Forebay serves."""
    api = next(api for api in apis.APIS if api.name == name)
    yield from range(api.served_minimum, api.maximum + 1)


def latest(name: str) -> int:
    return max(versions(name))
