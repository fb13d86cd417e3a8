"""Which calls through a proxy go wrong, and how: decided by counting, so that equal traffic meets equal faults.

    plan.add(Rule(Fault.DROP_REPLY, methods={"Write"}, every=3))   # the 3rd, 6th, 9th … Write is applied and its reply is lost
    plan.add(Rule(Fault.REFUSE, after=10, times=2))                # the 11th and the 12th call of any method
    plan.clear()

A rule counts the calls it matches from when it was added. Every rule that matches a call counts it; of those whose turn it is, the first
added strikes. A plan may be read and changed from any thread, while its proxy runs.
"""

import enum
import threading
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

HANG_S_MAX: Final = 120.0
"""A call that is made to hang ends by then, should its client never give up."""

HOLD_S: Final = 0.5
"""How long a delayed or late call is held when its rule does not say."""


def of_shard(shard: int) -> str:
    """What a rule has to contain to match the calls of one shard of Oxia."""
    return f"shard {shard};"


class Fault(enum.Enum):
    """What happens to a call. A lost request (`REFUSE`, `BLACKHOLE`, `ANSWER`, `CUT_REQUEST`) has not been done when its client gives up,
    and never will be; a lost reply (`DROP_REPLY`, `HANG_REPLY`, `REPLACE_REPLY`, `CUT_REPLY`) has been; a `LATE` one will be.
    """

    REFUSE = "refuse"
    """Not forwarded. Oxia: UNAVAILABLE; S3: the connection closes without an answer."""

    BLACKHOLE = "blackhole"
    """Not forwarded, and nothing is ever said."""

    ANSWER = "answer"
    """S3 only: not forwarded; the rule's `status` and `code` are the answer."""

    DELAY = "delay"
    """Forwarded after `delay_s`. Oxia: unless the client has given up by then."""

    CUT_REQUEST = "cut request"
    """S3 only: both connections close once `body_bytes` of the request's body were forwarded."""

    LATE = "late"
    """Fails at once as `REFUSE` does, and is nevertheless forwarded `delay_s` later; that reply is lost."""

    DROP_REPLY = "drop reply"
    """Forwarded, answered, and the answer is lost. Oxia: UNAVAILABLE; S3: the connection closes."""

    HANG_REPLY = "hang reply"
    """Forwarded, answered, and nothing is ever said: the client waits until its deadline."""

    REPLACE_REPLY = "replace reply"
    """S3 only: forwarded and answered, but the rule's `status` and `code` are what the client gets."""

    DELAY_REPLY = "delay reply"
    """Forwarded at once; the answer is held back `delay_s`."""

    CUT_REPLY = "cut reply"
    """The answer breaks off. S3: after `body_bytes` of its body; Oxia: after `messages` of a stream, with UNAVAILABLE."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A fault and the calls it strikes: those of `methods` (none named: all) whose subject contains `containing`, but not the first
    `after` of them, then each `every`-th, at most `times` (None: without end). With `every` 2.5 it strikes two calls of five.

    Methods are Oxia's (`Write`, `Read`, `GetShardAssignments` …) and S3's verbs, where `LIST` is a GET that lists. The subject of an S3
    call is its path and query; that of an Oxia call is its shard (`of_shard`), if it has one.
    """

    fault: Fault
    methods: AbstractSet[str] = frozenset()
    containing: str = ""
    every: float = 1
    after: int = 0
    times: int | None = None
    delay_s: float = HOLD_S
    status: int = 503
    code: str = "SlowDown"
    body_bytes: int = 0
    messages: int = 0

    def __post_init__(self) -> None:
        assert self.every >= 1, "no call comes more than once"
        assert self.delay_s < HANG_S_MAX, "a call held longer than any hang is a hang: use BLACKHOLE or HANG_REPLY"

    def matches(self, method: str, subject: str) -> bool:
        return (not self.methods or method in self.methods) and self.containing in subject

    def is_turn(self, nth: int) -> bool:
        """True if the rule strikes the `nth` call that it matched, from 1."""
        strikes, before = (nth - self.after) // self.every, (nth - self.after - 1) // self.every
        return nth > self.after and strikes > before and (self.times is None or strikes <= self.times)


@dataclass(frozen=True, slots=True)
class Counts:
    """What has gone through a proxy since it began."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls that arrived, by method."""

    forwarded: Counter[str] = field(default_factory=Counter)
    """Calls the server was asked, wholly or in part, by method."""

    answered: Counter[str] = field(default_factory=Counter)
    """Calls the server has begun to answer, by method. Oxia: with a message, not with a failure; S3: with a final status."""

    faults: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    """Calls that were struck, by fault and method."""

    def struck(self, fault: Fault) -> int:
        """How often this fault has struck, whatever the method."""
        return sum(count for (kind, _), count in self.faults.items() if kind is fault)


class Plan:
    """The rules in force and what they have done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[Rule, int] = {}
        self._counts = Counts()

    def add(self, *rules: Rule) -> None:
        """Apply the rules from the next call on. A rule that is there already counts from 0 again."""
        with self._lock:
            self._rules.update(dict.fromkeys(rules, 0))

    def remove(self, *rules: Rule) -> None:
        """Drop the rules; a call that one has struck stays struck."""
        with self._lock:
            for rule in rules:
                self._rules.pop(rule, None)

    def clear(self) -> None:
        """No rules: everything passes. The counts stay."""
        with self._lock:
            self._rules.clear()

    def arrived(self, method: str, subject: str = "") -> Rule | None:
        """Count a call; the rule that strikes it, if any. For the proxies."""
        with self._lock:
            self._counts.calls[method] += 1
            struck: Rule | None = None
            for rule in self._rules:
                if rule.matches(method, subject):
                    self._rules[rule] += 1
                    if struck is None and rule.is_turn(self._rules[rule]):
                        struck = rule
            if struck is not None:
                self._counts.faults[struck.fault, method] += 1
            return struck

    def forwarded(self, method: str) -> None:
        """For the proxies."""
        with self._lock:
            self._counts.forwarded[method] += 1

    def answered(self, method: str) -> None:
        """For the proxies."""
        with self._lock:
            self._counts.answered[method] += 1

    @property
    def counts(self) -> Counts:
        """A copy, as of now."""
        with self._lock:
            now = self._counts
            return Counts(Counter(now.calls), Counter(now.forwarded), Counter(now.answered), Counter(now.faults))
