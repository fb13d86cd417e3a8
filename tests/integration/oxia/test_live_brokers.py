"""Who is registered, and raising the format level, on a real Oxia."""

import random
from pathlib import Path

from broker.cluster.registration import BrokerLifecycle
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from services.oxia import running_oxia
from storage.catalog.brokers import BrokerDirectory, Endpoint
from storage.catalog.format_level import raise_level
from storage.catalog.identity import open_cluster
from storage.metadata import keys
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore


async def test_the_living_are_told_from_the_dead_and_the_level_is_raised(tmp_path: Path) -> None:
    clock = SystemClock()
    with running_oxia(tmp_path) as oxia:  # its own: after this no broker of this release starts there
        async with Nursery() as nursery:
            metadata = await OxiaMetadataStore.open(parse_oxia_url(oxia.url), clock=clock, chance=random.Random(), nursery=nursery)
            await open_cluster(metadata, IdSource(clock=clock), clock, level_max=1)
            lives = []
            for port in (1, 2):
                directory = BrokerDirectory(metadata, clock=clock, level_max=2)
                here = [Endpoint("P", "h", port)]
                lifecycle = BrokerLifecycle(directory, listeners=here, rack=None, version="x", fixed_id=None, telemetry=Telemetry())
                lives.append((lifecycle, await lifecycle.begin()))
            (first, one), (second, two) = lives
            both = await one.live()
            early = await raise_level(metadata, 2, level_max=2)
            await second.end()
            gone = await one.gone([one.current, two.current])
            start, end = keys.brokers_and_sentinels()
            left = await metadata.list(start, end)
            await first.end()
            await metadata.close()

    assert both == {one.current, two.current}
    assert (early.before, early.level, early.problem, len(early.brokers)) == (1, 2, None, 2)
    assert gone == {two.current}
    assert left == [keys.broker(first.broker_id).path]
