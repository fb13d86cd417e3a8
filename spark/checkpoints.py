"""Whose checkpoint a folder is. Spark keeps offsets there and neither cluster nor topic ids, so that it would go on, with another query's
offsets, or in a topic that was deleted and made again.

A job notes in `forebay.json` beside Spark's own folders what it was started with, and compares at every start.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from spark.errors import JobFailed
from spark.files import delete_folder, names_in, read_text, write_text
from spark.kafka_admin import KafkaAdmin, KafkaPartition, KafkaTopic
from spark.topics import TopicSource, least, read_offsets

NOTE: Final = "forebay.json"
_BATCHES: Final = ("offsets", "commits", "state")
_VERSION: Final = re.compile(r"v\d+\n")
"""The first line of all that Spark keeps in a checkpoint: what has none was not written to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the offsets of a checkpoint are offsets of, and where the rows go."""

    job: str
    cluster_id: str
    topics: Mapping[str, str]
    """The id of each."""
    output: str
    values: str = ""
    """How values become rows: of a batch that is half done, the rest has to be made in the same way."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """`id` names it forever: a table knows by it which batches it has. `is_new`: no batch was planned yet. `has_batches`: one is done."""

    spark: SparkSession
    path: str
    id: str
    origin: Origin
    source: TopicSource
    is_new: bool
    has_batches: bool = False

    def check_topics(self, admin: KafkaAdmin) -> None:
        """Raise `JobFailed` if a topic was deleted, or deleted and made again, since it was noted. Topics that have come are noted."""
        found = self.source.known(admin)
        others = admin.topics(name for name in self.origin.topics if name not in found)
        _compare_topics(self.path, self.origin.topics, found | others)
        if fresh := {name: one.id for name, one in found.items() if name not in self.origin.topics}:
            self.origin = replace(self.origin, topics={**self.origin.topics, **fresh})
            self.note()

    def note(self, *, is_new: bool = False) -> None:
        said = json.dumps({"id": self.id, **asdict(self.origin)}, indent=2)
        write_text(self.spark, f"{self.path}/{NOTE}", f"{said}\n", is_new=is_new)


def open_checkpoint(spark: SparkSession, path: str, origin: Origin, source: TopicSource) -> Checkpoint:
    """Note what it is for, or compare with the note. Raise `JobFailed` if it is for something else."""
    noted = read_text(spark, f"{path}/{NOTE}")
    planned, done = (_numbers(spark, f"{path}/{folder}") for folder in ("offsets", "commits"))
    if noted is None:
        if planned:
            raise JobFailed(f"The checkpoint {path} was made by another query (it has no {NOTE}). Name a folder of its own.")
        made = Checkpoint(spark=spark, path=path, id=str(uuid.uuid4()), origin=origin, source=source, is_new=True)
        try:
            # Of two drivers that start at once, one writes it: batches of the other would be another writer's.
            made.note(is_new=True)
        except OSError as error:
            raise JobFailed(
                f"The checkpoint {path} cannot be begun: {error}. If another driver has just begun it, let that run."
            ) from error
        return made
    before = _read(noted, f"{path}/{NOTE}")
    for what, mine, its in (
        ("the job", origin.job, before.job),
        ("the cluster", origin.cluster_id, before.cluster_id),
        ("rows for", origin.output, before.output),
    ):
        if mine != its:
            raise JobFailed(
                f"The checkpoint {path} belongs to {what} {its}, and this is {mine}. Name the one that belongs to it, or a new one."
            )
    _compare_topics(path, before.topics, {name: KafkaTopic(name=name, id=one, partition_count=0) for name, one in origin.topics.items()})
    half_done = set(planned) - set(done)
    if half_done and before.values != origin.values:
        raise JobFailed(
            f"Batch {max(half_done)} of {path} is half done, with another schema, or other settings for values. Run once more with "
            "those, without --interval: it ends when it has read all there is. Then change them."
        )
    opened = Checkpoint(
        spark=spark,
        path=path,
        id=json.loads(noted)["id"],
        origin=replace(origin, topics={**before.topics, **origin.topics}),
        source=source,
        is_new=not planned,
        has_batches=bool(done),
    )
    if opened.origin != before:
        opened.note()
    if opened.is_new:
        # A driver that ended as it wrote down its first batch leaves half a file there, with which Spark would not start again. There is
        # nothing yet that was planned, and so nothing that was written. Where the query begins, in `sources`, stays.
        for folder in _BATCHES:
            delete_folder(spark, f"{path}/{folder}")
    return opened


def planned_offsets(spark: SparkSession, path: str) -> dict[KafkaPartition, int]:
    """Where the newest batch ends, done or not: no row of a table is from there on, or further."""
    numbers = _numbers(spark, f"{path}/offsets")
    planned = read_text(spark, f"{path}/offsets/{max(numbers)}") if numbers else None
    return least([one for one in map(read_offsets, (planned or "").splitlines()[2:]) if one])


def _numbers(spark: SparkSession, folder: str) -> list[int]:
    return sorted(int(name) for name in names_in(spark, folder) if name.isdigit())


def committed_offsets(spark: SparkSession, path: str) -> tuple[int, dict[KafkaPartition, int]] | None:
    """The last batch that is done, and the offsets at its end; None before the first one. Of a partition that several sources read, the
    smallest. Raise `JobFailed` if it reads no topic, or does not say how far."""
    done = _numbers(spark, f"{path}/commits")
    if not done:
        return None
    committed, planned = (read_text(spark, f"{path}/{folder}/{done[-1]}") or "" for folder in ("commits", "offsets"))
    versions = [_VERSION.match(one) for one in (committed, planned)]
    sources = [one for one in map(read_offsets, planned.splitlines()[2:]) if one]
    if not all(versions) or not sources:
        raise JobFailed(f"{path} is no checkpoint of a query that reads Kafka: of batch {done[-1]} it says {planned!r}, and {committed!r}.")
    return done[-1], least(sources)


def noted_origin(spark: SparkSession, path: str) -> Origin | None:
    """What a checkpoint of a job of ours is for; None of any other query's."""
    note = f"{path}/{NOTE}"
    noted = read_text(spark, note)
    return None if noted is None else _read(noted, note)


def _read(noted: str, note: str) -> Origin:
    try:
        found = json.loads(noted)
        str(found["id"])
        texts = {name: str(found[name]) for name in ("job", "cluster_id", "output")} | {"values": str(found.get("values", ""))}
        return Origin(topics=dict(found["topics"]), **texts)
    except (ValueError, KeyError, TypeError) as error:
        raise JobFailed(f"{note} is not as a job has written it. Start with a new checkpoint, and a new table.") from error


def _compare_topics(path: str, before: Mapping[str, str], now: Mapping[str, KafkaTopic]) -> None:
    for name, topic_id in before.items():
        if name not in now:
            raise JobFailed(f"The topic {name} is gone: {path} has offsets of it. If it was deleted on purpose, name a new checkpoint.")
        if now[name].id != topic_id:
            raise JobFailed(
                f"The topic {name} was deleted and made again (its id was {topic_id}, and is {now[name].id}): the offsets in {path} are "
                "of the one before. Name a new checkpoint, and a new table if it must hold one of them only."
            )
