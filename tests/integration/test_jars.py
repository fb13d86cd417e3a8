"""Jars are fetched once, and only those that are pinned. Maven is a script here, but where its absence is the point."""

import hashlib
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from services import jars
from services.build import BuildError
from services.jars import assembled, found
from services.kafka import POM
from tests.kit.toolchains import java

ROOT: Final = Path(__file__).parents[2]
SPARK: Final = ROOT / "spark" / "spark-connector"
COMPAT: Final = Path(__file__).parents[1] / "compat"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder that pins one jar."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "pom.xml").write_text("<project/>")
    (folder / "jars.sha256").write_text(f"{hashlib.sha256(b'one').hexdigest()}  one.jar\n")
    return folder


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `mvn` that makes one.jar, slowly enough for two to meet, and the file it counts its calls in."""
    folder = tmp_path / "path"
    folder.mkdir()
    calls = tmp_path / "calls"
    script = f"""#!/bin/sh
echo "$@" >> {calls}
sleep 0.3
for word; do case $word in -DoutputDirectory=*) mkdir -p "${{word#*=}}"; printf one > "${{word#*=}}/one.jar";; esac; done
"""
    (folder / "mvn").write_text(script)
    (folder / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return calls


def test_two_that_need_the_same_jars_fetch_them_once(tmp_path: Path, program: Path, maven: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: assembled(program, cache=tmp_path / "cache"), range(2)))

    assert folders[0] == folders[1]
    assert [path.read_bytes() for path in folders[0].iterdir()] == [b"one"]
    assert len(maven.read_text().splitlines()) == 1


def test_another_pom_is_another_folder(tmp_path: Path, program: Path, maven: Path) -> None:
    first = assembled(program, cache=tmp_path / "cache")
    (program / "pom.xml").write_text("<project></project>")

    assert assembled(program, cache=tmp_path / "cache") != first


@pytest.mark.parametrize(
    ("pinned", "named"),
    [
        (f"{hashlib.sha256(b'other').hexdigest()}  one.jar\n", "one.jar"),
        ("", "one.jar"),
        (f"{hashlib.sha256(b'one').hexdigest()}  one.jar\n{'0' * 64}  two.jar\n", "two.jar"),
    ],
)
def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path, program: Path, maven: Path, pinned: str, named: str) -> None:
    (program / "jars.sha256").write_text(pinned)

    with pytest.raises(BuildError, match=rf"is not what jars\.sha256 says: {named}\.$"):
        assembled(program, cache=tmp_path / "cache")
    assert [path for path in (tmp_path / "cache" / "jars").iterdir() if not path.name.startswith(".")] == []


def test_sums_are_written_by_the_command_that_is_for_it(program: Path, maven: Path) -> None:
    (program / "jars.sha256").unlink()

    assert jars.main([str(program)]) == 0
    assert (program / "jars.sha256").read_text() == f"{hashlib.sha256(b'one').hexdigest()}  one.jar\n"


def test_what_maven_says_is_passed_on(tmp_path: Path, program: Path, maven: Path) -> None:
    (tmp_path / "path" / "mvn").write_text("#!/bin/sh\necho '[ERROR] no route to host'\nexit 1\n")

    with pytest.raises(BuildError, match=r"Maven cannot fetch the jars of program[\s\S]*no route to host"):
        assembled(program, cache=tmp_path / "cache")


@pytest.mark.parametrize(("name", "package"), [("java", "openjdk-17-jdk-headless"), ("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")])
def test_a_missing_program_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BuildError) as refused:
        found(name)
    assert str(refused.value).startswith(f"There is no `{name}` on the PATH. Install ")
    assert package in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_jars_that_are_there_need_no_maven(tmp_path: Path, program: Path, maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = assembled(program, cache=tmp_path / "cache")
    monkeypatch.setenv("PATH", "")

    assert assembled(program, cache=tmp_path / "cache") == kept


def test_source_that_does_not_compile_is_quoted(tmp_path: Path) -> None:
    source = tmp_path / "Broken.java"
    source.write_text("class Broken { int x = missing; }")

    with pytest.raises(BuildError, match=r"javac said:[\s\S]*cannot find symbol"):
        java.compiled([source], tmp_path, tmp_path / "cache")


def test_classes_are_compiled_once(tmp_path: Path) -> None:
    source = tmp_path / "Fine.java"
    source.write_text("class Fine {}")
    first = java.compiled([source], tmp_path, tmp_path / "cache")
    made_ns = first.stat().st_mtime_ns

    assert [path.name for path in first.iterdir()] == ["Fine.class"]
    assert java.compiled([source], tmp_path, tmp_path / "cache").stat().st_mtime_ns == made_ns


@pytest.mark.parametrize("name", ["java-3.9", "java-4"])
def test_a_client_is_described_by_the_version_it_pins(name: str) -> None:
    described = tomllib.loads((COMPAT / name / "client.toml").read_text())["version"]

    assert f"<version>{described}</version>" in (COMPAT / name / "pom.xml").read_text()
    assert f"kafka-clients-{described}.jar" in (COMPAT / name / "jars.sha256").read_text()


def test_the_jars_of_apache_kafka_are_those_of_one_version() -> None:
    versions = re.findall(r"  kafka[-_][a-z0-9_.-]+?-([\d.]+)\.jar$", (POM / "jars.sha256").read_text(), re.MULTILINE)

    assert len(versions) > 10
    assert set(versions) == {"4.3.1"}


def test_jars_are_kept_ahead_of_their_use(
    program: Path, maven: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREBAY_CACHE", str(program.parent / "cache"))

    assert jars.main(["--keep", str(program)]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "one.jar").read_text() == "one"
    assert assembled(program).parent == program.parent / "cache" / "jars"
    assert len(maven.read_text().splitlines()) == 1


def test_the_jars_of_spark_are_of_the_version_of_pyspark() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = (SPARK / "jars.sha256").read_text()

    assert pyproject["project"]["optional-dependencies"]["spark"][0] == "pyspark==4.2.0"
    for name in ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "spark-avro_2.13"):
        assert f"  {name}-4.2.0.jar\n" in pinned
