"""Names and values that somebody else chose, where a terminal would obey them: control characters are shown instead."""

import re
from typing import Final

import typer

# C0, DEL, C1, marks that turn the direction of writing, and bytes of an argument that are no text.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]")
_UNSEEN_IN_JSON: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""One line that stays one, written as Python would write it: `\x1b`, `\n`."""
    return _UNSEEN.sub(_shown, text)


def printable_record(written: bytes) -> bytes:
    r"""For a terminal: lines and tabs stay, what else would steer it becomes `\x1b`, and so does what is no UTF-8 text."""
    return _OBEYED.sub(_shown, written.decode(errors="surrogateescape")).encode()


def printable_json(document: str) -> str:
    """The same document. JSON lets characters stand for themselves that terminals obey."""
    return _UNSEEN_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def check_name(given: str | None) -> str | None:
    """For arguments and options that are names. Raise `BadParameter` for what no cluster has; the library would end the process."""
    if given is None:
        return None
    if not given:
        raise typer.BadParameter("a name is not empty")
    return check_text(given)


def check_names(given: list[str]) -> list[str]:
    for one in given:
        check_name(one)
    return given


def check_text(given: str, *, option: str = "") -> str:
    """Raise `BadParameter` for bytes that are no UTF-8 text."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f'{option} "{printable(given)}" is not UTF-8 text'.lstrip()) from error
    return given


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()
