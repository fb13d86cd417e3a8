"""Samples of every process of a load, and of the machine: to `samples.jsonl`, and the last ones for the reconciliation."""

import contextlib
import http.client
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.commands.bench.load.folder import LoadMember, LoadTarget
from forebay.commands.bench.load.reconcile import ProcessCounts, RequestKey
from forebay.processes.child import metrics_of
from runtime.clock import Clock
from storage.log.traffic import TOPIC_RECORDS
from storage.objects.requests import S3_REQUESTS

METRICS_AGE_MAX_S: Final = 1.1
"""A process renders its metrics at most once a second."""
_STOP_WITHIN_S: Final = 30.0
_DOLLARS: Final = "forebay_cost_dollars_total"
_OPERATIONS: Final = {
    "PutObject": "put",
    "GetObject": "get",
    "HeadObject": "head",
    "HeadBucket": "head",
    "ListObjectsV2": "list",
    "ListMultipartUploads": "list",
    "DeleteObjects": "delete",
    "DeleteObject": "delete",
    "CreateMultipartUpload": "upload_begin",
    "UploadPart": "upload_part",
    "CompleteMultipartUpload": "upload_finish",
    "AbortMultipartUpload": "abort",
}
_READINESS: Final = "ListAllMyBuckets"
"""What whoever starts the server asks until it answers; no process of ours does."""
_KEYS: Final = {"wal/": "wal", "segments/": "segment", ".probe/": "probe", "forebay-": "marker"}
_FREE: Final = frozenset({"OperationAborted", "NoSuchUpload", "InvalidRange"})


@dataclass(slots=True)
class _Life:
    """One run of a process, by its token."""

    name: str
    appended: dict[str, int] = field(default_factory=dict)
    requests: dict[RequestKey, int] = field(default_factory=dict)
    at: float = 0.0
    before: Counter[str] = field(default_factory=Counter)
    """Records by topic that it had appended when the load began."""
    requests_before: Counter[RequestKey] = field(default_factory=Counter)


class LoadSampler:
    """Samples in a thread of its own, from `start` to `stop`. `sample` may be called beside it."""

    def __init__(
        self, stack: LoadTarget, clients: Mapping[str, int], file: Path, *, topics: Collection[str], every_s: float, clock: Clock
    ) -> None:
        """`clients`: pids by name, which may grow meanwhile. `topics`: records of others are not counted."""
        self._stack = stack
        self._clients = clients
        self._file = file
        self._topics = frozenset(topics)
        self._every_s = every_s
        self._clock = clock
        self._lives: dict[str, _Life] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin with a sample of a cluster that runs already: it counts from there on."""
        if any(member.process is None for member in self._stack.facts.members):
            self.sample()
            for life in self._lives.values():
                life.before, life.requests_before = Counter(life.appended), Counter(life.requests)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(_STOP_WITHIN_S)

    def sample(self) -> tuple[set[str], list[str]]:
        """Ask every process once. Returns the tokens of those that answered, and the names of those that run and did not."""
        answered: set[str] = set()
        silent: list[str] = []
        with self._lock, self._file.open("ab") as file:
            for member in self._stack.facts.members:
                if member.is_running() and not member.is_paused:
                    line = self._of_member(member)
                    if line is None:
                        silent.append(member.name)
                    else:
                        answered.add(line["run"])
                        file.write(msgspec.json.encode(line) + b"\n")
            for name, pid in list(self._clients.items()):
                file.write(msgspec.json.encode({"at": self._clock.monotonic_s(), "name": name, **_process(pid)}) + b"\n")
            load = os.getloadavg()
            file.write(msgspec.json.encode({"at": self._clock.monotonic_s(), "name": "host", "load": load}) + b"\n")
        return answered, silent

    def counts(self, alive: Iterable[str]) -> list[ProcessCounts]:
        """The last counts of every life of a process, which has ended unless it is among these tokens."""
        going_on = set(alive)
        return [
            ProcessCounts(
                life.name,
                run,
                run not in going_on,
                {topic: records - life.before[topic] for topic, records in life.appended.items()},
                {key: count - life.requests_before[key] for key, count in life.requests.items()},
                life.at,
            )
            for run, life in self._lives.items()
        ]

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.sample()
            self._is_over.wait(self._every_s)

    def _of_member(self, member: LoadMember) -> dict[str, Any] | None:
        """None where it does not answer: it may be about to end."""
        asked_at = self._clock.monotonic_s()
        try:
            series = metrics_of(member.http)
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        run = next((str(one["labels"]["run"]) for one in series if one["name"] == "forebay_build_info"), "")
        life = self._lives.setdefault(run, _Life(member.name))
        life.appended = {
            str(one["labels"]["topic"]): int(one["value"])
            for one in series
            if one["name"] == TOPIC_RECORDS.name and one["labels"]["direction"] == "in" and one["labels"]["topic"] in self._topics
        }
        life.requests = _requests(series)
        life.at = asked_at - METRICS_AGE_MAX_S
        return {
            "at": self._clock.monotonic_s(),
            "name": member.name,
            "run": run,
            **({} if member.process is None else _process(member.process.pid)),
            "dollars": sum(one["value"] for one in series if one["name"] == _DOLLARS),
            "metrics": {_named(one): one["value"] for one in series if one["value"] and not one["name"].endswith("_bucket")},
        }


def logged_counts(lines: Sequence[Any], prefix: str) -> dict[str, Counter[RequestKey]]:
    """Requests by token, from lines of the S3 server's access log. `prefix`: of the keys of the cluster."""
    found: dict[str, Counter[RequestKey]] = {}
    for line in lines:
        if line.operation == _READINESS:
            continue
        key = str(line.key).removeprefix(prefix)
        kind = next((name for begin, name in _KEYS.items() if key.startswith(begin)), "other")
        refused = "4xx_free" if line.error in _FREE else "4xx"
        answer = "2xx" if line.status < 300 else "5xx" if line.status >= 500 else refused
        found.setdefault(line.run, Counter())[RequestKey(_OPERATIONS.get(line.operation, line.operation), kind, answer)] += 1
    return found


def _requests(series: Sequence[Mapping[str, Any]]) -> dict[RequestKey, int]:
    """The log says of a ranged GET what it says of a whole one."""
    found: Counter[RequestKey] = Counter()
    for one in series:
        if one["name"] == S3_REQUESTS.name:
            labels = one["labels"]
            request = "get" if labels["request"] == "ranged_get" else labels["request"]
            found[RequestKey(request, labels["key"], labels["answer"])] += int(one["value"])
    return dict(found)


def _named(one: Mapping[str, Any]) -> str:
    labels = ",".join(f"{key}={value}" for key, value in sorted(one["labels"].items()))
    return f"{one['name']}{{{labels}}}" if labels else str(one["name"])


def _process(pid: int) -> dict[str, float]:
    """CPU seconds and resident bytes where the system shows them; nothing of a process that is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return {"cpu_s": (int(fields[11]) + int(fields[12])) / ticks, "rss_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE")}
    return {}
