"""The object store: what `serve` tries before it starts, then each kind of request by itself, and how long a put takes.

Where a store refuses one, the others say which permissions there are. A bucket that keeps versions is warned of: it would keep what brokers
delete, a probe of a byte every half minute.
"""

import asyncio
import os
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from forebay.commands.doctor.finding import Checks, Finding, FindingStatus, failed, ok, reason_of, skipped, warning
from process.settings.notation import scheme_of
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.errors import AlreadyExists, NotFound, Unavailable
from storage.limits import KIB
from storage.objects.port import ObjectStore
from storage.objects.requests import RequestMeter
from storage.objects.s3.aioboto3_client import Aioboto3Client, credentials_for
from storage.objects.s3.diagnosis import Facts, ProbeStep, explain
from storage.objects.s3.endpoint import resolve_endpoint
from storage.objects.s3.faults import Interrupted, NoCredentials, RequestFault, Unreached
from storage.objects.s3.location import parse_s3_url

STORE: Final = "object store"
ROUTE: Final = "objects: route"
PUT: Final = "objects: put"
PUT_AGAIN: Final = "objects: second put"
GET: Final = "objects: range read"
LIST: Final = "objects: list"
LATENCY: Final = "objects: latency"
DELETE: Final = "objects: delete"
OF_STORE: Final = (PUT, PUT_AGAIN, GET, LIST, LATENCY, DELETE)
PROBE_S: Final = 45.0
"""The probe of S3 gives each of its five requests ten seconds, and asks why when one fails."""
STEP_S: Final = 15.0
PUTS: Final = 5
PUT_BYTES: Final = 64 * KIB
SLOW_S: Final = 1.0
_BODY: Final = b"written by forebay doctor, and to be removed by it"
_OTHER: Final = b"another, which must be refused"
VERSIONS: Final = "objects: versions"
ASK_S_MAX: Final = 15.0


def of_route(url: str) -> Finding | None:
    """How S3 is reached, and whom a broker trusts there: what the environment has decided. None for a store that is not S3."""
    if scheme_of(url) != "s3":
        return None
    endpoint = resolve_endpoint(parse_s3_url(url), os.environ)
    try:
        route = endpoint.route
    except Unavailable as error:
        return failed(ROUTE, str(error))
    trusted = ""
    if endpoint.is_https:
        named = f" and those of {endpoint.ca.path} ({endpoint.ca.named_by})" if endpoint.ca is not None else ""
        trusted = f"; trusted are the authorities of the system{named}"
    return ok(ROUTE, f"S3 at {endpoint.shown} is reached {route.shown}{trusted}")


def of_second_put(is_refused: bool, first: bytes) -> Finding:
    if not is_refused or first != _BODY:
        return failed(
            PUT_AGAIN,
            "a second put of the same name was not refused: a second writer would replace what is acknowledged. "
            "Use a store with conditional writes (AWS S3, MinIO, Ceph, Versity), or a folder on a disk of this machine",
        )
    return ok(PUT_AGAIN, "refused, and the first one is there: conditional writes hold")


def of_range_read(found: bytes, *, start: int, end: int) -> Finding:
    if found != _BODY[start:end]:
        return failed(GET, f"bytes [{start}, {end}) are read back other than they were written. Check what lies between here and the store")
    return ok(GET, f"bytes [{start}, {end}) of {len(_BODY)} read back as they were written")


def of_list(found: Sequence[str], expected: str) -> Finding:
    if expected not in found:
        return warning(LIST, "an object that was just written is not listed. Nothing depends on it, but tools will not see all there is")
    return ok(LIST, "what was written is listed")


def of_latency(seconds: Sequence[float]) -> Finding:
    median_s = statistics.median(seconds)
    size = f"{PUT_BYTES // KIB} KiB"
    known = f"{len(seconds)} puts of {size} one after the other: median {median_s * 1000:.1f} ms, slowest {max(seconds) * 1000:.1f} ms"
    if median_s > SLOW_S:
        return warning(LATENCY, f"{known}. Every acknowledgement waits for one: use a bucket in this region, or a faster disk.")
    return ok(LATENCY, known)


def reason_at(url: str, step: ProbeStep, error: Exception) -> str | None:
    """Why a request failed; of S3 with the permission it needs."""
    fault = fault_of(error)
    if fault is None or scheme_of(url) != "s3":
        return reason_of(error)
    location = parse_s3_url(url)
    endpoint = resolve_endpoint(location, os.environ)
    known = Facts(location=location, endpoint=endpoint, identity="", source="", region_of_bucket="")
    return " ".join(explain(step, fault, known).split())


def fault_of(error: BaseException | None) -> RequestFault | TimeoutError | None:
    """What a request to S3 ended in, below what was made of it."""
    while error is not None:
        if isinstance(error, RequestFault | TimeoutError):
            return error
        error = error.__cause__
    return None


