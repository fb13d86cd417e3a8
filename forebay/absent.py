"""Libraries that import others wherever these happen to be installed, for what a broker never does: they are imported without them.

structlog imports rich for decorated tracebacks (ours are plain: runtime/logs.py), kio imports hypothesis for tests of its users. Together
they would be a quarter of the CPU time of a start.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Final

_UNWANTED: Final = {"structlog": "rich", "kio.static.primitive": "hypothesis"}


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
