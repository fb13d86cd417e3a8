"""Producers and consumers of a load over the HTTP API (docs/reference/http.md). Requests block; several open ones have a thread each."""

import base64
import contextlib
import http.client
import itertools
import json
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from forebay.commands.bench.load.reconcile import LoadPartition
from forebay.commands.bench.load.routing import OwnerPicker, OwnerSets, owner_sets
from forebay.commands.bench.load.tasks import AUTO_COMMIT_MS, GIVE_UP_S, READ_RECORDS, OwnerRouting, ProducerTask, SendOutcomes
from runtime.clock import SystemClock

HTTP_TURN_RECORDS: Final = 500
HTTP_REQUESTS_OPEN: Final = 8
"""Requests that a producer has under way at a time, one for a partition."""
HTTP_ANSWER_WITHIN_S: Final = 40.0
POLL_ANSWER_WITHIN_S: Final = 15.0
POLL_MAX_WAIT_MS: Final = 200
SESSION_TIMEOUT_MS: Final = 10_000
_POLL_BYTES: Final = 1024 * 1024
_PAUSE_S: Final = 0.05
_FAILURES_BEFORE_ANOTHER: Final = 2

_clock = SystemClock()


class HttpUnanswered(Exception):
    """Nothing was written, or the client cannot know. `str()` says what came in place of a good answer."""

    def __init__(self, message: str, *, is_retriable: bool) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable


class HttpAnswer(NamedTuple):
    status: int
    document: Any
    location: str


def asked_by_http(address: str, method: str, path: str, body: object = None, *, within_s: float = HTTP_ANSWER_WITHIN_S) -> HttpAnswer:
    """`address` is `host:port`. Raise `HttpUnanswered` if no answer in JSON comes."""
    connection = http.client.HTTPConnection(address, timeout=within_s)
    try:
        connection.request(method, path, json.dumps(body).encode() if body is not None else None, {"content-type": "application/json"})
        response = connection.getresponse()
        return HttpAnswer(response.status, json.loads(response.read()), response.headers.get("location", ""))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpUnanswered(type(error).__name__, is_retriable=True) from error
    finally:
        connection.close()


class LoadRoute(Protocol):
    """Names the broker of a request. Called by several threads."""

    def take(self, place: LoadPartition, refused: Collection[int]) -> tuple[int, str]:
        """A broker's number and HTTP address. `refused`: those that did not do this request. Raise `HttpUnanswered` if none lives."""

    def give_back(self, broker: int) -> None:
        """A request to it has ended."""


class OneBrokerRoute:
    """All requests to one broker, until it refuses; then to the next."""

    def __init__(self, brokers: Mapping[int, str], *, first: int) -> None:
        self._brokers = sorted(brokers.items())
        self._place = first % len(self._brokers)

    def take(self, place: LoadPartition, refused: Collection[int]) -> tuple[int, str]:  # noqa: ARG002 - one for all
        if self._brokers[self._place][0] in refused:
            self._place = (self._place + 1) % len(self._brokers)
        return self._brokers[self._place]

    def give_back(self, broker: int) -> None:
        """Nothing is counted."""


class OwnerRoute:
    """One of the owners of the partition, as they are among the brokers that `live` names now."""

    def __init__(self, routing: OwnerRouting, places: Sequence[LoadPartition], live: Callable[[], Mapping[int, str]]) -> None:
        self._routing = routing
        self._places = places
        self._live = live
        self._picker = OwnerPicker(routing.pick)
        self._known: Mapping[int, str] = {}
        self._sets: OwnerSets = {}
        self._lock = threading.Lock()

    def take(self, place: LoadPartition, refused: Collection[int]) -> tuple[int, str]:
        with self._lock:
            live = self._live()
            if live is not self._known:
                self._known = live
                self._sets = owner_sets(self._places, live, k=self._routing.k, seed=self._routing.seed)
            owners = self._sets[place]
            if not owners:
                raise HttpUnanswered("no broker lives", is_retriable=True)
            broker = self._picker.take(place, owners, refused=refused)
            return broker, live[broker]

    def give_back(self, broker: int) -> None:
        with self._lock:
            self._picker.give_back(broker)


class _Batch(NamedTuple):
    topic: str
    partition: int
    first: int
    records: Sequence[tuple[bytes | None, bytes]]


class _Settled(NamedTuple):
    """`offset`: of the first record; None after `error`."""

    batch: _Batch
    offset: int | None
    latency_s: float
    error: str = ""


