"""The HTTP API of real brokers: exactly once while they are killed, the same log as Kafka's clients see, streams in bounded memory."""

import contextlib
import http.client
import itertools
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runtime.clock import SystemClock
from services.ports import free_port
from storage.limits import MIB
from tests.kit.serving import ANSWER_WITHIN_S, HOST, Served, get, serving

GIVE_UP_S = 120.0
TOPIC = "t"

clock = SystemClock()


def post(port: int, path: str, body: object) -> tuple[int, Any]:
    """Raises OSError or HTTPException where there is no answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Writer:
    """An HTTP client that counts its records and sends again what it got no answer for, to the next broker."""

    def __init__(self, brokers: list[Served], number: int) -> None:
        self._brokers = brokers
        self._turn = number
        self._name = f"writer-{number}"
        _, self._producer = self._answered("/producers", {})
        self.acked: list[str] = []
        self.repeats = 0

    def _answered(self, path: str, body: object) -> tuple[int, Any]:
        give_up_s = clock.monotonic_s() + GIVE_UP_S
        while clock.monotonic_s() < give_up_s:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                status, answer = post(self._brokers[self._turn % len(self._brokers)].http_port, path, body)
                if status == 200 or not all(result.get("retriable") for result in answer.get("results", [])):
                    return status, answer
            self._turn += 1
        raise AssertionError(f"no answer within {GIVE_UP_S:.0f} s: {path}")

    def write(self, batches: int) -> None:
        sequence = 0
        for batch in range(batches):
            values = [f"{self._name} {batch} {place}" for place in range(3)]
            named = [{"topic": TOPIC, "partition": 0, "records": values, "sequence": sequence}]
            producer = {"id": self._producer["id"], "epoch": self._producer["epoch"]}
            status, answer = self._answered("/produce", {"topic_partitions": named, "producer": producer})
            assert status == 200, answer
            (result,) = answer["results"]
            self.repeats += result["duplicate"]
            sequence = result["next_sequence"]
            self.acked += values
            self._turn += 1


def test_writers_that_repeat_themselves_are_there_once_though_brokers_are_killed(tmp_path: Path) -> None:
    with contextlib.ExitStack() as closing:
        brokers = [closing.enter_context(serving(tmp_path)) for _ in range(3)]
        writers = [Writer(brokers, number) for number in range(4)]
        threads = [threading.Thread(target=writer.write, args=(40,)) for writer in writers]
        for thread in threads:
            thread.start()
        for victim in brokers[:2]:
            while sum(len(writer.acked) for writer in writers) < 60 * (1 + brokers.index(victim)):
                assert any(thread.is_alive() for thread in threads)
            victim.kill9()
        for thread in threads:
            thread.join(GIVE_UP_S)
            assert not thread.is_alive()

        status, answer = post(
            brokers[2].http_port, "/consume", {"topic_partitions": [{"topic": TOPIC, "partition": 0, "fetch_offset": 0}], "max_wait_ms": 0}
        )
        assert status == 200
        stored = [record["value"] for record in answer["results"][0]["records"]]
        for writer in writers:
            assert [value for value in stored if value.startswith(writer._name)] == writer.acked
            assert len(writer.acked) == 120
        assert len(stored) == 480


class GroupReader:
    """A member of group g over HTTP, that asks any broker, goes where it is sent, and begins again where its consumer is gone."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turn = 0
        self._consumer = ""
        self.seen: list[str] = []

    def _ask(self, path: str, body: object) -> tuple[int, Any]:
        url = f"http://{HOST}:{self._ports[self._turn % len(self._ports)]}{path}"
        for _ in range(3):
            request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as response:
                    return response.status, json.loads(response.read())
            except urllib.error.HTTPError as error:
                if error.code != http.client.TEMPORARY_REDIRECT:
                    return error.code, json.loads(error.read())
                url = error.headers["Location"]
        return http.client.SERVICE_UNAVAILABLE, {}

    def step(self) -> None:
        """Poll and commit once, if a broker answers."""
        try:
            if not self._consumer:
                status, answer = self._ask("/groups/g/consumers", {"topics": [TOPIC], "from": "start", "session_timeout_ms": 6_000})
                self._consumer = answer["url"] if status == http.client.CREATED else ""
            status, answer = self._ask(f"{self._consumer}/poll", {"max_wait_ms": 100}) if self._consumer else (0, {})
            if status == http.client.OK:
                self.seen += [record["value"] for result in answer["results"] for record in result["records"]]
                self._ask(f"{self._consumer}/commit", {"poll": answer["poll"]})
            else:
                self._consumer = "" if status == http.client.NOT_FOUND else self._consumer
                self._turn += 1
        except (OSError, http.client.HTTPException):
            self._turn += 1
            self._consumer = ""


