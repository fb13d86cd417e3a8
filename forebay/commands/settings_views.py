"""Settings for people and programs: a table, JSON, a commented file."""

from itertools import groupby

import msgspec

from process.settings.keys import SETTINGS
from process.settings.loading import Loaded


def as_table(loaded: Loaded, *, with_origin: bool) -> str:
    rows = [(key, setting.show(loaded.settings) or "-", loaded.origins[key] if with_origin else "") for key, setting in SETTINGS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def as_json(loaded: Loaded, *, with_origin: bool) -> str:
    """Values as they would be written in a file; null for one that is not set."""
    values = {key: setting.show(loaded.settings) or None for key, setting in SETTINGS.items()}
    if with_origin:
        document: object = {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}
    else:
        document = values
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def as_template() -> str:
    """A forebay.yaml that changes nothing: every setting is commented out, with its default as the value."""
    lines = ["# Settings of a Forebay broker. Stronger: FOREBAY_SECTION__NAME in the environment, then --set section.name=value."]
    for section, settings in groupby(SETTINGS.values(), key=lambda setting: setting.key.partition(".")[0]):
        lines += ["", f"{section}:"]
        for setting in settings:
            name = setting.key.partition(".")[2]
            written = setting.notation.show(setting.default)
            note = "" if setting.default_text() == written else f" (default: {setting.default_text()})"
            lines += [f"  # {setting.description}{note}", f"  # {name}: {written}".rstrip()]
    return "\n".join(lines)
