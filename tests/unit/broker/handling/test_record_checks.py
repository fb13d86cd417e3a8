"""The table of checks that Kafka makes on client appends, row by row, and which comes first where several fail."""

import struct
from dataclasses import replace

import cramjam
import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from broker.handling.validation import RECORDS_CHECKED_MAX, UNLIMITED_MS, Refused, TopicRules, check, check_records, needs_times, rules_of
from storage.catalog.topics import Topic
from storage.limits import BATCH_BYTES_DEFAULT_MAX, MIB
from storage.recordbatch import BatchHeader, parse_header
from storage.records import NAMED_MAX
from storage.vocabulary import TopicId
from tests.kit.batches import batch_bytes
from tests.kit.record_batches import NOW_MS, record_batch

HOUR_MS = 3_600_000
PLAIN = TopicRules(BATCH_BYTES_DEFAULT_MAX, is_log_append=False, before_max_ms=UNLIMITED_MS, after_max_ms=HOUR_MS, needs_keys=False)
COMPACTED = replace(PLAIN, needs_keys=True)
STAMPED = replace(PLAIN, is_log_append=True)


def judged(batch: bytes | bytearray | None, rules: TopicRules = PLAIN, *, version: int = 9) -> BatchHeader | Refused:
    header = check(None if batch is None else memoryview(batch), rules, version=version)
    if isinstance(header, Refused):
        return header
    assert batch is not None
    view = memoryview(bytearray(batch))
    if rules.reads_records or needs_times(view, header, rules, NOW_MS):
        return check_records(view, header, rules, NOW_MS, only_times=not rules.reads_records) or parse_header(view)
    return header


def code_of(batch: bytes | bytearray | None, rules: TopicRules = PLAIN, *, version: int = 9) -> ErrorCode | None:
    judgement = judged(batch, rules, version=version)
    return judgement.error_code if isinstance(judgement, Refused) else None


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_as_it_should_be_passes_with_its_header(codec: int) -> None:
    batch = record_batch(b"a", b"bb", b"ccc", codec=codec, producer_id=7, producer_epoch=0, base_sequence=0)

    assert judged(batch) == parse_header(batch)


@pytest.mark.parametrize("content", [None, b""])
def test_no_batch_at_all(content: bytes | None) -> None:
    assert code_of(content) is ErrorCode.invalid_record


def test_more_than_one_batch() -> None:
    assert code_of(record_batch() + record_batch()) is ErrorCode.invalid_record


@pytest.mark.parametrize("magic", [0, 1])
def test_an_older_magic(magic: int) -> None:
    assert code_of(record_batch(magic=magic)) is ErrorCode.invalid_record


@pytest.mark.parametrize("magic", [-1, 3])
def test_a_magic_that_is_none(magic: int) -> None:
    assert code_of(record_batch(magic=magic)) is ErrorCode.corrupt_message


@pytest.mark.parametrize("size", [1, 16, 17, 60])
def test_fewer_bytes_than_a_header(size: int) -> None:
    assert code_of(record_batch()[:size]) is ErrorCode.invalid_record


@pytest.mark.parametrize("batch_length", [-(2**31), -1, 0, 48])
def test_a_length_that_is_no_batch(batch_length: int) -> None:
    assert code_of(record_batch(batch_length=batch_length)) is ErrorCode.corrupt_message


@pytest.mark.parametrize("batch", [record_batch(batch_length=2**31 - 1), record_batch(b"x" * 100)[:-1]])
def test_a_batch_that_was_cut_off_is_no_batch_as_in_kafka(batch: bytearray) -> None:
    assert code_of(batch) is ErrorCode.invalid_record


def test_a_batch_that_does_not_match_its_crc() -> None:
    assert code_of(record_batch(crc=0)) is ErrorCode.corrupt_message


@pytest.mark.parametrize("position", [21, 22, 26, 30, 40, 50, 56, 60, 61, -1])
def test_any_changed_byte_that_the_crc_covers(position: int) -> None:
    batch = record_batch(b"x" * 50)
    batch[position] ^= 0x40

    assert code_of(batch) is ErrorCode.corrupt_message


@pytest.mark.parametrize("base_offset", [1, -1, 2**63 - 1])
def test_a_base_offset_other_than_zero(base_offset: int) -> None:
    assert code_of(record_batch(base_offset=base_offset)) is ErrorCode.invalid_record


def test_a_batch_above_max_message_bytes_which_counts_the_header_and_compressed_records() -> None:
    batch = record_batch(b"x" * 1000)
    at_the_limit = replace(PLAIN, batch_bytes_max=len(batch))
    below_it = replace(PLAIN, batch_bytes_max=len(batch) - 1)
    squeezed = record_batch(b"x" * 100_000, codec=4)

    assert code_of(batch, at_the_limit) is None
    assert code_of(batch, below_it) is ErrorCode.message_too_large
    assert code_of(squeezed, at_the_limit) is None


