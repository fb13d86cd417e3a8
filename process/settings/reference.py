"""Every setting with its notation, default and description, read off `sections` and `model`: for messages and documents."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Final

from process.settings.model import OF_A_SHARED_STORE, Settings, notations
from process.settings.model import SECTIONS as SECTION_CLASSES
from process.settings.notation import Notation

ENVIRONMENT_PREFIX: Final = "FOREBAY_"
_SECTION_SEPARATOR: Final = "__"
_NEAR: Final = 0.6


@dataclass(frozen=True, slots=True)
class Setting:
    """`key` is `section.name`; `default` is a value of the model, not text."""

    key: str
    notation: Notation
    default: Any
    description: str

    @property
    def variable(self) -> str:
        """The environment variable that gives it."""
        return variable_of(self.key)

    def default_text(self) -> str:
        """What it is when nobody sets it, for people."""
        if self.key == "kafka.advertised_listeners":
            return "the listeners"
        text = self.notation.show(self.default)
        if self.key not in OF_A_SHARED_STORE:
            return text
        return f"{text}; {self.notation.show(OF_A_SHARED_STORE[self.key])} where objects live on another machine"

    def value_in(self, settings: Settings) -> Any:
        section, name = self.key.split(".")
        return getattr(getattr(settings, section), name)

    def show(self, settings: Settings) -> str:
        """Its value as it would be written in a file; empty for one that is not set."""
        return self.notation.show(self.value_in(settings))


def variable_of(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.replace(".", _SECTION_SEPARATOR).upper()


def key_of(variable: str) -> str:
    """The key a variable would set, whether or not there is one of that name."""
    return variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace(_SECTION_SEPARATOR, ".")


def _walk() -> Iterator[Setting]:
    for section, values in SECTION_CLASSES.items():
        for field in fields(values):
            assert field.default is not MISSING, f"{section}.{field.name} has no default"
            notation, description = notations(values)[field.name]
            yield Setting(f"{section}.{field.name}", notation, field.default, description)


SETTINGS: Final = {setting.key: setting for setting in _walk()}
"""In the order of the model."""

SECTIONS: Final = tuple(SECTION_CLASSES)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """What somebody who typed `name` most likely meant."""
    matches = get_close_matches(name, names, n=1, cutoff=_NEAR)
    return matches[0] if matches else None
