"""The steps that every client plays (README.md says what each does), and what must have been seen."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PARTITIONS: Final = 3
RECORDS: Final = 60
RECORDS_OF_A_CODEC: Final = 10
FIRST_TIMESTAMP_MS: Final = 1_600_000_000_000

Seen = object
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class Said:
    """One line of a client's output: what it saw in a step, or how the step failed."""

    step: str
    saw: Seen = None
    failed: str | None = None


def digest(lines: Iterable[str]) -> str:
    """SHA-256 of the lines, sorted bytewise, each with its newline."""
    encoded = sorted(line.encode() for line in lines)
    return hashlib.sha256(b"".join(line + b"\n" for line in encoded)).hexdigest()


def _record_line(number: int) -> str:
    value = "null" if number % 10 == 9 else f"value-{number}"
    return f"{number % PARTITIONS} {number // PARTITIONS} {FIRST_TIMESTAMP_MS + 1_000 * number} key-{number} {value} index={number},empty="


def expected(codecs: Sequence[str]) -> dict[str, Seen]:
    """Step → what a client with these codecs (beside none) must have seen, in the order of the steps."""
    return {
        "cluster": {"brokers": 1, "controller": True},
        "create_topic": {"partitions": PARTITIONS},
        "create_existing_topic": {"error": "TOPIC_ALREADY_EXISTS"},
        "create_invalid_topic": {"error": "INVALID_TOPIC_EXCEPTION"},
        "create_invalid_config": {"error": "INVALID_CONFIG"},
        "create_partitions": {"partitions": 4},
        "create_fewer_partitions": {"error": "INVALID_PARTITIONS"},
        "describe_configs": {"retention.ms": "86400000", "max.message.bytes": "200000"},
        "alter_configs": {"retention.ms": "3600000"},
        "describe_broker_configs": {"described": True},
        "produce": {str(partition): RECORDS // PARTITIONS for partition in range(PARTITIONS)},
        "codecs": dict.fromkeys(("none", *codecs), RECORDS_OF_A_CODEC),
        "consume": {"records": RECORDS, "digest": digest(_record_line(number) for number in range(RECORDS))},
        "seek": {"offset": 7, "key": "key-22"},
        "offsets": {"earliest": 0, "latest": RECORDS // PARTITIONS},
        "offsets_by_time": {"found": 3, "none": None},
        "group_of_two": {"alone": 3, "together": [1, 2], "again": 3, "records": RECORDS},
        "commit_and_resume": {"committed": 10, "resumed": "line-10"},
        "list_groups": {"listed": True},
        "describe_group": {"member": "Stable", "empty": "Empty", "protocol_type": "consumer"},
        "list_group_offsets": {"offset": 10},
        "delete_busy_group": {"error": "NON_EMPTY_GROUP"},
        "delete_group": {"listed": False},
        "delete_missing_group": {"error": "GROUP_ID_NOT_FOUND"},
        "delete_records": {"low_watermark": 5, "earliest": 5},
        "fetch_out_of_range": {"error": "OFFSET_OUT_OF_RANGE"},
        "idempotent": {"latest": 100},
        "message_too_large": {"error": "MESSAGE_TOO_LARGE"},
        "missing_topic": {"error": "UNKNOWN_TOPIC_OR_PARTITION"},
        "delete_topic": {"listed": False},
        "delete_missing_topic": {"error": "UNKNOWN_TOPIC_OR_PARTITION"},
    }


STEPS: Final = tuple(expected(()))


def differences(said: Sequence[Said], *, codecs: Sequence[str], lacks: Mapping[str, str], brokers: int = 1) -> list[str]:
    """What differs from what must have been seen, a sentence each, in the order of the steps; empty when nothing does."""
    wanted = {**expected(codecs), "cluster": {"brokers": brokers, "controller": True}}
    found = [f"{one.step}: no such step" for one in said if one.step not in wanted]
    for step, value in wanted.items():
        played = [one for one in said if one.step == step]
        if not played:
            if step not in lacks:
                found.append(f"{step}: not played")
            continue
        if step in lacks:
            found.append(f"{step}: played, though client.toml says that the library lacks it")
        if len(played) > 1:
            found.append(f"{step}: played {len(played)} times")
        if played[0].failed is not None:
            found.append(f"{step}: failed: {played[0].failed}")
        elif not _equal(played[0].saw, value):
            found.append(f"{step}: saw {_shown(played[0].saw)}, expected {_shown(value)}")
    return found


def _equal(saw: Seen, wanted: Seen) -> bool:
    """As JSON: true is not 1, which Python holds to be equal."""
    return _shown(saw) == _shown(wanted)


def _shown(value: Seen) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
