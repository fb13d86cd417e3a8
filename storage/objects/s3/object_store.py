"""Objects in S3, or what speaks its language: the port's promises made of single requests.

A PUT carries If-None-Match: * and a checksum, so it stores all or nothing, once per name, and may be sent again after anything.
What a lost reply leaves open is settled by reading the object back: a name that our own bytes have is success, another's is not.
Large objects go in parts: a part that fails is sent again alone, and the object appears with the last request, or not at all.
`Backoff` says how long to go on trying: full jitter, so that brokers asked to slow down do not come back together.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, TypeVar

from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.telemetry import Metric, Telemetry
from storage.errors import AlreadyExists, EndsEarly, NotFound, OutcomeUnknown, Unavailable
from storage.limits import MIB
from storage.objects.port import ObjectStat, UnfinishedUpload, check_key, is_key
from storage.objects.requests import KEYS_PER_REQUEST, attempted, caused_by
from storage.objects.s3.client import DEFAULT_LIMITS, ControlClient, DataClient, S3Limits, UndeletedKey
from storage.objects.s3.credentials import Credentials, CredentialSource, remedy
from storage.objects.s3.diagnosis import Diagnosis, ProbeStep
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import ErrorReply, Interrupted, RequestFault, Unreached
from storage.objects.s3.location import S3Location
from storage.vocabulary import Buffer

PAUSE_FIRST_S: Final = 0.05
PARTS_AT_ONCE: Final = 4
ABORT_S: Final = 5.0
RETRIES: Final = Metric(
    "forebay_object_store_retries_total",
    "Requests to S3 sent again: throttled (the store is busy), interrupted (no whole reply), unreached (no connection), "
    "credentials (renewed, after the store had refused the old ones).",
    ("op", "cause"),
)
ATTEMPT_BYTES_PER_S: Final = 4 * MIB
"""A request has `attempt_s` and the time that its bytes take at this rate."""
PUT_TIMEOUT_S: Final = 60.0
READ_TIMEOUT_S: Final = 20.0
CONTROL_TIMEOUT_S: Final = 60.0
PART_TRIES_MAX: Final = 3
READ_BACK_BYTES: Final = 8 * MIB
DELETE_KEYS_MAX: Final = KEYS_PER_REQUEST

T = TypeVar("T")


class Backoff:
    """The pauses between the tries of one call, within its timeout. The caller's own timeout is its cancellation."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: random.Random,
        timeout_s: float,
        tries_max: int,
        pause_s_max: float,
        signed_with: Credentials | None,
    ) -> None:
        self._pause_s_max = pause_s_max
        self._clock = clock
        self._chance = chance
        self._deadline_s = clock.monotonic_s() + timeout_s
        self._tries_max = tries_max
        self.tries = 1
        self.cause: Exception | None = None
        """What the last try failed with, without frames."""
        self.signed_with = signed_with
        """The credentials that were held when the last try began."""

    @asynccontextmanager
    async def attempt(self, within_s: float | None = None) -> AsyncIterator[None]:
        """One try: its deadline, and whether its requests are counted as repeated. Raise TimeoutError when the time has passed."""
        with attempted("first" if self.tries == 1 else "retry"):
            async with asyncio.timeout(within_s):
                yield

    async def pause(self) -> bool:
        """Whether to try again; the time to do so has come when this returns."""
        if self.tries >= self._tries_max:
            return False
        pause_s = self._chance.uniform(0, min(self._pause_s_max, PAUSE_FIRST_S * 2**self.tries))
        if self._clock.monotonic_s() + pause_s >= self._deadline_s:
            return False
        self.tries += 1
        await asyncio.sleep(pause_s)
        return True


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


