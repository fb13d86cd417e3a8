import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.limits import METADATA_VALUE_BYTES_MAX, WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.requests import Together, UnreadableAnswer, Write, check_ops, decode, encode
from storage.metadata.port import ABSENT, Delete, DeleteRange, Key, OpResult, Put, Status, WriteOp

K = Key("a/b", "a")
PUT, DELETE, RANGE = Put(K, b"v", 7, 9), Delete(K, ABSENT), DeleteRange(Key("a/", "a"), "a/~")


def one_shard(partition_key: str) -> int:
    return 3


def encoded(*ops: WriteOp) -> wire.WriteRequest:
    return encode(ops, shard=3, session_id_of=lambda session_id: session_id + 100, client_identity="me")


def test_ops_travel_by_kind_with_their_conditions() -> None:
    request = encoded(RANGE, DELETE, PUT, Put(K, b"", None))

    assert request == wire.WriteRequest(
        shard=3,
        puts=[
            wire.PutRequest(key="a/b", value=b"v", expected_version_id=7, session_id=109, client_identity="me", partition_key="a"),
            wire.PutRequest(key="a/b", value=b"", partition_key="a"),
        ],
        deletes=[wire.DeleteRequest(key="a/b", expected_version_id=-1)],
        delete_ranges=[wire.DeleteRangeRequest(start_inclusive="a/", end_exclusive="a/~")],
    )


def test_results_come_in_the_order_of_the_ops() -> None:
    ops = (RANGE, DELETE, PUT, Delete(K), Put(K, b"", ABSENT), Put(K, b"", None))
    response = wire.WriteResponse(
        puts=[
            wire.PutResponse(status=wire.OK, version=wire.Version(version_id=0)),
            wire.PutResponse(status=wire.UNEXPECTED_VERSION_ID),
            wire.PutResponse(status=wire.SESSION_DOES_NOT_EXIST),
        ],
        deletes=[wire.DeleteResponse(status=wire.KEY_NOT_FOUND), wire.DeleteResponse(status=wire.OK)],
        delete_ranges=[wire.DeleteRangeResponse(status=wire.OK)],
    )

    assert decode(ops, encoded(*ops), response) == (
        OpResult(Status.OK, None),
        OpResult(Status.KEY_NOT_FOUND, None),
        OpResult(Status.OK, 0),
        OpResult(Status.OK, None),
        OpResult(Status.UNEXPECTED_VERSION, None),
        OpResult(Status.SESSION_DOES_NOT_EXIST, None),
    )


def test_an_empty_range_is_not_sent_and_counts_as_done() -> None:
    nothing = DeleteRange(Key("a/x", "a"), "a/b")
    request = encoded(nothing, RANGE)

    assert len(request.delete_ranges) == 1
    response = wire.WriteResponse(delete_ranges=[wire.DeleteRangeResponse()])
    assert decode((nothing, RANGE), request, response) == (OpResult(Status.OK, None),) * 2


@pytest.mark.parametrize(
    "response",
    [
        wire.WriteResponse(),
        wire.WriteResponse(puts=[wire.PutResponse()] * 2),
        wire.WriteResponse(puts=[wire.PutResponse()], deletes=[wire.DeleteResponse()]),
        wire.WriteResponse.FromString(b"\x0a\x02\x08\x63"),
    ],
)
def test_an_answer_that_does_not_fit_is_no_answer(response: wire.WriteResponse) -> None:
    with pytest.raises(UnreadableAnswer):
        decode((PUT,), encoded(PUT), response)


@pytest.mark.parametrize(
    "ops",
    [
        [Put(K, b"x" * (METADATA_VALUE_BYTES_MAX + 1), None)],
        [Put(K, b"", None)] * (WRITE_REQUEST_OPS_MAX + 1),
        [Put(K, b"x" * METADATA_VALUE_BYTES_MAX, None)] * (WRITE_REQUEST_BYTES_MAX // METADATA_VALUE_BYTES_MAX + 1),
        [DeleteRange(Key("a/", "a"), "b/")],
        [DeleteRange(Key("a/", "a"), "b")],
    ],
)
def test_what_exceeds_the_limits_is_a_programmer_s_error(ops: list[WriteOp]) -> None:
    with pytest.raises(AssertionError):
        check_ops(ops, one_shard)


def test_ops_on_two_shards_are_a_programmer_s_error() -> None:
    with pytest.raises(AssertionError, match="one write, one shard"):
        check_ops([Put(K, b"", None), Put(Key("b", "bb"), b"", None)], len)


kinds = st.sampled_from([PUT, DELETE, RANGE])


@given(st.lists(st.lists(kinds, min_size=1, max_size=4), min_size=1, max_size=6))
def test_writes_that_travel_together_are_carried_out_as_if_one_after_the_other(writes: list[list[WriteOp]]) -> None:
    together = Together()
    travelling = []
    for number, ops in enumerate(writes):
        if not together.admits(check_ops(ops, one_shard)):
            break
        travelling += [(number, op) for op in ops]

    def rank(travelled: tuple[int, WriteOp]) -> int:
        return (Put, Delete, DeleteRange).index(type(travelled[1]))

    in_turn = [travelled for number in range(len(writes)) for travelled in sorted((t for t in travelling if t[0] == number), key=rank)]
    assert sorted(travelling, key=rank) == in_turn


def test_the_first_write_always_travels_and_together_they_keep_to_the_limits() -> None:
    def size(ops: int, size_bytes: int) -> Write:
        return Write([PUT] * ops, 3, size_bytes, (), 0, 0)

    together = Together()
    assert together.admits(size(WRITE_REQUEST_OPS_MAX - 1, 10))
    assert not together.admits(size(2, 10))
    assert not together.admits(size(1, WRITE_REQUEST_BYTES_MAX))
    assert together.admits(size(1, 10))
    assert Together().admits(size(1, WRITE_REQUEST_BYTES_MAX))
