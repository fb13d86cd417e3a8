"""Whose checkpoint a folder is. Spark keeps offsets there and neither cluster nor topic ids, so that it would go on, with another query's
offsets, or in a topic that was deleted and made again.

A job notes in `forebay.json` beside Spark's own folders what it was started with, and compares at every start.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from spark.errors import JobFailed
from spark.files import names_in, read_text, write_new_text
from spark.kafka_admin import KafkaAdmin, KafkaPartition, KafkaTopic
from spark.topics import least, read_offsets

NOTE: Final = "forebay.json"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`id` names it for ever: a table knows by it which batches it has. `is_new`: no batch was planned yet."""

    path: str
    id: str
    origin: Origin
    is_new: bool

    def check_topics(self, admin: KafkaAdmin) -> None:
        """Raise `JobFailed` if a topic was deleted, or deleted and made again, since this was opened."""
        _compare_topics(self.path, self.origin.topics, admin.topics(self.origin.topics))


def open_checkpoint(spark: SparkSession, path: str, origin: Origin) -> Checkpoint:
    """Note what it is for, or compare with the note. Raise `JobFailed` if it is for something else."""
    note = f"{path}/{NOTE}"
    noted = read_text(spark, note)
    is_new = not names_in(spark, f"{path}/offsets")
    if noted is None:
        if not is_new:
            raise JobFailed(f"The checkpoint {path} was made by another query (it has no {NOTE}). Name a folder of its own.")
        made = Checkpoint(path=path, id=str(uuid.uuid4()), origin=origin, is_new=True)
        write_new_text(spark, note, json.dumps(_as_json(made), indent=2) + "\n")
        return made
    before = _read(noted, note)
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
    merged = Origin(job=origin.job, cluster_id=origin.cluster_id, topics={**before.topics, **origin.topics}, output=origin.output)
    return Checkpoint(path=path, id=json.loads(noted)["id"], origin=merged, is_new=is_new)


def committed_offsets(spark: SparkSession, path: str) -> tuple[int, dict[KafkaPartition, int]] | None:
    """The last batch that is done, and the offsets at its end; None before the first one. Of a partition that several sources read, the
    smallest. Raise `JobFailed` if it reads no topic, or does not say how far."""
    done = sorted(int(name) for name in names_in(spark, f"{path}/commits") if name.isdigit())
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


def _as_json(checkpoint: Checkpoint) -> dict[str, object]:
    origin = checkpoint.origin
    return {
        "id": checkpoint.id,
        "job": origin.job,
        "cluster_id": origin.cluster_id,
        "topics": dict(origin.topics),
        "output": origin.output,
    }


def _read(noted: str, note: str) -> Origin:
    try:
        found = json.loads(noted)
        str(found["id"])
        return Origin(job=str(found["job"]), cluster_id=str(found["cluster_id"]), topics=dict(found["topics"]), output=str(found["output"]))
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
