from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsTopics

from broker.handlers.topics import list_partition_reassignments
from tests.unit.broker.handlers.asking import cluster, error_of


@pytest.mark.parametrize("topics", [None, (), (ListPartitionReassignmentsTopics(name="t", partition_indexes=(0,)),)])  # type: ignore[arg-type]
async def test_there_are_none(topics: Any) -> None:
    async with cluster() as broker:
        await broker.create("t")
        answer = await broker.ask(list_partition_reassignments.handle, ListPartitionReassignmentsRequest(topics=topics))

    assert (error_of(answer), answer.error_message, answer.topics) == (ErrorCode.none, None, ())
