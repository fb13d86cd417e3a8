"""The control record of one partition as this broker has last seen it. It only ever moves to newer versions; all of it can be lost."""

from typing import Final

from storage.errors import StorageError
from storage.formats.control import Control, LogState

NEVER_S: Final = float("-inf")
AGE_S_MAX: Final = 1.0
"""How old the last question about a control record may be where an answer below the known end rests on it (promise 5)."""


class SeenControl:
    """Written by its methods alone (tests/architecture/test_one_writer.py); read where each call would cost, so it has plain attributes.

    `control` is None until read, or after the partition was seen gone. `version` outlives it: it is the newest that was ever seen.
    `broken` says why the record, though there, could not be read (`Corrupt`, `IncompatibleFormat`).
    `foreign_version` is the version of the last record that was read rather than committed here.
    `asked_s` is when the last read or commit began that found `control` to be the newest record, by the clock of the loop.
    `hinted_version` is the newest version that a hint named. `_hinted_s` is when the last hint came that named none, and that no later
    read has explained.
    """

    __slots__ = ("_hinted_s", "_was_absent", "asked_s", "broken", "control", "foreign_version", "hinted_version", "version")

    def __init__(self, version: int = -1) -> None:
        self.control: Control | None = None
        self.version = version
        self.broken: StorageError | None = None
        self.foreign_version = -1
        self.asked_s = NEVER_S
        self.hinted_version = -1
        self._hinted_s: float | None = None
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

    @property
    def is_hinted(self) -> bool:
        """A hint tells of a change that is not known: another broker's, or one of this broker whose answer is on its way."""
        return self.hinted_version > self.version or self._hinted_s is not None

    def may_be_old(self, now_s: float) -> bool:
        """Whether others may have changed the record, and been answered, more than AGE_S_MAX ago, or are said to have changed it."""
        return now_s - self.asked_s > AGE_S_MAX or self.is_hinted

    def advance(self, control: Control, version: int, asked_s: float = NEVER_S) -> None:
        """Take over a record that this broker has just committed, by a write that began at `asked_s`."""
        assert version > self.version, f"control went back: {self.version} -> {version}"
        self.control, self.version = control, version
        self.confirm(version, asked_s)

    def is_news(self, version: int) -> bool:
        """Whether `observe` would take over a record of this version: most reads find what is known, and need not decode it.

        One that is older than what is known is ignored, so that reads never go back (promise 5). The same version is news after
        `observe_absent`: a deposed leader of the shard may have answered that, from before the creation.
        """
        return version > self.version or (version == self.version and self.control is None)

    def confirm(self, version: int, asked_s: float) -> None:
        """A read or commit that began at `asked_s` found, or made, a record of this version. An older one than is known says nothing: a
        deposed leader gave it.
        """
        if version == self.version and self.control is not None:
            self.asked_s = max(self.asked_s, asked_s)
            if self._hinted_s is not None and asked_s > self._hinted_s:
                self._hinted_s = None

    def observe(self, control: Control, version: int, asked_s: float = NEVER_S) -> bool:
        """Take over a record that a read found which began at `asked_s`, if it is news, and say whether it was."""
        is_news = self.is_news(version)
        if is_news:
            self.control, self.version, self.broken = control, version, None
            self.foreign_version = version
        self.confirm(version, asked_s)
        return is_news

    def observe_broken(self, error: StorageError) -> None:
        """The record is there and cannot be read."""
        self.broken = error

    def observe_absent(self) -> bool:
        """The record does not exist, or did not when a deposed leader of its shard last heard. True if one was known."""
        self._was_absent = True
        was_known, self.control = self.control is not None, None
        return was_known

    def note_hint(self, version: int | None, now_s: float) -> None:
        """The control record is said to have changed to that version; None: to one that the hint does not name, or to none at all."""
        if version is None:
            self._hinted_s = now_s
        else:
            self.hinted_version = max(self.hinted_version, version)