def test_a_group_of_http_and_kafka_clients_reads_everything_though_its_coordinator_is_killed(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(2)]
    with contextlib.ExitStack() as closing:
        brokers = [
            closing.enter_context(serving(tmp_path, settings={"http.listen": f"{HOST}:{port}", "broker.id": str(number)}))
            for number, port in enumerate(ports, 1)
        ]
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 4)])[TOPIC].result(GIVE_UP_S)
        producer = Producer({"bootstrap.servers": bootstrap})
        reader = GroupReader(ports)
        kafka = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "session.timeout.ms": 6_000})
        kafka.subscribe([TOPIC])
        closing.callback(kafka.close)
        by_kafka: list[str] = []

        def read(sent: list[str]) -> None:
            for number, value in enumerate(sent):
                producer.produce(TOPIC, value.encode(), partition=number % 4)
            assert producer.flush(GIVE_UP_S) == 0
            give_up_s = clock.monotonic_s() + GIVE_UP_S
            while not {*sent} <= {*reader.seen, *by_kafka}:
                assert clock.monotonic_s() < give_up_s, sorted({*sent} - {*reader.seen, *by_kafka})
                reader.step()
                by_kafka.extend((message.value() or b"").decode() for message in kafka.consume(100, 0.1) if message.error() is None)

        read([f"before {number}" for number in range(100)])
        holder = json.loads(get(ports[0], "/api/v1/groups")[1])["groups"]
        coordinator = brokers[0] if holder else brokers[1]
        coordinator.kill9()
        read([f"after {number}" for number in range(100)])
        give_up_s = clock.monotonic_s() + GIVE_UP_S
        # The one that joins last has its share after a rebalance, which the records above may not have waited for.
        for turn in itertools.count():
            if reader.seen and by_kafka:
                break
            assert clock.monotonic_s() < give_up_s, "one of the two has no share"
            read([f"turn {turn} {number}" for number in range(8)])


def test_kafka_clients_and_http_see_one_log(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        post(
            served.http_port, "/produce", {"topic_partitions": [{"topic": TOPIC, "partition": 0, "records": ["by http"], "sequence": None}]}
        )
        producer = Producer({"bootstrap.servers": served.bootstrap, "compression.type": "lz4"})
        producer.produce(TOPIC, b"by kafka", key=b"\xff", headers=[("h", b"v")], partition=0)
        assert producer.flush(GIVE_UP_S) == 0

        consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[bytes | None] = []
        while len(values) < 2:
            message = consumer.poll(GIVE_UP_S)
            assert message is not None
            assert message.error() is None
            values.append(message.value())
        consumer.close()
        _, answer = post(served.http_port, "/consume", {"topic_partitions": [{"topic": TOPIC, "partition": 0, "fetch_offset": "start"}]})

    assert values == [b"by http", b"by kafka"]
    records = answer["results"][0]["records"]
    assert [record["value"] for record in records] == ["by http", "by kafka"]
    assert (records[1]["key"], records[1]["headers"]) == ({"base64": "/w=="}, [["h", "v"]])


@pytest.mark.parametrize("size_mib", [48, pytest.param(1_024, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_stream_takes_no_more_memory_than_its_bound_however_long_it_is(size_mib: int, tmp_path: Path) -> None:
    line = json.dumps({"topic": TOPIC, "partition": 0, "value": "x" * 1_000}).encode() + b"\n"
    chunk, count = line * 1_024, size_mib
    # The caches that fill are not the stream's.
    with serving(
        tmp_path, settings={"storage.cache_bytes": "8MiB", "storage.max_buffer_bytes": "32MiB", "kafka.max_request_bytes": "8MiB"}
    ) as served:
        warm = b"\n".join([line.strip()] * 200)
        assert stream_in(served, [warm], 1) == 200
        before_bytes = served.peak_rss_bytes()

        assert stream_in(served, [chunk], count) == 1_024 * count
        lines = stream_out(served)

        assert lines == 1_024 * count + 200
        assert served.peak_rss_bytes() - before_bytes < 96 * MIB


def stream_in(served: Served, chunks: list[bytes], times: int) -> int:
    """Send each as often, and count the records that were acknowledged meanwhile."""
    connection = http.client.HTTPConnection(HOST, served.http_port, timeout=ANSWER_WITHIN_S)
    connection.putrequest("POST", "/produce")
    for name, value in (("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")):
        connection.putheader(name, value)
    connection.endheaders()
    written: list[int] = []

    def read() -> None:
        response = connection.response_class(connection.sock, method="POST")
        response.begin()
        assert response.status == 200
        for answer in response:
            result = json.loads(answer)
            assert result["ok"], result
            written.append(result["count"])

    reading = threading.Thread(target=read)
    reading.start()
    for _ in range(times):
        for chunk in chunks:
            connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    connection.send(b"0\r\n\r\n")
    reading.join(GIVE_UP_S)
    connection.close()
    return sum(written)


def stream_out(served: Served) -> int:
    """Count the records of the whole log."""
    connection = http.client.HTTPConnection(HOST, served.http_port, timeout=ANSWER_WITHIN_S)
    body = {"topic_partitions": [{"topic": TOPIC, "partition": 0, "fetch_offset": "start"}], "until": "end"}
    headers = {"content-type": "application/json", "accept": "application/x-ndjson"}
    connection.request("POST", "/consume", json.dumps(body).encode(), headers)
    response = connection.getresponse()
    assert response.status == 200
    counted = sum(text.count(b"\n") for text in iter(lambda: response.read(256 * 1_024), b""))
    connection.close()
    return counted


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["PLAINTEXT", "HTTP"]),
        ({"kafka.advertised_listeners": "PLAINTEXT://broker-1.example:0"}, ["PLAINTEXT"]),
        ({"kafka.advertised_listeners": "PLAINTEXT://broker-1.example:0", "http.advertised": "broker-1.example:80"}, ["PLAINTEXT", "HTTP"]),
        ({"http.log_api": "off"}, []),
    ],
)
def test_a_broker_registers_the_address_of_its_api_where_others_can_reach_it(
    settings: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    with serving(tmp_path, settings={"http.listen": f"{HOST}:{free_port()}"} | settings) as served:
        told = json.loads(get(served.http_port, "/api/v1/brokers")[1])

    assert [one["name"] for broker in told.get("brokers", []) for one in broker["listeners"]] == expected
