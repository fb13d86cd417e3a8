"""GET /internal/blocks: blocks for the other brokers of the zone (broker/zone_cache/wire.py).

It is beside the guard, and in no document of the API. A client that does not know the secret of the cluster gets the answer of any unknown
path, before anything is looked up.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog
from aiohttp import web

from broker.http.errors import HttpError
from broker.http.guard import REQUESTS, error_response
from broker.zone_cache.peers import ZoneCache
from broker.zone_cache.wire import (
    FROM_MEMORY,
    FROM_STORE,
    NONCE,
    PATH,
    READ,
    TRAILER_BYTES,
    BlockRange,
    block_of,
    checksum_of,
    is_signed,
    trailer_of,
)
from runtime.clock import Clock
from runtime.telemetry import Telemetry
from storage.cache.blocks import BlockCache
from storage.errors import StorageError
from storage.objects.requests import caused_by

_CUT_OFF: Final = "499"
"""The head was sent, and the bytes did not follow."""

_log = structlog.get_logger("zone_cache")


class ServesZone:
    """Answers from the block cache of this broker, and reads what belongs to this broker past it: see broker/zone_cache/blocks.py."""

    def __init__(self, zone: ZoneCache, blocks: BlockCache, *, clock: Clock, telemetry: Telemetry) -> None:
        self._zone = zone
        self._blocks = blocks
        self._clock = clock
        self._serving = 0
        self._requests = telemetry.counter(REQUESTS)

    def route(self) -> web.RouteDef:
        return web.route("*", PATH, self.answer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        is_ours = request.method == "GET" and is_signed(self._zone.secret, request.raw_path, request.headers, now_ms=self._clock.now_ms())
        if not is_ours:
            self._count("404")
            raise web.HTTPNotFound
        block = block_of(request.raw_path)
        if block is None:
            return self._refuse(HttpError(400, "InvalidRequest", "not a block, or a part of one, of a WAL object or a segment"))
        here = self._blocks.read_here(*block)
        if here is None and not self._zone.blocks.owns(block):
            return self._refuse(HttpError(421, "MisdirectedRequest", "this broker sees another owner of that block"))
        if self._serving >= self._zone.limits.served_max:
            return self._refuse(HttpError(503, "BackPressureRejected", "other brokers ask for as many blocks as are served at a time"))
        self._serving += 1
        try:
            return await self._serve(request, block, here)
        finally:
            self._serving -= 1

    async def _serve(self, request: web.Request, block: BlockRange, here: Sequence[memoryview] | None) -> web.StreamResponse:
        read = FROM_STORE if here is None else FROM_MEMORY
        response = web.StreamResponse(headers={READ: read, "Content-Type": "application/octet-stream"})
        response.content_length = block.size_bytes + TRAILER_BYTES
        status = _CUT_OFF
        try:
            async with asyncio.timeout(self._zone.limits.body_s):
                # The asker hears at once that it is worth waiting.
                await response.prepare(request)
                views = await self._read(block) if here is None else here
                for view in views:
                    await response.write(view)
                await response.write_eof(trailer_of(self._zone.secret, request.headers[NONCE], checksum_of(views)))
            status = "200"
        except (StorageError, TimeoutError) as error:
            _log.debug("block_not_served", key=block.key, start=block.start, cause=str(error) or "no time left")
        finally:
            self._count(status)
            if status != "200" and request.transport is not None:
                # It must not take what comes next for the rest of the bytes.
                request.transport.abort()
        return response

    async def _read(self, block: BlockRange) -> Sequence[memoryview]:
        with caused_by("fetch"):
            views = await self._zone.blocks.read_own(block)
        self._blocks.offer(block.key, block.start, views)
        return views

    def _refuse(self, error: HttpError) -> web.Response:
        self._count(str(error.status))
        return error_response(error)

    def _count(self, status: str) -> None:
        self._requests.labels(PATH, status).inc()
