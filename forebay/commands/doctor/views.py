"""The report for people, line by line as it comes, and for programs."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.commands.doctor.finding import Finding, FindingStatus
from forebay.kafka_client.text import printable, printable_json

_VERDICT_WIDTH: Final = max(len(verdict.value) for verdict in FindingStatus)
_CHECK_WIDTH: Final = 26


def as_line(finding: Finding) -> str:
    return printable(f"{finding.verdict.value.ljust(_VERDICT_WIDTH)}  {finding.check.ljust(_CHECK_WIDTH)}  {finding.detail}")


def as_json(findings: Sequence[Finding]) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())


def summary(findings: Sequence[Finding]) -> str:
    """The last line, for people."""
    counts = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in FindingStatus if counts[verdict]) + "."
