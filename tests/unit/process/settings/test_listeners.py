import pytest
from hypothesis import given
from hypothesis import strategies as st

from process.settings.notation import (
    ADVERTISED_LISTENERS,
    LISTENERS,
    HttpAddress,
    Listener,
    advertised_for,
    is_loopback,
    is_wildcard,
    parse_address,
    parse_advertised_listeners,
    parse_listeners,
)

names = st.from_regex(r"[A-Z][A-Z0-9_]{0,10}", fullmatch=True).filter(lambda name: not any(word in name for word in ("SSL", "SASL", "TLS")))
hosts = st.one_of(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), st.ip_addresses().map(str))
ports = st.integers(min_value=1, max_value=65_535)


@given(st.lists(st.builds(Listener, names, hosts, ports), min_size=1, unique_by=(lambda one: one.name, lambda one: one[1:])))
def test_listeners_that_are_shown_are_read_back(listeners: list[Listener]) -> None:
    assert LISTENERS.parse(LISTENERS.show(listeners)) == tuple(listeners)


def test_several_listeners_from_text_or_list() -> None:
    expected = (Listener("INTERNAL", "0.0.0.0", 9092), Listener("EXTERNAL", "::", 19092))

    assert parse_listeners("INTERNAL://0.0.0.0:9092, EXTERNAL://[::]:19092") == expected
    assert parse_listeners(["INTERNAL://0.0.0.0:9092", "EXTERNAL://[::]:19092"]) == expected
    assert parse_listeners(expected) == expected


def test_a_name_is_upper_case_and_an_empty_host_is_every_address_as_in_kafka() -> None:
    assert parse_listeners("plaintext://:9092") == (Listener("PLAINTEXT", "0.0.0.0", 9092),)


def test_port_zero_may_stand_twice() -> None:
    assert len(parse_listeners("A://127.0.0.1:0,B://127.0.0.1:0")) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no listener"),
        ("localhost:9092", "has 'localhost:9092': not a listener. Expected NAME://host:port"),
        ("PLAINTEXT://localhost", "not a listener"),
        ("PLAINTEXT://localhost:65536", "not a listener"),
        ("PLAINTEXT://localhost:9092/x", "not a listener"),
        ("PLAINTEXT://::1:9092", "not a listener"),
        (9092, "has '9092': not a listener"),
        ("A://h:1,A://h:2", "has two listeners named A"),
        ("A://h:1,B://h:1", "has two listeners on h:1"),
    ],
)
def test_what_is_not_a_listener_is_refused(text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_listeners(text)


@pytest.mark.parametrize("name", ["SSL", "SASL_PLAINTEXT", "SASL_SSL", "ssl", "EXTERNAL_TLS"])
def test_a_name_that_promises_security_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"names {name.upper()}: not supported"):
        parse_listeners(f"{name}://localhost:9093")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_a_wildcard_is_no_address_to_advertise(host: str) -> None:
    with pytest.raises(
        ValueError, match=r"clients cannot connect to that\. Set a name clients can resolve, e\.g\. PLAINTEXT://broker-1:9092"
    ):
        parse_advertised_listeners(f"PLAINTEXT://{host}:9092")


def test_nothing_advertised_means_derived() -> None:
    assert ADVERTISED_LISTENERS.parse("") == ()


def test_a_wildcard_listener_is_advertised_by_the_name_of_the_machine() -> None:
    listeners = (Listener("A", "0.0.0.0", 9092), Listener("B", "127.0.0.1", 0))

    assert advertised_for(listeners, hostname="box") == (Listener("A", "box", 9092), Listener("B", "127.0.0.1", 0))


def test_addresses_are_read_and_shown() -> None:
    assert parse_address("127.0.0.1:8070") == HttpAddress("127.0.0.1", 8070)
    assert str(parse_address("[::1]:8070")) == "[::1]:8070"
    for text in ("8070", ":8070", "localhost", "h:70000", "a:b:1"):
        with pytest.raises(ValueError, match="is not an address"):
            parse_address(text)


def test_loopback_and_wildcard_are_told_apart() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "broker-1", "10.0.0.1")] == [
        *[True] * 4,
        *[False] * 3,
    ]
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "localhost", "127.0.0.1")] == [True, True, False, False]
