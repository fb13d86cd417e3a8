import pytest

from forebay.commands.bench.clients import due_count, due_s


@pytest.mark.parametrize(
    ("elapsed_s", "per_s", "expected"),
    [(0.0, 200.0, 1), (0.004, 200.0, 1), (0.0051, 200.0, 2), (1.0, 200.0, 201), (9.9, 0.1, 1), (10.0, 0.1, 2)],
)
def test_the_first_record_is_due_at_once_and_each_other_an_interval_later(elapsed_s: float, per_s: float, expected: int) -> None:
    assert due_count(elapsed_s, per_s=per_s) == expected


def test_a_pause_of_the_client_moves_no_record() -> None:
    assert [due_s(number, per_s=4.0) for number in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_what_is_due_by_the_moment_of_a_record_includes_it() -> None:
    assert all(due_count(due_s(number, per_s=8.0), per_s=8.0) == number + 1 for number in range(1_000))
