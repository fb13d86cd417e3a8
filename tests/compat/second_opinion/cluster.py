"""Probes of the cluster: which APIs there are, who its brokers are, what is not there (quotas, ACLs, elections, reassignments)."""

from typing import Any, Final

from broker.protocol import apis
from tests.compat.second_opinion.asking import Line, versions
from tests.compat.second_opinion.topics import TIMEOUT_MS, append, create, topic


def api_versions(line: Line) -> None:
    for version in versions("ApiVersions"):
        named = {"client_software_name": "probe", "client_software_version": "1.0"} if version >= 3 else {}
        answer = line.ask("ranges", "ApiVersions", version, named, kept=False)
        ranges = {_name(one["api_key"]): f"{one['min_version']} to {one['max_version']}" for one in answer["api_keys"]}
        line.asked.keep("ranges", "ApiVersions", version, {**answer, "api_keys": ranges, "finalized_features_epoch": None})
        if version >= 3:
            line.ask("a bad software name", "ApiVersions", version, {"client_software_name": "no such-", "client_software_version": "1.0"})
            line.ask("no software name", "ApiVersions", version, {"client_software_name": "", "client_software_version": ""})


def cluster(line: Line) -> None:
    line.ask_all("the cluster", "DescribeCluster")
    line.ask_all("with operations", "DescribeCluster", {"include_cluster_authorized_operations": True})
    for version in (1, 2):
        for kind in (1, 2, 7):
            line.ask(f"endpoints of type {kind}", "DescribeCluster", version, {"endpoint_type": kind})
    create(line, topic("sized", 2))
    append(line, "sized")
    for version in versions("DescribeLogDirs"):
        line.ask("one topic", "DescribeLogDirs", version, {"topics": [{"topic": "sized", "partitions": [0, 1]}]})
        line.ask("one partition that is not", "DescribeLogDirs", version, {"topics": [{"topic": "sized", "partitions": [9]}]})
        line.ask("a missing topic", "DescribeLogDirs", version, {"topics": [{"topic": "missing", "partitions": [0]}]})
        line.ask("nothing", "DescribeLogDirs", version, {"topics": []})


def folders(line: Line) -> None:
    create(line, topic("moved", 2))
    described = line.ask("", "DescribeLogDirs", 1, {"topics": []}, kept=False)
    known = described["results"][0]["log_dir"]
    for version in versions("AlterReplicaLogDirs"):

        def moves(title: str, path: str, *partitions: int, name: str = "moved", v: int = version) -> None:
            asked = [{"path": path, "topics": [{"name": name, "partitions": partitions}]}]
            line.ask(title, "AlterReplicaLogDirs", v, {"dirs": asked})

        moves("to where they are", known, 0, 1)
        moves("to a folder that is not", "/no/such/folder", 0)
        moves("of no such partition", known, 9)
        moves("of no such topic", known, 0, name="missing")
        moves("of no such topic to a folder that is not", "/no/such/folder", 0, name="missing")
        line.ask("nothing", "AlterReplicaLogDirs", version, {"dirs": []})


def quorum(line: Line) -> None:
    for version in versions("DescribeQuorum"):
        for title, name, partition in (
            ("of the controllers", "__cluster_metadata", 0),
            ("of another partition", "__cluster_metadata", 1),
            ("of another topic", "missing", 0),
        ):
            asked = [{"topic_name": name, "partitions": [{"partition_index": partition}]}]
            line.ask(title, "DescribeQuorum", version, {"topics": asked})
        line.ask("of nothing", "DescribeQuorum", version, {"topics": []})


def placement(line: Line) -> None:
    create(line, topic("placed", 2))
    for version in versions("ElectLeaders"):
        for kind in (0, 1) if version else (0,):
            asked = [{"topic": "placed", "partitions": [0, 9]}, {"topic": "missing", "partitions": [0]}]
            line.ask(f"of type {kind}", "ElectLeaders", version, {"election_type": kind, "topic_partitions": asked, "timeout": TIMEOUT_MS})
    for version in versions("AlterPartitionReassignments"):

        def moves(title: str, replicas: list[int] | None, name: str = "placed", partition: int = 0, v: int = version, **more: Any) -> None:
            asked = [{"name": name, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
            line.ask(title, "AlterPartitionReassignments", v, {"topics": asked, "timeout": TIMEOUT_MS, **more})

        moves("to where it is", [1])
        moves("to a stranger", [77])
        moves("to nobody", [])
        moves("twice to one", [1, 1])
        moves("cancelled", None)
        moves("no such partition", [1], partition=9)
        moves("no such topic", [1], name="missing")
    for title, topics in (
        ("all", None),
        ("one", [{"name": "placed", "partition_indexes": [0]}]),
        ("a missing one", [{"name": "missing", "partition_indexes": [0]}]),
    ):
        line.ask(title, "ListPartitionReassignments", 0, {"topics": topics, "timeout": TIMEOUT_MS})


def security(line: Line) -> None:
    for version in versions("DescribeAcls"):
        fields = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        line.ask("all", "DescribeAcls", version, {**fields, "resource_name_filter": None, "principal_filter": None, "host_filter": None})
    line.ask("all", "DescribeUserScramCredentials", 0, {"users": None})
    line.ask("somebody", "DescribeUserScramCredentials", 0, {"users": [{"name": "somebody"}]})
    line.ask("somebody twice", "DescribeUserScramCredentials", 0, {"users": [{"name": "somebody"}, {"name": "somebody"}]})
    line.ask("nobody", "DescribeUserScramCredentials", 0, {"users": [{"name": ""}]})
    for version in versions("DescribeClientQuotas"):
        line.ask("all", "DescribeClientQuotas", version, {"components": [], "strict": False})
        line.ask("of users", "DescribeClientQuotas", version, {"components": [{"entity_type": "user", "match_type": 2}], "strict": False})
        line.ask(
            "of what is not", "DescribeClientQuotas", version, {"components": [{"entity_type": "odd", "match_type": 2}], "strict": False}
        )
        line.ask(
            "of a match that is not",
            "DescribeClientQuotas",
            version,
            {"components": [{"entity_type": "user", "match_type": 9}], "strict": False},
        )
        twice = [{"entity_type": "user", "match_type": 2}] * 2
        line.ask("of users twice", "DescribeClientQuotas", version, {"components": twice, "strict": False})


def _name(key: int) -> str:
    found = apis.find(key)
    return found.name if found else f"key {key}"


PROBES: Final = (api_versions, cluster, folders, quorum, placement, security)
