"""The request of one broker to another for a block, and its answer, as bytes and text. Pure.

    GET /internal/blocks?key=wal/01ABCD/01ABCD…&start=0&end=4194304
    forebay-time: milliseconds, by the asker's clock      forebay-nonce: 32 hex digits      forebay-signature: 64 hex digits

    200, content-length: the bytes asked for and TRAILER_BYTES, forebay-read: memory | store
    the bytes · CRC-32C of them, big-endian · HMAC over the asker's nonce and that CRC

The head comes at once, and the bytes when they have been read. A signature is an HMAC-SHA-256 by the secret of the cluster over the method,
the target as it is sent, time and nonce. A nonce is not remembered: a request that is sent again within CLOCKS_DIFFER_MS_MAX reads the same
immutable bytes again. The HMAC of an answer says that it comes from a broker of the cluster, and is for this request.
"""

import hashlib
import hmac
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from storage.limits import BLOCK_BYTES
from storage.objects.port import KEY_LENGTH_MAX
from storage.verify.inventory import kind_of_object
from storage.vocabulary import Buffer

PATH: Final = "/internal/blocks"
TIME: Final = "forebay-time"
NONCE: Final = "forebay-nonce"
SIGNATURE: Final = "forebay-signature"
READ: Final = "forebay-read"
FROM_MEMORY: Final = "memory"
FROM_STORE: Final = "store"
CLOCKS_DIFFER_MS_MAX: Final = 300_000
NONCE_BYTES: Final = 16
_CHECKSUM: Final = struct.Struct(">I")
TRAILER_BYTES: Final = _CHECKSUM.size + hashlib.sha256().digest_size

_TARGET: Final = re.compile(rf"{PATH}\?key=([A-Za-z0-9/-]{{1,{KEY_LENGTH_MAX}}})&start=([0-9]{{1,12}})&end=([0-9]{{1,12}})", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_NONCE: Final = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}", re.ASCII)


class BlockRange(NamedTuple):
    """Bytes [start, end) of an object: a block, or the part of one that the object, or a reader, has."""

    key: str
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def target_of(block: BlockRange) -> str:
    """The path and the query that ask for it."""
    return f"{PATH}?key={block.key}&start={block.start}&end={block.end}"


def block_of(target: str) -> BlockRange | None:
    """Parse a target that `target_of` made. None for any other, for a range that is not within one block, and for a key of another kind."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return None
    block = BlockRange(match[1], int(match[2]), int(match[3]))
    if not block.start < block.end <= (block.start // BLOCK_BYTES + 1) * BLOCK_BYTES or target_of(block) != target:
        return None
    return block if kind_of_object(block.key)[0] != "other" else None


def signed_headers(secret: bytes, target: str, *, now_ms: int, nonce: bytes) -> dict[str, str]:
    """The headers of a request, of which `nonce` is NONCE_BYTES by chance."""
    time, name = str(now_ms), nonce.hex()
    return {TIME: time, NONCE: name, SIGNATURE: _signature(secret, target, time, name)}


def is_signed(secret: bytes, target: str, headers: Mapping[str, str], *, now_ms: int) -> bool:
    """Return whether a broker of the cluster signed the request, with a clock that differs by CLOCKS_DIFFER_MS_MAX at most."""
    time, nonce, signature = (headers.get(name, "") for name in (TIME, NONCE, SIGNATURE))
    is_well_formed = _TIME.fullmatch(time) is not None and _NONCE.fullmatch(nonce) is not None
    is_ours = hmac.compare_digest(_signature(secret, target, time, nonce).encode(), signature.encode("utf-8", "surrogateescape"))
    return is_well_formed and is_ours and abs(now_ms - int(time)) <= CLOCKS_DIFFER_MS_MAX


def trailer_of(secret: bytes, nonce: str, checksum: int) -> bytes:
    """Make the trailer behind bytes with this CRC-32C, in the answer to a request whose header has this nonce."""
    packed = _CHECKSUM.pack(checksum)
    return packed + hmac.digest(secret, b"answer\n" + nonce.encode("utf-8", "surrogateescape") + packed, "sha256")


def is_trailer(secret: bytes, nonce: str, parts: Iterable[Buffer], trailer: Buffer) -> bool:
    """Return whether the trailer belongs to these bytes and to this request."""
    return hmac.compare_digest(trailer_of(secret, nonce, checksum_of(parts)), bytes(trailer))


def checksum_of(parts: Iterable[Buffer]) -> int:
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    return checksum


def _signature(secret: bytes, target: str, time: str, nonce: str) -> str:
    signed = f"GET\n{target}\n{time}\n{nonce}"
    return hmac.digest(secret, signed.encode("utf-8", "surrogateescape"), "sha256").hex()