class ObjectChecks:
    """Checks an object store open at `url`; calls `known` when it works."""

    def __init__(self, store: ObjectStore, checks: Checks, *, url: str, known: str, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._checks = checks
        self._url = url
        self._known = known
        self._clock = clock
        self._prefix = f".probe/doctor-{ids.next_ulid()}"
        self._key = f"{self._prefix}-0"
        self._written = [self._key]
        self._reasons: list[str] = []
        self._is_silent = self._can_put = False

    async def run(self) -> None:
        """All of them, one after the other; one that needs another that failed is skipped."""
        await self._step(STORE, ProbeStep.PUT, self._probe, within_s=PROBE_S)
        if self._is_silent:
            for check in OF_STORE:
                self._checks.add(skipped(check, "the object store gives no answers"))
            return
        self._can_put = await self._step(PUT, ProbeStep.PUT, self._put) is FindingStatus.OK
        for check, step, look in (
            (PUT_AGAIN, ProbeStep.PUT_AGAIN, self._put_again),
            (GET, ProbeStep.GET, self._get),
            (LIST, ProbeStep.LIST, self._list),
            (LATENCY, ProbeStep.PUT, self._latency),
        ):
            if self._can_put or check == LIST:
                await self._step(check, step, look)
            else:
                self._checks.add(skipped(check, "nothing could be put"))
        await self._step(DELETE, ProbeStep.DELETE, self._delete)

    async def _step(
        self, check: str, step: ProbeStep, look: Callable[[], Awaitable[Finding]], *, within_s: float = STEP_S
    ) -> FindingStatus:
        async def noting() -> Finding:
            try:
                return await look()
            except asyncio.CancelledError:
                # By the deadline of this step.
                self._is_silent = True
                raise

        def reason(error: Exception) -> str | None:
            self._is_silent |= isinstance(fault_of(error), Unreached | Interrupted | NoCredentials | TimeoutError)
            # The probe asks the server who we are, and says more.
            why = reason_of(error) if check == STORE else reason_at(self._url, step, error)
            if why is not None and why in self._reasons:
                return "for the same reason"
            self._reasons.append(why or "")
            return why

        return await self._checks.run(check, noting, within_s=within_s, reason=reason)

    async def _probe(self) -> Finding:
        await self._store.probe()
        return ok(STORE, self._known)

    async def _put(self) -> Finding:
        await self._store.put_if_absent(self._key, [_BODY])
        return ok(PUT, f"{self._key}, {len(_BODY)} bytes")

    async def _put_again(self) -> Finding:
        try:
            await self._store.put_if_absent(self._key, [_OTHER])
        except AlreadyExists:
            return of_second_put(True, bytes(await self._store.get_range(self._key, 0, len(_BODY))))
        return of_second_put(False, b"")

    async def _get(self) -> Finding:
        start, end = 11, 25
        return of_range_read(bytes(await self._store.get_range(self._key, start, end)), start=start, end=end)

    async def _list(self) -> Finding:
        found = [stat.key async for stat in self._store.list(self._prefix)]
        return of_list(found, self._key) if self._can_put else ok(LIST, "answered")

    async def _latency(self) -> Finding:
        body = os.urandom(PUT_BYTES)
        seconds = []
        for number in range(1, PUTS + 1):
            key = f"{self._prefix}-{number}"
            self._written.append(key)
            began_s = self._clock.monotonic_s()
            await self._store.put_if_absent(key, [body])
            seconds.append(self._clock.monotonic_s() - began_s)
        return of_latency(seconds)

    async def _delete(self) -> Finding:
        """Also of names that nothing was put under: of S3 it shows the permission."""
        await self._store.delete_many(self._written)
        try:
            await self._store.get_range(self._key, 0, 1)
        except NotFound:
            return ok(DELETE, "what was written is gone")
        return failed(
            DELETE, f"{self._key} is read after it was deleted. A store must read what was last written; nothing may cache before it"
        )


async def look_at_versions(url: str, checks: Checks, *, clock: Clock) -> None:
    """Say so if the bucket of `url` keeps versions; nothing if it does not, or the question is refused: no broker needs to ask it."""
    if scheme_of(url) != "s3":
        return
    endpoint = resolve_endpoint(parse_s3_url(url), os.environ)
    client = Aioboto3Client(endpoint, credentials=credentials_for(endpoint, os.environ, clock=clock), meter=RequestMeter(Telemetry()))
    try:
        async with asyncio.timeout(ASK_S_MAX):
            keeps = await client.keeps_versions()
    except (RequestFault, TimeoutError):
        return
    finally:
        await client.close()
    if keeps:
        checks.add(
            warning(
                VERSIONS,
                "the bucket keeps versions of what is deleted: of .probe/ alone up to 86,400 a month and idle broker. "
                "Give it a lifecycle rule that ends noncurrent versions (NoncurrentVersionExpiration) and expired delete markers",
            )
        )
