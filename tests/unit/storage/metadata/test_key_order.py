from hypothesis import given
from hypothesis import strategies as st

from storage.metadata import key_order
from storage.metadata.port import sort_key

paths = st.text(alphabet=st.sampled_from("/ab-~0é日😀"), max_size=8)


@given(paths)
def test_an_encoded_key_decodes_to_its_path(path: str) -> None:
    assert key_order.decode(key_order.encode(path)) == path


@given(paths, paths)
def test_encoded_keys_compare_as_the_port_sorts_keys(one: str, other: str) -> None:
    assert (key_order.encode(one) < key_order.encode(other)) == (sort_key(one) < sort_key(other))


@given(st.lists(paths, unique=True), paths, paths)
def test_the_first_key_from_the_bounds_of_a_ceiling_decides(stored: list[str], path: str, within: str) -> None:
    seek, prefix = key_order.ceiling_bounds(path, within)
    candidates = [one for one in stored if sort_key(one) >= sort_key(path) and one.count("/") == path.count("/") and one.startswith(within)]
    expected = min(candidates, key=sort_key, default=None)
    first = min((key for one in stored if (key := key_order.encode(one)) >= seek), default=None)

    assert (key_order.decode(first) if first is not None and first.startswith(prefix) else None) == expected