class HttpOutlet:
    """`POST /produce`: a request a partition at a time. With an id of a producer a repeat is recognised, by whichever broker."""

    def __init__(self, task: ProducerTask, outcomes: SendOutcomes, route: LoadRoute) -> None:
        self._codec = task.codec
        self._outcomes = outcomes
        self._route = route
        self._waiting: defaultdict[LoadPartition, deque[_Batch]] = defaultdict(deque)
        self._open: dict[LoadPartition, _Batch] = {}
        self._waiting_batches = 0
        self._asked: queue.SimpleQueue[_Batch] = queue.SimpleQueue()
        self._settled: queue.SimpleQueue[_Settled] = queue.SimpleQueue()
        self._producer: dict[str, int] | None = None
        if task.idempotent:
            begin = OneBrokerRoute(task.brokers, first=task.number)
            answer = self._repeated(begin, ("", 0), "/producers", {}, repeats=True)
            self._producer = {"id": answer["id"], "epoch": answer["epoch"]}
        for number in range(HTTP_REQUESTS_OPEN):
            threading.Thread(target=self._work, name=f"http-{number}", daemon=True).start()

    def room(self) -> int:
        return HTTP_TURN_RECORDS if len(self._open) + self._waiting_batches < HTTP_REQUESTS_OPEN else 0

    def send(self, topic: str, partition: int, first: int, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        batch = _Batch(topic, partition, first, records)
        if (topic, partition) in self._open:
            self._waiting[topic, partition].append(batch)
            self._waiting_batches += 1
        else:
            self._begin(batch)

    def poll(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._settle(self._settled.get(timeout=seconds) if seconds else self._settled.get_nowait())
            while True:
                self._settle(self._settled.get_nowait())

    def give_up(self) -> None:
        for batch in (*self._open.values(), *itertools.chain.from_iterable(self._waiting.values())):
            self._outcomes.unknown(batch.topic, batch.partition, batch.first, len(batch.records), "no answer")
        self._open.clear()
        self._waiting.clear()

    def _begin(self, batch: _Batch) -> None:
        self._open[batch.topic, batch.partition] = batch
        self._asked.put(batch)

    def _settle(self, done: _Settled) -> None:
        batch = done.batch
        if done.offset is None:
            self._outcomes.unknown(batch.topic, batch.partition, batch.first, len(batch.records), done.error)
        else:
            self._outcomes.stored(batch.topic, batch.partition, batch.first, len(batch.records), done.offset, done.latency_s)
        del self._open[batch.topic, batch.partition]
        if waiting := self._waiting[batch.topic, batch.partition]:
            self._waiting_batches -= 1
            self._begin(waiting.popleft())

    def _work(self) -> None:
        while True:
            batch = self._asked.get()
            began_s = _clock.monotonic_s()
            try:
                offset = self._sent(batch)
            except HttpUnanswered as error:
                self._settled.put(_Settled(batch, None, 0.0, str(error)))
            else:
                self._settled.put(_Settled(batch, offset, _clock.monotonic_s() - began_s))

    def _sent(self, batch: _Batch) -> int:
        """The offset of its first record. Raise `HttpUnanswered`."""
        shown = [_as_json(key, value) for key, value in batch.records]
        part: dict[str, Any] = {"topic": batch.topic, "partition": batch.partition, "records": shown}
        body: dict[str, Any] = {"topic_partitions": [part], "compression": self._codec}
        if self._producer is not None:
            body["producer"], part["sequence"] = self._producer, batch.first % 2**31
        answer = self._repeated(self._route, (batch.topic, batch.partition), "/produce", body, repeats=self._producer is not None)
        return int(answer["results"][0]["start_offset"])

    def _repeated(self, route: LoadRoute, place: LoadPartition, path: str, body: object, *, repeats: bool) -> Any:
        """Ask one broker after the other, for as long as a repeat does no harm. Raise `HttpUnanswered`."""
        give_up_s = _clock.monotonic_s() + GIVE_UP_S
        refused: set[int] = set()
        while True:
            try:
                broker, address = route.take(place, refused)
                try:
                    return _good(asked_by_http(address, "POST", path, body))
                except HttpUnanswered:
                    refused.add(broker)
                    raise
                finally:
                    route.give_back(broker)
            except HttpUnanswered as error:
                if not repeats or not error.is_retriable or _clock.monotonic_s() > give_up_s:
                    raise
            time.sleep(_PAUSE_S)


class HttpGroupMember:
    """A consumer of a group over HTTP: it joins, polls, commits and leaves. It moves to the broker that coordinates the group.

    A method raises `HttpUnanswered` if no good answer came: then ask again.
    """

    def __init__(self, brokers: Sequence[str], group: str, topics: Sequence[str], *, first: int) -> None:
        self._addresses = itertools.cycle([*brokers[first % len(brokers) :], *brokers[: first % len(brokers)]])
        self._address = next(self._addresses)
        self._path = f"/groups/{quote(group, safe='')}/consumers"
        self._topics = list(topics)
        self._url = ""
        self._last_poll = self._failures = 0

    @property
    def is_member(self) -> bool:
        return bool(self._url)

    def join(self) -> None:
        wanted = {"topics": self._topics, "from": "start", "session_timeout_ms": SESSION_TIMEOUT_MS, "idle_timeout_ms": SESSION_TIMEOUT_MS}
        self._url, self._last_poll = _good(self._asked("POST", self._path, wanted))["url"], 0

    def poll(self) -> Any:
        """The document of the answer. One that got lost comes again."""
        limits = {"max_wait_ms": POLL_MAX_WAIT_MS, "max_records": READ_RECORDS, "max_bytes": _POLL_BYTES, "last_poll": self._last_poll}
        answer = self._asked("POST", f"{self._url}/poll", limits)
        # With a partition that cannot be read it is a 409, and has the others.
        document = answer.document if isinstance(answer.document, dict) and "generation" in answer.document else _good(answer)
        self._last_poll = document["poll"]
        return document

    def commit(self) -> list[Any]:
        """The results of partitions whose offsets were committed: of everything that the polls have given."""
        answer = self._asked("POST", f"{self._url}/commit", {"poll": self._last_poll})
        document = answer.document if isinstance(answer.document, dict) and "results" in answer.document else _good(answer)
        return [one for one in document["results"] if one["ok"]]

    def leave(self) -> None:
        if self._url:
            self._asked("DELETE", self._url)
            self._url = ""

    def _asked(self, method: str, path: str, body: object = None) -> HttpAnswer:
        try:
            answer = asked_by_http(self._address, method, path, body, within_s=POLL_ANSWER_WITHIN_S)
        except HttpUnanswered:
            # An answer that got lost can be had again from the same broker; one that is gone answers nothing the second time either.
            self._failures += 1
            if self._failures >= _FAILURES_BEFORE_ANOTHER or not self._url:
                self._go_to(next(self._addresses))
            raise
        self._failures = 0
        if answer.status == http.client.TEMPORARY_REDIRECT and answer.location:
            self._go_to(urlsplit(answer.location).netloc)
            raise HttpUnanswered("another broker coordinates the group", is_retriable=True)
        if answer.status == http.client.NOT_FOUND:
            self._url = ""
        elif answer.status == http.client.SERVICE_UNAVAILABLE or (answer.status >= http.client.BAD_REQUEST and not self._url):
            # It leaves the cluster, or knows nobody who takes a member: another may.
            self._go_to(next(self._addresses))
        return answer

    def _go_to(self, address: str) -> None:
        """It has to join there; committed offsets are kept."""
        self._address, self._url, self._failures = address, "", 0


class HttpPolling:
    """Polls of an `HttpGroupMember`, and commits after each poll or once a second. A failure is waited over."""

    def __init__(self, member: HttpGroupMember, *, commits_each: bool, began: Callable[[Any], None], read: Callable[[Any], None]) -> None:
        """`began`: is given the partitions of a new generation. `read`: is given the results of a poll."""
        self._member = member
        self._commits_each = commits_each
        self._began = began
        self._read = read
        self._generation = -1
        self._committed_s = _clock.monotonic_s()
        self._is_uncommitted = False

    def turn(self) -> list[Any]:
        """One poll. Returns what was committed."""
        try:
            if not self._member.is_member:
                self._generation = -1
                self._member.join()
            answer = self._member.poll()
        except HttpUnanswered:
            time.sleep(_PAUSE_S)
            return []
        if answer["generation"] not in (-1, self._generation):
            self._generation = answer["generation"]
            self._began(answer["assigned"])
        self._read([one for one in answer["results"] if one["ok"]])
        self._is_uncommitted |= any(one["ok"] and one["count"] for one in answer["results"])
        is_due = self._commits_each or (_clock.monotonic_s() - self._committed_s) * 1_000 >= AUTO_COMMIT_MS
        return self._commit() if is_due and self._is_uncommitted else []

    def finish(self) -> list[Any]:
        """Commit, and leave the group. Returns what was committed."""
        committed = self._commit() if self._is_uncommitted and self._member.is_member else []
        with contextlib.suppress(HttpUnanswered):
            self._member.leave()
        return committed

    def _commit(self) -> list[Any]:
        self._committed_s = _clock.monotonic_s()
        try:
            committed = self._member.commit()
        except HttpUnanswered:
            # A member that was left behind cannot commit: what it read comes again, here or elsewhere.
            return []
        self._is_uncommitted = False
        return committed


def bytes_of(given: Any) -> bytes | None:
    """A value as answers have it."""
    if isinstance(given, dict):
        return base64.b64decode(given["base64"])
    return None if given is None else str(given).encode()


def _good(answer: HttpAnswer) -> Any:
    """The document. Raise `HttpUnanswered` unless all was done."""
    if answer.status in (http.client.OK, http.client.CREATED):
        return answer.document
    document: dict[str, Any] = answer.document if isinstance(answer.document, dict) else {}
    wrong: dict[str, Any] = next((one for one in document.get("results", []) if not one.get("ok")), document)
    is_retriable = bool(wrong.get("retriable", answer.status == http.client.SERVICE_UNAVAILABLE))
    raise HttpUnanswered(str(wrong.get("error_type", f"status {answer.status}")), is_retriable=is_retriable)


def _as_json(key: bytes | None, value: bytes) -> dict[str, Any]:
    shown: dict[str, Any] = {"value": {"base64": base64.b64encode(value).decode()}}
    return shown if key is None else {**shown, "key": key.decode()}
