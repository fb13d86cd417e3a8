"""`forebay bench …`. The result on stdout, talk on stderr; what a command needs is imported when it runs."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.commands.bench.load.commands import load
from forebay.commands.bench.settings import (
    CLIENTS_MAX,
    NUMBER_MAX,
    PARTITIONS,
    RECORD_BYTES,
    RECORD_BYTES_MAX,
    RECORDS,
    RECORDS_MAX,
    SMALL_RECORD_BYTES,
    SMALL_RECORDS,
    STAMP_BYTES,
    Acks,
    Compression,
    EndToEndLoad,
    ProduceLoad,
    RequestsLoad,
    warm_up_records,
)
from forebay.kafka_client.failures import failures_reported
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    PARTITIONS_MAX,
    Bootstrap,
    Configs,
    Output,
    OutputFormat,
    Quiet,
    ReplicationFactor,
    Terminal,
    Timeout,
    open_connection,
    pairs,
    partition_count,
    topic_names,
)
from forebay.kafka_client.text import check_name

if TYPE_CHECKING:
    from forebay.commands.bench.running import BenchRun

bench = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure any Kafka cluster: throughput and latency under load.",
    epilog="Values are random bytes, made before the clock starts, so that compression gains nothing. The client is librdkafka under "
    "Python: for small records it may be the limit, not the broker. It is when its CPU takes about as long as the load.",
)
bench.add_typer(load, name="load")


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


@bench.command()
def produce(
    records: RecordsOption = RECORDS,
    record_bytes: RecordBytesOption = RECORD_BYTES,
    partitions: PartitionsOption = None,
    producers: ProducersOption = 1,
    compression: CompressionOption = Compression.NONE,
    acks: AcksOption = Acks.ALL,
    rate: RateLimitOption = None,
    topic: TopicOption = None,
    configs: Configs = None,
    replication_factor: ReplicationFactor = None,
    warm_up: WarmUpOption = None,
    as_json: JsonOption = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Write records: how many a second, how late acknowledged.

    A latency is the time from handing a record over to its acknowledgement. Without --rate it is mostly the time in the client's queue of
    32 MiB. With acks all, producers are idempotent and have five batches under way to a broker each: where answers take long, give more
    --producers.

    Values are random bytes, made before the clock starts, and more of them than a batch has room for: compression gains nothing. The client
    is librdkafka under Python. For small records it may be the limit, not the broker: compare its CPU with the seconds.
    """
    with failures_reported():
        run = _run(
            topic,
            partitions,
            configs,
            replication_factor,
            terminal=_terminal(output, quiet=quiet, as_json=as_json),
            bootstrap=bootstrap,
            timeout=timeout,
        )
        from forebay.commands.bench.running import run_produce

        load = ProduceLoad(
            records=records,
            record_bytes=record_bytes,
            partitions=PARTITIONS,
            producers=producers,
            compression=compression,
            acks=acks,
            rate=rate,
            warm_up=warm_up_records(records) if warm_up is None else warm_up,
        )
        run_produce(run, load)