@pytest.mark.parametrize(
    ("record_count", "last_offset_delta"), [(0, -1), (0, 0), (-1, -2), (1, 1), (2, 0), (3, 1), (-(2**31), 2**31 - 1), (2**31 - 1, -1)]
)
def test_counts_that_are_none_or_contradict_each_other(record_count: int, last_offset_delta: int) -> None:
    batch = record_batch(b"a", b"b", record_count=record_count, last_offset_delta=last_offset_delta)

    assert code_of(batch) is ErrorCode.invalid_record


def test_more_records_than_the_bytes_can_hold() -> None:
    smallest = record_batch(b"", b"", b"")

    assert len(smallest) == 61 + 3 * 7
    assert code_of(smallest) is None
    assert code_of(record_batch(b"", b"", b"", record_count=4, last_offset_delta=3)) is ErrorCode.invalid_record
    assert code_of(record_batch(b"", b"", b"", record_count=2**31 - 1, last_offset_delta=2**31 - 2)) is ErrorCode.invalid_record


def test_a_control_batch() -> None:
    assert code_of(record_batch(attributes=0x20)) is ErrorCode.invalid_record
    assert code_of(record_batch(attributes=0x30)) is ErrorCode.invalid_record


@pytest.mark.parametrize(("producer_id", "epoch", "sequence"), [(0, 0, -1), (7, 3, -1), (7, -1, 0), (-2, 0, 0), (-(2**63), -1, -1)])
def test_a_producer_without_sequence_or_epoch_and_ids_that_are_none(producer_id: int, epoch: int, sequence: int) -> None:
    batch = record_batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    assert code_of(batch) is ErrorCode.invalid_record


def test_a_sequence_without_a_producer_means_nothing() -> None:
    assert code_of(record_batch(base_sequence=5)) is None


def test_a_transactional_batch() -> None:
    batch = record_batch(attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0)

    assert code_of(batch) is ErrorCode.invalid_txn_state


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec(codec: int) -> None:
    assert code_of(record_batch(codec=codec)) is ErrorCode.unsupported_compression_type


def test_zstd_is_for_produce_v7_and_later() -> None:
    assert code_of(record_batch(codec=4), version=6) is ErrorCode.unsupported_compression_type
    assert code_of(record_batch(codec=4), version=7) is None
    assert code_of(record_batch(codec=3), version=3) is None


@pytest.mark.parametrize("rules", [PLAIN, STAMPED])
def test_the_log_append_bit_is_the_brokers(rules: TopicRules) -> None:
    assert code_of(record_batch(attributes=0x08), rules) is ErrorCode.invalid_timestamp


def test_a_timestamp_too_far_ahead() -> None:
    ahead, too_far = record_batch(base_timestamp=NOW_MS + HOUR_MS), record_batch(base_timestamp=NOW_MS + HOUR_MS + 1)

    assert code_of(ahead) is None
    assert code_of(too_far) is ErrorCode.invalid_timestamp
    assert code_of(too_far, STAMPED) is None
    assert code_of(too_far, replace(PLAIN, after_max_ms=UNLIMITED_MS)) is None


def test_a_record_too_far_ahead_is_refused_and_named_whatever_the_header_says() -> None:
    times = (NOW_MS, NOW_MS + HOUR_MS + 1)
    for said in (-1, NOW_MS, NOW_MS + HOUR_MS + 1):
        refused = judged(record_batch(b"a", b"b", timestamps=times, max_timestamp=said))
        assert isinstance(refused, Refused)
        assert refused.error_code is ErrorCode.invalid_timestamp
        assert [index for index, _ in refused.record_errors] == [1]


@pytest.mark.parametrize("rules", [PLAIN, COMPACTED, replace(PLAIN, before_max_ms=HOUR_MS)], ids=["plain", "compacted", "bounded"])
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("said", [-1, 0, NOW_MS - 5, NOW_MS, NOW_MS + 2 * HOUR_MS])
def test_a_header_gets_the_greatest_time_of_its_records(rules: TopicRules, codec: int, said: int) -> None:
    times = (NOW_MS, NOW_MS + 3, NOW_MS + 1)
    batch = record_batch(b"a", b"b", b"c", keys=(b"k",) * 3, timestamps=times, codec=codec, max_timestamp=said)
    right = record_batch(b"a", b"b", b"c", keys=(b"k",) * 3, timestamps=times, codec=codec)

    assert judged(batch, rules) == parse_header(right)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("said", [-1, NOW_MS - 5, NOW_MS + 3])
def test_the_header_of_one_record_gets_its_time(codec: int, said: int) -> None:
    assert judged(record_batch(b"a", codec=codec, max_timestamp=said)) == parse_header(record_batch(b"a", codec=codec))


def test_records_that_cannot_be_read_for_their_times_are_refused() -> None:
    for batch in (record_batch(b"a", b"b", max_timestamp=-1), record_batch(b"a", b"b", codec=4, max_timestamp=-1)):
        for broken in (batch[:-1], batch + b"x", batch[:61] + b"\xff" * (len(batch) - 61)):
            struct.pack_into(">i", broken, 8, len(broken) - 12)
            assert code_of(_with_crc(broken)) is ErrorCode.invalid_record


