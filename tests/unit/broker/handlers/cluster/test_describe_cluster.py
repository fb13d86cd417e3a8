import pytest
from kio.index import load_request_schema
from kio.schema.describe_cluster import v2
from kio.schema.errors import ErrorCode

from broker.handlers.cluster import describe_cluster
from tests.unit.broker.handlers.asking import cluster, error_of


@pytest.mark.parametrize("version", range(3))
async def test_all_live_brokers_are_described_and_the_one_that_answers_is_the_controller(version: int) -> None:
    more = {1: {"endpoint_type": 1}, 2: {"endpoint_type": 1, "include_fenced_brokers": True}}.get(version, {})
    async with cluster(broker_id=2) as broker:
        await broker.join(5, rack="zone-b")
        await broker.join(1)
        request = load_request_schema(60, version)(include_cluster_authorized_operations=False, **more)
        answer = await broker.ask(describe_cluster.handle, request)

    assert (error_of(answer), answer.cluster_id, answer.controller_id) == (ErrorCode.none, "cluster-of-this-test-00", 2)
    assert [(found.broker_id, found.host, found.port, found.rack) for found in answer.brokers] == [
        (1, "broker-1", 9001, None),
        (2, "broker-2", 9002, "zone-a"),
        (5, "broker-5", 9005, "zone-b"),
    ]
    assert answer.cluster_authorized_operations == -(2**31)


async def test_operations_are_given_when_asked_for() -> None:
    async with cluster() as broker:
        request = v2.DescribeClusterRequest(include_cluster_authorized_operations=True, include_fenced_brokers=False)
        answer = await broker.ask(describe_cluster.handle, request)

    # CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
    assert answer.cluster_authorized_operations == sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)])
async def test_only_brokers_are_described(endpoint_type: int, code: ErrorCode) -> None:
    async with cluster() as broker:
        request = v2.DescribeClusterRequest(
            include_cluster_authorized_operations=True, endpoint_type=endpoint_type, include_fenced_brokers=False
        )
        answer = await broker.ask(describe_cluster.handle, request)

    assert error_of(answer) is code
    assert answer.error_message
    assert answer.brokers == ()


async def test_a_store_that_does_not_answer_is_a_retriable_error() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True
        request = v2.DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=False)
        answer = await broker.ask(describe_cluster.handle, request)

    assert error_of(answer).retriable
