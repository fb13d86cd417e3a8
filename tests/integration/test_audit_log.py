"""`log.audit` of real brokers: one JSON line for each change, and for each that was refused."""

import json
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest

from tests.kit.raw_client import CLIENT_ID, RawClient
from tests.kit.serving import ROOT, serving


def forebay(bootstrap: str, *words: str) -> int:
    command = [sys.executable, "-m", "forebay", *words, "-b", bootstrap, "--quiet"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode


def test_what_two_brokers_changed_and_refused_is_in_one_file_in_whole_lines(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    data = tmp_path / "data"
    with (
        serving(data, settings={"log.audit": str(audit), "broker.id": "1"}) as one,
        serving(data, settings={"log.audit": str(audit), "broker.id": "2"}) as two,
    ):
        # Past an admin client, which asks whichever broker it takes for the controller.
        with RawClient(one.kafka_port) as to_one, RawClient(two.kafka_port) as to_two:
            for number in range(40):
                client = (to_one, to_two)[number % 2]
                topic = CreatableTopic(name=f"t{number:02}", num_partitions=1, replication_factor=1, assignments=(), configs=())
                assert [found.error_code for found in client.ask(CreateTopicsRequest(topics=(topic,))).topics] == [0]
        assert forebay(one.bootstrap, "topic", "alter", "t00", "-c", "retention.ms=60000") == 0
        assert forebay(one.bootstrap, "topic", "add-partitions", "t00", "--num", "2") == 0
        assert forebay(one.bootstrap, "topic", "delete", "t01", "--yes") == 0
        assert forebay(one.bootstrap, "topic", "create", "t00") != 0
        said = {event["event"] for event in one.events()}

    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    created = [line for line in lines if (line["event"], line["outcome"]) == ("topic_created", "done")]
    assert sorted(line["topic"] for line in created) == [f"t{number:02}" for number in range(40)]
    assert {line["client_id"] for line in created} == {CLIENT_ID}
    # A line is written beside the answer: that of the other broker's next change may come first.
    assert [line["broker_id"] for line in sorted(created, key=itemgetter("topic"))] == [1, 2] * 20
    rest = [(line["event"], line["outcome"], line.get("error")) for line in lines if line not in created]
    assert rest == [
        ("configs_altered", "done", None),
        ("partitions_added", "done", None),
        ("topic_deleted", "done", None),
        ("topic_created", "refused", "TOPIC_ALREADY_EXISTS"),
    ]
    assert {"topic_created", "configs_altered", "partitions_added", "topic_deleted"} <= said