def test_a_timestamp_too_old_is_told_record_by_record() -> None:
    rules = replace(PLAIN, before_max_ms=HOUR_MS)
    batch = record_batch(b"a", b"b", b"c", timestamps=(NOW_MS, NOW_MS - HOUR_MS - 1, NOW_MS - HOUR_MS), base_timestamp=NOW_MS)
    refused = judged(batch, rules)

    assert isinstance(refused, Refused)
    assert refused.error_code is ErrorCode.invalid_timestamp
    assert [index for index, _ in refused.record_errors] == [1]
    assert code_of(batch, PLAIN) is None
    assert code_of(batch, replace(rules, is_log_append=True)) is None


def test_a_record_without_a_timestamp_is_not_too_old() -> None:
    assert code_of(record_batch(b"a", base_timestamp=-1), replace(PLAIN, before_max_ms=HOUR_MS)) is None


@pytest.mark.parametrize("codec", range(5))
def test_a_compacted_topic_names_the_records_without_a_key(codec: int) -> None:
    batch = record_batch(b"a", b"b", b"c", b"d", keys=(b"k", None, b"", None), codec=codec)
    refused = judged(batch, COMPACTED)

    assert isinstance(refused, Refused)
    assert refused.error_code is ErrorCode.invalid_record
    assert [index for index, _ in refused.record_errors] == [1, 3]
    assert code_of(record_batch(b"a", b"b", keys=(b"k", b"k"), codec=codec), COMPACTED) is None
    assert code_of(batch, PLAIN) is None


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_that_do_not_decompress_are_refused_where_they_are_looked_at(codec: int) -> None:
    batch = batch_bytes(1, payload=b"\x00\x01\x02 not compressed")
    struct.pack_into(">h", batch, 21, codec)
    broken = _with_crc(batch)

    assert code_of(broken, COMPACTED) is ErrorCode.invalid_record
    assert code_of(broken, PLAIN) is None


def test_fewer_records_than_the_header_says_are_found_where_they_are_looked_at() -> None:
    batch = record_batch(b"a", keys=(b"k",), codec=4, record_count=2, last_offset_delta=1)

    assert code_of(batch, COMPACTED) is ErrorCode.invalid_record


def test_a_batch_with_more_records_than_are_looked_at_is_refused_before_they_are() -> None:
    # A few hundred bytes that decompress to a MiB of what could be millions of records.
    bomb = record_batch(codec=4, record_count=RECORDS_CHECKED_MAX + 1, last_offset_delta=RECORDS_CHECKED_MAX, max_timestamp=NOW_MS + 1)
    bomb = _with_crc(bytearray(bomb[:61]) + bytes(cramjam.zstd.compress(bytes(MIB))))

    assert code_of(bomb, COMPACTED) is ErrorCode.invalid_record
    assert code_of(bomb, PLAIN) is None
    struct.pack_into(">q", bomb, 35, -1)
    assert code_of(_with_crc(bomb), PLAIN) is ErrorCode.invalid_record


def test_an_answer_names_a_bounded_number_of_records() -> None:
    refused = judged(record_batch(*[b""] * (NAMED_MAX + 5)), COMPACTED)

    assert isinstance(refused, Refused)
    assert len(refused.record_errors) == NAMED_MAX


def test_size_is_judged_before_the_crc_and_the_crc_before_what_it_covers() -> None:
    wrong_in_every_way = record_batch(b"x" * 1000, crc=1, base_offset=5, record_count=0, attributes=0x38, codec=7)

    assert code_of(wrong_in_every_way, replace(PLAIN, batch_bytes_max=500)) is ErrorCode.message_too_large
    assert code_of(wrong_in_every_way) is ErrorCode.corrupt_message


def test_the_rules_of_a_topic_are_its_configs_with_kafkas_defaults() -> None:
    assert rules_of(_topic({})) == PLAIN
    assert rules_of(_topic({"cleanup.policy": "compact"})).needs_keys
    assert rules_of(_topic({"cleanup.policy": "compact,delete"})).needs_keys
    configs = {
        "max.message.bytes": "5000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "6",
        "message.timestamp.after.max.ms": "7",
        "cleanup.policy": "delete",
    }
    assert rules_of(_topic(configs)) == TopicRules(5000, is_log_append=True, before_max_ms=6, after_max_ms=7, needs_keys=False)


def _topic(configs: dict[str, str]) -> Topic:
    return Topic(
        name="t",
        topic_id=TopicId("00000000-0000-4000-8000-000000000001"),
        partition_count=1,
        replication_factor=1,
        configs=configs,
        created_at_ms=0,
    )


def _with_crc(batch: bytearray) -> bytearray:
    """The same bytes with the length and the CRC they should have."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch
