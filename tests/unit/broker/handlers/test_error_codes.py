import pytest
from kio.schema.errors import ErrorCode

from broker.handling.errors import WIRE_CODES, error_code_of
from storage import errors
from storage.errors import Conflict, Corrupt, OffsetOutOfRange, OutcomeUnknown, StorageError, Unavailable


def test_every_storage_error_has_a_wire_code_and_nothing_else_has() -> None:
    named = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, StorageError)}

    assert set(WIRE_CODES) == named - {StorageError}


def test_a_store_s_own_kind_of_an_error_has_the_code_of_what_it_is() -> None:
    class ShardAway(Unavailable):
        pass

    assert error_code_of(ShardAway("x")) is error_code_of(Unavailable("x"))


@pytest.mark.parametrize("cls", [Unavailable, OutcomeUnknown, Conflict, Corrupt])
def test_what_may_pass_is_retriable(cls: type[StorageError]) -> None:
    assert error_code_of(cls("x")).retriable


def test_an_offset_out_of_range_resets_the_reader() -> None:
    assert error_code_of(OffsetOutOfRange("x", log_start=0, high_watermark=0)) is ErrorCode.offset_out_of_range
