"""Brokers of two zones over a real S3 server, whose access log counts their GETs: one of a block and zone, and all records come always."""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from broker.assembly import Broker, open_broker
from broker.zone_cache.blocks import ZoneLimits
from forebay.processes.serve import http_side
from process.settings.model import Settings
from services.ports import free_port
from services.versitygw import PREFIX, S3Server, logged_requests, running_s3
from storage.limits import BLOCK_BYTES
from tests.integration.test_workers import HOST, create, produce, read
from tests.kit.serving import IN_OBJECTS, Served, serving

ZONES = ("a", "a", "a", "b")
TOPIC = "orders"
VALUES = [number.to_bytes(2, "big") * 50_000 for number in range(50)]
SOON_S = 60.0
PATIENT = ZoneLimits(answer_s=SOON_S, body_s=SOON_S)


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def s3(tmp_path: Path, access_log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with running_s3(tmp_path / "s3", access_log=access_log) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def stores(tmp_path: Path, s3: S3Server) -> dict[str, str]:
    return {"storage.url": s3.url(), "metadata.url": f"sqlite:///{tmp_path}/meta.db", **IN_OBJECTS}


def gets(access_log: Path) -> Counter[str]:
    """The bytes of each WAL object."""
    lines = logged_requests(access_log)
    return Counter(line.key for line in lines if line.operation == "GetObject" and line.key.startswith(f"{PREFIX}/wal/"))


def blocks_of_objects(folder: Path) -> Counter[str]:
    """The number of blocks of each WAL object, by its key in the bucket."""
    found = [path for path in folder.rglob(f"*/{PREFIX}/wal/*/*") if path.is_file()]
    return Counter({f"{PREFIX}/{path.as_posix().partition(f'/{PREFIX}/')[2]}": -(-path.stat().st_size // BLOCK_BYTES) for path in found})


@contextlib.asynccontextmanager
async def brokering(stores: Mapping[str, str], *, zone: str | None = None) -> AsyncIterator[tuple[Broker, str]]:
    """A broker, with the zone's cache if it has a zone, and where its clients connect to."""
    given = {"kafka.listeners": f"PLAINTEXT://{HOST}:0", "http.listen": f"{HOST}:{free_port()}", **stores}
    if zone is not None:
        given |= {"broker.rack": zone, "storage.zone_cache": "true"}
    sections: dict[str, dict[str, object]] = {}
    for key, value in given.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    settings = Settings.model_validate(sections)
    async with (
        open_broker(settings, announce=_say_nothing, zone_limits=PATIENT) as broker,
        http_side(settings, broker, announce=_say_nothing),
    ):
        yield broker, f"{HOST}:{broker.listeners[0].port}"
        await broker.drain(drain_s=0.0)


def _say_nothing(_event: str, _facts: dict[str, object]) -> None:
    pass


async def write(stores: Mapping[str, str]) -> None:
    """By a broker that is gone when the others begin, and that keeps nothing for them."""
    async with brokering(stores) as (_, bootstrap):
        await asyncio.to_thread(create, bootstrap, TOPIC)
        await asyncio.to_thread(produce, bootstrap, TOPIC, VALUES)


def outcomes(broker: Broker) -> Counter[str]:
    return Counter(
        {
            sample.labels["outcome"]: int(sample.value)
            for family in broker.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == "forebay_peer_cache_requests_total"
        }
    )


async def test_brokers_of_a_zone_read_each_block_with_one_get(tmp_path: Path, stores: dict[str, str], access_log: Path) -> None:
    await write(stores)
    assert not gets(access_log)
    async with contextlib.AsyncExitStack() as closing:
        members = [await closing.enter_async_context(brokering(stores, zone=zone)) for zone in ZONES]
        async with asyncio.timeout(SOON_S):
            for broker, _ in members:
                while len(await broker.http.parts.brokers.live()) < len(ZONES):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        found = await asyncio.gather(*[asyncio.to_thread(read, bootstrap, TOPIC, len(VALUES)) for _, bootstrap in members])
        asked = [outcomes(broker) for broker, _ in members]

    assert found == [VALUES] * len(ZONES)
    blocks, of_zones = blocks_of_objects(tmp_path / "s3"), len(set(ZONES))
    assert len(blocks) > 1
    assert gets(access_log).keys() == blocks.keys()
    # Neighbouring blocks may come with one GET.
    assert all(of_zones <= count <= of_zones * blocks[key] for key, count in gets(access_log).items())
    assert asked[3] == Counter(), "there is no other broker in its zone"
    assert {outcome for one in asked for outcome in one} <= {"hit", "miss"}


def test_reads_go_on_when_the_owner_of_blocks_is_paused_and_when_it_is_killed(tmp_path: Path, stores: dict[str, str]) -> None:
    asyncio.run(write(stores))
    in_zone = {**stores, "broker.rack": "a", "storage.zone_cache": "true"}
    no_memory = {"storage.cache_bytes": "4MiB"}

    def serve(name: str, **more: str) -> contextlib.AbstractContextManager[Served]:
        return serving(tmp_path / name, settings={**in_zone, "http.listen": f"{HOST}:{free_port()}", **more})

    with serve("one", **no_memory) as one, serve("other") as other:
        other.process.send_signal(signal.SIGSTOP)
        while_paused = read(one.bootstrap, TOPIC, len(VALUES))
        other.kill9()
        when_killed = read(one.bootstrap, TOPIC, len(VALUES))
        is_asked = one.metrics().get('forebay_peer_cache_requests_total{outcome="timeout"}', 0) > 0
        has_left = "broker_left" in {event.get("event") for event in one.events()}

    assert while_paused == when_killed == VALUES
    assert is_asked or has_left, "on a busy machine its registration may have ended before the first read"
