import pytest

from forebay.commands.bench.clients import Arrivals

TOKEN = b"12345678"


def stamped(number: int, *, token: bytes = TOKEN) -> bytes:
    return token + number.to_bytes(8, "big") + b"rest"


def test_each_record_is_noted_by_its_number_in_any_order() -> None:
    arrivals = Arrivals(TOKEN, 3)
    for number, now_s in ((2, 7.0), (0, 8.0), (1, 9.0)):
        arrivals.take(stamped(number), now_s)

    assert list(arrivals.came_s) == [8.0, 9.0, 7.0]
    assert (arrivals.count, arrivals.repeated) == (3, 0)


def test_a_record_that_comes_again_keeps_its_first_moment_and_is_counted() -> None:
    arrivals = Arrivals(TOKEN, 2)
    for now_s in (7.0, 8.0):
        arrivals.take(stamped(0), now_s)

    assert arrivals.came_s[0] == 7.0
    assert (arrivals.count, arrivals.repeated) == (1, 1)


@pytest.mark.parametrize("value", [b"", b"short", TOKEN, stamped(0, token=b"87654321"), bytes(16)])
def test_records_of_others_are_not_counted(value: bytes) -> None:
    arrivals = Arrivals(TOKEN, 2)
    arrivals.take(value, 7.0)

    assert (arrivals.count, arrivals.repeated) == (0, 0)
