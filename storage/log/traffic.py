"""Bytes and records by topic: what this broker appended, and what it answered fetches with. Counted per batch and per answer.

A partition's log holds the figures of its topic, so that counting looks nothing up. The number of topics with series of their own is
bounded; all others are one topic, OTHER. A topic that was deleted gives its series back.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Final, NoReturn

from runtime.telemetry import Metric, SeriesRow, Telemetry
from storage.catalog.topic import Topic
from storage.errors import StorageError
from storage.metadata import keys
from storage.metadata.port import MetadataStore
from storage.vocabulary import TopicId

TOPIC_BYTES: Final = Metric(
    "forebay_topic_bytes_total", "Bytes of batches: in, appended by this broker; out, in its answers to fetches", ("topic", "direction")
)
TOPIC_RECORDS: Final = Metric(
    "forebay_topic_records_total",
    "Records: in, appended by this broker, a repeated batch not again; out, offsets that its answers to fetches passed",
    ("topic", "direction"),
)
FOLDED: Final = Metric(
    "forebay_metrics_folded_total",
    'Counted under "(other)" for want of series of their own: partitions of topics beyond 1,000, groups beyond 500, and topics of '
    "groups beyond 550",
)

OTHER: Final = "(other)"
"""No topic may be called that."""
TOPICS_SHOWN_MAX: Final = 1_000
SERIES_OF_A_TOPIC: Final = 4
"""Bytes and records, in and out."""
READ_S: Final = 30.0
AGAIN_S: Final = 5.0


class Traffic:
    """The figures of one topic, since it was met. Written on the loop; the thread that makes the page reads them.

    `asks_again`: a partition that keeps them asks for its topic's when it is used again.
    """

    __slots__ = ("asks_again", "bytes_in", "bytes_out", "records_in", "records_out", "topic_id")

    def __init__(self, topic_id: TopicId | None = None, *, asks_again: bool = False) -> None:
        self.topic_id = topic_id
        self.asks_again = asks_again
        self.bytes_in = self.bytes_out = self.records_in = self.records_out = 0


class TopicTraffic:
    """The figures by topic. `run` drops those of deleted topics."""

    def __init__(
        self,
        *,
        find: Callable[[TopicId], Topic | None] = lambda _topic_id: None,
        shown: str | None = None,
        topics_max: int = TOPICS_SHOWN_MAX,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`find` is asked when a partition is met, and as long as it does not know the topic. `shown`: a regular expression that the
        whole name of a topic with series matches; None: all do.
        """
        self._find = find
        self._shown = None if shown is None else re.compile(shown)
        self._topics_max = topics_max
        self._by_name: dict[str, Traffic] = {}
        self._other = Traffic()
        self._unknown = Traffic(asks_again=True)
        """The figures of topics that `find` did not know."""
        self._doubtful: set[str] = set()
        self._has_doubt = asyncio.Event()
        telemetry = telemetry or Telemetry()
        self._folded = telemetry.counter(FOLDED)
        telemetry.table(TOPIC_BYTES, lambda: self._rows("bytes_in", "bytes_out"))
        telemetry.table(TOPIC_RECORDS, lambda: self._rows("records_in", "records_out"))

    def of(self, topic_id: TopicId) -> Traffic:
        """The figures to count in; for the partition's log to keep, unless they ask again."""
        topic = self._find(topic_id)
        if topic is None:
            return self._unknown
        if self._shown is not None and not self._shown.fullmatch(topic.name):
            return self._other
        known = self._by_name.get(topic.name)
        if known is not None and known.topic_id == topic_id:
            return known
        if known is None and len(self._by_name) >= self._topics_max:
            self._folded.inc()
            return self._other
        made = self._by_name[topic.name] = Traffic(topic_id)
        return made

    async def run(self, metadata: MetadataStore, read: Callable[[Collection[str]], Awaitable[Mapping[str, Topic]]]) -> NoReturn:
        """Look for deleted topics among those that the store says have changed, until cancelled. `read` must ask the store."""
        with contextlib.ExitStack() as closing:
            closing.callback(metadata.subscribe(self._changed, prefix=keys.TOPICS_PREFIX).cancel)
            while True:
                await self._has_doubt.wait()
                self._has_doubt.clear()
                names, self._doubtful = self._doubtful, set()
                try:
                    async with asyncio.timeout(READ_S):
                        found = await read(names)
                except (StorageError, TimeoutError):
                    self._doubtful |= names
                    await asyncio.sleep(AGAIN_S)
                    self._has_doubt.set()
                    continue
                for name in names:
                    known, topic = self._by_name.get(name), found.get(name)
                    if known is not None and (topic is None or topic.topic_id != known.topic_id):
                        # Were it there after all, its partitions would find it again.
                        known.asks_again = True
                        del self._by_name[name]

    def _changed(self, path: str, _version: int | None) -> None:
        name = path.removeprefix(keys.TOPICS_PREFIX)
        if name in self._by_name:
            self._doubtful.add(name)
            self._has_doubt.set()

    def _rows(self, into: str, out: str) -> Iterator[SeriesRow]:
        shown = [(name, (traffic,)) for name, traffic in list(self._by_name.items())]
        for name, parts in [*shown, (OTHER, (self._other, self._unknown))]:
            for direction, figure in (("in", into), ("out", out)):
                if count := sum(getattr(part, figure) for part in parts):
                    yield (name, direction), count
