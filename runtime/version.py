"""The version of the installed package."""

from importlib.metadata import version
from typing import Final

PACKAGE: Final = "forebay"


def forebay_version() -> str:
    return version(PACKAGE)
