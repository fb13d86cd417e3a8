"""The control record of one partition as this broker has last seen it. It only ever moves to newer versions; all of it can be lost."""

from typing import Final

from storage.errors import StorageError
from storage.formats.control import Control, LogState

OWED_HINTS_MAX: Final = 4


class SeenControl:
    """Written by its methods alone (tests/architecture/test_one_writer.py); read where each call would cost, so it has plain attributes.

    `control` is None until read, or after the partition was seen gone. `version` outlives it: it is the newest that was ever seen.
    `broken` says why the record, though there, could not be read (`Corrupt`, `IncompatibleFormat`).
    `foreign_version` is the version of the last record that was read rather than committed here.
    `unexplained_hints` counts hints that the control record changed, less the changes that are known: above 0, somebody else wrote it.
    """

    __slots__ = ("_was_absent", "broken", "control", "foreign_version", "unexplained_hints", "version")

    def __init__(self, version: int = -1) -> None:
        self.control: Control | None = None
        self.version = version
        self.broken: StorageError | None = None
        self.foreign_version = -1
        self.unexplained_hints = 0
        self._was_absent = False

    @property
    def is_gone(self) -> bool:
        """The partition was there, as far as anybody asked, and is not any more."""
        control = self.control
        return control.log_state is LogState.DELETED if control is not None else self._was_absent

    @property
    def is_behind(self) -> bool:
        """Nothing as new as what was known before the log was forgotten has been read yet."""
        return self.control is None and self.version >= 0 and not self._was_absent

    @property
    def high_watermark(self) -> int:
        """As last seen; -1 if never."""
        return -1 if self.control is None else self.control.sequence_counter

    def advance(self, control: Control, version: int) -> None:
        """Take over a record that this broker has just committed."""
        assert version > self.version, f"control went back: {self.version} -> {version}"
        self.control, self.version = control, version

    def is_news(self, version: int) -> bool:
        """Whether `observe` would take over a record of this version: most reads find what is known, and need not decode it.

        One that is older than what is known is ignored, so that reads never go back (promise 5). The same version is news after
        `observe_absent`: a deposed leader of the shard may have answered that, from before the creation.
        """
        return version > self.version or (version == self.version and self.control is None)

    def find(self, version: int) -> bool:
        """A read that began after all hints so far found a record of this version. True if it is news, which is for `observe`; otherwise
        what was hinted is known.
        """
        if self.is_news(version):
            return True
        self.unexplained_hints = 0
        return False

    def observe(self, control: Control, version: int) -> bool:
        """Take over a record that was read, if it is news, and say whether it was."""
        if not self.is_news(version):
            return False
        self.control, self.version, self.broken = control, version, None
        self.foreign_version = version
        return True

    def observe_broken(self, error: StorageError) -> None:
        """The record is there and cannot be read."""
        self.broken = error

    def observe_absent(self) -> bool:
        """The record does not exist, or did not when a deposed leader of its shard last heard. True if one was known."""
        self._was_absent = True
        self.unexplained_hints = 0
        was_known, self.control = self.control is not None, None
        return was_known

    def note_hint(self) -> None:
        """Somebody wrote the control record, perhaps this broker."""
        self.unexplained_hints += 1

    def explain_hint(self) -> None:
        """This broker wrote it. The hint may come before or after, or never: so few are owed at a time."""
        self.unexplained_hints = max(self.unexplained_hints - 1, -OWED_HINTS_MAX)

    def explain_hints(self, count: int) -> None:
        """So many were heard before the read began whose record is taken over now. Others may have come since."""
        self.unexplained_hints -= count
