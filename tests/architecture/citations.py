"""What comments and pages refer to, and which of it is not there. Pure, but for reading the pages that define things."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

_PATH: Final = re.compile(r"(?<![\w/.-])docs/[A-Za-z0-9_./-]*[A-Za-z0-9_](?:#[A-Za-z0-9-]+)?")
_LINK: Final = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)")
_INVARIANT: Final = re.compile(r"(?<![\w`/-])I(\d{1,2})\b(?:( to | and |-)I(\d{1,2})\b)?")
_PROMISE: Final = re.compile(r"\b[Pp]romises? (\d+)\b")
_ADR: Final = re.compile(r"\bADRs?[ -](\d+)\b(?:(?:,| and) (\d+)\b)?")
_VARIANT: Final = re.compile(
    r"(?<![\w-])(?:F|Forebay|Spill|Page(?=-key-))-[a-z0-9][a-z0-9-]*\*?|(?<=[Mm]odel `)[A-Z][A-Za-z0-9-]*|(?<=`)(?:[ABGR]\d|Bn)(?=`)"
)
_OUTSIDE_DESIGN: Final = re.compile(r"\bDESIGN(?:\.md)? *§|\bDESIGN\.md\b|§ ?\d")
_HEADING: Final = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SOURCE: Final = re.compile(r"`((?:broker|compactor|forebay|model|runtime|sim|storage|tests)/[a-z0-9_./]+)`")
_EXTERNAL: Final = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What may be cited. `adrs`: the file of each number."""

    root: Path
    invariants: Collection[int]
    promises: Collection[int]
    adrs: Mapping[int, str]
    variants: Collection[str]


def anchors_of(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in _HEADING.findall(_FENCED.sub("", page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = found[slug] = found.get(slug, -1) + 1
        anchors.add(f"{slug}-{again}" if again else slug)
    return anchors


def missing(path: Path, text: str, known: Known) -> Iterator[str]:
    """What `text`, that of the file `path`, cites and is not there, each with what is wrong."""
    for cited in _PATH.findall(text):
        if (problem := _missing_path(known.root, known.root, cited)) is not None:
            yield problem
    if path.suffix == ".md":
        yield from (source for source in _SOURCE.findall(text) if not (known.root / source).exists())
        for label, target in _LINK.findall(_FENCED.sub("", text)):
            if target.startswith(_EXTERNAL):
                continue
            if (problem := _missing_path(known.root, path if target.startswith("#") else path.parent, target)) is not None:
                yield problem
            numbers = _ADR.fullmatch(label)
            if numbers is not None and Path(target).name != known.adrs.get(int(numbers[1])):
                yield f"[{label}] leads to {target}"
    for first, joint, last in _INVARIANT.findall(text):
        numbers_named = range(int(first), int(last) + 1) if joint in (" to ", "-") else [int(n) for n in (first, last) if n]
        yield from (f"I{number}" for number in numbers_named if number not in known.invariants)
    for number in _PROMISE.findall(text):
        if int(number) not in known.promises:
            yield f"promise {number}"
    for pair in _ADR.findall(text):
        yield from (f"ADR {number}" for number in pair if number and int(number) not in known.adrs)
    for name in _VARIANT.findall(text):
        if not any(fnmatchcase(variant, name) for variant in known.variants):
            yield f"model variant {name}"
    for name in _OUTSIDE_DESIGN.findall(text):
        yield f"{name!r} (name the page and the section in docs/internals/design)"


def _missing_path(root: Path, base: Path, cited: str) -> str | None:
    name, _, anchor = cited.partition("#")
    place = base / name if name else base
    if not place.exists():
        if re.fullmatch(r"docs/internals/adr/\d{4}", name) and list((root / "docs/internals/adr").glob(f"{Path(name).name}-*.md")):
            return None
        return cited
    if anchor and anchor not in anchors_of(place.read_text()):
        return cited
    return None
