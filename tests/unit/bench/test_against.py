"""Two checkouts compared: which unit, and ratios by round."""

from pathlib import Path

import pytest

from bench.against import TooLittleWork, compared, main
from bench.results import Run, Work


def run(cpu_s: float, *, records: int = 1000, requests: int = 1000, value_bytes: int = 0) -> Run:
    return Run(Work(records, value_bytes, requests, 1.0, cpu_s, 0.0, cpu_s), None, 0)


def test_requests_of_one_record_are_compared_by_the_request() -> None:
    unit, theirs, ours, ratio = compared([run(0.2), run(0.4), run(0.2)], [run(0.1), run(0.1), run(0.3)])

    assert (unit, theirs, ours) == ("µs/request", "200", "100")
    assert ratio == "0.50 (0.25-1.50)"


def test_batches_of_many_records_are_compared_by_the_gib() -> None:
    volume = {"records": 1_000_000, "value_bytes": 2**30}

    assert compared([run(2.0, **volume)], [run(1.0, **volume)]) == ("s/GiB", "2", "1", "0.50 (0.50-0.50)")


def test_work_that_took_no_cpu_has_no_ratio() -> None:
    with pytest.raises(TooLittleWork, match="raise --scale"):
        compared([run(0.0)], [run(0.1)])


def test_a_folder_without_an_interpreter_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "produce-one"])

    assert "run `make setup` there" in capsys.readouterr().err
