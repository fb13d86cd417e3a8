"""Other brokers of the zone, asked for blocks by HTTP (wire.py); and the zone's cache put together: the secret, the peers, their reads.

Whatever a peer answers, no more is read of it than was asked for. Nothing of it is handed on that has another checksum than it says, or
that comes from no broker of the cluster.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from broker.zone_cache.blocks import Answering, Peer, PeerBlock, PeerFailed, ZoneBlocks, ZoneLimits, peers_of
from broker.zone_cache.wire import (
    FROM_MEMORY,
    FROM_STORE,
    NONCE,
    NONCE_BYTES,
    READ,
    TRAILER_BYTES,
    BlockRange,
    is_trailer,
    signed_headers,
    target_of,
)
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.settings.model import Settings
from process.settings.notation import bracketed
from runtime.clock import Clock
from runtime.ids import Entropy
from runtime.telemetry import Telemetry
from storage.catalog.brokers import BrokerDirectory
from storage.catalog.identity import open_zone_secret
from storage.errors import IncompatibleFormat, StorageError
from storage.metadata.port import MetadataStore
from storage.opening import Stores

KEPT_ALIVE_S: Final = 15.0
"""A connection without requests is closed, well before the server of the peer closes it (process/http/server.py)."""
READ_BYTES: Final = 512 * 1024
"""About twice as many bytes of an answer may wait to be read."""
_OK, _NOT_ITS_BLOCK, _BUSY = 200, 421, 503
_SAID_CHARS_MAX: Final = 200


class HttpPeers:
    """`BlockPeers`. The secret is the cluster's."""

    def __init__(self, secret: bytes, *, clock: Clock, limits: ZoneLimits, entropy: Entropy = os.urandom) -> None:
        self._secret = secret
        self._clock = clock
        self._entropy = entropy
        # The deadlines, and how many are asked at a time, are the caller's.
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=limits.asks_max, keepalive_timeout=KEPT_ALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        )

    async def ask(self, peer: Peer, block: BlockRange) -> Answering:
        target = target_of(block)
        headers = signed_headers(self._secret, target, now_ms=self._clock.now_ms(), nonce=self._entropy(NONCE_BYTES))
        url = URL(f"http://{bracketed(peer.host)}:{peer.port}{target}", encoded=True)
        try:
            response = await self._session.get(url, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:  # the last: the session is closed
            raise PeerFailed("unreachable", f"{type(error).__name__}: {error}"[:_SAID_CHARS_MAX]) from None
        answer = _HttpAnswer(self._secret, response, block, nonce=headers[NONCE])
        try:
            answer.check_head()
        except PeerFailed:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        await self._session.close()


class _HttpAnswer:
    """`Answering`. A connection of which all was read is kept, any other is closed."""

    def __init__(self, secret: bytes, response: aiohttp.ClientResponse, block: BlockRange, *, nonce: str) -> None:
        self._secret = secret
        self._response = response
        self._block = block
        self._nonce = nonce
        self._is_read = False

    def check_head(self) -> None:
        """Raise `PeerFailed` if it is no answer to what was asked."""
        response, wanted_bytes = self._response, self._block.size_bytes + TRAILER_BYTES
        if response.status != _OK:
            raise PeerFailed("refused", f"it answered {response.status}", is_well=response.status in (_NOT_ITS_BLOCK, _BUSY))
        if response.content_length != wanted_bytes or "Transfer-Encoding" in response.headers:
            said = response.headers.get("Content-Length", "no length")[:_SAID_CHARS_MAX]
            raise PeerFailed("damaged", f"an answer of {said} bytes in place of {wanted_bytes}")
        if response.headers.get(READ) not in (FROM_MEMORY, FROM_STORE):
            raise PeerFailed("damaged", f"an answer without {READ}")

    async def read(self, *, part_bytes: int) -> PeerBlock:
        size_bytes = self._block.size_bytes
        lengths = _lengths(size_bytes, part_bytes)
        # An answer is as long as its head says, else reading it fails: the parts and the trailer take all of it.
        buffers = [bytearray(length) for length in (*lengths, TRAILER_BYTES)]
        try:
            self._is_read = await self._fill(buffers)
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            cause = f"it ended its answer early: {type(error).__name__}"[:_SAID_CHARS_MAX]
            if self._response.headers[READ] == FROM_STORE:
                # It could not read the block, as one that was deleted; or it ends, and the next request finds nobody.
                raise PeerFailed("refused", cause, is_well=True) from None
            raise PeerFailed("unreachable", cause) from None
        *parts, trailer = buffers
        if not self._is_read or not is_trailer(self._secret, self._nonce, parts, trailer):
            raise PeerFailed("damaged", f"not the bytes that it says they are, or not from this cluster: {self._block}")
        return PeerBlock(parts, was_here=self._response.headers[READ] == FROM_MEMORY)

    async def _fill(self, buffers: Sequence[bytearray]) -> bool:
        """Fill the buffers. Return False if more came than they hold. Raise IncompleteReadError if less came."""
        content = self._response.content
        rest, chunk = memoryview(b""), b""
        for buffer in buffers:
            view, position = memoryview(buffer), 0
            while position < len(view):
                if not rest:
                    # As it was received: larger pieces would be put together first.
                    chunk, _ = await content.readchunk()
                    rest = memoryview(chunk)
                    if not rest:
                        raise asyncio.IncompleteReadError(b"", len(view))
                count = min(len(rest), len(view) - position)
                view[position : position + count] = rest[:count]
                position, rest = position + count, rest[count:]
        return not rest and not await content.readany()

    def close(self) -> None:
        if self._is_read:
            self._response.release()
        else:
            self._response.close()


def _lengths(size_bytes: int, part_bytes: int) -> Sequence[int]:
    """As many parts of `part_bytes` as there are, the last of which has the rest, too."""
    count = max(1, size_bytes // part_bytes)
    return [*[part_bytes] * (count - 1), size_bytes - part_bytes * (count - 1)]


@dataclass(frozen=True, slots=True)
class ZoneCache:
    """A broker's part of the zone's cache: `blocks` reads, and answers to others are signed by `secret`."""

    blocks: ZoneBlocks
    secret: bytes
    limits: ZoneLimits


@contextlib.asynccontextmanager
async def open_zone_cache(
    settings: Settings,
    stores: Stores,
    directory: BrokerDirectory,
    *,
    clock: Clock,
    telemetry: Telemetry,
    limits: ZoneLimits | None = None,
) -> AsyncIterator[ZoneCache]:
    """Reads of the object store that ask other brokers of `broker.rack` first, as `directory` saw them last.

    Its `blocks.run` is the caller's to run. Raises `StartError` without the secret.
    """
    limits = limits or ZoneLimits()
    secret = await _secret(stores.metadata)
    asking = HttpPeers(secret, clock=clock, limits=limits)
    try:
        blocks = ZoneBlocks(
            stores.objects,
            peers=lambda: peers_of(directory.last_seen(), settings.broker.rack),
            own_id=lambda: directory.own_id,
            asking=asking,
            clock=clock,
            telemetry=telemetry,
            limits=limits,
        )
        yield ZoneCache(blocks, secret, limits)
    finally:
        await asking.close()


async def _secret(metadata: MetadataStore) -> bytes:
    try:
        return await open_zone_secret(metadata)
    except IncompatibleFormat as error:
        raise StartError(str(error), exit_code=EXIT_USAGE) from error
    except StorageError as error:
        cause = f"cannot read the secret of storage.zone_cache: {error}. Without the setting the broker starts and reads the object store"
        raise StartError(cause, exit_code=EXIT_UNREACHABLE) from error
