import pytest

from broker.connection import HTTP, TLS, frame_length
from broker.protocol.wire import OtherProtocol, ProtocolViolation
from storage.limits import FRAME_BYTES_MAX


@pytest.mark.parametrize("length", [0, 1, 255, FRAME_BYTES_MAX])
def test_a_length_within_bounds_is_read(length: int) -> None:
    assert frame_length(length.to_bytes(4, "big")) == length
    assert frame_length(memoryview(bytearray(length.to_bytes(4, "big")))) == length


@pytest.mark.parametrize("length", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_a_violation(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"length={length} maximum={FRAME_BYTES_MAX}"):
        frame_length(length.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize(
    ("began", "protocol"),
    [
        (b"\x16\x03\x01\x02", TLS),
        (b"\x16\x03\x03\x00", TLS),
        *((began, HTTP) for began in (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"PRI ")),
    ],
)
def test_the_beginning_of_another_protocol_is_named(began: bytes, protocol: str) -> None:
    with pytest.raises(OtherProtocol, match=f"the client speaks {protocol}") as raised:
        frame_length(began)

    assert raised.value.protocol == protocol
