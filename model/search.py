"""The search all models share: breadth first through every state that can be reached, until one breaks a promise.

A model gives a first state and what may happen next in each; states are immutable and hashable. The first broken promise that is found
is one with the fewest steps before it, so its trace is the shortest. With a goal, every state must also have a way to one that reaches it:
whatever went wrong before, the rest can be done.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")

OK, VIOLATION, VACUOUS, UNFINISHED = "OK", "VIOLATION", "VACUOUS", "UNFINISHED"


class Result(NamedTuple):
    """`why` and `trace` (what happened, in order) are empty for a verdict of OK."""

    verdict: str
    why: str
    trace: tuple[str, ...]
    states: int


class Search(NamedTuple, Generic[S]):
    """What is searched.

    following: what may happen in a state, each with the state after it · broken: the promise a state breaks, if any · stuck: why a state
    in which nothing can happen should not be one · backwards: the promise a step breaks · situations: names of what a state is an example
    of; a search that has not met all of `reaches` proves little (VACUOUS) · goal: must be reachable from everywhere.
    """

    start: S
    following: Callable[[S], list[tuple[str, S]]]
    broken: Callable[[S], str | None]
    stuck: Callable[[S], str | None]
    backwards: Callable[[S, str, S], str | None]
    situations: Callable[[S], Iterable[str]]
    reaches: frozenset[str]
    goal: Callable[[S], bool] | None = None


def search(of: Search[S], *, states_max: int) -> Result:
    """Visit every state, at most `states_max` of them (UNFINISHED beyond)."""
    numbers: dict[S, int] = {of.start: 0}
    parents: list[S | None] = [None]
    queue = deque([of.start])
    reached: set[str] = set()
    sources, targets = array("q"), array("q")
    while queue:
        state = queue.popleft()
        reached.update(of.situations(state))
        why = of.broken(state)
        following = [] if why else of.following(state)
        if not why and not following:
            why = of.stuck(state)
        for label, after in following:
            why = of.backwards(state, label, after) or why
            if after not in numbers:
                numbers[after] = len(parents)
                parents.append(state)
                queue.append(after)
            if of.goal is not None:
                sources.append(numbers[state])
                targets.append(numbers[after])
        if why:
            return Result(VIOLATION, why, _trace(of, state, numbers, parents), len(numbers))
        if len(numbers) > states_max:
            return Result(UNFINISHED, f"more than {states_max:,} states", (), len(numbers))
    if missing := of.reaches - reached:
        return Result(VACUOUS, f"never reached: {', '.join(sorted(missing))}", (), len(numbers))
    if of.goal is not None and (lost := _without_a_way(list(map(of.goal, numbers)), sources, targets)) is not None:
        state = next(state for state, number in numbers.items() if number == lost)
        return Result(VIOLATION, "nothing that may happen from here leads to the goal", _trace(of, state, numbers, parents), len(numbers))
    return Result(OK, "", (), len(numbers))


def _trace(of: Search[S], state: S, numbers: dict[S, int], parents: list[S | None]) -> tuple[str, ...]:
    labels: list[str] = []
    while (before := parents[numbers[state]]) is not None:
        labels.append(next(label for label, after in of.following(before) if after == state))
        state = before
    return tuple(reversed(labels))


def _without_a_way(is_goal: list[bool], sources: "array[int]", targets: "array[int]") -> int | None:
    """The first state from which no goal can be reached."""
    begins = array("q", bytes(8 * (len(is_goal) + 1)))
    for target in targets:
        begins[target + 1] += 1
    for number in range(len(is_goal)):
        begins[number + 1] += begins[number]
    free, befores = begins[:], array("q", bytes(8 * len(sources)))
    for source, target in zip(sources, targets, strict=True):
        befores[free[target]] = source
        free[target] += 1
    has_way = bytearray(is_goal)
    todo = [number for number, is_one in enumerate(is_goal) if is_one]
    while todo:
        number = todo.pop()
        for before in befores[begins[number] : begins[number + 1]]:
            if not has_way[before]:
                has_way[before] = True
                todo.append(before)
    lost = has_way.find(0)
    return None if lost < 0 else lost
