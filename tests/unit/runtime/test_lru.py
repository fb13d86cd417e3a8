"""The cache that forgets what was used longest ago."""

import random
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from runtime.lru import LruCache


def test_the_entry_used_longest_ago_goes_first() -> None:
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)

    assert list(cache) == ["a", "c"]
    assert "b" not in cache
    assert cache.get("b") is None


def test_a_look_is_no_use() -> None:
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    cache.put("c", 3)

    assert list(cache) == ["b", "c"]


def test_a_value_put_again_is_the_newest_and_costs_what_it_costs_now() -> None:
    cache = LruCache[str, bytes](10, cost=len)
    cache.put("a", bytes(4))
    cache.put("b", bytes(4))
    cache.put("a", bytes(6))
    assert (list(cache), cache.total_cost) == (["b", "a"], 10)
    cache.put("c", bytes(1))

    assert (list(cache), cache.total_cost) == (["a", "c"], 7)
    assert cache.pop("a") == bytes(6)
    assert cache.pop("a") is None
    assert (len(cache), cache.total_cost) == (1, 1)


def test_the_newest_stays_whatever_it_costs() -> None:
    cache = LruCache[str, bytes](10, cost=len)
    cache.put("a", bytes(4))
    cache.put("b", bytes(40))

    assert (list(cache), cache.total_cost) == (["b"], 40)


@given(seed=st.integers(0, 2**32), cost_max=st.integers(1, 30))
def test_it_has_what_a_plain_list_of_entries_would_have(seed: int, cost_max: int) -> None:
    chance = random.Random(seed)
    cache, model = LruCache[int, int](cost_max, cost=abs), OrderedDict[int, int]()
    for _ in range(60):
        key, value = chance.randrange(8), chance.randint(-9, 9)
        match chance.choice(("put", "put", "get", "pop")):
            case "put":
                cache.put(key, value)
                model.pop(key, None)
                model[key] = value
                while sum(map(abs, model.values())) > cost_max and len(model) > 1:
                    model.popitem(last=False)
            case "get":
                assert cache.get(key) == model.get(key)
                if key in model:
                    model.move_to_end(key)
            case _:
                assert cache.pop(key) == model.pop(key, None)
        assert list(cache) == list(model)
        assert cache.total_cost == sum(map(abs, model.values()))
