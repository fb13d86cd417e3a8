"""Workers of one machine over a real S3 server, whose access log counts their GETs: one of a block, and none of what one has committed."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.assembly import open_broker
from process.settings.model import Settings
from services.versitygw import PREFIX, S3Server, logged_requests, running_s3
from tests.integration.test_workers import HOST, WITHIN_S, Supervised, clock, create, produce, read
from tests.kit.serving import IN_OBJECTS

WORKERS = 4
TOPIC = "orders"
VALUES = [number.to_bytes(2, "big") * 25_000 for number in range(40)]


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def s3(tmp_path: Path, access_log: Path) -> Iterator[S3Server]:
    with running_s3(tmp_path / "s3", access_log=access_log) as server:
        yield server


def gets(access_log: Path) -> Counter[str]:
    """Of each WAL object."""
    lines = logged_requests(access_log)
    return Counter(line.key for line in lines if line.operation == "GetObject" and line.key.startswith(f"{PREFIX}/wal/"))


def objects(access_log: Path) -> set[str]:
    return {line.key for line in logged_requests(access_log) if line.operation == "PutObject" and line.key.startswith(f"{PREFIX}/wal/")}


def until_put(cache: Path, keys: set[str]) -> None:
    give_up_s = clock.monotonic_s() + WITHIN_S
    wanted = {key.removeprefix(f"{PREFIX}/").replace("/", "+") for key in keys}
    while not wanted <= {path.parent.name for path in cache.glob("*/wal+*/*")}:
        assert clock.monotonic_s() < give_up_s, "what was committed is put into the folder"


async def write(stores: Mapping[str, str]) -> None:
    """By a broker that is gone when the workers begin, and that keeps nothing for them."""
    sections: dict[str, dict[str, object]] = {"kafka": {"listeners": f"PLAINTEXT://{HOST}:0"}}
    for key, value in stores.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    async with open_broker(Settings.model_validate(sections), announce=lambda _event, _facts: None) as broker:
        bootstrap = f"{HOST}:{broker.listeners[0].port}"
        await asyncio.to_thread(create, bootstrap, TOPIC)
        await asyncio.to_thread(produce, bootstrap, TOPIC, VALUES)
        await broker.drain(drain_s=0.0)


def test_four_workers_read_one_block_once_and_what_one_has_committed_without_a_get(
    tmp_path: Path, s3: S3Server, access_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    cache = tmp_path / "cache"
    stores = {"storage.url": s3.url(), "metadata.url": f"sqlite:///{tmp_path}/meta.db", **IN_OBJECTS}
    asyncio.run(write(stores))
    written = objects(access_log)
    assert not gets(access_log)

    assignments = [f"{key}={value}" for key, value in {**stores, "storage.cache_dir": str(cache), "compactor.run": "false"}.items()]
    listening = (f"kafka.listeners=PLAINTEXT://{HOST}:0", f"http.listen={HOST}:0")
    served = Supervised(tmp_path, s3.environ, *assignments, *listening, workers=WORKERS)
    assert served.process.stderr is not None
    with served.process, served.process.stderr, ThreadPoolExecutor(WORKERS) as threads:
        try:
            served.read_until("all_workers_ready")
            at = [served.bootstrap(worker) for worker in range(WORKERS)]
            found = list(threads.map(lambda bootstrap: read(bootstrap, TOPIC, len(VALUES)), at))
            of_one_read = gets(access_log)

            produce(at[0], TOPIC, VALUES[:1])
            [committed] = objects(access_log) - written
            until_put(cache, {committed})
            again = list(threads.map(lambda bootstrap: read(bootstrap, TOPIC, len(VALUES) + 1), at))
        finally:
            served.process.kill()

    assert found == [VALUES] * WORKERS
    assert again == [[*VALUES, VALUES[0]]] * WORKERS
    assert of_one_read == dict.fromkeys(written, 1)
    assert gets(access_log) == of_one_read
