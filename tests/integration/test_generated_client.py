"""A client that is generated from /openapi.json, as users of other languages do it, speaks with a broker."""

import importlib
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from openapi_python_client import generate
from openapi_python_client.config import Config, ConfigFile, MetaType

from broker.http.routes import ROUTES
from runtime.clock import SystemClock
from tests.kit.serving import ANSWER_WITHIN_S, Served, serving

NAME = "generated_forebay_client"
POLLS_WITHIN_S = 60.0
TOPIC = "orders"
STREAMED = "streamed"

clock = SystemClock()


class Generated:
    """The package that was generated, its operations by their names, and a client of a broker."""

    def __init__(self, package: ModuleType, url: str) -> None:
        self.models = importlib.import_module(f"{NAME}.models")
        self.types = importlib.import_module(f"{NAME}.types")
        self.client = package.Client(base_url=url, follow_redirects=True, raise_on_unexpected_status=True, timeout=ANSWER_WITHIN_S)

    def operation(self, name: str) -> ModuleType:
        return importlib.import_module(f"{NAME}.api.default.{name}")

    def ask(self, operation: str, *path: str, **given: Any) -> tuple[int, Any]:
        """The status, and the answer as the model that the document promises for it."""
        answer = self.operation(operation).sync_detailed(*path, client=self.client, **given)
        return int(answer.status_code), answer.parsed

    def produce(self, values: list[Any], **more: Any) -> tuple[int, Any]:
        sequence = {"sequence": more.pop("sequence")} if "sequence" in more else {}
        partition = self.models.PartitionToProduce(topic=TOPIC, partition=0, records=values, **sequence)
        return self.ask("produce", body=self.models.ProduceDocument(topic_partitions=[partition], **more))

    def consumed(self) -> list[Any]:
        partition = self.models.PartitionToConsume(topic=TOPIC, partition=0, fetch_offset="start")
        status, answer = self.ask("consume", body=self.models.ConsumeDocument(topic_partitions=[partition], max_wait_ms=0))
        assert status == 200
        (result,) = answer.results
        assert isinstance(result, self.models.ConsumedPartition)
        return list(result.records)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("broker"), settings={"http.allow_writes": "true"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def generated(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    folder = tmp_path_factory.mktemp("client")
    with urllib.request.urlopen(f"{served.http_url}/openapi.json", timeout=ANSWER_WITHIN_S) as response:
        (folder / "openapi.json").write_bytes(response.read())
    # It knows no NDJSON, and is told that these are bytes.
    chosen = ConfigFile(post_hooks=[], literal_enums=True, content_type_overrides={"application/x-ndjson": "application/octet-stream"})
    config = Config.from_sources(
        chosen, MetaType.NONE, document_source=folder / "openapi.json", file_encoding="utf-8", overwrite=True, output_path=folder / NAME
    )
    assert [f"{warning.header}: {warning.detail}" for warning in generate(config=config)] == []
    sys.path.insert(0, str(folder))
    _import_unset(folder / NAME)
    made = Generated(importlib.import_module(NAME), served.http_url)
    try:
        with made.client:
            yield made
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


def _import_unset(package: Path) -> None:
    """Add an import that the generator forgets where a body has two content types, and so this operation would not load."""
    module = package / "api" / "default" / "produce.py"
    given = "from ...types import Response, UNSET\n"
    assert given in module.read_text()
    module.write_text(module.read_text().replace(given, "from ...types import Response, UNSET, Unset\n"))


def test_every_operation_is_generated(generated: Generated) -> None:
    modules = {path.stem for path in Path(str(generated.types.__file__)).parent.glob("api/default/*.py")} - {"__init__"}
    assert modules == {route.name for route in ROUTES}


def test_a_producer_that_repeats_itself_is_there_once(generated: Generated) -> None:
    models = generated.models
    status, producer = generated.ask("new_producer")
    assert (status, type(producer)) == (200, models.NewProducer)
    sender = models.HttpProducer(id=producer.id, epoch=producer.epoch)
    records = ["a text", models.JsonRecord(base64="//8="), models.JsonRecord(value=None, key="k", headers=[["h", "v"]], timestamp=1)]

    answers = [generated.produce(records, producer=sender, sequence=0) for _ in range(2)]

    for (status, answer), is_duplicate in zip(answers, (False, True), strict=True):
        (result,) = answer.results
        assert (status, type(result)) == (200, models.ProducedPartition)
        assert (result.start_offset, result.count, result.next_sequence, result.duplicate) == (0, 3, 3, is_duplicate)
    text, binary, full = generated.consumed()
    assert (text.value, binary.value, full.value) == ("a text", models.Binary(base64="//8="), None)
    assert (full.key, full.headers, full.timestamp) == ("k", [["h", "v"]], 1)

    status, answer = generated.produce(["too late"], producer=sender, sequence=7)
    (refusal,) = answer.results
    assert (status, type(refusal), refusal.error_type) == (409, models.FailedPartition, "OutOfOrderSequence")
    status, answer = generated.produce(["no sequence"], producer=sender)
    assert (status, type(answer), answer.error_type) == (400, models.ErrorAnswer, "InvalidRequest")


def test_lines_and_events_have_the_shapes_that_the_document_gives_them(generated: Generated) -> None:
    models, http = generated.models, generated.client.get_httpx_client()
    lines = b"".join(b'{"topic": "%b", "partition": 0, "value": "line %d"}\n' % (STREAMED.encode(), number) for number in range(3))
    answer = http.post("/produce", content=lines, headers={"content-type": "application/x-ndjson"})
    (line,) = map(json.loads, answer.text.splitlines())
    assert models.AnsweredLines.from_dict(line).lines == [1, 3]
    assert models.ProducedPartition.from_dict(line).count == 3

    wanted = models.ConsumeDocument(
        topic_partitions=[models.PartitionToConsume(topic=STREAMED, partition=0, fetch_offset="start")], until="end"
    )
    answer = http.post("/consume", json=wanted.to_dict(), headers={"accept": "application/x-ndjson"})
    read = [models.RecordOfLine.from_dict(json.loads(line)) for line in answer.text.splitlines()]
    assert [(record.offset, record.value) for record in read] == [(0, "line 0"), (1, "line 1"), (2, "line 2")]

    asked = generated.operation("tail")._get_kwargs(STREAMED, partition=[0], from_="start", last_event_id="0:2")
    with http.stream(**asked) as events:
        data = next(line for line in events.iter_lines() if line.startswith("data: "))
    assert models.RecordOfLine.from_dict(json.loads(data.removeprefix("data: "))) == read[2]


def test_a_consumer_of_a_group_polls_commits_and_leaves(generated: Generated) -> None:
    models = generated.models
    generated.produce(["one", "two"])
    wanted = models.NewConsumerDocument(topics=[TOPIC], from_="start")
    status, created = generated.ask("create_consumer", "g", body=wanted)
    assert (status, type(created)) == (201, models.NewConsumer)

    seen: list[Any] = []
    give_up_s = clock.monotonic_s() + POLLS_WITHIN_S
    while not seen:
        assert clock.monotonic_s() < give_up_s
        status, polled = generated.ask("poll", "g", created.consumer, body=models.PollDocument())
        assert (status, type(polled)) == (200, models.PollAnswer)
        seen = [record for result in polled.results for record in result.records]
    assert polled.assigned == [models.AssignedPartition(topic=TOPIC, partition=0)]
    assert [record.offset for record in seen] == [record.offset for record in generated.consumed()]

    status, answer = generated.ask("commit", "g", created.consumer, body=models.CommitDocument(poll=polled.poll + 1))
    assert (status, type(answer), answer.error_type) == (409, models.ErrorAnswer, "Conflict")
    status, answer = generated.ask("commit", "g", created.consumer, body=models.CommitDocument(poll=polled.poll))
    (committed,) = answer.results
    assert (status, committed.ok, committed.offset) == (200, True, seen[-1].offset + 1)
    assert generated.ask("delete_consumer", "g", created.consumer) == (200, models.LeftGroup(consumer=created.consumer))
    status, answer = generated.ask("poll", "g", created.consumer, body=models.PollDocument())
    assert (status, type(answer), answer.error_type) == (404, models.ErrorAnswer, "UnknownConsumer")


def test_topics_are_created_listed_altered_and_deleted(generated: Generated) -> None:
    models = generated.models
    configs = models.NewTopicDocumentConfigs.from_dict({"retention.ms": "3600000"})
    for validate_only, (expected, kind) in ((True, (200, models.ValidatedTopic)), (False, (201, models.TopicInFull))):
        document = models.NewTopicDocument(topic="made", partition_count=2, configs=configs, validate_only=validate_only)
        status, answer = generated.ask("create_topic", body=document)
        assert (status, type(answer)) == (expected, kind)
    status, page = generated.ask("topics", limit=1, after="m")
    assert (status, [topic.topic for topic in page.topics]) == (200, ["made"])
    status, altered = generated.ask("alter_topic", "made", body=models.TopicPatch(partition_count=3))
    assert (status, altered.partition_count, len(altered.partitions)) == (200, 3, 3)
    assert generated.ask("delete_topic", "made") == (200, models.Deleted(deleted="made"))
    assert generated.ask("topic", "made")[0] == 404


def test_health_and_cluster_are_told(generated: Generated) -> None:
    status, health = generated.ask("health")
    assert (status, health.ready) == (200, True)
    for operation in ("index", "openapi", "cluster", "brokers", "settings", "groups"):
        status, answer = generated.ask(operation)
        assert status == 200
        assert answer is not None