class S3ObjectStore:
    """An `ObjectStore`. Use `open_s3`; the constructor does no I/O."""

    def __init__(
        self,
        location: S3Location,
        endpoint: BucketEndpoint,
        *,
        data: DataClient,
        control: ControlClient,
        credentials: CredentialSource,
        clock: Clock,
        chance: random.Random,
        telemetry: Telemetry,
        limits: S3Limits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._location = location
        self._endpoint = endpoint
        self._root = location.root
        self._data = data
        self._control = control
        self._credentials = credentials
        self._clock = clock
        self._chance = chance
        self._ids = IdSource(clock=clock)
        self._takes_parts = True
        self._retries = telemetry.counter(RETRIES)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        check_key(key)
        await self._put(key, parts, timeout_s=PUT_TIMEOUT_S)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        _check_asked(key, start, end)
        found: Buffer = b""
        if start < end:
            found = await self._get(key, start, end, partial(self._data.get_range, self._root + key, start, end))
        await self._check_found(key, start, end, len(found))
        return found

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        _check_asked(key, start, end)
        found: Sequence[Buffer] = (b"",)
        if start < end:
            found = await self._get(key, start, end, partial(self._data.get_parts, self._root + key, start, end, part_bytes=part_bytes))
        await self._check_found(key, start, end, sum(map(len, found)))
        return found

    async def _check_found(self, key: str, start: int, end: int, found_bytes: int) -> None:
        # S3 knows no empty ranges.
        reached = start + found_bytes if start < end else (await self.stat(key)).size_bytes
        if reached < end:
            raise EndsEarly(f"object ends before the range: key={key!r} start={start} end={end}")
        if found_bytes > end - start:
            raise Unavailable(f"more bytes than were asked for: key={key!r} start={start} end={end} bytes={found_bytes}")

    async def stat(self, key: str) -> ObjectStat:
        check_key(key)
        head = partial(self._data.head, self._root + key)
        try:
            found = await self._read("stat", key, head, self._limits.attempt_s)
        except NotFound:
            # The answer to a HEAD is the same for a bucket that is gone, and for what is not S3: a GET tells them apart.
            if await self._is_absent(key):
                raise
            found = await self._read("stat", key, head, self._limits.attempt_s)
        return found._replace(key=key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """As the port says; names in the bucket that no key has are passed over."""
        if _has_no_keys(prefix, start_after):
            return
        last = self._root + start_after if start_after else ""
        more = True
        while more:
            page = await self._read("list", prefix, partial(self._control.list_page, self._root + prefix, last), self._limits.attempt_s)
            for found in page.stats:
                # Not every server begins where it was asked to.
                if found.key > last and is_key(key := found.key.removeprefix(self._root)):
                    yield found._replace(key=key)
            more = page.more
            if more and (not page.stats or page.stats[-1].key <= last):
                raise Unavailable(f"listing does not move on: bucket={self._location.bucket!r} prefix={prefix!r} start_after={last!r}")
            last = page.stats[-1].key if page.stats else last

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), DELETE_KEYS_MAX):
            names = [self._root + key for key in dict.fromkeys(keys[start : start + DELETE_KEYS_MAX])]
            await self._delete(names, begun=start > 0)

    async def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        """As the port says. A server that lists uploads only by the whole name of their key shows none."""
        if _has_no_keys(prefix, start_after):
            return
        # A place before the prefix says nothing, and servers refuse it, or find nothing behind it.
        last = self._root + start_after if start_after > prefix else ""
        more = True
        while more:
            with self._needing_permission():
                page = await self._read(
                    "list", prefix, partial(self._control.uploads_page, self._root + prefix, last), self._limits.attempt_s
                )
            for found in page.uploads:
                if found.key > last and is_key(key := found.key.removeprefix(self._root)):
                    yield found._replace(key=key)
            more = page.more
            if more and (not page.uploads or page.uploads[-1].key <= last):
                raise Unavailable(f"listing of uploads does not move on: bucket={self._location.bucket!r} prefix={prefix!r} after={last!r}")
            last = page.uploads[-1].key if page.uploads else last

    async def abort_upload(self, key: str, upload_id: str) -> None:
        check_key(key)
        backoff = self._backoff(CONTROL_TIMEOUT_S, self._limits.tries_max)
        begun = False
        with self._needing_permission(), self._noting("upload not aborted", key, backoff):
            while True:
                try:
                    async with backoff.attempt(self._limits.attempt_s):
                        await self._control.abort_upload(self._root + key, upload_id)
                    return
                except (RequestFault, TimeoutError) as error:
                    cause = _without_frames(error)
                if isinstance(cause, ErrorReply) and cause.is_no_upload:
                    return
                begun |= _may_be_done(cause)
                if not await self._goes_on("abort", backoff, cause):
                    failure = self._failure(f"upload {upload_id!r} not aborted", key, cause, tries=backoff.tries)
                    raise (OutcomeUnknown if begun else Unavailable)(failure) from cause

    async def probe(self) -> None:
        """As the port says, and find out whether the server honours If-None-Match and tells missing objects from forbidden ones."""
        data: object = self._data
        diagnosis = Diagnosis(
            self._location,
            self._endpoint,
            self._control,
            self._credentials,
            ids=self._ids,
            has_two_clients=data is not self._control,
        )
        key = f".probe/{self._ids.next_ulid()}"
        body, other = key.encode(), key.encode()[::-1]
        async with diagnosis.of(ProbeStep.PUT):
            await self._put(key, [body], timeout_s=self._limits.probe_timeout_s)
        try:
            async with diagnosis.of(ProbeStep.PUT_AGAIN):
                await self._put(key, [other], timeout_s=self._limits.probe_timeout_s)
        except AlreadyExists:
            honoured = True
        else:
            honoured = False
        if honoured:
            async with diagnosis.of(ProbeStep.GET):
                found = await self.get_range(key, 0, len(body))
        async with diagnosis.of(ProbeStep.DELETE):
            await self.delete_many([key])
        if not honoured:
            raise Unavailable(diagnosis.no_conditions())
        if (elsewhere := await diagnosis.other_region()) is not None:
            raise Unavailable(elsewhere)
        if found != body:
            raise Unavailable(diagnosis.other_bytes())
        try:
            async with diagnosis.of(ProbeStep.GET_ABSENT):
                await self.get_range(key, 0, 1)
        except NotFound:
            return
        raise Unavailable(diagnosis.still_there())

    async def close(self) -> None:
        # They may be one: closing is safe to repeat.
        await self._data.close()
        await self._control.close()
        self._credentials.close()

    # Putting

    async def _put(self, key: str, parts: Sequence[Buffer], *, timeout_s: float) -> None:
        backoff = self._backoff(timeout_s, self._limits.tries_max)
        with self._noting("object not stored", key, backoff):
            await self._put_within(key, parts, backoff)

    async def _put_within(self, key: str, parts: Sequence[Buffer], backoff: Backoff) -> None:
        size_bytes = sum(map(len, parts))
        may_be_ours = in_flight = False
        while True:
            try:
                await self._send(key, parts, size_bytes, backoff)
                return
            except (RequestFault, TimeoutError) as error:
                cause = _without_frames(error)
            if isinstance(cause, ErrorReply):
                if cause.is_taken:
                    if may_be_ours and await self._is_stored(key, parts, size_bytes):
                        return
                    # After an earlier request of ours it may also have been there and be deleted by now.
                    raise AlreadyExists(f"object exists: key={key!r}")
                if cause.is_transient and not cause.is_not_done:
                    may_be_ours = True
                    # Without a code of S3's it is a proxy's word: the request may be under way behind it.
                    in_flight |= not cause.code
            elif isinstance(cause, Interrupted | TimeoutError):
                may_be_ours = in_flight = True
            if not await self._goes_on("put", backoff, cause):
                break
        failure = self._failure("object not stored", key, cause, tries=backoff.tries)
        if may_be_ours:
            if await self._is_stored(key, parts, size_bytes):
                return
            if in_flight:
                raise OutcomeUnknown(f"{failure}; an earlier request may still take effect") from cause
        raise Unavailable(failure) from cause

    async def _send(self, key: str, parts: Sequence[Buffer], size_bytes: int, backoff: Backoff) -> None:
        name, attempt_s = self._root + key, self._attempt_s(size_bytes)
        limits, takes_parts = self._limits, True
        if size_bytes > limits.put_bytes_max or (size_bytes > limits.multipart_above_bytes and self._takes_parts):
            try:
                async with backoff.attempt(attempt_s):
                    await put_in_parts(
                        self._control, name, parts, backoff=partial(self._backoff, attempt_s, PART_TRIES_MAX), part_bytes=limits.part_bytes
                    )
                return
            except ErrorReply as refused:
                # Some stores know conditions for single requests only, and say so in words of their own. No object was made.
                is_of_this_try = refused.is_transient or refused.is_taken or refused.is_no_upload or refused.is_about_credentials
                if is_of_this_try or size_bytes > limits.put_bytes_max:
                    raise
                takes_parts = False
        async with backoff.attempt(attempt_s):
            await self._data.put_if_absent(name, parts)
        # In parts it was refused, and at once it was not: the next large objects need not be sent twice.
        self._takes_parts &= takes_parts

    async def _is_stored(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> bool:
        """Whether the object is there, of these parts. Raise `AlreadyExists` if it is another, `OutcomeUnknown` if it cannot be read."""
        expected, found = hashlib.sha256(), hashlib.sha256()
        with caused_by("read_back"):
            try:
                same = (await self.stat(key)).size_bytes == size_bytes
                if same:
                    for part in parts:
                        expected.update(part)
                    for start in range(0, size_bytes, READ_BACK_BYTES):
                        end = min(start + READ_BACK_BYTES, size_bytes)
                        found.update(await self._get(key, start, end, partial(self._data.get_range, self._root + key, start, end)))
            except NotFound:
                return False
            except Unavailable as error:
                raise OutcomeUnknown(f"object may be stored and cannot be read back: key={key!r} cause={error}") from error
        if found.digest() != expected.digest() or not same:
            raise AlreadyExists(f"object exists, of another writer: key={key!r}")
        return True

    # Reading

    async def _get(self, key: str, start: int, end: int, request: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._read("get", key, request, self._attempt_s(end - start))
        except Unavailable as error:
            if isinstance(error.__cause__, ErrorReply) and error.__cause__.is_past_the_end:
                raise EndsEarly(f"object ends before the range: key={key!r} start={start} end={end}") from error.__cause__
            raise

    async def _is_absent(self, key: str) -> bool:
        """False if it is there after all. Raise `Unavailable` if that cannot be found out."""
        try:
            await self._read("get", key, partial(self._data.get_range, self._root + key, 0, 1), self._limits.attempt_s)
        except NotFound:
            return True
        except Unavailable as error:
            # An empty object has no first byte.
            if not (isinstance(error.__cause__, ErrorReply) and error.__cause__.is_past_the_end):
                raise
        return False

    async def _read(self, op: str, key: str, request: Callable[[], Awaitable[T]], attempt_s: float) -> T:
        """The result of a request that changes nothing, after as many tries as it takes within bounds."""
        backoff = self._backoff(READ_TIMEOUT_S, self._limits.read_tries_max)
        with self._noting(f"{op} failed", key, backoff):
            while True:
                try:
                    async with backoff.attempt(attempt_s):
                        return await request()
                except (RequestFault, TimeoutError) as error:
                    cause = _without_frames(error)
                if isinstance(cause, ErrorReply) and (cause.is_missing or (op == "stat" and cause.is_bare_404)):
                    raise NotFound(f"no such object: key={key!r}") from cause
                if not await self._goes_on(op, backoff, cause):
                    raise Unavailable(self._failure(f"{op} failed", key, cause, tries=backoff.tries)) from cause

    # Deleting

    async def _delete(self, names: Sequence[str], *, begun: bool) -> None:
        """`begun`: earlier names of the same call are deleted already, so that a failure is not "nothing happened"."""
        backoff = self._backoff(CONTROL_TIMEOUT_S, self._limits.tries_max)
        while True:
            try:
                async with backoff.attempt(self._limits.attempt_s):
                    refusals = await self._control.delete(names)
            except (RequestFault, TimeoutError) as error:
                cause = _without_frames(error)
                begun |= _may_be_done(cause)
            else:
                refusals = [refusal for refusal in refusals if refusal.code not in ("NoSuchKey", "NoSuchVersion")]
                if not refusals:
                    return
                begun |= len(refusals) < len(names)
                names = [refusal.key for refusal in refusals]
                cause = _cause(refusals)
            if not await self._goes_on("delete", backoff, cause):
                failure = self._failure(f"{len(names)} objects not deleted", names[0], cause, tries=backoff.tries)
                raise (OutcomeUnknown if begun else Unavailable)(failure) from cause

    # Trying again

    def _backoff(self, timeout_s: float, tries_max: int) -> Backoff:
        return Backoff(
            clock=self._clock,
            chance=self._chance,
            timeout_s=timeout_s,
            tries_max=tries_max,
            pause_s_max=self._limits.pause_s_max,
            signed_with=self._credentials.held,
        )

    def _attempt_s(self, size_bytes: int) -> float:
        return self._limits.attempt_s + size_bytes / ATTEMPT_BYTES_PER_S

    @contextmanager
    def _noting(self, what: str, key: str, backoff: Backoff) -> Iterator[None]:
        """Add to the cancellation of a waiter a note that says what the last try failed with."""
        try:
            yield
        except asyncio.CancelledError as cancelled:
            if backoff.cause is not None:
                cancelled.add_note(self._failure(what, key, backoff.cause, tries=backoff.tries))
            raise

    @contextmanager
    def _needing_permission(self) -> Iterator[None]:
        """Add to an error that says no more than "denied" which permissions unfinished uploads take."""
        try:
            yield
        except Unavailable as error:
            cause = error.__cause__
            if not (isinstance(cause, ErrorReply) and cause.is_forbidden):
                raise
            bucket = self._location.bucket
            needed = f"s3:ListBucketMultipartUploads on {bucket} and s3:AbortMultipartUpload on {bucket}/{self._root}*"
            raise Unavailable(f"{error} - it takes the permissions {needed}") from cause

    async def _goes_on(self, op: str, backoff: Backoff, cause: RequestFault | TimeoutError) -> bool:
        """Whether to try again; the time to do so has come when this returns."""
        again = _is_transient(cause)
        if isinstance(cause, ErrorReply) and (cause.is_about_credentials or cause.may_be_about_credentials):
            again = await self._credentials.renewed(backoff.signed_with, perhaps=not cause.is_about_credentials)
        if not again:
            return False
        backoff.cause = cause
        again = await backoff.pause()
        backoff.signed_with = self._credentials.held
        if again:
            self._retries.labels(op, _cause_name(cause)).inc()
        return again

    def _failure(self, what: str, key: str, cause: Exception, *, tries: int) -> str:
        reason = "no reply in time" if isinstance(cause, TimeoutError) else str(cause)
        if isinstance(cause, ErrorReply) and cause.is_about_the_clock:
            reason += " - this machine's clock is too far from the server's: set it, e.g. by NTP"
        elif isinstance(cause, ErrorReply) and (held := self._credentials.held) is not None:
            if cause.is_about_credentials:
                reason += f" - the store refuses the credentials (from: {held.source}). {remedy(held)}"
            elif cause.may_be_about_credentials:
                reason += f" (credentials from: {held.source})"
        return f"{what}: bucket={self._location.bucket!r} key={key!r} tries={tries} cause={reason}"


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


def _without_frames(error: RequestFault | TimeoutError) -> RequestFault | TimeoutError:
    """`error`, to be kept while it is tried again: without the frames that it passed, and what it came of, which keep its bytes."""
    passed: BaseException | None = error
    while passed is not None:
        passed.__traceback__ = None
        passed = passed.__cause__ or passed.__context__
    return error


def _is_transient(cause: RequestFault | TimeoutError) -> bool:
    return cause.is_transient if isinstance(cause, ErrorReply) else isinstance(cause, Unreached | Interrupted | TimeoutError)


def _may_be_done(cause: RequestFault | TimeoutError) -> bool:
    """Whether a request that failed so, and changes something, may have changed it."""
    if isinstance(cause, ErrorReply):
        return cause.is_transient and not cause.is_not_done
    return isinstance(cause, Interrupted | TimeoutError)


def _has_no_keys(prefix: str, start_after: str) -> bool:
    """Whether no key begins with `prefix` and is greater than `start_after`, so that nobody need be asked."""
    is_of_no_key = not (is_key(prefix) or is_key(f"{prefix}x"))
    return is_of_no_key or (start_after > prefix and not start_after.startswith(prefix))


def _cause_name(cause: RequestFault | TimeoutError) -> str:
    if isinstance(cause, ErrorReply):
        return "throttled" if cause.is_transient else "credentials"
    return "unreached" if isinstance(cause, Unreached) else "interrupted"


def _cause(refusals: Sequence[UndeletedKey]) -> ErrorReply:
    """One fault for the keys that a reply names: what is worth another try only if all of them are."""
    faults = [ErrorReply(503 if one.code == "InternalError" else 403, one.code, one.message) for one in refusals]
    return next((fault for fault in faults if not fault.is_transient), faults[0])


def _check_asked(key: str, start: int, end: int) -> None:
    check_key(key)
    assert 0 <= start <= end, f"not a range: start={start} end={end}"
