import weakref
from dataclasses import dataclass

from broker.protocol.codec import RELEASED_PER_STEP, let_go_in_steps


@dataclass(slots=True, weakref_slot=True)
class Part:
    number: int


@dataclass(slots=True)
class Whole:
    name: str
    parts: tuple[Part, ...] | None


def test_the_elements_of_a_message_end_some_at_a_time() -> None:
    ended: list[int] = []

    def part(number: int) -> Part:
        made = Part(number)
        weakref.finalize(made, ended.append, number)
        return made

    held: list[object] = [Whole("whole", tuple(part(number) for number in range(10 * RELEASED_PER_STEP)))]
    before = 0
    for _ in let_go_in_steps(held):
        assert len(ended) - before <= RELEASED_PER_STEP
        before = len(ended)

    assert len(ended) == 10 * RELEASED_PER_STEP
    assert held == []


def test_what_somebody_else_holds_stays() -> None:
    kept = Part(1)
    held: list[object] = [Whole("whole", (kept,)), Whole("null", None)]

    assert list(let_go_in_steps(held)) == []
    assert kept.number == 1
