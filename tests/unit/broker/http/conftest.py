from collections.abc import AsyncIterator

import pytest

from tests.kit.clustering import running_cluster
from tests.kit.http_asking import Http, http_of


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member) as asking:
            yield asking
