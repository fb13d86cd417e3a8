"""Branches that no seed can take, each with the reason. `python -m sim coverage` says which names are outdated."""

from collections.abc import Mapping
from typing import Final

UNREACHABLE: Final[Mapping[str, str]] = {}
