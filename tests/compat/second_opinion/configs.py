"""Probes of configs: of topics, brokers and groups; read, altered, and every way to ask for that wrongly."""

from collections.abc import Mapping
from typing import Any, Final

from tests.compat.second_opinion.asking import Line, versions
from tests.compat.second_opinion.topics import create, topic

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def descriptions(line: Line) -> None:
    create(line, topic("told", retention_ms="5000", cleanup_policy="compact,delete"))
    for version in versions("DescribeConfigs"):

        def asks(title: str, kind: int, name: str, keys: list[str] | None = None, v: int = version, **more: Any) -> None:
            resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
            answer = line.ask(title, "DescribeConfigs", v, {"resources": resources, **more}, kept=False)
            line.asked.keep(title, "DescribeConfigs", v, _by_key(answer))

        asks("a topic", TOPIC, "told")
        asks(
            "a topic with synonyms", TOPIC, "told", ["retention.ms", "max.message.bytes"], include_synonyms=True, include_documentation=True
        )
        asks("an unknown key", TOPIC, "told", ["no.such.key"])
        asks("no key", TOPIC, "told", [])
        asks("a missing topic", TOPIC, "missing")
        asks("a bad topic name", TOPIC, "a b")
        asks("a broker that is not", BROKER, "77")
        asks("a broker of no number", BROKER, "one")
        asks("the default of brokers", BROKER, "", ["log.retention.ms"])
        asks("some of a broker", BROKER, "1", ["group.max.size", "offsets.retention.minutes", "message.max.bytes", "log.retention.ms"])
        asks("a group", GROUP, "nobody")
        asks("a group of no name", GROUP, "")
        asks("a kind that is not", 99, "x")
        asks("client metrics", CLIENT_METRICS, "x")
        asks("loggers", BROKER_LOGGER, "77")
    both = [{"resource_type": TOPIC, "resource_name": "told", "configuration_keys": ["retention.ms"]}] * 2
    line.ask("one twice", "DescribeConfigs", 4, {"resources": both})
    line.ask("nothing", "DescribeConfigs", 4, {"resources": []})


def alterations(line: Line) -> None:
    create(line, topic("altered", retention_ms="5000"))
    for version in versions("IncrementalAlterConfigs"):

        def changes(
            title: str, *configs: tuple[str, int, str | None], kind: int = TOPIC, name: str = "altered", v: int = version, **more: Any
        ) -> None:
            listed = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
            resources = [{"resource_type": kind, "resource_name": name, "configs": listed}]
            line.ask(title, "IncrementalAlterConfigs", v, {"resources": resources, "validate_only": False, **more})

        changes("set", ("retention.ms", SET, "6000"))
        changes("set back to the default", ("retention.ms", DELETE, None))
        changes("delete what is not set", ("segment.bytes", DELETE, None))
        changes("append", ("cleanup.policy", APPEND, "compact"))
        changes("append what is there", ("cleanup.policy", APPEND, "compact"))
        changes("subtract", ("cleanup.policy", SUBTRACT, "compact"))
        changes("subtract what is not there", ("cleanup.policy", SUBTRACT, "compact"))
        changes("append to a number", ("retention.ms", APPEND, "1"))
        changes("an unknown operation", ("retention.ms", 9, "1"))
        changes("an unknown key", ("no.such.key", SET, "1"))
        changes("delete an unknown key", ("no.such.key", DELETE, None))
        changes("no number", ("retention.ms", SET, "long"))
        changes("out of range", ("retention.ms", SET, "-2"))
        changes("null", ("retention.ms", SET, None))
        changes("twice in one", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        changes("a missing topic", ("retention.ms", SET, "1"), name="missing")
        changes("a bad topic name", ("retention.ms", SET, "1"), name="a b")
        changes("validated only", ("retention.ms", SET, "7"), validate_only=True)
        changes("a broker that is not", ("log.retention.ms", SET, "1"), kind=BROKER, name="77")
        changes("a key of a broker that is fixed", ("node.id", SET, "5"), kind=BROKER, name="1")
        changes("a kind that is not", ("x", SET, "1"), kind=99, name="x")
        changes("nothing of a topic")
    for version in versions("AlterConfigs"):

        def replaces(
            title: str, configs: Mapping[str, str | None], kind: int = TOPIC, name: str = "altered", v: int = version, **more: Any
        ) -> None:
            listed = [{"name": key, "value": value} for key, value in configs.items()]
            resources = [{"resource_type": kind, "resource_name": name, "configs": listed}]
            line.ask(title, "AlterConfigs", v, {"resources": resources, "validate_only": False, **more})

        replaces("all", {"retention.ms": "1234", "segment.bytes": "2000000"})
        replaces("an unknown key", {"no.such.key": "1"})
        replaces("no number", {"retention.ms": "x"})
        replaces("null", {"retention.ms": None})
        replaces("a missing topic", {}, name="missing")
        replaces("validated only", {"retention.ms": "9"}, validate_only=True)
        replaces("by nothing", {})
        replaces("a broker that is not", {}, kind=BROKER, name="77")
    keys = [{"resource_type": TOPIC, "resource_name": "altered", "configuration_keys": ["retention.ms", "segment.bytes", "cleanup.policy"]}]
    line.ask("after all this", "DescribeConfigs", 4, {"resources": keys})


def resources(line: Line) -> None:
    line.ask_all("all", "ListConfigResources")
    for kind in (BROKER_LOGGER, CLIENT_METRICS, GROUP, 99):
        line.ask(f"of type {kind}", "ListConfigResources", 1, {"resource_types": [kind]})


def _by_key(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Configs by name: a list of other order is no difference."""
    for result in answer.get("results", []):
        result["configs"] = {one.pop("name"): one for one in result["configs"] or []}
    return answer or None


PROBES: Final = (descriptions, alterations, resources)
