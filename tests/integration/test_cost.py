"""What processes count of their requests to S3, against what the server's access log says; and the commands that show it."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compactor.assembly import open_compactor
from process.settings.model import Settings
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from services.faults.plan import Fault, Rule
from services.faults.s3_proxy import s3_proxy
from services.versitygw import PREFIX, LoggedRequest, logged_requests, running_s3, url_of
from tests.integration.command_line import forebay
from tests.kit.async_client import AsyncClient
from tests.kit.memory_watch import SOON_S
from tests.kit.serving import IN_OBJECTS, Served, get, serving

TOPIC = "orders"
PARTITIONS = 4
OPERATIONS = {
    "PutObject": "put",
    "GetObject": "ranged_get",
    "HeadObject": "head",
    "HeadBucket": "head",
    "ListObjectsV2": "list",
    "ListMultipartUploads": "list",
    "DeleteObjects": "delete",
    "DeleteObject": "delete",
    "CreateMultipartUpload": "upload_begin",
    "UploadPart": "upload_part",
    "CompleteMultipartUpload": "upload_finish",
    "AbortMultipartUpload": "abort",
}
FREE = {"OperationAborted", "NoSuchUpload", "InvalidRange"}

Counts = Counter[tuple[str, ...]]
_clock = SystemClock()


def by_log(lines: Iterable[LoggedRequest]) -> dict[str, Counts]:
    """Of each process: (request, key, answer)."""
    found: dict[str, Counts] = {}
    for line in lines:
        if line.run:
            key = line.key.removeprefix(f"{PREFIX}/")
            names = {"wal/": "wal", "segments/": "segment", ".probe/": "probe", "forebay-": "marker"}
            kind = next((name for prefix, name in names.items() if key.startswith(prefix)), "other")
            refused = "4xx_free" if line.error in FREE else "4xx"
            answer = "2xx" if line.status < 300 else "5xx" if line.status >= 500 else refused
            found.setdefault(line.run, Counter())[OPERATIONS[line.operation], kind, answer] += 1
    return found


def by_meter(series: Iterable[Mapping[str, object]], *labels: str) -> Counts:
    found: Counts = Counter()
    for one in series:
        if one["name"] == "forebay_s3_requests_total":
            named = one["labels"]
            assert isinstance(named, Mapping)
            found[tuple(str(named[label]) for label in labels)] += int(float(str(one["value"])))
    return found


def series_of(served: Served) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = json.loads(get(served.http_port, "/metrics.json")[1])["series"]
    return found


def series_in(telemetry: Telemetry) -> list[Mapping[str, object]]:
    samples = (sample for family in telemetry.registry.collect() for sample in family.samples)
    return [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in samples]


def run_of(series: Iterable[Mapping[str, object]]) -> str:
    [labels] = [one["labels"] for one in series if one["name"] == "forebay_build_info"]
    assert isinstance(labels, Mapping)
    return str(labels["run"])


def without_lost(counts: Counts) -> Counts:
    """By request and key alone: the log has the answer that the process did not get."""
    found: Counts = Counter()
    for (request, key, _), count in counts.items():
        found[request, key] += count
    return found


async def equal(meter: Callable[[], Counts], log: Callable[[], Counts]) -> None:
    """A process goes on meanwhile: what it has just sent may be in one of the two."""
    give_up_s = _clock.monotonic_s() + SOON_S
    while (counted := meter()) != (logged := log()):
        assert _clock.monotonic_s() < give_up_s, f"in the meter alone: {counted - logged}, in the log: {logged - counted}"
        await asyncio.sleep(0.2)
    assert counted


def produce(served: Served, count: int) -> None:
    """An object for each."""
    producer = Producer({"bootstrap.servers": served.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(TOPIC, bytes(500), partition=number % PARTITIONS)
        assert producer.flush(SOON_S) == 0


@pytest.mark.parametrize("client", ["obstore", "aioboto3"])
async def test_every_request_is_a_line_of_the_server_s_access_log(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access_log = tmp_path / "access.log"
    with running_s3(tmp_path / "s3", access_log=access_log) as s3:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        given = {
            **IN_OBJECTS,
            "storage.url": s3.url(),
            "storage.s3_client": client,
            "storage.flush_interval": "5ms",
            "metadata.url": f"sqlite:///{tmp_path}/meta.db",
        }
        with serving(tmp_path / "a", settings=given) as kept, serving(tmp_path / "b", settings=given) as killed:
            admin = AdminClient({"bootstrap.servers": kept.bootstrap})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
            produce(kept, 8)
            produce(killed, 8)
            async with await AsyncClient.connect(kept.kafka_port) as reader:
                for partition in range(PARTITIONS):
                    await reader.fetch(TOPIC, {partition: 0})
            last_sample = series_of(killed)
            killed.kill9()

            async with s3_proxy(s3.endpoint) as proxy:
                settings = Settings(
                    storage={"url": url_of("127.0.0.1", proxy.port), "s3_client": client},
                    metadata={"url": given["metadata.url"]},
                    compactor={"segment_age": "0ms", "delete_grace": "0ms", "delete_interval": "100ms"},
                )
                async with open_compactor(settings) as compactor:
                    proxy.plan.add(Rule(Fault.DROP_REPLY, methods={"PUT"}, times=1), Rule(Fault.DROP_REPLY, methods={"GET"}, times=1))
                    deleted = segments = 0
                    async with asyncio.timeout(SOON_S):
                        while not deleted or not segments:
                            report = await compactor.upkeep.cycle()
                            deleted += report.collection.deleted
                            segments += report.written_bytes
                            await asyncio.sleep(0.1)
                    assert proxy.counts.faults
                    series = series_in(compactor.telemetry)
                    attempts = by_meter(series, "attempt", "answer")
                    lost = sum(count for (_, answer), count in attempts.items() if answer == "none")
                    assert attempts["retry", "2xx"] + attempts["retry", "4xx"] >= 2
                    assert lost == 2
                    of_compactor, compacted = compactor.telemetry.run, by_meter(series, "request", "key", "answer")
                    causes = {cause for (cause,) in by_meter(series, "cause")}
                    assert {"compaction", "collection", "marker", "read_back"} <= causes

            run = run_of(series_of(kept))
            await equal(lambda: by_meter(series_of(kept), "request", "key", "answer"), lambda: by_log(logged_requests(access_log))[run])
            of_kept = {cause for (cause,) in by_meter(series_of(kept), "cause")}
            assert of_kept >= {"start", "fetch", "marker"}
            assert "check" not in of_kept
            # A client that has asked one broker for metadata may go on with the other.
            assert "flush" in of_kept | {cause for (cause,) in by_meter(last_sample, "cause")}

        logged = by_log(logged_requests(access_log))
        assert without_lost(compacted) == without_lost(logged[of_compactor])
        assert sum(compacted.values()) - lost == sum((compacted & logged[of_compactor]).values())
        sampled = by_meter(last_sample, "request", "key", "answer")
        assert sampled - logged[run_of(last_sample)] == Counter(), "the log has at least what a killed process said last"
        assert len(logged) == 3


def test_now_shows_what_running_processes_have_cost(tmp_path: Path) -> None:
    stores = {"storage.url": f"file://{tmp_path}/objects", "metadata.url": f"sqlite:///{tmp_path}/meta.db"}
    with serving(tmp_path, settings={**IN_OBJECTS, "cost.budget_per_month": "9"}) as served:
        admin = AdminClient({"bootstrap.servers": served.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
        produce(served, 8)
        here = ["--http", f"127.0.0.1:{served.http_port}"]
        code, data, talk = forebay("", "cost", "now", *here, "-o", "json")
        assert (code, talk) == (0, "")
        found = json.loads(data)
        code, table, _ = forebay("", "cost", "now", *here, *here)
        assert code == 0
        assert "1 processes; prices: s3-standard us-east-1" in table, "asked twice, it counts once"
        settings = [f"--set={key}={value}" for key, value in stores.items()]
        code, _, talk = forebay("", "cost", "now", *settings, f"--set=http.listen=127.0.0.1:{served.kafka_port}", "--timeout", "5s")
        assert (code, "answers /api/v1/cost with 400" in talk) == (3, True), talk
        code, _, talk = forebay("", "cost", "now", *here, "--http", "127.0.0.1:1", "--timeout", "5s")
        assert (code, "127.0.0.1:1: connection refused" in talk) == (6, True), talk

    flushed = found["dollars_by_cause"]["flush"]
    assert flushed == pytest.approx(8 * 0.005 / 1_000)
    assert found["dollars"] == pytest.approx(sum(found["dollars_by_cause"].values()))
    assert found["requests"]["put"] >= 8
    assert found["dollars_per_gib_written"] > flushed
    assert found["budget_per_month"] == 9
    assert "check" not in found["dollars_by_cause"]
    assert found["each"][0]["uptime_s"] > 0
