import json
import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.audit import DROPPED, LOOK_EVERY_S, AuditLog, open_audit_log
from process.settings.errors import StartError
from runtime.telemetry import Telemetry
from tests.kit.faulty_metadata import ManualClock

FACTS = {"event": "topic_created", "outcome": "done", "topic": "t", "client_id": "app"}


class Audited:
    def __init__(self, path: Path) -> None:
        self.clock, self.telemetry = ManualClock(), Telemetry()
        self.log = AuditLog(path, broker_id=lambda: 7, telemetry=self.telemetry, clock=self.clock)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_change_is_one_json_line_with_time_and_broker_behind_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"event":"before"}\n')
    audited = Audited(path)
    audited.log.write(FACTS)
    audited.log.close()

    before, line = lines_of(path)
    assert before == {"event": "before"}
    assert line == {"timestamp": "1970-01-01T00:16:40.000Z", "broker_id": 7, **FACTS}


def test_nobody_but_its_user_and_group_reads_it(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "audit.log")
    audited.log.close()

    assert not stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) & 0o027


def test_what_a_client_calls_itself_is_cut(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "audit.log")
    audited.log.write(FACTS | {"client_id": "x" * 32_000})
    audited.log.close()

    assert len(str(lines_of(tmp_path / "audit.log")[0]["client_id"])) < 300


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_file_that_was_rotated_away_is_made_anew_and_loses_nothing(tmp_path: Path, how: str) -> None:
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    audited = Audited(path)
    audited.log.write(FACTS | {"topic": "first"})
    audited.log._lines.flush(10)
    path.rename(old)
    if how == "removed":
        old.unlink()
    audited.log.write(FACTS | {"topic": "second"})
    thread_of_the_former_file = audited.log._lines._thread
    audited.clock.seconds += LOOK_EVERY_S
    audited.log.write(FACTS | {"topic": "third"})
    audited.log.close()

    assert [line["topic"] for line in lines_of(path)] == ["third"]
    if how == "renamed":
        # It writes what it was given before it leaves.
        thread_of_the_former_file.join(30)
        assert [line["topic"] for line in lines_of(old)] == ["first", "second"]


def test_a_line_that_the_system_refuses_is_counted_and_said_where_it_can_be(tmp_path: Path) -> None:
    full = Path("/dev/full")
    audited = Audited(full)
    audited.log.write(FACTS)
    audited.log._lines.flush(10)
    with capture_logs() as logged:
        audited.log.write(FACTS)
        audited.log.close()

    assert audited.telemetry.registry.get_sample_value(DROPPED.name, {"reason": "failed"}) == 2
    assert {line["event"] for line in logged} == {"audit_lines_dropped"}


def test_a_file_that_cannot_be_opened_ends_the_start_with_cause_and_fix(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "audit.log"
    with (
        pytest.raises(StartError, match=r"log\.audit") as error,
        open_audit_log(str(path), broker_id=lambda: 1, telemetry=Telemetry(), clock=ManualClock()),
    ):
        pass

    assert os.strerror(2) in str(error.value)
    assert str(path) in str(error.value)