@bench.command()
def consume(
    records: RecordsToReadOption = None,
    record_bytes: RecordBytesToReadOption = None,
    partitions: PartitionsOption = None,
    consumers: ConsumersOption = 1,
    compression: CompressionToReadOption = None,
    topic: TopicToReadOption = None,
    configs: Configs = None,
    replication_factor: ReplicationFactor = None,
    warm_up: WarmUpOption = None,
    as_json: JsonOption = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Read a topic from its beginning: how many records a second.

    Each consumer is assigned partitions in turns, and joins no group. The first tenth of a topic is read before the clock starts, and the
    rest measured. What the command writes itself it writes with acks all, and is not measured.

    Values are random bytes: compression gains nothing. The client is librdkafka under Python. For small records it may be the limit, not
    the broker: compare its CPU with the seconds.
    """
    with failures_reported():
        if topic is not None and (record_bytes is not None or compression is not None):
            raise typer.BadParameter("--record-bytes and --compression are for a topic that is written before: leave --topic out")
        run = _run(
            topic,
            partitions,
            configs,
            replication_factor,
            terminal=_terminal(output, quiet=quiet, as_json=as_json),
            bootstrap=bootstrap,
            timeout=timeout,
        )
        from forebay.commands.bench.running import ConsumeOptions, run_consume

        run_consume(
            run,
            ConsumeOptions(records=records, record_bytes=record_bytes, consumers=consumers, compression=compression, warm_up=warm_up),
        )


@bench.command("e2e")
def end_to_end(
    rate: RateOption = 200,
    record_bytes: StampedRecordBytesOption = SMALL_RECORD_BYTES,
    duration_s: SecondsOption = 10,
    topic: TopicOption = None,
    configs: Configs = None,
    replication_factor: ReplicationFactor = None,
    warm_up: WarmUpOption = None,
    as_json: JsonOption = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Pass records on at a steady rate: how long each is on its way.

    One producer writes to partition 0, and one consumer waits for each record, without linger at either end. A latency is the time from
    when a record was due to when the consumer has it: a client that is late is charged for it, and so is a broker that keeps it waiting.

    Values are random bytes: compression would gain nothing. The client is librdkafka under Python, and takes some tenths of a millisecond
    of each latency itself.
    """
    with failures_reported():
        load = EndToEndLoad(rate=rate, record_bytes=record_bytes, seconds=duration_s, warm_up=0)
        load = replace(load, warm_up=warm_up_records(load.records) if warm_up is None else warm_up)
        if load.records > RECORDS_MAX:
            raise typer.BadParameter(f"--rate {rate:g} for --seconds {duration_s:g} is too much: {RECORDS_MAX:,} records at most")
        run = _run(
            topic,
            None,
            configs,
            replication_factor,
            terminal=_terminal(output, quiet=quiet, as_json=as_json),
            bootstrap=bootstrap,
            timeout=timeout,
        )
        from forebay.commands.bench.running import run_end_to_end

        run_end_to_end(run, load)


@bench.command()
def requests(
    records: RecordsOption = SMALL_RECORDS,
    record_bytes: RecordBytesOption = SMALL_RECORD_BYTES,
    partitions: PartitionsOption = None,
    topic: TopicOption = None,
    configs: Configs = None,
    replication_factor: ReplicationFactor = None,
    warm_up: WarmUpOption = None,
    as_json: JsonOption = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Write each record in a request of its own: how many a second.

    One idempotent producer without linger has five requests under way, to the partitions in turns. A latency is the time from handing a
    record over to its acknowledgement.

    Values are random bytes: compression would gain nothing. The client is librdkafka under Python, and may be the limit, not the broker:
    compare its CPU with the seconds.
    """
    with failures_reported():
        run = _run(
            topic,
            partitions,
            configs,
            replication_factor,
            terminal=_terminal(output, quiet=quiet, as_json=as_json),
            bootstrap=bootstrap,
            timeout=timeout,
        )
        from forebay.commands.bench.running import run_requests

        load = RequestsLoad(
            records=records,
            record_bytes=record_bytes,
            partitions=PARTITIONS,
            warm_up=warm_up_records(records) if warm_up is None else warm_up,
        )
        run_requests(run, load)


def _terminal(output: Output, *, quiet: bool, as_json: bool) -> Terminal:
    return Terminal(Output.JSON if as_json else output, quiet)


def _run(
    topic: str | None,
    partitions: int | None,
    configs: list[str] | None,
    replication_factor: int | None,
    *,
    terminal: Terminal,
    bootstrap: str,
    timeout: str,
) -> "BenchRun":
    """Raise `BadParameter`, or `ClientFailed` if there is no way to the brokers."""
    given = pairs(configs, option="-c", example="retention.ms=3600000")
    from forebay.commands.bench.running import BenchRun, BenchTopic
    from runtime.clock import SystemClock

    connection, admin = open_connection(bootstrap, timeout)
    wanted = BenchTopic(name=topic, partitions=partitions, configs=given, replication_factor=replication_factor)
    return BenchRun(connection=connection, admin=admin, topic=wanted, terminal=terminal, clock=SystemClock())
