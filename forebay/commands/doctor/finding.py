"""Findings of checks, and a run of checks of which each may fail alone.

The report is for people, line by line as it comes, or for programs.
"""

import asyncio
import enum
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
import structlog

from forebay.kafka_client.text import printable, printable_json
from process.exit_codes import explain
from process.settings.errors import EXIT_FAILED
from storage.errors import StorageError

_CHECK_WIDTH: Final = 26

_log = structlog.get_logger(__name__)


class FindingStatus(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report; the fields of `-o json`. FAILED: a broker on these settings would not start, or not do its work."""

    check: str
    verdict: FindingStatus
    detail: str


def ok(check: str, detail: str) -> Finding:
    return Finding(check=check, verdict=FindingStatus.OK, detail=detail)


def warning(check: str, detail: str) -> Finding:
    return Finding(check=check, verdict=FindingStatus.WARNING, detail=detail)


def failed(check: str, detail: str) -> Finding:
    return Finding(check=check, verdict=FindingStatus.FAILED, detail=detail)


def skipped(check: str, because: str) -> Finding:
    return Finding(check=check, verdict=FindingStatus.SKIPPED, detail=f"because {because}")


def exit_code(findings: Iterable[Finding]) -> int:
    """0 unless something failed: what a warning is about may be intended."""
    return EXIT_FAILED if any(finding.verdict is FindingStatus.FAILED for finding in findings) else 0


def reason_of(error: Exception) -> str | None:
    """Why, as `forebay serve` would say it; None for what nobody foresaw."""
    if (explanation := explain(error)) is not None:
        return explanation.message
    return str(error) if isinstance(error, StorageError) else None


class Checks:
    """Tells each finding when it is there, and keeps it."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell = tell
        self.findings: list[Finding] = []

    def add(self, finding: Finding) -> FindingStatus:
        self.findings.append(finding)
        self._tell(finding)
        return finding.verdict

    async def run(
        self,
        check: str,
        look: Callable[[], Awaitable[Finding | None]],
        *,
        within_s: float,
        reason: Callable[[Exception], str | None] = reason_of,
    ) -> FindingStatus:
        """Add what `look` finds; None is nothing to tell.

        What it raises, or that it does not end within `within_s`, is a failure of this check alone.
        """
        try:
            async with asyncio.timeout(within_s):
                finding = await look()
        except TimeoutError as error:
            finding = failed(check, no_answer(error, within_s))
        except Exception as error:  # noqa: BLE001 - a check that is wrong itself must not keep the others from being made
            why = reason(error)
            if why is None:
                _log.exception("check_failed", check=check)
            finding = failed(check, why or f"unexpected, please report it: {error!r}")
        return FindingStatus.OK if finding is None else self.add(finding)


def no_answer(error: TimeoutError, within_s: float) -> str:
    """A store that tried more than once notes what it met."""
    notes = getattr(error.__cause__, "__notes__", ())
    return "; ".join([f"no answer within {within_s:g} s", *notes])


_VERDICT_WIDTH: Final = max(len(verdict.value) for verdict in FindingStatus)


def finding_line(finding: Finding) -> str:
    return printable(f"{finding.verdict.value.ljust(_VERDICT_WIDTH)}  {finding.check.ljust(_CHECK_WIDTH)}  {finding.detail}")


def findings_as_json(findings: Sequence[Finding]) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())


def findings_summary(findings: Sequence[Finding]) -> str:
    """The last line, for people."""
    counts = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in FindingStatus if counts[verdict]) + "."
