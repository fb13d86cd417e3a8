import pytest

from process.settings.loading import load
from process.settings.model import warning_of_listeners
from process.settings.notation import parse_listeners


@pytest.mark.parametrize("text", ["PLAINTEXT://127.0.0.1:9092", "A://localhost:9092,B://[::1]:9093", "PLAINTEXT://127.3.2.1:0"])
def test_listeners_of_this_machine_alone_are_no_matter(text: str) -> None:
    assert warning_of_listeners(parse_listeners(text)) is None


@pytest.mark.parametrize(
    "text",
    ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://:9092", "PLAINTEXT://[::]:9092", "PLAINTEXT://broker-1:9092", "PLAINTEXT://10.0.0.7:9092"],
)
def test_a_listener_for_others_is_named_with_what_it_allows_and_what_to_do(text: str) -> None:
    warning = warning_of_listeners(parse_listeners(text))

    assert warning is not None
    assert "\n" not in warning
    assert str(parse_listeners(text)[0]) in warning
    assert "no authentication: whoever reaches it can read, write and delete every topic and every group" in warning
    assert "Listen on 127.0.0.1" in warning
    assert "a firewall" in warning


def test_of_several_listeners_only_those_for_others_are_named() -> None:
    warning = warning_of_listeners(parse_listeners("HERE://127.0.0.1:9092,INTERNAL://10.0.0.7:9093,EXTERNAL://0.0.0.0:9094"))

    assert warning is not None
    assert "Kafka listeners INTERNAL://10.0.0.7:9093, EXTERNAL://0.0.0.0:9094 take connections" in warning
    assert "HERE" not in warning


def test_it_is_advice_and_no_error() -> None:
    loaded = load(environ={}, assignments=["kafka.listeners=PLAINTEXT://0.0.0.0:9092"])

    assert len(loaded.advice) == 1
    assert "PLAINTEXT://0.0.0.0:9092" in loaded.advice[0]
    assert load(environ={}).advice == ()
