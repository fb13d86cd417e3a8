"""Brokers to run a framework against, behind a recorder of what it asks for, and looks at what the framework left there."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType

from broker.protocol.apis import APIS
from runtime.clock import SystemClock
from services.kafka import running_kafka
from tests.compat.recorder import HOST, Recorder, recording
from tests.kit.serving import Served, serving

Against = Literal["forebay", "kafka"]
AGAINST: Final[Sequence[Against]] = ("forebay", "kafka")
ANSWERS_WITHIN_S: Final = 20.0
T = TypeVar("T")

_LOOK_EVERY_S: Final = 0.1
FOREBAY: Final = {"kafka.auto_create_topics": "false", "groups.initial_rebalance_delay": "0ms"}
_KAFKA: Final = {"offsets.topic.num.partitions": "1"}
"""Beside what services/kafka.py sets, which has no auto-creation and no delay either."""
_SETTLING: Final = r".*(NOT_LEADER_OR_FOLLOWER|NotLeaderOrFollowerException|LEADER_NOT_AVAILABLE|UNKNOWN_TOPIC_OR_PARTITION).*"
WARNED_OF: Final[Mapping[Against, Mapping[str, str]]] = {
    "forebay": {},
    # On a busy machine, of topics made a moment ago: the broker has not heard of them yet. Those of Forebay can be used at once.
    "kafka": {"Sender": _SETTLING, "NetworkClient": _SETTLING, "ConsumerCoordinator": _SETTLING, "FetchCollector": _SETTLING},
}
"""What clients of that broker may be warned of in any test, for `complaints`."""

_clock = SystemClock()


@dataclass(frozen=True, kw_only=True)
class Group:
    """`members`: for each the bytes of its metadata and of its assignment, which no broker reads."""

    state: str
    protocol_type: str
    protocol: str
    members: Sequence[tuple[bytes, bytes]]


class Recorded:
    """A broker as its clients see it."""

    def __init__(self, recorder: Recorder, served: Served | None = None) -> None:
        """`served`: the broker, if it is Forebay."""
        self._recorder = recorder
        self._served = served
        self.bootstrap = recorder.bootstrap
        self.admin = AdminClient({"bootstrap.servers": recorder.bootstrap, "log_level": 0})

    def asked(self) -> set[str]:
        """The APIs that were asked for so far, as Kafka names them."""
        return {api.name for api in APIS if api.key in {key for key, _ in self._recorder.exercised()}}

    def complaints(self) -> list[dict[str, object]]:
        """Warnings and errors that the broker has logged, if it is Forebay, but for configs that it does not enforce yet."""
        return [event for event in self._disliked() if event["event"] != "configs_not_enforced"]

    def not_enforced(self) -> set[str]:
        """The configs of topics that the broker, if it is Forebay, was given and said not to enforce yet."""
        return {str(config) for event in self._disliked() if event["event"] == "configs_not_enforced" for config in event["configs"]}

    def _disliked(self) -> list[dict[str, Any]]:
        events = self._served.events() if self._served else []
        return [event for event in events if event["level"] not in {"debug", "info"}]

    def create(self, *names: str, partitions: int) -> None:
        for created in self.admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
            created.result(ANSWERS_WITHIN_S)

    def topics(self) -> dict[str, int]:
        """How many partitions each has."""
        found = self.admin.list_topics(timeout=ANSWERS_WITHIN_S).topics
        return {name: len(topic.partitions) for name, topic in found.items() if name != "__consumer_offsets"}

    def configs(self, topic: str) -> dict[str, str]:
        """Those that were set when it was made, or later."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        configs = self.admin.describe_configs([resource])[resource].result(ANSWERS_WITHIN_S)
        return {name: config.value for name, config in configs.items() if config.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}

    def group(self, name: str) -> Group:
        with warnings.catch_warnings():
            # The call that took its place is for consumer groups and does not show what the type of another group is.
            warnings.simplefilter("ignore", DeprecationWarning)
            (found,) = self.admin.list_groups(name, ANSWERS_WITHIN_S)
        members = [(member.metadata, member.assignment) for member in found.members]
        return Group(state=found.state, protocol_type=found.protocol_type, protocol=found.protocol, members=members)


@contextlib.contextmanager
def recorded(against: Against, folder: Path) -> Iterator[Recorded]:
    """A new broker, which sends its clients to a recorder. Its data and log are in `folder`."""
    with recording() as recorder:
        if against == "forebay":
            settings = {**FOREBAY, "kafka.advertised_listeners": f"PLAINTEXT://{recorder.bootstrap}"}
            with serving(folder / "forebay", settings=settings) as served:
                recorder.target = (HOST, served.kafka_port)
                yield Recorded(recorder, served)
            return
        with running_kafka(folder / "kafka", advertised=recorder.bootstrap, settings=_KAFKA) as server:
            recorder.target = (HOST, server.port)
            yield Recorded(recorder)


def until(look: Callable[[], T], wanted: Callable[[T], object], within_s: float) -> T:
    """The first look that is as wanted. Raise AssertionError with the last one when there was none in time."""
    give_up_s = _clock.monotonic_s() + within_s
    while not wanted(seen := look()):
        assert _clock.monotonic_s() < give_up_s, f"not within {within_s:.0f} s; the last look: {str(seen)[:2000]}"
        time.sleep(_LOOK_EVERY_S)
    return seen
