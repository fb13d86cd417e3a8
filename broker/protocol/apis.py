"""The one table of what is served. ApiVersions, dispatch, docs/reference/apis.md (tests/compat) and the tests are all read off it.

Minimums are Kafka 4's, with one exception: Produce is advertised from 0 and served from 3, as Kafka 4 does (KAFKA-18659),
because librdkafka up to 2.11.0 stops compressing when the minimum is 3.

`api_of_file` says which API a file of the code serves: the watch of the event loop names it beside a turn that took long.
"""

import re
from typing import Final, NamedTuple


class Api(NamedTuple):
    """Versions are inclusive. `module` is the handler's, under `broker.handlers`."""

    key: int
    name: str
    minimum: int
    maximum: int
    served_minimum: int
    module: str

    def serves(self, version: int) -> bool:
        return self.served_minimum <= version <= self.maximum


APIS: Final = (
    Api(0, "Produce", 0, 11, 3, "log.produce"),
    Api(1, "Fetch", 4, 17, 4, "log.fetch"),
    Api(2, "ListOffsets", 1, 10, 1, "log.list_offsets"),
    Api(3, "Metadata", 0, 13, 0, "topics.metadata"),
    Api(8, "OffsetCommit", 2, 9, 2, "groups.offset_commit"),
    Api(9, "OffsetFetch", 1, 9, 1, "groups.offset_fetch"),
    Api(10, "FindCoordinator", 0, 6, 0, "groups.find_coordinator"),
    Api(11, "JoinGroup", 0, 9, 0, "groups.join_group"),
    Api(12, "Heartbeat", 0, 4, 0, "groups.heartbeat"),
    Api(13, "LeaveGroup", 0, 5, 0, "groups.leave_group"),
    Api(14, "SyncGroup", 0, 5, 0, "groups.sync_group"),
    Api(15, "DescribeGroups", 0, 6, 0, "groups.describe_groups"),
    Api(16, "ListGroups", 0, 5, 0, "groups.list_groups"),
    Api(18, "ApiVersions", 0, 4, 0, "cluster.api_versions"),
    Api(19, "CreateTopics", 2, 7, 2, "topics.create_topics"),
    Api(20, "DeleteTopics", 1, 6, 1, "topics.delete_topics"),
    Api(21, "DeleteRecords", 0, 2, 0, "log.delete_records"),
    Api(22, "InitProducerId", 0, 5, 0, "log.init_producer_id"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 2, "log.offset_for_leader_epoch"),
    Api(29, "DescribeAcls", 1, 3, 1, "configs.describe_acls"),
    Api(32, "DescribeConfigs", 1, 4, 1, "configs.describe_configs"),
    Api(33, "AlterConfigs", 0, 2, 0, "configs.alter_configs"),
    Api(34, "AlterReplicaLogDirs", 1, 2, 1, "cluster.alter_replica_log_dirs"),
    Api(35, "DescribeLogDirs", 1, 5, 1, "cluster.describe_log_dirs"),
    Api(37, "CreatePartitions", 0, 3, 0, "topics.create_partitions"),
    Api(42, "DeleteGroups", 0, 2, 0, "groups.delete_groups"),
    Api(43, "ElectLeaders", 0, 2, 0, "topics.elect_leaders"),
    Api(44, "IncrementalAlterConfigs", 0, 1, 0, "configs.incremental_alter_configs"),
    Api(45, "AlterPartitionReassignments", 0, 1, 0, "topics.alter_partition_reassignments"),
    Api(46, "ListPartitionReassignments", 0, 0, 0, "topics.list_partition_reassignments"),
    Api(47, "OffsetDelete", 0, 0, 0, "groups.offset_delete"),
    Api(48, "DescribeClientQuotas", 0, 1, 0, "configs.describe_client_quotas"),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0, "configs.describe_user_scram_credentials"),
    Api(55, "DescribeQuorum", 0, 2, 0, "cluster.describe_quorum"),
    Api(60, "DescribeCluster", 0, 2, 0, "cluster.describe_cluster"),
    Api(61, "DescribeProducers", 0, 0, 0, "log.describe_producers"),
    Api(74, "ListConfigResources", 0, 1, 0, "configs.list_config_resources"),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, "topics.describe_topic_partitions"),
)

_BY_KEY: Final = {api.key: api for api in APIS}

assert len(_BY_KEY) == len(APIS), "an API is named once"
assert all(api.minimum <= api.served_minimum <= api.maximum for api in APIS)

_CODEC: Final = re.compile(r"<(?:decoder|encoder) of (\w+)(?:Request|Response) \d+>")
_NAMES: Final = {api.name for api in APIS}
_API_OF_FILE: Final = {f"broker/handlers/{api.module.replace('.', '/')}.py": api.name for api in APIS} | {
    "broker/handling/validation.py": "Produce",
    "broker/protocol/produce.py": "Produce",
    "broker/protocol/fetch.py": "Fetch",
    "broker/delayed_fetch.py": "Fetch",
}


def find(api_key: int) -> Api | None:
    """The API, or None if it is neither served nor advertised."""
    return _BY_KEY.get(api_key)


def is_served(api_key: int, version: int) -> bool:
    """Whether requests of this version are answered. Others close the connection, but for ApiVersions, whose answer says so."""
    api = _BY_KEY.get(api_key)
    return api is not None and api.serves(version)


def api_of_file(filename: str) -> str | None:
    """The API whose handler or codec the file is, named from the root of the repository on; None for any other."""
    codec = _CODEC.fullmatch(filename)
    if codec is not None:
        return codec[1] if codec[1] in _NAMES else None
    return _API_OF_FILE.get(filename)
