import platform

import pytest

from forebay import malloc


def test_the_three_parameters_are_set() -> None:
    calls: list[tuple[int, int]] = []

    def accept(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return 1

    tuned = malloc.tune(mallopt=accept)

    assert tuned
    assert calls == [(-3, 64 * 2**20), (-1, 512 * 2**20), (-2, 64 * 2**20)]


def test_a_refusal_is_told() -> None:
    assert not malloc.tune(mallopt=lambda parameter, value: int(parameter != -3))


def test_nothing_happens_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))

    assert not malloc.tune()
