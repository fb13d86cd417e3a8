"""The shape of the code: sizes, and words that earn no place."""

import ast
import re
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.trees import tree_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("forebay", "sim", "broker", "compactor", "process", "storage", "runtime", "services", "model", "spark")
GENERATED = {"wire_pb2.py"}
LINES_MAX = 900
SLOP = re.compile(
    r"\b(seamless|robust|leverag|blazing|effortless|cutting-edge|This (class|function|method|module) (is|provides|implements|handles))",
    re.IGNORECASE,
)
BANNED_NAMES = re.compile(r"^class \w*(Manager|Helper|Util|Utils|Impl|Base)\b", re.MULTILINE)


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.name not in GENERATED]


def faults_of(path: Path) -> list[str]:
    text = path.read_text()
    lines = len(text.splitlines())
    return [
        *([f"{lines} lines, more than {LINES_MAX}"] if lines > LINES_MAX else []),
        *(f"names or words that say nothing: {found[0]}" for pattern in (BANNED_NAMES, SLOP) if (found := pattern.search(text))),
        *([] if path.name == "__init__.py" or text.startswith('"""') else ["a module begins with what it promises"]),
    ]


def test_a_module_is_small_enough_and_says_what_it_is_for() -> None:
    found = {str(path.relative_to(ROOT)): faults_of(path) for path in modules()}

    assert len(found) > 400
    assert {path: faults for path, faults in found.items() if faults} == {}


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Modules and names that are imported when the module is, or for its types. What a function imports later makes no circle."""
    for node in tree.body:
        for each in node.body if isinstance(node, ast.If) else [node]:
            if isinstance(each, ast.ImportFrom):
                yield from (f"{each.module}.{name.name}" for name in each.names)
                yield str(each.module)
            elif isinstance(each, ast.Import):
                yield from (name.name for name in each.names)


def test_no_modules_import_each_other_in_a_circle() -> None:
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules()}
    imported = {name: named.keys() & set(imports_of(tree_of(path))) - {name} for name, path in named.items()}

    # Raises CycleError, which names the circle.
    assert len(list(TopologicalSorter(imported).static_order())) == len(named)


def test_runtime_stays_what_its_name_says() -> None:
    found = {path.stem for path in (ROOT / "runtime").glob("*.py")} - {"__init__"}

    assert found == {
        "blocking",
        "clock",
        "deadlines",
        "frames",
        "ids",
        "log_fields",
        "log_lines",
        "logs",
        "lru",
        "singleflight",
        "supervision",
        "telemetry",
        "turns",
        "ulid",
        "version",
    }


def test_the_documents_show_no_merge_leftovers_and_no_broken_links() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        text = (ROOT / name).read_text()
        assert "<<<<<<<" not in text
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize("vendor", ["aioboto3", "aiobotocore", "botocore"])
def test_the_aws_sdk_is_imported_by_one_module(vendor: str) -> None:
    # It is imported by name when it is first needed, which the import contracts do not see.
    importing = re.compile(rf"^\s*(import|from) {vendor}\b|import_module\(\"{vendor}\b", re.MULTILINE)
    found = {str(path.relative_to(ROOT)) for path in modules() if importing.search(path.read_text())}

    assert found <= {"storage/objects/s3/aioboto3_client.py"}
