from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from forebay.commands.group import administration
from forebay.kafka_client.failures import ClientFailed
from tests.unit.forebay.commands.group.group_examples import CONNECTION, FakeAdmin, described, listing, member

OFFSETS = {("orders", 0): 1, ("orders", 1): 2}


def refused(code: int) -> KafkaError:
    return KafkaError(code)


def test_members_are_told_by_client_with_their_partitions_by_topic() -> None:
    group = described("g", member("b", ("orders", 1), ("events", 0), ("orders", 0)), member("a", host="10.0.0.8"))

    found = administration.describe_groups(CONNECTION, FakeAdmin(groups={"g": group}), ["g"])["g"]

    assert [(one.client_id, one.host) for one in found.members] == [("a", "10.0.0.8"), ("b", "10.0.0.7")]
    assert [(one.topic, one.partitions) for one in found.members[1].assignment] == [("events", [0]), ("orders", [0, 1])]
    assert (found.state, found.type, found.assignor, found.coordinator) == ("Stable", "Classic", "range", "broker:9092")


@pytest.mark.parametrize("answer", [described("g", state=ConsumerGroupState.DEAD), refused(KafkaError.GROUP_ID_NOT_FOUND)])
def test_a_group_that_older_and_newer_brokers_do_not_know_is_not_found_and_its_nearest_name_is_told(answer: Any) -> None:
    admin = FakeAdmin(groups={"chekout": answer}, listing=listing("checkout", "audit"))

    with pytest.raises(ClientFailed) as failed:
        administration.look_up_group(CONNECTION, admin, "chekout")

    assert failed.value.exit_code == 4
    assert str(failed.value) == 'Group "chekout" does not exist. Nearest: "checkout". List them: forebay group list'


def test_a_group_that_may_not_be_seen_is_refused_with_5() -> None:
    admin = FakeAdmin(groups={"g": refused(KafkaError.GROUP_AUTHORIZATION_FAILED)})

    with pytest.raises(ClientFailed, match=r'^Group "g": ') as failed:
        administration.describe_groups(CONNECTION, admin, ["g"])

    assert failed.value.exit_code == 5


def test_a_list_says_which_answers_are_missing_and_has_the_others() -> None:
    errors: list[Exception] = [KafkaException(refused(KafkaError.COORDINATOR_NOT_AVAILABLE))]

    found = administration.read_groups(CONNECTION, FakeAdmin(listing=listing("b", "a", errors=errors)))

    assert [group.name for group in found.groups] == ["a", "b"]
    assert len(found.failures) == 1


def test_a_listing_of_an_old_broker_has_no_state_and_no_type() -> None:
    old = SimpleNamespace(valid=[SimpleNamespace(group_id="g")], errors=[])

    found = administration.read_groups(CONNECTION, FakeAdmin(listing=old))

    assert [(group.state, group.type) for group in found.groups] == [("Unknown", None)]


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS])
def test_a_consumer_that_joined_meanwhile_keeps_its_offsets(code: int) -> None:
    partitions = [TopicPartition("orders", 0, 1), TopicPartition("orders", 1, 2)]
    answers = [SimpleNamespace(topic=at.topic, partition=at.partition, error=refused(code)) for at in partitions]

    with pytest.raises(ClientFailed, match=r"were not reset: a consumer joined it. Stop its consumers first.") as failed:
        administration.commit(CONNECTION, FakeAdmin(altered=SimpleNamespace(topic_partitions=answers)), "g", OFFSETS)

    assert failed.value.exit_code == 1


def test_offsets_of_which_some_were_refused_are_counted() -> None:
    errors = (None, refused(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    answers = [SimpleNamespace(topic="orders", partition=at, error=error) for at, error in enumerate(errors)]

    with pytest.raises(ClientFailed, match=r'^1 of 2 offsets of group "g" were reset. The offset of orders/1 was not: ') as failed:
        administration.commit(CONNECTION, FakeAdmin(altered=SimpleNamespace(topic_partitions=answers)), "g", OFFSETS)

    assert failed.value.exit_code == 5


@pytest.mark.parametrize(
    ("code", "exit_code", "phrase"),
    [
        (KafkaError.NON_EMPTY_GROUP, 1, 'Group "g" was not deleted: it has members. Stop its consumers first.'),
        (KafkaError.GROUP_ID_NOT_FOUND, 4, 'Group "g" does not exist.'),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, 5, 'Group "g" was not deleted: '),
    ],
)
def test_why_a_group_is_not_deleted_is_told_with_its_exit_code(code: int, exit_code: int, phrase: str) -> None:
    with pytest.raises(ClientFailed) as failed:
        administration.delete(CONNECTION, FakeAdmin(refused={"g": refused(code)}), "g")

    assert failed.value.exit_code == exit_code
    assert str(failed.value).startswith(phrase)
