import errno
import io
import os
import sys

import pytest
import typer

from forebay.kafka_client.failures import ClientFailed, failures_reported


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())

    with pytest.raises(typer.Exit) as left, failures_reported():
        pass

    assert left.value.exit_code == 1
    assert capsys.readouterr().err == "Reading or writing: no space left on device.\n"


def test_a_file_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, failures_reported():
        raise PermissionError(errno.EACCES, "Permission denied", "offsets.csv")

    assert left.value.exit_code == 1
    assert capsys.readouterr().err == f"offsets.csv: permission denied. Give uid {os.geteuid()} access to it, or name another.\n"


def test_a_command_without_standard_output_ends_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    done = False

    with failures_reported():
        done = True

    assert done


def test_what_a_broker_said_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, failures_reported():
        raise ClientFailed("said \x1b[2J\nForged.", exit_code=5)

    assert left.value.exit_code == 5
    assert capsys.readouterr().err == "said \\x1b[2J\\nForged.\n"
