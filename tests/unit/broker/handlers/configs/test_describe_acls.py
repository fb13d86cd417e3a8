from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.configs import describe_acls
from tests.unit.broker.handlers.asking import cluster, error_of


@pytest.mark.parametrize("version", range(1, 4))
async def test_there_is_no_authorizer(version: int) -> None:
    any_acl = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None}
    cls: Any = load_request_schema(29, version)
    request = cls(**any_acl, host_filter=None, operation=1, permission_type=1)
    async with cluster() as broker:
        answer = await broker.ask(describe_acls.handle, request)

    assert (error_of(answer), answer.resources) == (ErrorCode.security_disabled, ())
    assert answer.error_message
