import subprocess
import sys

import pytest

from forebay.__main__ import main, refusal


@pytest.mark.parametrize(
    ("version", "assertions", "reason"),
    [
        ((3, 10), True, "Python 3.10 found; forebay needs 3.11 or newer."),
        ((3, 11), False, "forebay does not run with -O or PYTHONOPTIMIZE: its assertions are part of what keeps data safe."),
        ((3, 11), True, ""),
    ],
)
def test_an_interpreter_that_will_not_do_is_refused(version: tuple[int, ...], assertions: bool, reason: str) -> None:
    assert refusal(version, assertions=assertions) == reason


def test_running_without_assertions_is_refused_before_anything_else() -> None:
    ended = subprocess.run([sys.executable, "-O", "-m", "forebay", "--version"], check=False, capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)


def test_help_imports_nothing_heavy() -> None:
    heavy = {"aiohttp", "pydantic", "prometheus_client", "confluent_kafka", "structlog", "asyncio"}
    code = f"import sys, forebay.cli; print(sorted({heavy} & set(sys.modules)))"

    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)

    assert ended.stdout == "[]\n"


def test_ctrl_c_before_a_command_begins_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forebay.cli.application", interrupted)

    with pytest.raises(SystemExit) as left:
        main()

    assert left.value.code == 130
