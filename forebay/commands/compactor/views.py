"""Upkeep for people and for programs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from compactor.discovery import Backlog
from compactor.measures import CycleReport, outcome_of
from forebay.kafka_client.tables import align, facts
from storage.catalog.brokers import CompactorRecord


def cycle_lines(report: CycleReport) -> dict[str, Any]:
    return {
        "partitions": report.partitions,
        "segments": report.segments,
        "entries": report.entries,
        "objects": report.objects,
        "gets": report.gets,
        "read_bytes": report.read_bytes,
        "written_bytes": report.written_bytes,
        "seconds": round(report.took_s, 3),
        "blocked": report.blocked or None,
        "failed": [
            {"topic_id": partition.topic_id, "partition": partition.partition, "outcome": outcome_of(error), "cause": str(error)}
            for partition, error in report.failed.items()
        ],
    }


def cycle_table(report: CycleReport) -> str:
    rows: list[tuple[str, object]] = [
        ("partitions", report.partitions),
        ("segments", f"{report.segments} from {report.entries} entries, {_size(report.written_bytes)}"),
        ("objects", f"{report.objects} read with {report.gets} GETs, {_size(report.read_bytes)}"),
        ("seconds", f"{report.took_s:.1f}"),
    ]
    if report.blocked:
        rows.append(("blocked", report.blocked))
    rows += [(f"failed {partition.topic_id}/{partition.partition}", str(error)) for partition, error in report.failed.items()]
    return facts(rows)


def status_lines(live: Sequence[CompactorRecord], found: Backlog) -> dict[str, Any]:
    return {"compactors": [msgspec.to_builtins(one) for one in live], "backlog": msgspec.to_builtins(found)}


def status_table(live: Sequence[CompactorRecord], found: Backlog) -> str:
    oldest = (
        "nothing" if found.oldest_ms is None else f"{_size(found.bytes)} in {found.entries} entries, the oldest of {_time(found.oldest_ms)}"
    )
    parts = [
        facts(
            [
                ("compactors", len(live) or "none runs: start forebay compactor serve, or set compactor.run: true for a broker"),
                ("partitions", f"{found.partitions}, {found.waiting} with entries in no segment yet, {found.due} due"),
                ("waiting", oldest),
                *[("unreadable", f"{path}: {cause}") for path, cause in found.unreadable.items()],
            ]
        )
    ]
    if live:
        rows = [(one.name, one.host, one.pid, one.http or "-", one.version, _time(one.started_at_ms)) for one in live]
        parts.append(align(("COMPACTOR", "HOST", "PID", "HTTP", "VERSION", "SINCE"), rows))
    if found.behind:
        behind = [
            (
                one.topic,
                one.partition,
                one.cursor,
                one.end,
                f"{one.entries}{'+' if one.is_more else ''}",
                _size(one.bytes),
                _time(one.since_ms),
                one.why,
            )
            for one in found.behind
        ]
        parts.append(align(("TOPIC", "PARTITION", "CURSOR", "END", "ENTRIES", "BYTES", "SINCE", "WHY"), behind))
    return "\n\n".join(parts)


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
