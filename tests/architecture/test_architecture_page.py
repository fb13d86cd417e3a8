"""ARCHITECTURE.md lets a newcomer follow a batch by file and function name: every name in it exists."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
PATHS = sorted({name for name in QUOTED if "/" in name and " " not in name and not name.startswith("/")})
NAMED_AFTER_PATH = re.findall(r"`([a-z_/]+\.py)`\s+`([A-Za-z_][A-Za-z_.]*)`", PAGE)


def test_the_page_names_files_and_functions() -> None:
    assert len(PATHS) > 20
    assert len(NAMED_AFTER_PATH) > 20


def test_every_path_exists() -> None:
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_every_name_is_defined_where_the_page_says() -> None:
    for path, name in NAMED_AFTER_PATH:
        value: object = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        for part in name.split("."):
            assert hasattr(value, part), f"{path} has no {name}"
            value = getattr(value, part)
