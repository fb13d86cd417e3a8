"""Options that the loads of `forebay bench` share."""

from typing import Annotated

import typer

from forebay.commands.bench.settings import CLIENTS_MAX, NUMBER_MAX, RECORD_BYTES_MAX, RECORDS_MAX, STAMP_BYTES, Acks, Compression
from forebay.kafka_client.options import PARTITIONS_MAX, partition_count, topic_names
from forebay.kafka_client.text import check_name


def positive(given: float | None) -> float | None:
    """For options that are numbers above 0. Raise `BadParameter` for others."""
    if given is not None and not given > 0:
        raise typer.BadParameter(f"{given:g} is not more than 0")
    if given is not None and given > NUMBER_MAX:
        raise typer.BadParameter(f"{given:g} is too large: {NUMBER_MAX:,} at most")
    return given


TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        help="Use this topic, which stays; create it if it is not there.  [default: a topic of its own, deleted afterwards]",
        metavar="TOPIC",
        autocompletion=topic_names,
        callback=check_name,
    ),
]
TopicToReadOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        help="Read this topic.  [default: one that is written before and deleted afterwards]",
        metavar="TOPIC",
        autocompletion=topic_names,
        callback=check_name,
    ),
]
RecordsOption = Annotated[int, typer.Option("--records", "-n", min=1, max=RECORDS_MAX, help="Measure this many records.")]
RecordsToReadOption = Annotated[
    int | None,
    typer.Option(
        "--records",
        "-n",
        min=1,
        max=RECORDS_MAX,
        help="Measure this many records.  [default: 1,000,000, or all that --topic has]",
    ),
]
RecordBytesOption = Annotated[int, typer.Option("--record-bytes", min=1, max=RECORD_BYTES_MAX, help="Make each value this long.")]
RecordBytesToReadOption = Annotated[
    int | None,
    typer.Option("--record-bytes", min=1, max=RECORD_BYTES_MAX, help="Make each value this long.  [default: 1024]"),
]
StampedRecordBytesOption = Annotated[
    int, typer.Option("--record-bytes", min=STAMP_BYTES, max=RECORD_BYTES_MAX, help="Make each value this long.")
]
PartitionsOption = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        "-p",
        min=1,
        callback=partition_count,
        help=f"Create the topic with this many partitions, {PARTITIONS_MAX:,} at most.  [default: 12, or as the topic has]",
    ),
]
ProducersOption = Annotated[int, typer.Option("--producers", min=1, max=CLIENTS_MAX, help="Share the records among this many producers.")]
ConsumersOption = Annotated[
    int, typer.Option("--consumers", min=1, max=CLIENTS_MAX, help="Share the partitions among this many consumers.")
]
CompressionOption = Annotated[Compression, typer.Option("--compression", help="Compress batches.")]
CompressionToReadOption = Annotated[Compression | None, typer.Option("--compression", help="Compress batches.  [default: none]")]
AcksOption = Annotated[Acks, typer.Option("--acks", help="Wait for all replicas, the leader, or nobody.")]
RateLimitOption = Annotated[
    float | None,
    typer.Option(
        "--rate", callback=positive, metavar="NUMBER", help="Send this many records a second in all.  [default: as fast as it goes]"
    ),
]
RateOption = Annotated[float, typer.Option("--rate", callback=positive, metavar="NUMBER", help="Send this many records a second.")]
SecondsOption = Annotated[float, typer.Option("--seconds", callback=positive, metavar="NUMBER", help="Measure for this long.")]
WarmUpOption = Annotated[
    int | None,
    typer.Option("--warm-up", min=0, max=RECORDS_MAX, help="Pass this many records before the clock starts.  [default: a tenth more]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object: short for -o json.")]
