"""What changed is told to each subscription, in order, and no error of one path takes another with it."""

import asyncio

from storage.metadata.hints import DELIVERED_PER_TURN, Hints
from storage.metadata.port import KeyChange
from tests.kit.faulty_metadata import paths_into


def changes_of(*paths: str) -> list[KeyChange]:
    return [(path, version) for version, path in enumerate(paths, 1)]


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_subscription_hears_of_the_paths_below_its_prefix_in_their_order_and_never_at_once() -> None:
    hints, everything, topics = Hints(), list[str](), list[str]()
    hints.subscribe(paths_into(everything), "")
    hints.subscribe(paths_into(topics), "/topics/")
    hints.publish(changes_of("/topics/a", "/brokers/1", "/topics/b"))
    at_once = list(everything)
    await turns()

    assert at_once == []
    assert everything == ["/topics/a", "/brokers/1", "/topics/b"]
    assert topics == ["/topics/a", "/topics/b"]


async def test_many_paths_are_delivered_in_turns_and_what_comes_later_comes_behind_them() -> None:
    first, then = [str(number) for number in range(DELIVERED_PER_TURN + 1)], [f"then {number}" for number in range(DELIVERED_PER_TURN)]
    hints, heard, by_turn = Hints(), list[str](), list[int]()
    hints.subscribe(paths_into(heard), "")
    hints.publish(changes_of(*first))
    hints.publish(changes_of(*then))
    for _ in range(4):
        await asyncio.sleep(0)
        by_turn.append(len(heard))

    assert heard == first + then
    assert by_turn == [DELIVERED_PER_TURN, 2 * DELIVERED_PER_TURN, len(heard), len(heard)]


async def test_what_is_published_by_a_call_back_comes_in_a_later_turn() -> None:
    hints, heard = Hints(), list[str]()

    def hear(path: str, _version: int | None) -> None:
        heard.append(path)
        if path == "a":
            hints.publish(changes_of("c"))

    hints.subscribe(hear, "")
    hints.publish(changes_of("a", "b"))
    await turns()

    assert heard == ["a", "b", "c"]


async def test_nothing_comes_after_a_subscription_was_cancelled_also_by_itself() -> None:
    hints, heard = Hints(), list[str]()

    def hear(path: str, _version: int | None) -> None:
        heard.append(path)
        subscription.cancel()

    subscription = hints.subscribe(hear, "")
    cancelled = hints.subscribe(paths_into(heard), "")
    hints.publish(changes_of("a", "b"))
    cancelled.cancel()
    await turns()

    assert heard == ["a"]
    assert not hints


async def test_the_error_of_one_path_takes_no_other_with_it() -> None:
    hints, heard, errors = Hints(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context.get("exception")))

    def hear(path: str, _version: int | None) -> None:
        if path == "bad":
            raise ValueError(path)
        heard.append(path)

    hints.subscribe(hear, "")
    hints.publish(changes_of("a", "bad", "b", "bad", "c"))
    await turns(5)

    assert heard == ["a", "b", "c"]
    assert [str(error) for error in errors] == ["bad", "bad"]
