"""What the commands show to people."""

from collections.abc import Sequence

from forebay.kafka_client.text import printable
from storage.verify.findings import StoreFinding


def as_blocks(findings: Sequence[StoreFinding]) -> str:
    return "\n\n".join(_block(one) for one in findings)


def counted(number: int, one: str, more: str | None = None) -> str:
    """`1 object`, `2,000 objects`."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def _block(found: StoreFinding) -> str:
    place = "" if found.topic is None else f"  {found.topic}/{found.partition}"
    offsets = "" if found.first_offset is None else f"  offsets {found.first_offset}..{found.last_offset}"
    facts = (("key", found.key), ("object", found.object), ("found", found.found), ("means", found.means), ("do", found.do))
    lines = [f"{found.severity.value}  {found.kind.value}{place}{offsets}"]
    lines += [f"  {name:<6}  {value}" for name, value in facts if value is not None]
    return "\n".join(printable(line) for line in lines)
