"""The demo from start to end, in words for people on standard output.

With several brokers, the one that the producer sends to is killed when half of the records were acknowledged (`Killing`). Afterwards
`forebay compactor run-once` makes segments of the demo's objects. The brokers' meters say what S3 would have cost.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from forebay.commands.demo.cluster import Brokers, DemoPlace, DemoStores, choose_stores, own_stores, places
from forebay.commands.demo.flights import MADE_UP, FlightRecord, archive_path, flights
from forebay.commands.demo.own_topic import Deletion, OwnTopic, create_topic, delete_topic, new_name, note, read_note
from forebay.commands.demo.pipeline import FOLDER, PipelinePlace, SparkProcess, check_spark, paced
from forebay.commands.demo.replay import Ledger, ReplayError, Routes, differences, read_back, send
from forebay.kafka_client.text import step_progress
from forebay.processes.child import HOST
from forebay.processes.plan import environment
from process import preflight
from process.cost.meter import WRITING
from process.cost.prices import BUILT_IN, DEFAULT_STORE, GIB, TABLE_DATE
from process.settings.errors import EXIT_FAILED, EXIT_USAGE, StartError
from process.settings.notation import is_memory
from process.settings.sections import StorageSettings
from process.stopping import EXIT_INTERRUPTED
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.version import forebay_version
from storage.objects.requests import S3_BYTES, S3_REQUESTS

_PERCENT_ACKED_MIN: Final = 50
_PERCENT_SENT_MAX: Final = 75
COMPACTED_WITHIN_S: Final = 300.0
PRICES: Final = BUILT_IN[DEFAULT_STORE]
"""Storage and transfer are extra."""
PRICES_OF: Final = f"{date.fromisoformat(TABLE_DATE):%B %Y}"
SHOWN_AS: Final = {
    **dict.fromkeys(("put", "upload_begin", "upload_part", "upload_finish"), "put"),
    **dict.fromkeys(("get", "ranged_get"), "get"),
    "list": "list",
    "head": "head",
    **dict.fromkeys(("delete", "abort"), "delete"),
}
"""Kinds of requests as people know them, and as they are priced."""
FULL_OBJECTS_DOLLARS_PER_GIB: Final = PRICES.of_request("put") * GIB / StorageSettings().flush_bytes
"""The PUTs of a GiB in objects that are as large as they get. README has what was measured: a few more."""
PARTITION_COUNT: Final = 6
_ALWAYS_SHOWN: Final = ("put", "get")
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`data` None: in memory. `port`: the first one to try. `leave`: end after the check instead of serving on.

    `pipeline`: Spark reads meanwhile, which needs `data`.

    Several `brokers` share the stores of the settings, and one is killed on the way; a single one is embedded, whatever they say.
    """

    records: int
    port: int
    data: Path | None
    leave: bool
    brokers: int = 1
    pipeline: bool = False


class Compacted(NamedTuple):
    """So many `objects` were read with `gets`; `segments` were written, each with one PUT at this size."""

    objects: int
    segments: int
    gets: int
    written_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Billed requests by kind. `objects_written` and `bytes_written` are those of records, without probes and markers."""

    requests: Mapping[str, int]
    objects_written: int
    bytes_written: int

    def dollars(self) -> float:
        return sum(PRICES.of_request(kind) * count for kind, count in self.requests.items())

    def dollars_per_gib(self, *, beside: Mapping[str, int]) -> float:
        """What a GiB costs that is written like this, with the requests `beside` those of the brokers; 0 if nothing was written."""
        dollars = self.dollars() + sum(PRICES.of_request(kind) * count for kind, count in beside.items())
        return dollars * GIB / self.bytes_written if self.bytes_written else 0.0


def run(options: DemoOptions, *, environ: Mapping[str, str] = os.environ) -> int:
    """The exit code: 0 if every record came back as it was sent, also when stopped by Ctrl-C or SIGTERM after that."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    clock = SystemClock()
    signal.signal(signal.SIGTERM, _interrupt)
    is_verified = False
    try:
        with ExitStack() as stack:
            try:
                brokers = _choose_brokers(options, environ, stack, console, clock)
                stores = brokers.places[0].stores
                _introduce(brokers, stores, console)
                topic = new_name(IdSource(clock=clock))
                if not stores.is_own:
                    stack.callback(_delete_topic, brokers, topic, console)
                _make_topic(brokers.places[0].address, topic, stores.data, console)
                replay = _replay if options.brokers == 1 else _replay_with_a_kill
                with _pipeline(options, topic, brokers, console, clock) as spark:
                    coming = paced(flights(options.records), clock) if spark else flights(options.records)
                    sent = replay(coming, options.records, topic, brokers, console, clock)
                    if spark:
                        spark.finish()
                is_verified = True
                console.print(what_it_took(store_use(brokers.metrics())))
                _look_after(sent, topic, brokers, console, clock)
                if not options.leave:
                    _serve_on(brokers, topic, console)
            finally:
                _go_undisturbed()
    except (StartError, ReplayError) as error:
        console.print(str(error), style="red")
        return error.exit_code if isinstance(error, StartError) else EXIT_FAILED
    except KeyboardInterrupt:
        console.print("stopped")
        return 0 if is_verified else EXIT_INTERRUPTED
    return 0


