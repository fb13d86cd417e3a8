import socket
from types import SimpleNamespace

from forebay.commands.cluster_facts import judge_health, reach_brokers
from forebay.kafka_client.connection import BootstrapServer


def metadata(*, brokers: dict[int, str], partitions: dict[int, tuple[int, list[int], list[int]]]) -> SimpleNamespace:
    """Shaped as the client library's: partitions of one topic as leader, replicas, in sync."""
    return SimpleNamespace(
        brokers={number: SimpleNamespace(id=number, host=host, port=9092) for number, host in brokers.items()},
        topics={
            "orders": SimpleNamespace(
                partitions={
                    number: SimpleNamespace(leader=leader, replicas=replicas, isrs=isrs)
                    for number, (leader, replicas, isrs) in partitions.items()
                }
            )
        },
    )


def test_a_cluster_whose_brokers_answer_and_whose_partitions_are_led_is_healthy() -> None:
    found = judge_health(metadata(brokers={1: "a", 2: "b"}, partitions={0: (1, [1], [1]), 1: (2, [2], [2])}), {1: None, 2: None})

    assert found.healthy
    assert (found.reasons, found.topics, found.partitions) == ([], 1, 2)


def test_every_reason_is_named() -> None:
    found = judge_health(
        metadata(brokers={1: "a", 2: "b"}, partitions={0: (-1, [1], []), 1: (3, [3], [3]), 2: (1, [1, 2], [1])}),
        {1: None, 2: "connection refused"},
    )

    assert not found.healthy
    assert found.reasons == [
        "broker 2 at b:9092 does not answer (connection refused)",
        "no leader: orders/0, orders/1",
        "too few replicas in sync: orders/2",
    ]


def test_of_many_partitions_a_few_are_named_and_the_rest_is_counted() -> None:
    found = judge_health(metadata(brokers={1: "a"}, partitions=dict.fromkeys(range(10), (-1, [1], []))), {1: None})

    assert found.reasons == ["no leader: orders/0, orders/1, orders/2 and 7 more"]
    assert len(found.leaderless) == 10


def test_a_cluster_without_brokers_is_not_healthy() -> None:
    assert judge_health(metadata(brokers={}, partitions={}), {}).reasons == ["no brokers are registered"]


def test_brokers_are_asked_by_connecting_to_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        addresses = {
            1: BootstrapServer(*there.getsockname()),
            2: BootstrapServer(*gone.getsockname()),
            3: BootstrapServer("no-such-host.invalid", 9092),
        }
        gone.close()

        found = reach_brokers(addresses, within_s=5)

    assert found == {1: None, 2: "connection refused", 3: "name does not resolve"}
