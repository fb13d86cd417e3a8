"""Imports of a start: whether `import storage` finds Forebay's storage, and libraries without what they import for others.

Our packages have plain names, which others use, too (docs/internals/adr/0021). `clash` runs before anything of ours but this package is
imported, and imports nothing to find out. structlog imports rich for decorated tracebacks (ours are plain: runtime/logs.py), kio imports
hypothesis for tests of its users. Together they would be a quarter of the CPU time of a start.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

OUR_PACKAGES: Final = ("broker", "compactor", "process", "runtime", "spark", "storage")
"""What the program imports beside `forebay`, and all else that is installed with it."""
NAMED_IN_EACH: Final = b"Forebay"
"""In the docstring of each of them. Installers write packages of one name into one folder, and the last one wins."""
_OWN_ENVIRONMENT: Final = "Install forebay into an environment of its own: `uv tool install .` or `pipx install .` in its source folder."
_UNWANTED: Final = {"structlog": "rich", "kio.static.primitive": "hypothesis"}


def clash(*, home: Path | None = None, packages: Sequence[str] = OUR_PACKAGES) -> str:
    """A line that names the first package that is not ours and says what to do; empty if all are. `home`: the folder they belong in."""
    home = home or Path(__file__).resolve().parents[1]
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return f'forebay needs its own package "{name}" in {home / name}, and it is not there. Install forebay again.'
        found, ours = Path(spec.origin), home / name / "__init__.py"
        if found.resolve() != ours.resolve():
            elsewhere = found.parent if found.name == "__init__.py" else found
            return f'Package "{name}" comes from {elsewhere}, but forebay needs its own in {ours.parent}. {_fix(elsewhere.parent)}'
        if NAMED_IN_EACH not in ours.read_bytes():
            return f'Another distribution has written its package "{name}" over that of forebay in {ours.parent}. {_OWN_ENVIRONMENT}'
    return ""


def _fix(folder: Path) -> str:
    """For a package found in `folder`."""
    pythonpath = [Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if folder.resolve() in pythonpath and not sys.flags.ignore_environment:
        return f"Take {folder} out of PYTHONPATH."
    if folder.resolve() == Path.cwd():
        return "Start forebay in another folder, or as `forebay` instead of `python -m forebay`."
    return _OWN_ENVIRONMENT


def import_without_extras() -> None:
    """Before anything else imports them. What is imported already stays as it is."""
    for library, extra in _UNWANTED.items():
        with _absent(extra):
            importlib.import_module(library)


@contextlib.contextmanager
def _absent(name: str) -> Iterator[None]:
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # what `import` takes for "not installed"
    try:
        yield
    finally:
        del sys.modules[name]
