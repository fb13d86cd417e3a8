"""`offsets`: what the checkpoint of a query has as done, committed to a consumer group. Of any query that reads Kafka, whoever runs it.

It reads the checkpoint and leaves it as it is, and may run beside the query. A batch counts when Spark has noted that it is done.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from spark.checkpoints import committed_offsets, noted_origin
from spark.errors import JobFailed
from spark.files import names_in
from spark.jobs.job import DONE, FAILED, JobSettings, SparkJob, main
from spark.kafka_admin import KafkaAdmin, kafka_admin
from spark.offset_export import Offsets, goes_back
from spark.settings import Duration, setting
from spark.stopping import Stopping

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsSettings(JobSettings):
    checkpoint: str = setting(help="Read in this folder how far the query is.", metavar="PATH")
    group: str = setting(help="Commit to this consumer group. It may have no members.", metavar="NAME")
    interval: Duration | None = setting(help="Do it again this often, until stopped. Without it: once.", default=None)
    backwards: bool = setting(help="Set the group back where it is ahead of the query.", default=False)

    def complaints(self) -> Iterator[str]:
        yield from JobSettings.complaints(self)
        if not self.group.strip():
            yield "--group is empty: name a consumer group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """`moved`: what was committed. `held`: why nothing was."""

    batch: int
    moved: Offsets
    held: tuple[str, ...] = ()


def follow(admin: KafkaAdmin, group: str, batch: int, done: Offsets, *, may_go_back: bool) -> Followed:
    """Commit all or nothing. Raise `JobFailed` where offsets are not of this cluster."""
    ends = admin.ends(done)
    if beyond := [
        f"{one} ends at {ends[one]}, and the checkpoint is at {offset}" for one, offset in sorted(done.items()) if offset > ends[one]
    ]:
        raise JobFailed(f"{beyond[0]}: the topic was made again, or this is another cluster. Nothing was committed.")
    committed = admin.committed(group)
    back = goes_back(committed, done)
    if back and not may_go_back:
        return Followed(batch=batch, moved={}, held=tuple(back))
    moved = {one: offset for one, offset in done.items() if committed.get(one) != offset}
    if moved:
        admin.commit(group, moved)
    return Followed(batch=batch, moved=moved)


def check_origin(spark: SparkSession, admin: KafkaAdmin, settings: OffsetsSettings) -> None:
    """Raise `JobFailed` if there is no checkpoint, or one of ours that is of another cluster or of topics that were made again."""
    if not {"offsets", "metadata"} & set(names_in(spark, settings.checkpoint)):
        raise JobFailed(f"There is no checkpoint in {settings.checkpoint}: expected the folder that a query has as checkpointLocation.")
    origin = noted_origin(spark, settings.checkpoint)
    if origin is None:
        return
    if origin.cluster_id != (here := admin.cluster_id()):
        raise JobFailed(
            f"The checkpoint {settings.checkpoint} is of the cluster {origin.cluster_id}, and {settings.bootstrap_servers} is {here}."
        )
    known = admin.topics(origin.topics)
    if odd := [name for name, topic_id in origin.topics.items() if name not in known or known[name].id != topic_id]:
        raise JobFailed(
            f"The topic {odd[0]} was deleted since the checkpoint {settings.checkpoint} was made: its offsets mean nothing now."
        )


def run(spark: SparkSession, settings: OffsetsSettings, stopping: Stopping) -> int:
    with kafka_admin(spark, settings.cluster) as admin:
        check_origin(spark, admin, settings)
        if settings.interval is None:
            found = _followed(spark, admin, settings)
            (sys.stderr if found.held else sys.stdout).write(_line(found, settings))
            return FAILED if found.held else DONE
        last = ""
        while not stopping.is_asked:
            try:
                found = _followed(spark, admin, settings)
                line, is_news = _line(found, settings), bool(found.moved or found.held)
            except JobFailed as error:
                # The cluster may be away for a while, or the query may have done nothing yet.
                line, is_news = f"{error}\n", True
            if is_news and line != last:
                sys.stderr.write(line)
                last = line
            stopping.wait(settings.interval)
        return DONE


def _followed(spark: SparkSession, admin: KafkaAdmin, settings: OffsetsSettings) -> Followed:
    done = committed_offsets(spark, settings.checkpoint)
    if done is None:
        raise JobFailed(f"The query of {settings.checkpoint} has done no batch yet: there is nothing to commit.")
    return follow(admin, settings.group, *done, may_go_back=settings.backwards)


def _line(found: Followed, settings: OffsetsSettings) -> str:
    if found.held:
        where = f"{', '.join(found.held[:_SHOWN])}{', …' if len(found.held) > _SHOWN else ''}"
        return (
            f"The group {settings.group} is ahead of batch {found.batch}, and was left as it is: it would go back on {where}. "
            "If the group is this query's: --backwards.\n"
        )
    return f"offsets: the group {settings.group} is where batch {found.batch} ended ({len(found.moved)} partitions moved)\n"


JOB: Final = SparkJob(
    name="offsets",
    summary="Commit the progress of a query to a consumer group. Ends with 1 if the group is ahead of it.",
    settings=OffsetsSettings,
    run=run,
    is_stream=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
