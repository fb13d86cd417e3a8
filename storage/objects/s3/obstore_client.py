"""The data path by obstore: requests made and bodies copied by Rust threads, off the event loop and the GIL.

Only this module knows obstore. Its retries are off, since it would repeat a PUT whose reply was lost and report the object as another's.
Its errors are distinguished by their text, which has the status and the server's answer: `tests/unit/storage/objects/s3` holds it to that.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from storage.objects.port import ObjectStat
from storage.objects.requests import RequestAnswer, RequestKind, RequestMeter
from storage.objects.s3.client import CONNECT_S_MAX, CONNECTIONS_MAX, DEFAULT_LIMITS, REQUEST_S_MAX, S3Limits, user_agent
from storage.objects.s3.credentials import Credentials, CredentialSource
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import (
    AnswerCutShort,
    CertificateFlaw,
    ErrorReply,
    Interrupted,
    RequestFault,
    Unreached,
    Untrusted,
    error_reply_of,
)
from storage.objects.s3.metering import answer_of
from storage.recordbatch import in_parts
from storage.vocabulary import Buffer

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

NO_PROXY_URL: Final = "http://127.0.0.1:9"
"""It is never asked: the server is excluded from it."""
PARTS_MAX: Final = 64
"""More parts than these are joined first: each costs an allocation and a write of its own."""

_ANSWER: Final = re.compile(r"Server returned non-2xx status code: (\d{3})[^:\n]*: ?(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)


class ObstoreClient:
    """A `DataClient`. Buffers of a cancelled put may be read for a moment after it: they must not change at all."""

    def __init__(
        self,
        endpoint: BucketEndpoint,
        *,
        credentials: CredentialSource,
        meter: RequestMeter,
        authorities: bytes | None = None,
        run: str = "",
        limits: S3Limits = DEFAULT_LIMITS,
    ) -> None:
        """`authorities` in PEM are trusted beside those of the system. `run` names this process in each request."""
        self._meter = meter
        self._settle_s = limits.settle_s
        self._user_agent = user_agent(run)
        self._endpoint = endpoint
        self._credentials = credentials
        self._authorities = authorities
        self._signs: Credentials | None = None
        self._opened: S3Store | None = None

    async def _store(self) -> S3Store:
        """The store with the credentials that hold now.

        obstore keeps credentials until they end, whatever becomes of them meanwhile: renewed ones are given to another store, with
        connections of its own. Requests that are under way go on with theirs.
        """
        found = await self._credentials.current()
        if self._opened is None or found != self._signs:
            self._opened, self._signs = self._made(found), found
        return self._opened

    def _made(self, found: Credentials) -> S3Store:
        endpoint = self._endpoint
        given = {"access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token, "expires_at": None}
        config: S3Config = {}
        if endpoint.url_of_bucket is not None:
            config["endpoint"] = endpoint.url_of_bucket
        proxy = endpoint.route.proxy
        options: ClientConfig = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=CONNECT_S_MAX),
            "timeout": timedelta(seconds=REQUEST_S_MAX),
            "pool_max_idle_per_host": str(CONNECTIONS_MAX),
            "user_agent": self._user_agent,
            # Named even where there is none: obstore would read the environment itself, and otherwise than the other client.
            "proxy_url": proxy or NO_PROXY_URL,
            "proxy_excludes": "" if proxy else urlsplit(endpoint.url_of_requests).hostname or "",
        }
        if self._authorities is not None:
            options["root_certificate"] = self._authorities
        return S3Store(
            endpoint.bucket,
            config=config,
            region=endpoint.region,
            virtual_hosted_style_request=not endpoint.path_style,
            unsigned_payload=True,
            # Without it a server may keep a body that was cut short: one of ours did with 38 of 39 cancelled puts.
            checksum_algorithm="CRC64NVME",
            conditional_put="etag",
            credential_provider=lambda: given,  # type: ignore[arg-type]
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_S_MAX)},
            client_options=options,
        )

    async def put_if_absent(self, name: str, parts: Sequence[Buffer]) -> None:
        store = await self._store()
        body = list(parts) if len(parts) <= PARTS_MAX else [b"".join(parts)]
        with self._counted("put", name):
            # Lists and long bodies become multipart uploads, which know no condition, unless that is forbidden.
            await obstore.put_async(store, name, body, mode="create", use_multipart=False)
        self._meter.stored(sum(map(len, body)))

    async def get_range(self, name: str, start: int, end: int) -> Buffer:
        store = await self._store()
        with self._counted("ranged_get", name):
            found = memoryview(await obstore.get_range_async(store, name, start=start, end=end)).toreadonly()
        self._meter.read(len(found))
        return found

    async def get_parts(self, name: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        store = await self._store()
        with self._counted("ranged_get", name):
            found = await obstore.get_async(store, name, options={"range": (start, end)})
            # Threads of obstore's put the parts together: to cut the whole range here would take the loop twice as long.
            parts = [part async for part in found.stream(min_chunk_size=part_bytes)]
        self._meter.read(sum(map(len, parts)))
        # A part ends with what was received at a time, which is a few hundred KiB.
        return [piece for part in parts for piece in (in_parts(part, 0, part_bytes) if len(part) > 2 * part_bytes else (part,))]

    async def head(self, name: str) -> ObjectStat:
        store = await self._store()
        with self._counted("head", name):
            found = await obstore.head_async(store, name)
        return ObjectStat(name, found["size"], round(found["last_modified"].timestamp() * 1_000))

    @contextlib.contextmanager
    def _counted(self, request: RequestKind, name: str) -> Iterator[None]:
        """One request is sent within, if any. Raises the fault that it ends in."""
        answer: RequestAnswer | None = "none"
        try:
            yield
            answer = "2xx"
        except (BaseError, FileNotFoundError) as error:
            fault = _fault(error)
            answer = answer_of(fault)
            raise fault from error
        finally:
            if answer is not None:
                self._meter.count(request, name, answer)

    async def close(self) -> None:
        """Connections end with the object: obstore has no call for it."""
        # Its threads let go of Python objects a moment after a result is here. A process that ends in that moment is aborted by them
        # (3 of 40 that ended at once, none of 40 that waited), and there is nothing to wait for but the time.
        await asyncio.sleep(self._settle_s)


def _fault(error: Exception) -> RequestFault:
    text = str(error)
    answer = _ANSWER.search(text)
    if answer is not None:
        return error_reply_of(int(answer[1]), answer[2])
    summary, _, debug = text.partition("\n\nDebug source:")
    reason = _reason(debug) or summary
    if (refused := _CERTIFICATE.search(debug)) is not None:
        detail = " ".join(refused[1].split())
        return Untrusted(next((flaw for sign, flaw in _FLAWS if sign in detail), CertificateFlaw.OTHER), detail)
    if _NO_CONNECTION.search(debug):
        return Unreached(reason)
    if "redirect without LOCATION" in text:
        return ErrorReply(301, "PermanentRedirect", "the bucket is in another region")
    if "NotPartial" in debug:
        return ErrorReply(200, "", "a whole object, or something else, where a range was asked for")
    if not text.partition("\n")[0].startswith(_BEFORE_AN_ANSWER) and _IN_THE_BODY.search(debug):
        return AnswerCutShort(reason)
    return Interrupted(reason)


_BEFORE_AN_ANSWER: Final = "Generic S3 error: Error performing"
_IN_THE_BODY: Final = re.compile(r"\bkind: Body\b")
_NO_CONNECTION: Final = re.compile(r"\bkind: Connect\b")
"""As a word: `kind: ConnectionReset` comes of a connection on which a request, or a part of it, was sent."""
_CERTIFICATE: Final = re.compile(r"\bInvalidCertificate\((.{0,200})", re.DOTALL)
_FLAWS: Final = (
    ("CaUsedAsEndEntity", CertificateFlaw.OF_AN_AUTHORITY),
    ("UnknownIssuer", CertificateFlaw.UNKNOWN_AUTHORITY),
    ("NotValidForName", CertificateFlaw.OTHER_NAME),
    ("NotValidYet", CertificateFlaw.NOT_YET_VALID),
    ("Expired", CertificateFlaw.EXPIRED),
)
_REASON: Final = re.compile(r'(?:message|error): "([^"]+)"')
_KIND: Final = re.compile(r"\b(TimedOut|IncompleteMessage|IncompleteBody|ConnectionReset|BrokenPipe|Parse)\b")


def _reason(debug: str) -> str:
    """The innermost message of obstore's nested errors, for people."""
    messages = _REASON.findall(debug)
    if messages:
        return str(messages[-1]).lower()
    kind = _KIND.search(debug)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind[1]).lower() if kind else ""