@contextlib.contextmanager
def _pipeline(options: DemoOptions, topic: str, brokers: Brokers, console: Console, clock: Clock) -> Iterator[SparkProcess | None]:
    if not options.pipeline or options.data is None:
        yield None
        return
    console.print("spark     starts: the first batch takes a while")
    place = PipelinePlace(folder=options.data / FOLDER)
    addresses = [one.address for one in brokers.places]
    with SparkProcess(place, bootstrap=addresses, topic=topic, console=console, clock=clock) as spark:
        spark.wait_reading()
        yield spark


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _go_undisturbed() -> None:
    """From here on things are only put away, each within a time of its own; a second Ctrl-C would leave some of them lying about."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interruption between the writing of a line and the emptying of the console's buffer would have it written twice."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda received, _: asked.append(received)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt


def _choose_brokers(options: DemoOptions, environ: Mapping[str, str], stack: ExitStack, console: Console, clock: Clock) -> Brokers:
    is_real = archive_path() is not None
    if options.pipeline:
        check_spark()
        if options.data is None:
            raise StartError("--pipeline keeps tables in the data folder, so it cannot run with --in-memory.", exit_code=EXIT_USAGE)
    if options.data is not None:
        preflight.check_folder(options.data, named=f"--data {options.data}", chosen="--data DIR")
    stores = own_stores(options.data) if options.brokers == 1 else choose_stores(options.data, brokers=options.brokers, environ=environ)
    if options.leave:
        # The demo compacts by itself: one beside a slow broker would have done it before.
        stores = dataclasses.replace(stores, assignments=(*stores.assignments, "compactor.run=false"))
    if not is_real:
        console.print(f"flights   {MADE_UP}")
    folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-demo-")))
    found = places(stores, brokers=options.brokers, port=options.port, log_folder=folder, say=console.print)
    return stack.enter_context(Brokers(found, clock=clock))


def _introduce(brokers: Brokers, stores: DemoStores, console: Console) -> None:
    count = "" if len(brokers.places) == 1 else f" · {len(brokers.places)} brokers"
    if stores.data:
        kept = f"embedded mode · data in {stores.data} (delete it to start over)"
    else:
        kept = "embedded mode · data in memory" if stores.is_own else "stores of the settings"
    console.print(f"forebay {forebay_version()}{count} · {kept}")
    brokers.start()
    console.print(f"metadata  {stores.metadata_url}\nstorage   {stores.storage_url}")
    for place in brokers.places:
        console.print(f"kafka     {place.address}\nhttp      http://{HOST}:{place.http_port}")


def _replay(coming: Iterator[FlightRecord], count: int, topic: str, brokers: Brokers, console: Console, clock: Clock) -> Ledger:
    bootstrap = brokers.places[0].address
    began_s = clock.monotonic_s()
    with step_progress(console, f"producing to {topic}", total=count, clock=clock) as advance:
        sent = send(bootstrap, topic, coming, partition_count=PARTITION_COUNT, advance=advance, clock=clock)
    console.print(f"produced  {_rate(sent, clock.monotonic_s() - began_s)} to {topic}, {PARTITION_COUNT} partitions")
    began_s = clock.monotonic_s()
    with step_progress(console, f"reading {topic} back", total=count, clock=clock) as advance:
        read = read_back(bootstrap, topic, sent.counts(), advance=advance, clock=clock)
    console.print(f"consumed  {_rate(read, clock.monotonic_s() - began_s)} from the beginning")
    console.print(verdict(sent, read, expected=count))
    return sent


def _replay_with_a_kill(coming: Iterator[FlightRecord], count: int, topic: str, brokers: Brokers, console: Console, clock: Clock) -> Ledger:
    """Through one broker until it is killed, on through another, and back through the last one."""
    bootstrap = brokers.places[0].address
    routes = Routes(topic)
    killing = Killing(brokers, record_count=count, console=console, clock=clock)
    began_s = clock.monotonic_s()
    with step_progress(console, f"producing to {topic}", total=count, clock=clock) as advance:
        sent = send(bootstrap, topic, coming, partition_count=PARTITION_COUNT, advance=advance, clock=clock, routes=routes, mishap=killing)
    console.print(
        f"produced  {_rate(sent, clock.monotonic_s() - began_s)} to {topic}, {PARTITION_COUNT} partitions, through {_through(routes)}"
    )
    reader = _another(brokers, than=routes.addresses)
    seen = Routes(topic)
    began_s = clock.monotonic_s()
    with step_progress(console, f"reading {topic} back", total=count, clock=clock) as advance:
        read = read_back(reader.address, topic, sent.counts(), advance=advance, clock=clock, routes=seen)
    console.print(f"consumed  {_rate(read, clock.monotonic_s() - began_s)} from the beginning, through {_through(seen) or reader.address}")
    console.print(verdict(sent, read, expected=count))
    console.print(f"the broker on {killing.victim} was killed: nothing is lost, nothing is there twice, everything is in its order")
    return sent


def _look_after(sent: Ledger, topic: str, brokers: Brokers, console: Console, clock: Clock) -> None:
    """What was written goes through the rest of its life: it is compacted, and read once more."""
    place = (brokers.running() or brokers.places)[0]
    if is_memory(place.stores.storage_url):
        console.print("in memory nothing is compacted: a compactor is a process of its own")
        return
    done = compact(place.stores, topic)
    what = f"{done.objects} objects into {done.segments} segments, {done.written_bytes / _MIB:.1f} MiB"
    console.print(f"compacted {what}, in {done.seconds:.1f} s")
    began_s = clock.monotonic_s()
    with step_progress(console, f"reading {topic} again", total=sent.record_count, clock=clock) as advance:
        read = read_back(place.address, topic, sent.counts(), advance=advance, clock=clock)
    verdict(sent, read, expected=sent.record_count)
    console.print(f"consumed  {_rate(read, clock.monotonic_s() - began_s)} from the segments: they match, too")
    console.print(what_a_gib_costs(store_use(brokers.metrics()), done, flush_interval=place.stores.flush_interval))


def _make_topic(bootstrap: str, topic: str, data: Path | None, console: Console) -> None:
    """In a data folder it takes the place of the one an earlier run made there."""
    if data is not None:
        if earlier := read_note(data):
            match delete_topic(bootstrap, earlier.name, own_id=earlier.id):
                case Deletion.DONE:
                    console.print(f"the topic {earlier.name} of an earlier run was deleted")
                case Deletion.NOT_OWN:
                    console.print(f"the topic {earlier.name} is not the one an earlier run made: it is left alone")
        note(data, OwnTopic(topic, ""))
    topic_id = create_topic(bootstrap, topic, partition_count=PARTITION_COUNT, sleep=time.sleep)
    if data is not None:
        note(data, OwnTopic(topic, topic_id))


def _another(brokers: Brokers, *, than: list[str]) -> DemoPlace:
    """One that was not produced through, if there is one. Where none lives, reading tells."""
    running = brokers.running() or brokers.places
    return next((place for place in running if place.address not in than), running[0])


def _through(routes: Routes) -> str:
    return ", then ".join(routes.addresses)


def _delete_topic(brokers: Brokers, topic: str, console: Console) -> None:
    running = brokers.running()
    if not running:
        return
    try:
        delete_topic(running[0].address, topic)
    except ReplayError as error:
        console.print(f"the topic {topic} could not be deleted: {error}", style="red")
    else:
        console.print(f"the topic {topic} was deleted")


def verdict(sent: Ledger, read: Ledger, *, expected: int) -> str:
    """The line everything is about. Raise `ReplayError` that says what differs."""
    found = list(differences(sent, read))
    if sent.record_count != expected:
        found.append(f"{expected} records were planned, {sent.record_count} were sent")
    if found:
        raise ReplayError("\n".join([f"{read.record_count} of {expected} records read back, but they differ:", *found]))
    return f"{read.record_count} of {expected} records read back, order and checksums match"


def what_it_took(use: StoreUse) -> str:
    requests = ", ".join(f"{count} {op.upper()}" for op, count in use.requests.items() if count or op in _ALWAYS_SHOWN)
    return (
        f"wrote {use.objects_written} objects, {use.bytes_written / _MIB:.1f} MiB\n"
        f"on S3 Standard these requests would have cost ${use.dollars():.4f} ({requests}; list prices of {PRICES_OF})"
    )


def what_a_gib_costs(use: StoreUse, done: Compacted, *, flush_interval: str) -> str:
    """What S3 would bill for a GiB at this load, and for the writing of one at a load that fills objects."""
    dollars = use.dollars_per_gib(beside={"get": done.gets, "put": done.segments})
    size_kib = use.bytes_written / max(1, use.objects_written) / 1024
    return (
        f"on S3 Standard a GiB written at this load, compacted, read twice and deleted would cost ${dollars:.4f} of requests: "
        f"a flush every {flush_interval} makes objects of {size_kib:.0f} KiB\n"
        f"a broker busy enough to fill its objects pays less than ${_above(FULL_OBJECTS_DOLLARS_PER_GIB):.3f} for the PUTs of a GiB "
        "(forebay cost estimate 50MiB)"
    )


def _above(dollars: float) -> float:
    return math.ceil(dollars * 1_000) / 1_000


def _serve_on(brokers: Brokers, topic: str, console: Console) -> None:
    place = (brokers.running() or brokers.places)[0]
    with _uninterrupted():
        console.print(
            f"try:  kcat -b {place.address} -L\n"
            f"      kcat -b {place.address} -C -t {topic} -o beginning -c 5\n"
            f"      curl http://{HOST}:{place.http_port}/readyz\n"
            f"      curl http://{HOST}:{place.http_port}/metrics\n"
            "Ctrl-C stops"
        )
    brokers.wait_end()


def _rate(ledger: Ledger, seconds: float) -> str:
    return f"{ledger.record_count:,} records in {seconds:.1f} s ({ledger.record_count / seconds:,.0f}/s)"


class Killing:
    """`victim` is the address of the broker that was killed, empty before."""

    def __init__(self, brokers: Brokers, *, record_count: int, console: Console, clock: Clock) -> None:
        self.acked_min = record_count * _PERCENT_ACKED_MIN // 100
        self.sent_max = max(1, record_count * _PERCENT_SENT_MAX // 100)
        self.victim = ""
        self._brokers = brokers
        self._console = console
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._at_s = 0.0

    def prepare(self, address: str) -> None:
        self._brokers.note_metrics(self._brokers.at(address))

    def strike(self, address: str) -> None:
        self._brokers.kill9(self._brokers.at(address))
        self._at_s = self._clock.monotonic_s() - self._began_s
        self.victim = address

    def struck(self, *, acked: int, open_count: int) -> None:
        self._console.print(
            f"killed    the broker on {self.victim}, which the producer was sending to, with kill -9 after {self._at_s:.1f} s: "
            f"{acked:,} records were acknowledged by then, {open_count:,} on their way"
        )


def compact(stores: DemoStores, topic: str) -> Compacted:
    """All of `topic` becomes segments, however little it is. Raise `ReplayError` with the command's own words if that fails."""
    command = [sys.executable, "-m", "forebay", "compactor", "run-once", topic, "--now", "-o", "json", "--config", os.devnull]
    for assignment in stores.assignments:
        command += ["--set", assignment]
    try:
        ended = subprocess.run(  # noqa: S603 - our own command line
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=COMPACTED_WITHIN_S,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ReplayError(f"the compactor did not end within {COMPACTED_WITHIN_S:.0f} s") from None
    if ended.returncode:
        raise ReplayError(f"the compactor failed with exit code {ended.returncode}: {ended.stderr.strip() or ended.stdout.strip()}")
    said = json.loads(ended.stdout)
    return Compacted(said["objects"], said["segments"], said["gets"], said["written_bytes"], said["seconds"])


def store_use(series: Iterable[Mapping[str, Any]]) -> StoreUse:
    """From the `series` of /metrics.json, of one broker or of several one after the other."""
    requests = dict.fromkeys(("put", "list", "get", "head", "delete"), 0)
    objects_written = bytes_written = 0
    for one in series:
        labels, value = one["labels"], one["value"]
        if one["name"] == S3_REQUESTS.name and labels["answer"] in PRICES.billed:
            requests[SHOWN_AS[labels["request"]]] += int(value)
            is_whole = labels["request"] in ("put", "upload_finish") and labels["answer"] == "2xx"
            objects_written += int(value) if is_whole and labels["cause"] in WRITING else 0
        elif one["name"] == S3_BYTES.name and labels["direction"] == "in" and labels["cause"] in WRITING:
            bytes_written += int(value)
    return StoreUse(requests, objects_written, bytes_written)
