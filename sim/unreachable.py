"""Branches that no seed can take, each with the reason and what takes it instead. `python -m sim coverage` says which names are outdated."""

from collections.abc import Mapping
from typing import Final

_BROKEN: Final = "nobody writes records that cannot be read: test_read.py, test_an_undecodable_control_record_…"
_FENCED: Final = "nothing fences a log yet: test_decide.py, test_trim.py"
_STOP: Final = "a broker of the simulation is killed, never stopped in order: test_commit.py, test_draining_… and test_a_stopped_appender_…"
_EXPIRY: Final = "a run is shorter than the expiration of producers: test_producer_pages.py"
_FULL: Final = "takes as many pages as a partition may have: test_producer_pages.py, test_a_partition_that_is_full_…"
_GUARD: Final = "says that code and format agree; if not, the log is damaged: "

UNREACHABLE: Final[Mapping[str, str]] = {
