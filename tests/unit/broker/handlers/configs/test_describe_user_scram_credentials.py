from typing import Any

import pytest
from kio.schema.describe_user_scram_credentials.v0 import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.request import UserName
from kio.schema.errors import ErrorCode

from broker.handlers.configs import describe_user_scram_credentials
from tests.unit.broker.handlers.asking import cluster, error_of


async def ask(*names: str, everybody: bool = False) -> Any:
    users = None if everybody else tuple(UserName(name=name) for name in names)
    async with cluster() as broker:
        answer = await broker.ask(describe_user_scram_credentials.handle, DescribeUserScramCredentialsRequest(users=users))
    assert error_of(answer) is ErrorCode.none
    return answer.results


@pytest.mark.parametrize("everybody", [True, False])
async def test_there_are_no_users(everybody: bool) -> None:
    assert await ask(everybody=everybody) == ()


async def test_a_user_that_is_named_is_not_found_and_one_named_twice_is_a_duplicate() -> None:
    results = await ask("alice", "bob", "alice")

    assert [(found.user, error_of(found), found.credential_infos) for found in results] == [
        ("alice", ErrorCode.duplicate_resource, ()),
        ("bob", ErrorCode.resource_not_found, ()),
    ]
    assert all(found.error_message for found in results)
