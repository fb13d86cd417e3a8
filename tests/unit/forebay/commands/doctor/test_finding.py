import asyncio

import pytest

from forebay.commands.doctor.finding import (
    Checks,
    Finding,
    FindingStatus,
    exit_code,
    failed,
    finding_line,
    findings_as_json,
    findings_summary,
    ok,
    skipped,
    warning,
)
from forebay.commands.doctor.run import of_settings_errors
from process.settings.errors import EXIT_USAGE, StartError
from storage.errors import OutcomeUnknown, Unavailable

FINDINGS = [ok("memory", "enough"), warning("disk", "nearly full"), failed("object store", "gone"), skipped("objects: put", "it is gone")]


@pytest.mark.parametrize(
    ("findings", "code"),
    [([], 0), (FINDINGS[:2], 0), ([FINDINGS[0], FINDINGS[3]], 0), (FINDINGS, 1)],
)
def test_only_what_failed_makes_the_exit_code(findings: list[Finding], code: int) -> None:
    assert exit_code(findings) == code


def test_a_line_has_the_verdict_first_and_is_one_whatever_is_in_it() -> None:
    assert [finding_line(one).split() for one in FINDINGS][3] == ["skipped", "objects:", "put", "because", "it", "is", "gone"]
    assert finding_line(ok("brokers", "a\nfailed \x1b[2J")) == "ok       brokers                     a\\nfailed \\x1b[2J"


def test_json_names_check_verdict_and_detail() -> None:
    assert '"check": "disk",\n    "verdict": "warning",\n    "detail": "nearly full"' in findings_as_json(FINDINGS)


def test_the_last_line_counts() -> None:
    assert findings_summary([*FINDINGS, ok("versions", "")]) == "2 ok, 1 warning, 1 failed, 1 skipped."


def test_wrong_settings_are_all_told_and_nothing_else_is_looked_at() -> None:
    found = of_settings_errors(["a is wrong", "b is wrong"])

    assert [(one.verdict, one.detail) for one in found] == [
        (FindingStatus.FAILED, "a is wrong"),
        (FindingStatus.FAILED, "b is wrong"),
        (FindingStatus.SKIPPED, "because the settings are wrong"),
    ]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (StartError("no room", exit_code=EXIT_USAGE), "no room"),
        (Unavailable("away"), "away"),
        (OutcomeUnknown("perhaps"), "perhaps"),
        (ExceptionGroup("tasks", [Unavailable("away")]), "away"),
        (KeyError("k"), "unexpected, please report it: KeyError('k')"),
    ],
)
async def test_what_a_check_raises_is_its_own_failure(error: Exception, detail: str) -> None:
    told: list[Finding] = []
    checks = Checks(told.append)

    async def raising() -> Finding:
        raise error

    async def well() -> Finding:
        return ok("second", "well")

    assert await checks.run("first", raising, within_s=10) is FindingStatus.FAILED
    assert await checks.run("second", well, within_s=10) is FindingStatus.OK
    assert told == checks.findings == [failed("first", detail), ok("second", "well")]


async def test_a_check_that_does_not_end_fails_with_what_it_met() -> None:
    checks = Checks(lambda _: None)

    async def silent() -> Finding:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            cancelled.add_note("tries=3 cause=refused")
            raise
        raise AssertionError("it does not end")

    await checks.run("store", silent, within_s=0.01)

    assert checks.findings == [failed("store", "no answer within 0.01 s; tries=3 cause=refused")]
