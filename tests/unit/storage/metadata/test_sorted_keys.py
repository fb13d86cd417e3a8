import random

from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.key_order import SortedKeys

few_keys = st.binary(min_size=1, max_size=2)


@given(st.lists(few_keys), few_keys, few_keys, st.integers(min_value=0, max_value=20))
def test_sorted_keys_behave_like_a_sorted_list(toggled: list[bytes], start: bytes, end: bytes, keys_max: int) -> None:
    keys, model = SortedKeys(chunk_keys_max=4), set[bytes]()
    for key in toggled:
        if key in model:
            keys.remove(key)
            model.remove(key)
        else:
            keys.add(key)
            model.add(key)

    assert keys.between(b"", None, keys_max=len(model)) == sorted(model)
    assert keys.between(start, end, keys_max=keys_max) == [key for key in sorted(model) if start <= key < end][:keys_max]
    assert keys.ceiling(start) == min((key for key in model if key >= start), default=None)


def test_many_keys_in_any_order_come_out_sorted() -> None:
    numbers = list(range(20_000))
    random.Random(1).shuffle(numbers)
    keys = SortedKeys()
    for number in numbers:
        keys.add(b"%08d" % number)
    for number in numbers[:10_000]:
        keys.remove(b"%08d" % number)

    assert keys.between(b"", None, keys_max=20_000) == [b"%08d" % number for number in sorted(numbers[10_000:])]
