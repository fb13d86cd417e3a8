"""The credentials that both clients sign with, renewed before they end.

Keys in the environment are fixed for the life of the process. All others are found by a client's library, in a thread, and found again when
a file that may hold them changes, when their end comes near, and when the store refuses them.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import structlog

from runtime.clock import Clock
from storage.objects.s3.client import DEFAULT_LIMITS, S3Limits
from storage.objects.s3.faults import NoCredentials, RequestFault

NO_CREDENTIALS: Final = (
    "No S3 credentials found (looked in: environment, ~/.aws, web identity, container and instance role). "
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role."
)

WAIT_S_MAX: Final = 8.0
"""A request that has nothing to sign with waits so long for a search; less than a try of a request may take."""
LOOK_AGAIN_S: Final = 1.0
"""Between two looks at the files, while requests go out."""
SEARCH_AGAIN_IF_FORBIDDEN_S: Final = 60.0
"""After a refusal that is more likely about a permission."""
RENEWED_BEFORE_END_S: Final = 300.0
"""Or with half of their life left, if that is less. A request is signed before it arrives."""

_FILES: Final = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", None),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", None),
)
_OF_METHODS: Final = {
    "shared-credentials-file": 0,
    "config-file": 1,
    "custom-process": 1,
    "sso": 1,
    "assume-role-with-web-identity": 2,
}
"""botocore's words for its sources, and which of the files says more."""

_log = structlog.get_logger(__name__)

_Marks = tuple[tuple[int, int, int] | None, ...]


