"""What a web interface of Kafka (Kafbat, AKHQ, Conduktor) calls when it shows a cluster and when its buttons are pressed (UiCalls.java).

A slow test holds the same calls against Apache Kafka itself.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from services.build import cache_folder
from services.kafka import running_kafka
from tests.kit.serving import serving
from tests.kit.toolchains import java

pytestmark = pytest.mark.timeout(600)  # the jars are fetched once

FOLDER: Final = Path(__file__).parent
ENDS_WITHIN_S: Final = 120.0
SETTINGS: Final = {"kafka.auto_create_topics": "false", "groups.initial_rebalance_delay": "0ms"}
ON_A_CLUSTER: Final = ["ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE"]
ON_A_TOPIC: Final = ["ALTER", "ALTER_CONFIGS", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE"]
ON_A_GROUP: Final = ["ALTER_CONFIGS", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ"]
A_TOPIC: Final = {
    "partitions": 2,
    "replicas": 1,
    "in_sync": 1,
    "led": True,
    "eligible": 0,
    "internal": False,
    "operations": ON_A_TOPIC,
}


DIFFERENT: Final = {
    "describe_broker_configs",  # this one names a level, for interfaces that guess from it what a broker can do
    "describe_features",
    "describe_topic_configs",  # a default among the synonyms of retention.ms, where Apache Kafka has one for hours only
    "describe_metadata_quorum",
    "describe_delegation_token",
    "list_transactions",
}
"""What Apache Kafka answers otherwise."""


@pytest.fixture(scope="module")
def seen() -> Mapping[str, object]:
    with serving(None, settings=SETTINGS) as served:
        return calls(served.bootstrap)


def calls(bootstrap: str) -> Mapping[str, object]:
    """Call → what it gave, or a text that begins with `failed`."""
    command = java.program("UiCalls", FOLDER, cache_folder() / "compat")
    done = subprocess.run(
        [*command, bootstrap, "ui"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["step"]: line["saw"] if "saw" in line else f"failed: {line['failed']}" for line in lines}


def test_the_page_of_the_cluster(seen: Mapping[str, object]) -> None:
    assert seen["describe_cluster"] == {
        "brokers": 1,
        "controller_known": True,
        "cluster_id": True,
        "fenced": 0,
        "operations": ON_A_CLUSTER,
    }
    assert seen["describe_broker_configs"] == {
        "broker.id": "true",
        "has_listeners": True,
        "undocumented": [],
        "entries_over_20": True,
        "level": "4.0",
    }
    assert seen["describe_log_dirs"] == {"folders": 1, "errors": 0, "filled": {"0": True, "1": False}}
    assert seen["describe_user_scram_credentials"] == 0
    assert seen["describe_client_quotas"] == 0
    assert seen["describe_acls"] == {"error": "SECURITY_DISABLED"}


def test_the_page_of_a_topic(seen: Mapping[str, object]) -> None:
    assert seen["prepare"] == {"read": 10, "assigned": 2}
    assert seen["list_topics"] == {"listed": True, "internal": False, "has_id": True}
    assert seen["list_config_resources"] == {"topic": True}
    assert seen["describe_topics"] == A_TOPIC
    assert seen["describe_topics_by_id"] == A_TOPIC
    assert seen["describe_topics_by_unknown_id"] == {"error": "UNKNOWN_TOPIC_ID"}
    assert seen["list_partition_reassignments"] == 0
    assert seen["describe_producers"] == {"active": 1, "last_sequence": 9, "transaction": False}


def test_the_configs_of_a_topic(seen: Mapping[str, object]) -> None:
    configs = seen["describe_topic_configs"]

    assert isinstance(configs, dict)
    assert configs["retention.ms"] == ["86400000", "DYNAMIC_TOPIC_CONFIG", "LONG", False]
    assert configs["cleanup.policy"] == ["delete", "DEFAULT_CONFIG", "LIST", False]
    assert configs["synonyms"][0] == "DYNAMIC_TOPIC_CONFIG retention.ms"
    assert (configs["undocumented"], configs["entries_over_20"]) == ([], True)


def test_the_offsets_of_a_partition(seen: Mapping[str, object]) -> None:
    assert {call: found for call, found in seen.items() if call.startswith("offset_")} == {
        "offset_earliest": [0, -1],
        "offset_latest": [10, -1],
        "offset_max_timestamp": [9, 1_600_000_009_000],
        "offset_for_timestamp": [4, 1_600_000_004_000],
        "offset_earliest_local": [0, -1],
        "offset_latest_tiered": [-1, -1],
    }


def test_the_page_of_a_group(seen: Mapping[str, object]) -> None:
    assert seen["list_groups"] == seen["list_stable_groups"] == [["CLASSIC", "consumer", "STABLE"]]
    assert seen["list_empty_groups"] == []
    assert seen["list_consumer_groups"] is True
    assert seen["describe_groups"] == {
        "state": "STABLE",
        "type": "CLASSIC",
        "assignor": "range",
        "coordinator": True,
        "members": 1,
        "client_id": "reader",
        "host": "/127.0.0.1",
        "assignment": 2,
        "operations": ON_A_GROUP,
    }
    assert seen["describe_missing_group"] == {"error": "GROUP_ID_NOT_FOUND"}
    assert seen["list_group_offsets"] == {"0": 10, "1": 0}
    assert seen["list_offsets_of_missing_group"] == 0


def test_the_buttons_of_a_topic(seen: Mapping[str, object]) -> None:
    assert seen["set_config"] == ["1000000", "DYNAMIC_TOPIC_CONFIG"]
    assert seen["reset_config"] == ["604800000", "DEFAULT_CONFIG"]
    assert seen["append_config"] == ["delete,compact", "DYNAMIC_TOPIC_CONFIG"]
    assert seen["set_invalid_config"] == {"error": "INVALID_CONFIG"}
    assert seen["create_partitions"] == 3
    assert seen["delete_records"] == 4
    assert seen["elect_leaders"] == "ELECTION_NOT_NEEDED"
    assert seen["reassign_to_itself"] == "done"
    assert seen["cancel_reassignment"] == "NO_REASSIGNMENT_IN_PROGRESS"


def test_topics_come_and_go(seen: Mapping[str, object]) -> None:
    assert seen["validate_topic"] == {"partitions": 1, "exists": False}
    assert seen["create_topic"] == {"partitions": 1, "replicas": 1, "has_id": True, "retention.ms": ["5000", "DYNAMIC_TOPIC_CONFIG"]}
    assert seen["delete_topic_by_id"] is False
    assert seen["delete_topic_by_unknown_id"] == {"error": "UNKNOWN_TOPIC_ID"}


def test_the_buttons_of_a_group(seen: Mapping[str, object]) -> None:
    assert seen["alter_group_offsets"] == [5, "moved"]
    assert seen["delete_group_offsets"] == {"0": 5}
    assert seen["remove_members"] == 0
    assert seen["delete_groups"] == 0


def test_what_is_not_served_is_said_so(seen: Mapping[str, object]) -> None:
    """Interfaces show such a page as empty, or not at all: none of these calls may hang or end the connection."""
    assert seen["describe_delegation_token"] == {"error": "UNSUPPORTED_VERSION"}
    assert "list_transactions" in seen


def test_no_call_failed(seen: Mapping[str, object]) -> None:
    assert len(seen) == 50
    assert [call for call, found in seen.items() if str(found).startswith("failed")] == []


@pytest.mark.slow
@pytest.mark.long
def test_apache_kafka_shows_the_same(seen: Mapping[str, object], tmp_path: Path) -> None:
    with running_kafka(tmp_path, is_measured=False) as kafka:
        there = calls(kafka.bootstrap)

    assert list(there) == list(seen)
    assert {call for call in seen if seen[call] != there[call]} <= DIFFERENT
