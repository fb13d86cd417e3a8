"""What the tests of this folder read and write: brokers of Forebay on a real Oxia and S3 server, or Apache Kafka (`--against=kafka`)."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from runtime.clock import SystemClock
from services.kafka import running_kafka
from services.oxia import running_oxia
from services.versitygw import running_s3
from tests.kit.serving import HOST, Served, serving
from tests.spark.lossy import Lossy, lossy

Against = Literal["forebay", "kafka"]

WITHIN_S: Final = 60.0
_clock = SystemClock()
QUIET: Final = {"log_level": 0, "socket.timeout.ms": 30_000}
UPKEEP: Final = {
    "compactor.run": "true",
    "compactor.listen": "127.0.0.1:0",
    "compactor.interval": "1s",
    "compactor.segment_entries": "4",
    "compactor.segment_age": "1s",
    "compactor.delete_interval": "2s",
    "compactor.delete_grace": "1s",
}
"""Records are moved into segments, and what they leave behind is deleted, while they are read."""
FOREBAY: Final = {"kafka.auto_create_topics": "false", "storage.flush_interval": "20ms", "groups.initial_rebalance_delay": "0ms"}
KAFKA: Final = {"offsets.topic.num.partitions": "1", "message.max.bytes": "20000000", "log.retention.check.interval.ms": "1000"}

_REQUESTS: Final = re.compile(r'forebay_kafka_requests_total\{api="(?P<api>\w+)",error="(?P<error>\w+)"\}')


@dataclass
class Brokers:
    """`served` are those of Forebay that were started, and nothing of Apache Kafka."""

    addresses: Sequence[str]
    proxies: Sequence[Lossy] = ()
    """One before each broker."""
    served: Sequence[Served] = ()
    objects: Path | None = None
    """The folder of what the S3 server keeps."""

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap} | QUIET)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def behind_proxies(self) -> "Brokers":
        """The same, for clients that are to lose acknowledgements."""
        return Brokers([proxy.address for proxy in self.proxies], self.proxies, self.served, self.objects)

    @contextlib.contextmanager
    def losing_acks(self, *, every: int) -> Iterator[None]:
        with contextlib.ExitStack() as ending:
            for proxy in self.proxies:
                ending.enter_context(proxy.losing(every=every))
            yield

    @property
    def lost_acks(self) -> int:
        return sum(proxy.lost for proxy in self.proxies)

    @property
    def are_ours(self) -> bool:
        return bool(self.served)

    def create(self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """The name of the topic, which all brokers know when this returns."""
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(WITHIN_S)
        return topic

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(WITHIN_S)

    def grow(self, topic: str, *, partitions: int) -> None:
        """Return when all brokers show them: a producer that hears of a partition later than another broker refuses its records itself."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WITHIN_S)
        give_up_s = _clock.monotonic_s() + WITHIN_S
        for server in self.bootstrap.split(","):
            while True:
                shown = AdminClient({"bootstrap.servers": server} | QUIET).list_topics(topic, timeout=WITHIN_S).topics[topic]
                if len(shown.partitions) == partitions:
                    break
                assert _clock.monotonic_s() < give_up_s, f"{server} shows {len(shown.partitions)} partitions of {topic}"
                time.sleep(0.05)

    def delete_records(self, topic: str, partition: int, *, before: int) -> None:
        asked = TopicPartition(topic, partition, before)
        next(iter(self.admin.delete_records([asked]).values())).result(WITHIN_S)

    def end(self, topic: str, partition: int) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "nobody"} | QUIET)
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), WITHIN_S)[1])
        finally:
            consumer.close()

    def requests(self, api: str) -> float:
        """How many of them all brokers of ours have had, up to a second ago."""
        return sum(self._requests(api).values())

    def refusals(self, api: str) -> dict[str, float]:
        """Those that were answered with an error, by the error's name."""
        return {error: value for error, value in self._requests(api).items() if error.lower() != "none"}

    def stores_asked(self, store: str, *ops: str) -> float:
        """How often brokers of ours asked `object_store` or `metadata`, for whatever is named."""
        return sum(
            value
            for one in self.served
            for name, value in one.metrics().items()
            if name.startswith(f"forebay_{store}_requests_total") and any(f'op="{op}"' in name for op in ops)
        )

    def _requests(self, api: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in self.served:
            for name, value in one.metrics().items():
                matched = _REQUESTS.fullmatch(name)
                if matched and matched["api"] == api:
                    found[matched["error"]] += int(value)
        return found


@contextlib.contextmanager
def running_brokers(against: Against, folder: Path, *, count: int = 2, settings: Mapping[str, str] | None = None) -> Iterator[Brokers]:
    """`count` brokers of Forebay over one Oxia and one bucket, or one of Apache Kafka, which takes none of the settings."""
    with contextlib.ExitStack() as closing:
        proxies = [closing.enter_context(lossy()) for _ in range(1 if against == "kafka" else count)]
        if against == "kafka":
            # Its clients are all sent to the proxy, which passes everything on until it is told otherwise.
            kafka = closing.enter_context(running_kafka(folder / "kafka", advertised=proxies[0].address, settings=KAFKA, is_measured=False))
            proxies[0].target = (HOST, kafka.port)
            yield Brokers([proxies[0].address], proxies)
            return
        oxia = closing.enter_context(running_oxia(folder / "oxia"))
        s3 = closing.enter_context(running_s3(folder / "s3"))
        stores = {"metadata.url": oxia.url, "storage.url": s3.url()}
        served = []
        for number, proxy in enumerate(proxies):
            listeners = {
                "kafka.listeners": f"PLAINTEXT://{HOST}:0,LOSSY://{HOST}:0",
                "kafka.advertised_listeners": f"PLAINTEXT://{HOST}:0,LOSSY://{proxy.address}",
            }
            given = FOREBAY | listeners | (UPKEEP if number == 0 else {}) | stores | dict(settings or {})
            one = closing.enter_context(serving(folder / f"broker-{number}", settings=given, environ=s3.environ))
            proxy.target = (HOST, second_port(one))
            served.append(one)
        yield Brokers([one.bootstrap for one in served], proxies, served, folder / "s3" / "data")


def second_port(served: Served) -> int:
    """Of the listener that clients reach through a proxy."""
    (listening,) = (event["listeners"] for event in served.events() if event.get("event") == "kafka listening")
    return int(str(listening).split(",")[1].rpartition(":")[2])
