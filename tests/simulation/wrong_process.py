"""A wrong broker as a process: `python -m tests.simulation.wrong_process serve …` is `forebay serve …` with the fault that WRONG names."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

from broker.groups.coordinator import Coordinator
from broker.groups.state import GroupError
from forebay.__main__ import main
from storage.log import commit
from storage.log.batch import Appended
from tests.simulation.wrong_brokers import acks_before_the_cas

WRONG: Final = "WRONG_BROKER"
NOTE: Final = "WRONG_BROKER_NOTE"
"""A file that says that the fault has been: a broker that starts again is a good one."""


@contextlib.contextmanager
def acks_and_never_writes() -> Iterator[None]:
    """The first commit is answered when its CAS is sent, which never arrives (I1)."""
    note = Path(os.environ[NOTE])
    if note.exists():
        yield
        return
    original = commit.Committer._write_all

    async def write_all(self: commit.Committer, requests: Any) -> Any:
        if any(requests):
            note.touch()  # noqa: ASYNC240 - before it stops for good
            await asyncio.Event().wait()
        return await original(self, requests)

    with acks_before_the_cas(), mock.patch.object(commit.Committer, "_write_all", write_all):
        yield


@contextlib.contextmanager
def tells_offsets_that_are_too_large() -> Iterator[None]:
    with mock.patch.object(commit, "Appended", lambda offset, log_start: Appended(offset + 1, log_start)):
        yield


@contextlib.contextmanager
def keeps_no_commit_of_a_group() -> Iterator[None]:
    async def commit_nothing(_self: Coordinator, _group: str, _commit: object) -> GroupError:
        return GroupError.NONE

    with mock.patch.object(Coordinator, "commit", commit_nothing):
        yield


FAULTS: Final[Mapping[str, Callable[[], contextlib.AbstractContextManager[None]]]] = {
    fault.__name__: fault for fault in (acks_and_never_writes, tells_offsets_that_are_too_large, keeps_no_commit_of_a_group)
}

if __name__ == "__main__":
    with FAULTS[os.environ[WRONG]]():
        main()
