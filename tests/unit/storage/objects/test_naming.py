import pytest

from storage.objects.port import check_key, is_key, is_segment
from tests.kit.objects_contract import ILLEGAL_KEYS


@pytest.mark.parametrize(
    "key", ["a", "wal/01J", "a.b-c_D/9", "...", "a/.../b", ".probe/x", ".tmpx", "a/.tmp/b", "a" * 255, f"{'a' * 255}/{'b' * 255}"]
)
def test_a_key_names_an_object(key: str) -> None:
    check_key(key)

    assert is_key(key)


@pytest.mark.parametrize("key", [*ILLEGAL_KEYS, ".tmp", "..", "a/.", "../", "a" * 256, "a\\b", "a:b", "~", "\ud800", "a/b/"])
def test_what_leads_out_of_a_store_or_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not the name of an object"):
        check_key(key)


@pytest.mark.parametrize(
    ("text", "legal"), [("a", True), ("a-b", True), ("...", True), ("", False), (".", False), ("..", False), ("a/b", False)]
)
def test_a_segment_is_one_name_between_slashes(text: str, legal: bool) -> None:
    assert is_segment(text) is legal
