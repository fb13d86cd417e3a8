"""API key → handler, written out. Produce and Fetch are not here: their codecs and their handlers are their own (broker/dispatch.py).

A test compares this with broker/protocol/support.py.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.handlers import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)
from broker.handlers.context import Context
from broker.protocol.request import Request

Handler = Callable[[Context, Request[Any]], Awaitable[object]]

HANDLERS: Final[dict[int, Handler]] = {
    2: list_offsets.handle,
    3: metadata.handle,
    8: offset_commit.handle,
    9: offset_fetch.handle,
    10: find_coordinator.handle,
    11: join_group.handle,
    12: heartbeat.handle,
    13: leave_group.handle,
    14: sync_group.handle,
    15: describe_groups.handle,
    16: list_groups.handle,
    18: api_versions.handle,
    19: create_topics.handle,
    20: delete_topics.handle,
    21: delete_records.handle,
    22: init_producer_id.handle,
    23: offset_for_leader_epoch.handle,
    29: describe_acls.handle,
    32: describe_configs.handle,
    33: alter_configs.handle,
    34: alter_replica_log_dirs.handle,
    35: describe_log_dirs.handle,
    37: create_partitions.handle,
    42: delete_groups.handle,
    43: elect_leaders.handle,
    44: incremental_alter_configs.handle,
    45: alter_partition_reassignments.handle,
    46: list_partition_reassignments.handle,
    47: offset_delete.handle,
    48: describe_client_quotas.handle,
    50: describe_user_scram_credentials.handle,
    55: describe_quorum.handle,
    60: describe_cluster.handle,
    61: describe_producers.handle,
    74: list_config_resources.handle,
    75: describe_topic_partitions.handle,
}
