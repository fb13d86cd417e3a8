"""Writing Python source line by line and compiling it: the decoder and the encoder are unrolled once per version.

Constants (classes, packers, defaults) are bound by name, so the source stays text and a traceback shows a file name of its own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import cast


class Source:
    """One function in the making. `variable` and `constant` hand out names that occur once."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"def generated({signature}):", "    pass"]
        self._indent = 1
        self._names = 0
        self._namespace: dict[str, object] = {}

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head:` and what is written inside the `with`, one step to the right."""
        self.line(f"{head}:")
        empty = len(self._lines)
        self._indent += 1
        yield
        if len(self._lines) == empty:
            self.line("pass")
        self._indent -= 1

    def variable(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def constant(self, value: object) -> str:
        self._names += 1
        name = f"c{self._names}"
        self._namespace[name] = value
        return name

    def bind(self, **constants: object) -> None:
        """Constants under names of the caller's choice."""
        self._namespace.update(constants)

    def compile(self, filename: str) -> Callable[..., object]:
        code = compile("\n".join(self._lines), f"<{filename}>", "exec")
        exec(code, self._namespace)  # noqa: S102
        return cast("Callable[..., object]", self._namespace["generated"])
