"""What a client set and no broker enforces is in the log, in one line per request."""

import datetime
from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from broker.handlers.topics import create_topics
from broker.handling.administration import NAMED_MAX
from tests.unit.broker.handlers.asking import Cluster, cluster
from tests.unit.broker.handlers.configs import test_alter_configs, test_incremental_alter_configs
from tests.unit.broker.handlers.grouped import nested, request_of

BY = {"client_host": "127.0.0.1", "client_id": "client", "listener": "PLAINTEXT"}
TIMEOUT = datetime.timedelta(seconds=30)
SET = 0


async def create(broker: Cluster, topics: Mapping[str, Mapping[str, str]], *, validate_only: bool = False) -> Any:
    asked = tuple(
        nested(
            *(19, 7, "CreatableTopic"),
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=tuple(nested(19, 7, "CreatableTopicConfig", name=key, value=value) for key, value in configs.items()),
        )
        for name, configs in topics.items()
    )
    return await broker.ask(create_topics.handle, request_of(19, 7, topics=asked, timeout=TIMEOUT, validate_only=validate_only))


def said(logged: list[Any]) -> list[dict[str, Any]]:
    return [
        {key: line[key] for key in ("configs", "count", "topics")}
        for line in logged
        if line["event"] == "configs_not_enforced" and line["log_level"] == "warning" and BY.items() <= line.items()
    ]


async def test_one_line_names_what_created_topics_ask_for_in_vain() -> None:
    compacted, kept = {"cleanup.policy": "compact", "segment.ms": "9"}, {"retention.ms": "-1", "max.message.bytes": "5"}
    many = {f"many{number}": compacted for number in range(NAMED_MAX)}
    async with cluster() as broker:
        with capture_logs() as logged:
            await create(
                broker, {"compacted": compacted, "expiring": {"delete.retention.ms": "5"}, "kept": kept, "refused": {"no.such": "1"}}
            )
            await create(broker, many | {"last": compacted})
            await create(broker, {"kept too": {}, "kept2": kept})

    assert said(logged) == [
        {"configs": ["cleanup.policy", "delete.retention.ms"], "count": 2, "topics": ["compacted", "expiring"]},
        {"configs": ["cleanup.policy"], "count": NAMED_MAX + 1, "topics": list(many)},
    ]


async def test_nothing_is_said_of_what_was_only_validated_or_refused() -> None:
    async with cluster() as broker:
        await broker.create("t")
        with capture_logs() as logged:
            await create(broker, {"new": {"cleanup.policy": "compact"}}, validate_only=True)
            await create(broker, {"t": {"cleanup.policy": "compact"}})
            await test_incremental_alter_configs.ask(broker, (2, "t", [("retention.ms", SET, "soon")]))

    assert said(logged) == []


async def test_one_line_names_what_altered_topics_ask_for_in_vain() -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        await broker.create("u")
        with capture_logs() as logged:
            changes = [("cleanup.policy", SET, "compact"), ("retention.ms", SET, "5"), ("flush.ms", SET, "1")]
            await test_incremental_alter_configs.ask(broker, (2, "t", changes), (2, "u", [("delete.retention.ms", SET, "7")]))
            await test_alter_configs.ask(broker, (2, "u", [("retention.bytes", "7"), ("retention.ms", "-1")]))

    assert said(logged) == [{"configs": ["cleanup.policy", "delete.retention.ms"], "count": 2, "topics": ["t", "u"]}]
