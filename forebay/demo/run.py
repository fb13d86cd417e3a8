"""The demo from start to end, in words for people on standard output."""

import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from broker.settings.errors import EXIT_FAILED, StartError
from broker.settings.sections import HTTP_PORT
from forebay.demo.broker_process import HOST, BrokerProcess, Place, free_port
from forebay.demo.flights import archive_path, flights
from forebay.demo.ledger import Ledger, differences
from forebay.demo.progress import progress
from forebay.demo.replay import ReplayError, read_back, recreate_topic, send
from forebay.demo.store_use import PRICES_OF, StoreUse, store_use
from forebay.stopping import EXIT_INTERRUPTED
from runtime.clock import Clock, SystemClock
from runtime.version import forebay_version

TOPIC: Final = "flights"
PARTITION_COUNT: Final = 6
_ALWAYS_SHOWN: Final = ("put", "get")
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`data` None: in memory. `port`: the first one to try. `leave`: end after the check instead of serving on."""

    records: int
    port: int
    data: Path | None
    leave: bool


def run(options: DemoOptions) -> int:
    """The exit code: 0 if every record came back as it was sent, also when stopped by Ctrl-C or SIGTERM after that."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    clock = SystemClock()
    signal.signal(signal.SIGTERM, _interrupt)
    is_verified = False
    try:
        with ExitStack() as stack:
            place = _choose_place(options, stack, console)
            broker = stack.enter_context(BrokerProcess(place, clock=clock))
            _introduce(place, broker, console)
            _replay(options.records, place, console, clock)
            is_verified = True
            console.print(what_it_took(store_use(broker.metrics())))
            if not options.leave:
                _serve_on(place, broker, console)
    except (StartError, ReplayError) as error:
        console.print(str(error), style="red")
        return error.exit_code if isinstance(error, StartError) else EXIT_FAILED
    except KeyboardInterrupt:
        console.print("stopped")
        return 0 if is_verified else EXIT_INTERRUPTED
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _choose_place(options: DemoOptions, stack: ExitStack, console: Console) -> Place:
    archive_path()
    kafka_port, http_port = free_port(options.port), free_port(HTTP_PORT)
    for wanted, found in ((options.port, kafka_port), (HTTP_PORT, http_port)):
        if found != wanted:
            console.print(f"port {wanted} is in use, {found} is free")
    folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-demo-")))
    return Place(kafka_port=kafka_port, http_port=http_port, data=options.data, log=folder / "broker.log")


def _introduce(place: Place, broker: BrokerProcess, console: Console) -> None:
    kept = f"data in {place.data} (delete it to start over)" if place.data else "data in memory"
    console.print(f"forebay {forebay_version()} · embedded mode · {kept}")
    broker.wait_ready()
    console.print(f"metadata  {place.metadata_url}\nstorage   {place.storage_url}")
    console.print(f"kafka     {HOST}:{place.kafka_port}\nhttp      http://{HOST}:{place.http_port}")


def _replay(count: int, place: Place, console: Console, clock: Clock) -> None:
    bootstrap = f"{HOST}:{place.kafka_port}"
    if recreate_topic(bootstrap, TOPIC, partition_count=PARTITION_COUNT, sleep=time.sleep):
        console.print(f"the topic {TOPIC} of an earlier run was deleted")
    began_s = clock.monotonic_s()
    with progress(console, f"producing to {TOPIC}", total=count, clock=clock) as advance:
        sent = send(bootstrap, TOPIC, flights(count), partition_count=PARTITION_COUNT, advance=advance)
    console.print(f"produced  {_rate(sent, clock.monotonic_s() - began_s)} to {TOPIC}, {PARTITION_COUNT} partitions")
    began_s = clock.monotonic_s()
    with progress(console, f"reading {TOPIC} back", total=count, clock=clock) as advance:
        read = read_back(bootstrap, TOPIC, sent.counts(), advance=advance, clock=clock)
    console.print(f"consumed  {_rate(read, clock.monotonic_s() - began_s)} from the beginning")
    console.print(verdict(sent, read, expected=count))


def verdict(sent: Ledger, read: Ledger, *, expected: int) -> str:
    """The line everything is about. Raise `ReplayError` that says what differs."""
    found = list(differences(sent, read))
    if sent.record_count != expected:
        found.append(f"{expected} records were to be sent, {sent.record_count} were")
    if found:
        raise ReplayError("\n".join([f"{read.record_count} of {expected} records read back, but they differ:", *found]))
    return f"{read.record_count} of {expected} records read back, order and checksums match"


def what_it_took(use: StoreUse) -> str:
    requests = ", ".join(f"{count} {op.upper()}" for op, count in use.requests.items() if count or op in _ALWAYS_SHOWN)
    return (
        f"wrote {use.objects_written} objects, {use.bytes_written / _MIB:.1f} MiB\n"
        f"on S3 Standard these requests would have cost ${use.dollars():.4f} ({requests}; list prices of {PRICES_OF})"
    )


def _serve_on(place: Place, broker: BrokerProcess, console: Console) -> None:
    console.print(
        f"try:  kcat -b {HOST}:{place.kafka_port} -L\n"
        f"      kcat -b {HOST}:{place.kafka_port} -C -t {TOPIC} -o beginning -c 5\n"
        f"      curl http://{HOST}:{place.http_port}/readyz\n"
        f"      curl http://{HOST}:{place.http_port}/metrics\n"
        "Ctrl-C stops"
    )
    broker.wait_end()
    raise broker.failure("ended by itself")


def _rate(ledger: Ledger, seconds: float) -> str:
    return f"{ledger.record_count:,} records in {seconds:.1f} s ({ledger.record_count / seconds:,.0f}/s)"
