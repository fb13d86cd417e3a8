"""Large objects in parts: a part that fails is sent again alone, and the object appears with the last request, or not at all."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from storage.objects.s3.backoff import Backoff
from storage.objects.s3.client import ControlClient
from storage.objects.s3.faults import ErrorReply, Interrupted, RequestFault, Unreached
from storage.vocabulary import Buffer

PARTS_AT_ONCE: Final = 4
ABORT_S: Final = 5.0


async def put_in_parts(
    client: ControlClient, name: str, parts: Sequence[Buffer], *, backoff: Callable[[], Backoff], part_bytes: int
) -> None:
    """Store the concatenation of `parts` if `name` is absent, `part_bytes` at a time. Raises the fault of the request that failed;
    `backoff` is for each part.

    What was uploaded in vain is removed as far as possible; compactors abort what a killed process left (compactor/uploads.py). An upload
    that is aborted underneath ends in a refusal of the next part, or of the last request, so that no object was made.
    """
    upload = await client.begin_upload(name)
    finished = False
    try:
        etags = await _put_parts(client, name, upload, cut(parts, part_bytes), backoff)
        await client.finish_upload(name, upload, etags)
        finished = True
    finally:
        # Also after a finish whose reply was lost: an abort that comes first undoes the upload, and one that comes later changes nothing.
        if not finished:
            await _abort(client, name, upload)


async def _put_parts(
    client: ControlClient, name: str, upload: str, bodies: Iterator[bytes], backoff: Callable[[], Backoff]
) -> Sequence[str]:
    numbered = enumerate(bodies, start=1)
    etags: dict[int, str] = {}

    async def work() -> None:
        # The workers take from one iterator, so that no more parts than are on their way have been joined.
        for number, body in numbered:
            etags[number] = await _put_part(client, name, upload, number, body, backoff())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(PARTS_AT_ONCE):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [etags[number] for number in sorted(etags)]


async def _put_part(client: ControlClient, name: str, upload: str, number: int, body: bytes, backoff: Backoff) -> str:
    while True:
        try:
            async with backoff.attempt():
                return await client.put_part(name, upload, number, body)
        except (Unreached, Interrupted) as error:
            fault: RequestFault = error
        except ErrorReply as error:
            if not error.is_transient:
                raise
            fault = error
        if not await backoff.pause():
            raise fault


async def _abort(client: ControlClient, name: str, upload: str) -> None:
    try:
        async with asyncio.timeout(ABORT_S):
            await client.abort_upload(name, upload)
    except (RequestFault, TimeoutError):
        # The failure that led here is the one to tell; a compactor removes what is left.
        return


def cut(parts: Sequence[Buffer], part_bytes: int) -> Iterator[bytes]:
    """The concatenation of `parts` in pieces of `part_bytes`; the last may be shorter."""
    held: list[Buffer] = []
    held_bytes = 0
    for part in parts:
        view = memoryview(part)
        while len(view) >= part_bytes - held_bytes:
            taken = part_bytes - held_bytes
            yield b"".join([*held, view[:taken]])
            held, held_bytes, view = [], 0, view[taken:]
        if len(view):
            held.append(view)
            held_bytes += len(view)
    if held:
        yield b"".join(held)