class Credentials(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None
    expires_s: float | None
    """Seconds since the Unix epoch; None if they do not expire, or do not say so."""
    source: str
    """Where they came from, in botocore's words."""


class CredentialSource:
    """Credentials for one store. `find` blocks, is called in a thread, and raises `RequestFault`."""

    def __init__(
        self, find: Callable[[], Credentials], *, environment: Mapping[str, str], clock: Clock, limits: S3Limits = DEFAULT_LIMITS
    ) -> None:
        self._find = find
        self._clock = clock
        self._timeout_s, self._retry_pause_s = limits.credentials_timeout_s, limits.credentials_retry_pause_s
        self._files = files_of(environment)
        self._held = _of_environment(environment)
        self._is_fixed = self._held is not None
        # Written by the thread of a search, of which there is one at a time.
        self._marks: _Marks | None = None
        self._failure = ""
        self._searched_at_s = self._look_at_s = self._search_at_s = clock.monotonic_s()
        self._under_way: Future[None] | None = None

    @property
    def held(self) -> Credentials | None:
        """The credentials that requests are signed with now; None before the first."""
        return self._held

    async def current(self, *, within_s: float = WAIT_S_MAX) -> Credentials:
        """The credentials to sign the next request with. Raise `NoCredentials` if there are none `within_s`."""
        held = self._held
        if held is not None and (self._is_fixed or self._clock.monotonic_s() < self._look_at_s):
            return held
        looking = self._look()
        if held is None or _left_s(held, self._clock) <= 0:
            await self._finished(looking, within_s)
        if self._held is None:
            raise NoCredentials(self._failure or f"no answer in {within_s:.0f} s from where S3 credentials are looked for")
        # Those that have ended are used all the same: the store's clock counts, and its answer says what is wrong.
        return self._held

    async def first(self) -> Credentials:
        """As `current`, with the whole time of a search, which says at its end what it waited for."""
        return await self.current(within_s=self._timeout_s + WAIT_S_MAX)

    async def renewed(self, refused: Credentials | None, *, perhaps: bool = False) -> bool:
        """Whether there are others than those that a store has `refused`, or `perhaps` refused."""
        if self._is_fixed:
            return False
        if self._held == refused and self._under_way is not None:
            await self._finished(self._under_way, WAIT_S_MAX)
        if self._held == refused:
            pause_s = SEARCH_AGAIN_IF_FORBIDDEN_S if perhaps else self._retry_pause_s
            await self._finished(self._look(anyway=self._clock.monotonic_s() >= self._searched_at_s + pause_s), WAIT_S_MAX)
        return self._held != refused

    def close(self) -> None:
        """A search that is under way ends by its own deadline; its thread holds up no process that ends."""
        self._is_fixed = True

    # The search

    def _look(self, *, anyway: bool = False) -> "Future[None]":
        """Look at the files in a thread, and search where they have changed, credentials are about to end, or `anyway`."""
        if self._under_way is not None and not self._under_way.done():
            return self._under_way
        self._under_way = done = Future[None]()
        done.set_running_or_notify_cancel()  # nobody who ceases to wait ends it
        try:
            Thread(target=self._work, args=(done, anyway), name="s3-credentials", daemon=True).start()
        except RuntimeError as error:
            self._failure = f"credentials cannot be looked for: {error}"
            done.set_result(None)
        return done

    async def _finished(self, looking: "Future[None]", within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.wrap_future(looking)

    def _work(self, done: "Future[None]", anyway: bool) -> None:
        try:
            # Before the search: what changes during it is seen the next time.
            marks = tuple(map(_mark, self._files))
            if anyway or self._held is None or marks != self._marks or self._clock.monotonic_s() >= self._search_at_s:
                self._search(marks)
        finally:
            self._look_at_s = self._clock.monotonic_s() + LOOK_AGAIN_S
            done.set_result(None)

    def _search(self, marks: _Marks) -> None:
        held = self._held
        try:
            found = self._find()
        except Exception as fault:  # noqa: BLE001 - a request that waits is given it
            cause = str(fault) if isinstance(fault, RequestFault) else repr(fault)
            self._marks, self._searched_at_s = marks, self._clock.monotonic_s()
            self._search_at_s = self._searched_at_s + self._retry_pause_s
            if held is not None and not self._failure:
                _log.warning(
                    "s3_credentials_not_renewed",
                    source=held.source,
                    cause=cause,
                    ends=_moment(held.expires_s),
                    meaning="those found before are used as long as the store takes them",
                    fix="correct what cause names; it is tried again every few seconds",
                )
            self._failure = cause
            return
        now_s = self._clock.monotonic_s()
        left_s = _left_s(found, self._clock)
        pause_s = max(left_s - RENEWED_BEFORE_END_S, left_s / 2, LOOK_AGAIN_S) if left_s > 0 else self._retry_pause_s
        self._held, self._marks, self._failure = found, marks, ""
        self._searched_at_s, self._search_at_s = now_s, now_s + pause_s
        if held is not None and held != found:
            _log.info("s3_credentials_renewed", source=found.source, ends=_moment(found.expires_s))


def files_of(environment: Mapping[str, str]) -> tuple[str | None, ...]:
    """Files that credentials may be in, or be got by: shared credentials, config, web identity token, token of a container's role."""
    named = (environment.get(name) or default for name, default in _FILES)
    return tuple(None if path is None else str(Path(path).expanduser()) for path in named)


def source_of(method: str, environment: Mapping[str, str]) -> str:
    """Where credentials came from, for people: botocore's word for it, and the file if there is one."""
    position = _OF_METHODS.get(method)
    path = None if position is None else files_of(environment)[position]
    return f"{method} {path}" if path else method


def remedy(held: Credentials | None) -> str:
    """How to replace credentials that a store has refused: a sentence, or nothing where nothing is known."""
    if held is None:
        return ""
    if held.source == "env":
        return (
            "The environment of a process does not change while it runs: start it again with new ones, "
            "or name a file by AWS_SHARED_CREDENTIALS_FILE, which is read again when it changes."
        )
    ends = f"They end at {_moment(held.expires_s)}. " if held.expires_s is not None else ""
    return f"{ends}Renewed there they are used within seconds, without a restart."


def _of_environment(environment: Mapping[str, str]) -> Credentials | None:
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    return Credentials(key, secret, environment.get("AWS_SESSION_TOKEN") or None, None, "env") if key and secret else None


def _mark(path: str | None) -> tuple[int, int, int] | None:
    """What changes with the file at `path`; None if it cannot be looked at."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _left_s(credentials: Credentials, clock: Clock) -> float:
    return float("inf") if credentials.expires_s is None else credentials.expires_s - clock.now_ms() / 1_000


def _moment(epoch_s: float | None) -> str:
    return "never" if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds")
