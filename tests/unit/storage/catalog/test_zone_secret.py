import asyncio
import random

import pytest

from storage.catalog.identity import SECRET_BYTES, open_zone_secret
from storage.errors import Corrupt, IncompatibleFormat, OutcomeUnknown, Unavailable
from storage.metadata.keys import ZONE_SECRET
from storage.metadata.port import ABSENT, Put
from tests.kit.faulty_metadata import Fault, FaultyMetadata


@pytest.mark.parametrize("seed", range(10))
async def test_all_brokers_get_one_secret_whoever_is_first(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))

    found = await asyncio.gather(*[open_zone_secret(metadata) for _ in range(4)])

    assert len(set(found)) == 1
    assert len(found[0]) == SECRET_BYTES
    assert await open_zone_secret(metadata) == found[0]


async def test_a_secret_that_is_there_is_read_without_a_write() -> None:
    metadata = FaultyMetadata()
    made = await open_zone_secret(metadata)
    writes = len(metadata.writes)

    assert await open_zone_secret(metadata) == made
    assert len(metadata.writes) == writes


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_a_fault_changes_no_secret(fault: Fault) -> None:
    metadata = FaultyMetadata()
    metadata.faults[0] = fault

    assert await open_zone_secret(metadata) == await open_zone_secret(metadata)


async def test_a_store_that_takes_no_writes_makes_no_secret() -> None:
    metadata = FaultyMetadata()
    metadata.faults.update(dict.fromkeys(range(100), Fault.REQUEST_LOST))

    with pytest.raises((Unavailable, OutcomeUnknown)):
        await open_zone_secret(metadata)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b'{"fmt":1,"secret":"AAAA"}', Corrupt),
        (b'{"fmt":1,"secret":"?"}', Corrupt),
        (b"{}", Corrupt),
        (b'{"fmt":2,"secret":"AAAA"}', IncompatibleFormat),
    ],
)
async def test_what_is_no_secret_is_not_used(value: bytes, error: type[Exception]) -> None:
    metadata = FaultyMetadata()
    await metadata.write([Put(ZONE_SECRET, value, ABSENT)])

    with pytest.raises(error, match="zone-secret"):
        await open_zone_secret(metadata)
