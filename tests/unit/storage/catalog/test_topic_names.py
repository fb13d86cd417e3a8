import pytest

from storage.catalog.topic import collision_key, may_collide, validate_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "__consumer_offsets", "x" * 249])
def test_a_legal_name_has_no_problem(name: str) -> None:
    assert validate_name(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        (".", "cannot be"),
        ("..", "cannot be"),
        ("x" * 250, "250 characters"),
        ("a/b", "character"),
        ("ä", "character"),
        ("a\n", "character"),
    ],
)
def test_an_illegal_name_is_told_why(name: str, words: str) -> None:
    assert words in (validate_name(name) or "")


def test_names_collide_when_only_dots_and_underscores_differ() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a-b") != collision_key("a_b")
    assert may_collide("a.b")
    assert may_collide("a_b")
    assert not may_collide("a-b")
