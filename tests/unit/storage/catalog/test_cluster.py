import asyncio
import random

import pytest

from runtime.ids import IdSource
from storage.catalog.identity import ClusterRecord, open_cluster
from storage.errors import Corrupt, IncompatibleFormat, OutcomeUnknown, Unavailable
from storage.metadata.keys import CLUSTER
from storage.metadata.port import Put
from tests.kit.faulty_metadata import Fault, FaultyMetadata, ManualClock, no_jitter


async def opened(metadata: FaultyMetadata, seed: int = 0) -> ClusterRecord:
    clock = ManualClock()
    return await open_cluster(metadata, IdSource(clock=clock, entropy=random.Random(seed).randbytes), clock, entropy=no_jitter)


async def test_the_first_broker_names_the_cluster_and_the_others_agree() -> None:
    metadata = FaultyMetadata(chaos=random.Random(1))

    records = await asyncio.gather(*(opened(metadata, seed) for seed in range(5)))

    assert len(set(records)) == 1
    assert records[0].created_at_ms == 1_000_000


@pytest.mark.parametrize("seed", range(50))
async def test_a_cluster_id_is_a_uuid_as_kafka_writes_it(seed: int) -> None:
    record = await opened(FaultyMetadata(), seed)

    assert len(record.cluster_id) == 22
    assert record.cluster_id.replace("-", "").replace("_", "").isalnum()
    assert not record.cluster_id.startswith("-")


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_the_cluster_is_opened_whatever_becomes_of_the_first_write(fault: Fault) -> None:
    metadata = FaultyMetadata()
    metadata.faults[0] = fault

    record = await opened(metadata)

    assert await opened(metadata, seed=9) == record


@pytest.mark.parametrize(("fault", "error"), [(Fault.REFUSED, Unavailable), (Fault.REQUEST_LOST, OutcomeUnknown)])
async def test_a_cluster_that_cannot_be_written_is_not_invented(fault: Fault, error: type[Exception]) -> None:
    metadata = FaultyMetadata()
    metadata.all_faults = fault

    with pytest.raises(error, match="cluster record"):
        await opened(metadata)


async def test_a_newer_cluster_is_left_alone_with_words_for_the_operator() -> None:
    metadata = FaultyMetadata()
    value = b'{"fmt":7,"anything":true}'
    await metadata.write([Put(CLUSTER, value, None)])

    with pytest.raises(
        IncompatibleFormat,
        match=r"written by a newer forebay than this one \(.*\)\. Use a newer forebay.*Nothing was changed: written by format 7",
    ):
        await opened(metadata)

    (record,) = await metadata.get_many([CLUSTER])
    assert record is not None
    assert record.value == value


async def test_a_cluster_record_that_is_none_is_corrupt() -> None:
    metadata = FaultyMetadata()
    await metadata.write([Put(CLUSTER, b"{}", None)])

    with pytest.raises(Corrupt, match="llog/cluster"):
        await opened(metadata)
