"""Each program of examples/ produces, joins a group, reads and commits, and goes on where it committed when it runs again; one uses no
broker.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from services.build import cache_folder
from services.jars import assembled, found
from tests.kit.serving import ROOT, Served, serving
from tests.kit.toolchains import java, kcat

EXAMPLES: Final = ROOT / "examples"
JAVA: Final = EXAMPLES / "java"
JAVA_JARS: Final = ROOT / "tests" / "compat" / "java-4"
"""A client of tests/compat that pins the jars of the example, with their checksums."""
ENDS_WITHIN_S: Final = 90.0
FETCHED_WITHIN_S: Final = 600.0
ORDERS: Final = 10
CONSUMED: Final = re.compile(r"^consumed (\S+)\[(\d+)\]@(\d+) (order-\d+) (\{.*\})$", re.MULTILINE)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(None) as broker:
        yield broker


def python(name: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name)]


def compiled_java() -> list[str]:
    jars = assembled(JAVA_JARS)
    classes = java.compiled(sorted(JAVA.rglob("*.java")), jars, cache_folder() / "compat")
    return java.running("OrdersGroup", classes, jars)


def kcat_script() -> list[str]:
    kcat.found()
    return [str(EXAMPLES / "kcat_group.sh")]


def run(command: Sequence[str], *, folder: Path = ROOT, within_s: float = ENDS_WITHIN_S) -> list[tuple[str, int, int, str, str]]:
    """Topic, partition, offset, key and value of each record that it says it consumed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_"))}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within_s, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, f"{command[-2:]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    found_lines = CONSUMED.findall(done.stdout)
    return [(topic, int(partition), int(offset), key, value) for topic, partition, offset, key, value in found_lines]


@pytest.mark.timeout(FETCHED_WITHIN_S)  # a first run fetches jars or installs kcat
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(lambda: python("confluent_group.py"), id="confluent-kafka"),
        pytest.param(lambda: python("aiokafka_group.py"), id="aiokafka"),
        pytest.param(compiled_java, id="java"),
        pytest.param(kcat_script, id="kcat"),
    ],
)
def test_an_example_reads_what_it_produced_and_the_next_run_goes_on_where_it_committed(
    command: Callable[[], list[str]], served: Served
) -> None:
    program = [*command(), served.bootstrap]

    first, second = run(program), run(program)

    for seen in (first, second):
        assert len({key for _, _, _, key, _ in seen}) == len(seen) == ORDERS, "each of the ten orders, once"
    assert _orders(first) == _orders(second)
    places = {(topic, partition, offset) for topic, partition, offset, *_ in [*first, *second]}
    assert len(places) == 2 * ORDERS, "the second run read none of the records of the first"


def test_the_example_of_the_library_appends_once_reads_compacts_and_fences_in_a_folder_of_its_own_or_another(tmp_path: Path) -> None:
    stores = [f"sqlite:///{tmp_path}/meta.db", f"file://{tmp_path}/objects"]
    said = [
        subprocess.run(
            [*python("log_library.py"), *given], capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=True, cwd=ROOT
        ).stdout
        for given in ([], stores, stores)
    ]

    for text in said:
        assert "again: [True, True]" in text
        assert [text.count(word) for word in ("read orders-library", "compacted orders-library", ": Fenced")] == [ORDERS, 2, 1]
    assert "orders-library[0]@4 " in said[1]
    assert "orders-library[0]@9 " in said[2]


@pytest.mark.long
@pytest.mark.slow  # Maven fetches its plugins for minutes, once
@pytest.mark.timeout(FETCHED_WITHIN_S)
def test_the_java_example_runs_as_its_first_lines_say(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "java"
    shutil.copytree(JAVA, folder)

    seen = run(
        [found("mvn"), "-q", "-B", "compile", "exec:java", f"-Dexec.args={served.bootstrap}"], folder=folder, within_s=FETCHED_WITHIN_S
    )
    assert len(seen) == ORDERS


def test_the_java_example_asks_for_the_jars_it_is_tested_with() -> None:
    coordinates = re.compile(r"<dependency>.*?</dependency>", re.DOTALL)
    wanted, tested = ((folder / "pom.xml").read_text(encoding="utf-8") for folder in (JAVA, JAVA_JARS))

    assert coordinates.findall(wanted) == coordinates.findall(tested)


def test_every_example_is_in_the_list_and_every_file_of_the_list_is_there() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(((?!\.\.)[^)]+)\)", page))

    there = {str(path.relative_to(EXAMPLES)) for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.sh"), *EXAMPLES.rglob("*.java"))}
    assert listed == there


def _orders(records: Sequence[tuple[str, int, int, str, str]]) -> list[tuple[str, str]]:
    return sorted((key, value) for *_, key, value in records)
