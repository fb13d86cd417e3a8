"""The table of docs/reference/deviations.md: every deviation with what both brokers answer."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.compat.second_opinion.deviations import DEVIATIONS, Deviation, explanation
from tests.compat.second_opinion.differences import Difference

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "deviations.md"
BEGIN: Final = "<!-- generated: deviations -->"
END: Final = "<!-- end -->"
_ANSWER_MAX: Final = 60
_EXAMPLES_MAX: Final = 3


def unexplained(found: Iterable[Difference]) -> list[str]:
    """A line for every difference that no deviation explains."""
    return [f"{one.probe}: {one.where}: Apache Kafka {one.kafka}, Forebay {one.forebay}" for one in found if explanation(one) is None]


def stale(found: Iterable[Difference]) -> list[Deviation]:
    """Deviations that are none any more."""
    used = {explanation(one) for one in found}
    return [one for one in DEVIATIONS if one not in used]


def renewed(page: str, found: Sequence[Difference]) -> str:
    """The page with its table as the answers are now."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"no part marked {BEGIN} in the page"
    return f"{before}{BEGIN}\n{_table(found)}\n{END}{after}"


def _table(found: Sequence[Difference]) -> str:
    explained: dict[Deviation, list[Difference]] = {}
    for one in found:
        deviation = explanation(one)
        if deviation is not None:
            explained.setdefault(deviation, []).append(one)
    lines = [
        ("API", "versions", "asked for", "answer's field: Apache Kafka → Forebay", "why"),
        ("---",) * 5,
        *(_row(one, explained[one]) for one in DEVIATIONS if one in explained),
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _row(deviation: Deviation, found: Sequence[Difference]) -> tuple[str, ...]:
    versions = sorted({one.version for one in found})
    titles = dict.fromkeys(one.title for one in found)
    examples: Mapping[str, str] = {one.where: f"`{one.where}`: {_short(one.kafka)} → {_short(one.forebay)}" for one in found}
    shown = list(examples.values())[:_EXAMPLES_MAX]
    more = len(examples) - len(shown)
    asked = "any of its probes" if deviation.titles == ("*",) else "; ".join(titles)
    return (
        deviation.api,
        f"{versions[0]} to {versions[-1]}" if len(versions) > 1 else str(versions[0]),
        asked,
        "<br>".join(shown) + (f"<br>and {more} more fields" if more else ""),
        deviation.reason,
    )


def _short(answer: str) -> str:
    """`answer` is a Python literal."""
    value = ast.literal_eval(answer)
    if isinstance(value, list | dict):
        return f"{len(value)} entries" if value else "empty"
    text = "null" if value is None else str(value)
    return text if len(text) <= _ANSWER_MAX else f"{text[:_ANSWER_MAX]}…"
