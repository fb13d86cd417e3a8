"""`forebay serve` on stores that take no writes any more: clients, /readyz, the log and the metrics say so, and when it is over."""

import datetime
import http.client
import importlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from storage.outcomes import PUT, WRITE, Kind
from tests.kit.raw_client import RawClient, frame_of
from tests.kit.record_batches import record_batch
from tests.kit.serving import IN_OBJECTS, Served, get, serving

SOON_S = 40.0
ASK_EVERY_S = 0.05
PRODUCES_WHILE_FAILING = 30
clock = SystemClock()


@contextmanager
def without_folder(folder: Path) -> Iterator[None]:
    """A file has its place: the system refuses to write below it, also to root."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_bytes(b"")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


@contextmanager
def written_by_another(file: Path) -> Iterator[None]:
    """A transaction of another process that does not end."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=SOON_S)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def create_topic(broker: Served, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SOON_S)


def produced() -> Any:
    """A request with one batch."""
    module: Any = importlib.import_module("kio.schema.produce.v9.request")
    partition = module.PartitionProduceData(index=0, records=bytes(record_batch(b"x")))
    topic = module.TopicProduceData(name="t", partition_data=(partition,))
    return module.ProduceRequest(transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=30), topic_data=(topic,))


def code_of(response: Any) -> ErrorCode:
    code: ErrorCode = response.responses[0].partition_responses[0].error_code
    return code


def is_ready(broker: Served) -> bool:
    return get(broker.http_port, "/readyz")[0] == http.client.OK


def check(broker: Served, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(broker.http_port, "/readyz")[1])["checks"][name]
    return found


def gauge(broker: Served, kind: Kind) -> float:
    return broker.metrics()[f'forebay_store_failing{{op="{kind.op}",store="{kind.store}"}}']


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = clock.monotonic_s() + SOON_S
    while not is_so():
        assert clock.monotonic_s() < give_up_s, "not so in time"
        time.sleep(ASK_EVERY_S)


def lines_of(broker: Served, kind: Kind) -> list[dict[str, object]]:
    return [line for line in broker.events() if (line.get("store"), line.get("op")) == (kind.store, kind.op)]


def events_of(broker: Served, kind: Kind) -> list[object]:
    return [line["event"] for line in lines_of(broker, kind)]


def assert_told_once(broker: Served, kind: Kind, *, cause: str = "") -> None:
    """One line when it began, one when it was over, and one for every ten seconds between them."""
    first, *between, last = lines_of(broker, kind)
    assert (first["event"], last["event"]) == ("store_failing", "store_recovered")
    assert cause in str(first["error"])
    assert (first["meaning"], first["fix"]) == (kind.meaning, kind.fix)
    assert isinstance(last["lasted_s"], float)
    assert [line["event"] for line in between] == ["store_still_failing"] * len(between)
    assert len(between) <= last["lasted_s"] / 10.0


def test_a_folder_that_takes_no_objects_is_told_to_clients_orchestrators_and_operators_until_it_does(tmp_path: Path) -> None:
    with serving(tmp_path, settings=IN_OBJECTS) as broker, RawClient(broker.kafka_port) as client:
        create_topic(broker, "t")
        request = produced()
        before = code_of(client.ask(request))
        with without_folder(tmp_path / "objects"):
            for _ in range(PRODUCES_WHILE_FAILING):
                client.send(frame_of(request))
            until(lambda: not check(broker, "object_store")["ok"])
            status = get(broker.http_port, "/readyz")[0]
            named = check(broker, "object_store")
            others = [check(broker, name)["ok"] for name in ("listeners", "metadata", "registration", "draining")]
            until(lambda: gauge(broker, PUT) == 1.0)
            until(lambda: events_of(broker, PUT)[-1] == "store_still_failing")
            failed = [code_of(client.answer_to(request)) for _ in range(PRODUCES_WHILE_FAILING)]
        until(lambda: is_ready(broker))
        after = code_of(client.ask(request))
        until(lambda: gauge(broker, PUT) == 0.0)

    assert (before, after) == (ErrorCode.none, ErrorCode.none)
    assert all(code.retriable for code in failed)
    assert status == http.client.SERVICE_UNAVAILABLE
    assert "not a directory" in named["error"]
    assert others == [True] * 4
    assert_told_once(broker, PUT, cause="not a directory")


def test_a_metadata_file_that_takes_no_writes_is_told_until_it_does(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        with written_by_another(tmp_path / "meta.db"):
            until(lambda: not check(broker, "metadata")["ok"])
            named = check(broker, "metadata")
            until(lambda: gauge(broker, WRITE) == 1.0)
        until(lambda: is_ready(broker))

    # SQLite's timeout and the probe's are of about the same length.
    assert "database is locked" in named["error"] or "no answer within" in named["error"]
    assert_told_once(broker, WRITE)
