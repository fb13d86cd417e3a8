import pytest

from broker.protocol.errors import ProtocolViolation
from broker.protocol.framing import frame_length
from storage.limits import FRAME_BYTES_MAX


@pytest.mark.parametrize("length", [0, 1, 255, FRAME_BYTES_MAX])
def test_a_length_within_bounds_is_read(length: int) -> None:
    assert frame_length(length.to_bytes(4, "big")) == length
    assert frame_length(memoryview(bytearray(length.to_bytes(4, "big")))) == length


@pytest.mark.parametrize("length", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_a_violation(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"length={length} maximum={FRAME_BYTES_MAX}"):
        frame_length(length.to_bytes(4, "big", signed=True))


def test_an_http_request_is_a_violation_not_a_frame() -> None:
    with pytest.raises(ProtocolViolation):
        frame_length(b"GET ")
