"""services/oxia.py starts an Oxia that bears writes to one shard from several clients at a time (docs/internals/adr/0008)."""

import asyncio

from services.oxia import OxiaServer
from tests.integration.faults.raw_oxia import raw_oxia

CLIENTS = 4
AT_A_TIME = 10
ROUNDS = 50


async def test_concurrent_writers_of_one_shard_do_not_stop_it(oxia_server: OxiaServer) -> None:
    async def write(client: int) -> int:
        async with raw_oxia(oxia_server.address) as oxia:
            for _ in range(ROUNDS):
                # A refused write raises.
                await asyncio.gather(*(oxia.put(f"concurrent/{client}-{key}", b"value") for key in range(AT_A_TIME)))
        return ROUNDS * AT_A_TIME

    written = await asyncio.gather(*(write(client) for client in range(CLIENTS)))

    assert sum(written) == CLIENTS * ROUNDS * AT_A_TIME
