"""Oxia and versitygw as programs. Each is built once by Go, from the versions and checksums in go/NAME/go.mod and go.sum, and kept.

The name of a kept program says what it was built from, so another version never passes for it. Two builds at once: one waits.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock
from services.lock import only_one

BUILD_WITHIN_S: Final = 1800.0
_FLAGS: Final = ("-mod=readonly", "-trimpath", "-buildvcs=false")
_MODULES: Final = Path(__file__).parent / "go"
_LAST_LINES: Final = 10

_clock = SystemClock()


class BuildError(Exception):
    """A program cannot be built. `str()` is one line that says what and how to fix it, then what Go said, if it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One place of a source file of the module (`path` in it): `before` is there once, and is built as `after`."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`name` is also that of its folder under go/; `takes` is how long a build from nothing takes, for people."""

    name: str
    module: str
    package: str
    takes: str
    fixes: tuple[Fix, ...] = ()

    @property
    def folder(self) -> Path:
        return _MODULES / self.name

    @property
    def version(self) -> str:
        """`1.8.0`: the one that go.mod requires."""
        text = (self.folder / "go.mod").read_text()
        found = re.search(rf"^require {re.escape(self.module)} v(\S+)$", text, re.MULTILINE)
        assert found, f"{self.folder}/go.mod does not require {self.module}"
        return found[1]

    @property
    def file_name(self) -> str:
        """Version and a digest of all it is made of: versions, checksums, flags, kind of machine."""
        digest = hashlib.sha256()
        for part in ("go.mod", "go.sum"):
            digest.update((self.folder / part).read_bytes())
        fixed = [part for fix in self.fixes for part in (fix.path, fix.before, fix.after)]
        digest.update("\0".join((*_FLAGS, *fixed, sys.platform, platform.machine())).encode())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:8]}"


_APPEND: Final = "server/leader_controller.go"
OXIA: Final = Program(
    name="oxia",
    module="github.com/oxia-db/oxia",
    package="github.com/oxia-db/oxia/cmd",
    takes="about 3 minutes",
    # A write takes its place in the shard's log and goes there in one step, as 0.14.2 (docs/internals/adr/0008-oxia-on-one-processor.md).
    fixes=(
        Fix(path=_APPEND, before="type leaderController struct {\n", after="type leaderController struct {\n\tappending sync.Mutex\n"),
        Fix(
            path=_APPEND,
            before="\ttimer := lc.writeLatencyHisto.Timer()\n\tlc.Lock()\n",
            after="\ttimer := lc.writeLatencyHisto.Timer()\n\tlc.appending.Lock()\n\tdefer lc.appending.Unlock()\n\tlc.Lock()\n",
        ),
    ),
)
VERSITYGW: Final = Program(
    name="versitygw",
    module="github.com/versity/versitygw",
    package="github.com/versity/versitygw/cmd/versitygw",
    takes="about 2 minutes",
)
PROGRAMS: Final = (OXIA, VERSITYGW)


def cache_folder() -> Path:
    """FOREBAY_CACHE, else `forebay` in XDG_CACHE_HOME, else ~/.cache/forebay. Raise `BuildError` where nobody is at home."""
    given = os.environ.get("FOREBAY_CACHE")
    if given:
        return Path(given).absolute()
    elsewhere = os.environ.get("XDG_CACHE_HOME")
    return (Path(elsewhere).absolute() if elsewhere else _home() / ".cache") / "forebay"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise BuildError("This user has no home folder to keep programs in (HOME is not set). Name a folder in FOREBAY_CACHE.") from error


def built(program: Program, *, cache: Path | None = None) -> Path:
    """The program's file, built now if it is not there yet (minutes; a line on stderr says so). Raise `BuildError`."""
    folder = cache or cache_folder()
    target = folder / "bin" / program.file_name
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise BuildError(
            f"{program.name} {program.version} has to be built and there is no `go` on the PATH. "
            "Install Go 1.26 or newer (https://go.dev/dl), or let tests use containers: FOREBAY_TEST_SERVICES=containers."
        )
    try:
        with only_one(target.with_name(f".{target.name}.lock"), what=f"building {program.name}", within_s=BUILD_WITHIN_S):
            if not target.exists():
                _build(go, program, target, folder / "go")
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"{program.name} cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE.") from error
    return target


def _build(go: str, program: Program, target: Path, home: Path) -> None:
    """`home` is for what Go keeps where there is no HOME."""
    sys.stderr.write(f"building {program.name} {program.version} ({program.takes}, once)\n")
    started_s = _clock.monotonic_s()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        fresh = Path(folder) / program.name
        fixed = _with_fixes(go, program, Path(folder), home) if program.fixes else ()
        _run(program, [go, "build", *_FLAGS, *fixed, "-o", str(fresh), program.package], home)
        os.replace(fresh, target)
    sys.stderr.write(f"built {target} in {_clock.monotonic_s() - started_s:.0f} s\n")


def _with_fixes(go: str, program: Program, folder: Path, home: Path) -> tuple[str, ...]:
    """The flag that has Go build a fixed copy of the module, made in `folder`, in its place."""
    downloaded = json.loads(_run(program, [go, "mod", "download", "-json", f"{program.module}@v{program.version}"], home))
    copy = folder / "fixed"
    shutil.copytree(downloaded["Dir"], copy, copy_function=shutil.copyfile)
    for fix in program.fixes:
        path = copy / fix.path
        text = path.read_text()
        if text.count(fix.before) != 1:
            raise BuildError(f"{program.name} {program.version} is not as its fix in services/build.py expects it: {fix.path}")
        path.write_text(text.replace(fix.before, fix.after))
    (folder / "go.mod").write_text(f"{(program.folder / 'go.mod').read_text()}\nreplace {program.module} => {copy}\n")
    shutil.copyfile(program.folder / "go.sum", folder / "go.sum")
    return (f"-modfile={folder / 'go.mod'}",)


def _run(program: Program, command: list[str], home: Path) -> str:
    """What it prints. Raise `BuildError`."""
    try:
        done = subprocess.run(
            command,
            cwd=program.folder,
            env={"HOME": str(home)} | os.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"building {program.name} {program.version} did not end within {BUILD_WITHIN_S:.0f} s.") from error
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        raise BuildError(f"building {program.name} {program.version} failed. Go 1.26 and a module proxy are needed. Go said:\n{said}")
    return done.stdout
