"""Another process that has the embedded metadata store open, driven by the tests: it says on stdout what it has done.

hold    open a session, put `brokers/1` with it, say so, then keep it; says `lost …` when the session is lost
storm   put keys as fast as it can, for ever; says each key that was acknowledged
full    make COMMIT fail by a limit on the size of files; says what came of each write
"""

import asyncio
import resource
import sys
from pathlib import Path

from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.metadata.port import Applied, Key, Put
from storage.metadata.sqlite.store import SqliteMetadataStore

ROOT = "other-process"
SESSION_TIMEOUT_MS = 4_000


def say(line: str) -> None:
    print(line, flush=True)


async def open_store(path: Path) -> SqliteMetadataStore:
    clock = SystemClock()
    return await SqliteMetadataStore.open(path, blocking=ThreadBlocking(threads=1, name="sqlite"), clock=clock, ids=IdSource(clock=clock))


def put(name: str, value: bytes = b"", session: int | None = None) -> Put:
    return Put(Key(f"{ROOT}/{name}", ROOT), value, None, session)


async def hold(store: SqliteMetadataStore) -> None:
    session = await store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    assert isinstance(await store.write([put("brokers/1", b"", session.session_id)]), Applied)
    say("held")
    await session.wait_lost()
    outcome = await store.write([put("brokers/1", b"", session.session_id)])
    assert isinstance(outcome, Applied)
    say(f"lost {outcome.results[0].status.value}")
    await asyncio.Event().wait()


async def storm(store: SqliteMetadataStore) -> None:
    async def write_for_ever(writer: int) -> None:
        number = 0
        while True:
            name = f"acked/{writer:02}-{number:06}"
            assert isinstance(await store.write([put(name, name.encode())]), Applied)
            say(name)
            number += 1

    async with asyncio.TaskGroup() as group:
        for writer in range(16):
            group.create_task(write_for_ever(writer))


async def full(store: SqliteMetadataStore, path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    log_bytes = path.with_name(f"{path.name}-wal").stat().st_size
    say(f"before {await store.write([put('before')])}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_bytes + 10_000, limit[1]))
    say(f"full {await store.write([put('full', b'x' * 60_000)])}")
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    say(f"after {await store.write([put('after')])}")


async def main(what: str, path: Path) -> None:
    store = await open_store(path)
    match what:
        case "hold":
            await hold(store)
        case "storm":
            await storm(store)
        case "full":
            await full(store, path)
            await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
