"""What the store asks of a client of S3: single requests, tried once, under whole names in the bucket, with the faults of `faults.py`.

A client sets no deadline of its own below REQUEST_S_MAX; the store does, by cancelling. A cancelled request may still take effect.
`S3Limits` are the bounds that tests change: how long a call tries, and from which size on it takes several requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from storage.objects.port import ObjectStat, UnfinishedUpload
from storage.objects.requests import KEYS_PER_REQUEST, UPLOAD_PART_BYTES
from storage.vocabulary import Buffer

CONNECT_S_MAX: Final = 5.0
REQUEST_S_MAX: Final = 300.0
CONNECTIONS_MAX: Final = 64
USER_AGENT: Final = "forebay"


def user_agent(run: str) -> str:
    """The product of our requests, with a token by which lines of the server's access log belong to one process (`forebay_build_info`)."""
    return f"{USER_AGENT} run/{run}" if run else USER_AGENT


class ListedPage(NamedTuple):
    """Objects in the order of their keys; `more` if others follow."""

    stats: Sequence[ObjectStat]
    more: bool


class UploadsPage(NamedTuple):
    """Unfinished uploads in the order of their keys, which are whole names; `more` if others follow."""

    uploads: Sequence[UnfinishedUpload]
    more: bool


class UndeletedKey(NamedTuple):
    """A key that a delete request did not delete, though the request as a whole succeeded."""

    key: str
    code: str
    message: str


class DataClient(Protocol):
    """The requests that carry record bytes."""

    async def put_if_absent(self, name: str, parts: Sequence[Buffer]) -> None:
        """One PUT with If-None-Match: * and a checksum, so that a body that was cut short is never stored."""
        ...

    async def get_range(self, name: str, start: int, end: int) -> Buffer:
        """Bytes [start, end), fewer if the object ends before. `start` < `end`."""
        ...

    async def get_parts(self, name: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        """As `get_range`, in parts as `ObjectStore.get_parts` gives them."""
        ...

    async def head(self, name: str) -> ObjectStat:
        """`key` is `name`."""
        ...

    async def close(self) -> None:
        """May be called again."""
        ...


class ControlClient(Protocol):
    """The other requests, and a put, which tells what a server refuses of the other client's. Opened by its first use."""

    async def put_if_absent(self, name: str, parts: Sequence[Buffer]) -> None:
        """As that of a `DataClient`."""
        ...

    async def list_page(self, prefix: str, start_after: str) -> ListedPage: ...

    async def delete(self, names: Sequence[str]) -> Sequence[UndeletedKey]:
        """Up to 1,000 names; absent ones are deleted."""
        ...

    async def begin_upload(self, name: str) -> str:
        """Begin a multipart upload: its id."""
        ...

    async def put_part(self, name: str, upload: str, number: int, body: Buffer) -> str:
        """Store part `number` (from 1 on): its ETag. May be sent again."""
        ...

    async def finish_upload(self, name: str, upload: str, etags: Sequence[str]) -> None:
        """Make the object of its parts, if the name is absent."""
        ...

    async def abort_upload(self, name: str, upload: str) -> None: ...

    async def uploads_page(self, prefix: str, start_after: str) -> UploadsPage:
        """A page begins behind all uploads of the name `start_after`.

        There is a marker for places between the uploads of one name, too, and servers that refuse it or pass it over.
        """
        ...

    async def caller(self) -> str:
        """The identity that AWS sees (an ARN)."""
        ...

    async def bucket_region(self) -> str:
        """Where the bucket is, or empty where the server does not say."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Limits:
    """Bounds of one store's calls."""

    # Trying again

    attempt_s: float = 10.0
    """A request has this and the time that its bytes take."""
    probe_timeout_s: float = 10.0
    tries_max: int = 20
    read_tries_max: int = 8
    pause_s_max: float = 3.0
    """Between two tries."""

    # Sizes

    part_bytes: int = UPLOAD_PART_BYTES
    multipart_above_bytes: int = UPLOAD_PART_BYTES
    """Not lower: what fits one part takes three requests instead of one."""
    put_bytes_max: int = 5 << 30
    """S3 takes larger objects in parts only."""
    page_objects: int = KEYS_PER_REQUEST
    """Objects, or unfinished uploads, of one page of a listing."""

    # Credentials

    credentials_timeout_s: float = 30.0
    """For one search of all sources, which asks servers and starts programs, in a thread of its own."""
    credentials_retry_pause_s: float = 5.0
    """After a search that failed, or one whose credentials the store refused."""

    # Closing

    settle_s: float = 0.05
    """How long closing obstore's client waits for its threads."""


DEFAULT_LIMITS: Final = S3Limits()
