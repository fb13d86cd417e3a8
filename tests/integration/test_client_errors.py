"""Each error of the reference's tables, as a real client is told it: which library provokes it, what it calls it, what the text says.

Where no library here can be made to send what is refused, kio's types over a socket do.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import pytest
from confluent_kafka.admin import NewTopic

from broker.groups.state import GroupError
from tests.integration.client_errors import coordinators, records, topics
from tests.kit import group_scenes as groups
from tests.kit.seen_errors import AIOKAFKA, CONFLUENT, FRAME, PARTITIONS, TIMEOUT_S, TOPIC, Scene, Seen, admin_of
from tests.kit.serving import serving


class Case(NamedTuple):
    """`says`: what the text names; None where the response of that API has no text."""

    provoke: Callable[[Scene], Awaitable[Seen]]
    client: str
    says: tuple[str, ...] | None


CASES: Final = {
    "UNKNOWN_MEMBER_ID": Case(groups.commit_of_who_is_no_member, CONFLUENT, None),
    "ILLEGAL_GENERATION": Case(groups.heartbeat_of_an_old_generation, AIOKAFKA, None),
    "REBALANCE_IN_PROGRESS": Case(groups.heartbeat_while_another_joins, AIOKAFKA, None),
    "INCONSISTENT_GROUP_PROTOCOL": Case(groups.member_with_another_assignor, CONFLUENT, None),
    "FENCED_INSTANCE_ID": Case(groups.second_client_with_an_instance_id, CONFLUENT, None),
    "INVALID_SESSION_TIMEOUT": Case(groups.session_timeout_of_a_millisecond, CONFLUENT, None),
    "OFFSET_METADATA_TOO_LARGE": Case(groups.long_metadata_with_an_offset, CONFLUENT, None),
    "INVALID_GROUP_ID": Case(groups.group_without_a_name, AIOKAFKA, None),
    "MEMBER_ID_REQUIRED": Case(groups.member_without_an_id, AIOKAFKA, None),
    "NON_EMPTY_GROUP": Case(groups.deletion_of_a_group_with_members, CONFLUENT, None),
    "GROUP_ID_NOT_FOUND": Case(groups.deletion_of_no_group, CONFLUENT, None),
    "GROUP_SUBSCRIBED_TO_TOPIC": Case(groups.deletion_of_offsets_of_a_topic_that_is_read, FRAME, None),
    "NOT_COORDINATOR": Case(coordinators.heartbeat_at_another_broker, AIOKAFKA, None),
    "COORDINATOR_NOT_AVAILABLE": Case(coordinators.coordinator_while_the_metadata_is_away, AIOKAFKA, ("reads fail",)),
    "COORDINATOR_LOAD_IN_PROGRESS": Case(coordinators.group_that_cannot_be_loaded_now, AIOKAFKA, None),
    "UNSUPPORTED_VERSION": Case(coordinators.version_of_the_far_future, FRAME, None),
    "TOPIC_ALREADY_EXISTS": Case(topics.existing_topic, CONFLUENT, ("'records'", "exists")),
    "INVALID_TOPIC_EXCEPTION": Case(topics.name_with_a_space, CONFLUENT, ("two words",)),
    "INVALID_PARTITIONS": Case(topics.fewer_partitions, CONFLUENT, ("2 partitions", "1 would not be an increase")),
    "INVALID_CONFIG": Case(topics.unknown_config, CONFLUENT, ("cleanup.policy", "sometimes")),
    "INVALID_REPLICATION_FACTOR": Case(topics.no_replicas, CONFLUENT, ("0", "must be above 0", "-1 for the default")),
    "INVALID_REPLICA_ASSIGNMENT": Case(topics.a_replica_twice, CONFLUENT, ("partition 0", "twice")),
    "UNKNOWN_TOPIC_OR_PARTITION": Case(topics.missing_topic, CONFLUENT, ("'nowhere'", "does not exist")),
    "SECURITY_DISABLED": Case(topics.acls_without_an_authorizer, AIOKAFKA, ("authorizer",)),
    "POLICY_VIOLATION": Case(topics.records_of_a_compacted_topic, CONFLUENT, None),
    "INVALID_REQUEST": Case(topics.topic_twice_in_a_request, AIOKAFKA, ("more than once",)),
    "RESOURCE_NOT_FOUND": Case(topics.users_that_are_unknown, CONFLUENT, None),
    "ELECTION_NOT_NEEDED": Case(topics.election_of_who_leads, CONFLUENT, None),
    "UNKNOWN_TOPIC_ID": Case(topics.id_of_no_topic, FRAME, ("no such topic",)),
    "INVALID_TIMESTAMP": Case(records.timestamp_of_the_day_after_tomorrow, CONFLUENT, None),
    "MESSAGE_TOO_LARGE": Case(records.record_of_two_mebibytes, CONFLUENT, None),
    "OUT_OF_ORDER_SEQUENCE_NUMBER": Case(records.sequence_with_a_gap, AIOKAFKA, None),
    "INVALID_PRODUCER_EPOCH": Case(records.epoch_of_a_producer_that_was_replaced, AIOKAFKA, None),
    "OFFSET_OUT_OF_RANGE": Case(records.offset_past_the_end, AIOKAFKA, None),
    "CORRUPT_MESSAGE": Case(records.batch_with_a_wrong_checksum, FRAME, ("CRC-32C",)),
    "INVALID_RECORD": Case(records.batch_that_counts_wrong, FRAME, ("2",)),
    "UNSUPPORTED_COMPRESSION_TYPE": Case(records.codec_that_nobody_knows, FRAME, ("5",)),
    "INVALID_TXN_STATE": Case(records.batch_of_a_transaction_that_nobody_began, FRAME, ("transaction",)),
    "INVALID_REQUIRED_ACKS": Case(records.acks_that_mean_nothing, FRAME, ("2",)),
}

OF_THE_REFERENCE: Final = {
    "UNKNOWN_MEMBER_ID",
    "ILLEGAL_GENERATION",
    "REBALANCE_IN_PROGRESS",
    "INCONSISTENT_GROUP_PROTOCOL",
    "FENCED_INSTANCE_ID",
    "INVALID_SESSION_TIMEOUT",
    "OFFSET_METADATA_TOO_LARGE",
    "INVALID_TOPIC_EXCEPTION",
    "INVALID_PARTITIONS",
    "INVALID_CONFIG",
    "TOPIC_ALREADY_EXISTS",
    "UNKNOWN_TOPIC_ID",
    "INVALID_TIMESTAMP",
    "MESSAGE_TOO_LARGE",
    "UNSUPPORTED_VERSION",
    "INVALID_GROUP_ID",
    "NON_EMPTY_GROUP",
    "GROUP_ID_NOT_FOUND",
    "GROUP_SUBSCRIBED_TO_TOPIC",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_REPLICA_ASSIGNMENT",
    "INVALID_REQUEST",
    "OFFSET_OUT_OF_RANGE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "POLICY_VIOLATION",
    "CORRUPT_MESSAGE",
    "INVALID_RECORD",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "SECURITY_DISABLED",
    "INVALID_PRODUCER_EPOCH",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
}
"""What bad input, or a question to the wrong broker, is answered with."""
NOT_OF_INPUT: Final = {
    "NONE": "no error",
    "REQUEST_TIMED_OUT": "a store that does not answer; tests/chaos has those",
    "INVALID_COMMIT_OFFSET_SIZE": "offsets in a thousand topics; tests/unit/broker/groups has them",
    "GROUP_MAX_SIZE_REACHED": "5,000 members; tests/unit/broker/groups/test_state.py has them",
}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with serving(None, settings={"kafka.auto_create_topics": "false"}) as served:
        admin = admin_of(served)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_S)
        yield Scene(served, admin)
        assert served.metrics()["forebay_unexpected_errors_total"] == 0


@pytest.mark.parametrize("error", CASES)
async def test_a_client_is_told(scene: Scene, error: str) -> None:
    case = CASES[error]
    seen = await case.provoke(scene)

    assert (seen.client, seen.error) == (case.client, error)
    for fact in case.says or ():
        assert fact in str(seen.message)


def test_every_error_of_the_reference_is_provoked() -> None:
    assert OF_THE_REFERENCE - CASES.keys() == set()


def test_every_error_of_a_group_is_provoked() -> None:
    assert {error.name for error in GroupError} - CASES.keys() - NOT_OF_INPUT.keys() == set()
