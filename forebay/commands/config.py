"""`forebay config …`: settings are shown as a table or as JSON, checked, or written as a commented file."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.kafka_client.options import ConfigFile, SettingOverrides, load_settings

if TYPE_CHECKING:
    from process.settings.loading import Loaded

config = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and check settings, and write a settings file.")


@config.command()
def show(
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value comes from.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="Write settings as table or json.", metavar="FORMAT")] = "table",
) -> None:
    """Show every setting as a broker started here would use it."""
    views = {"table": as_table, "json": as_json}
    if output not in views:
        raise typer.BadParameter(f"{output} is not an output format: table or json")
    loaded = load_settings(config_file, assignments)
    for line in loaded.advice:
        typer.echo(line, err=True)
    typer.echo(views[output](loaded, with_origin=origin))


@config.command()
def validate(file: Annotated[Path, typer.Argument(help="A settings file.", metavar="FILE")]) -> None:
    """Check a settings file by itself, without the environment."""
    from process.settings.errors import SettingsError
    from process.settings.loading import load_file

    try:
        load_file(file)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from error
    typer.echo(f"{file} is valid")


@config.command()
def init() -> None:
    """Print a forebay.yaml with every setting and its meaning."""
    typer.echo(as_template())


def as_table(loaded: "Loaded", *, with_origin: bool) -> str:
    from process.settings.reference import SETTINGS

    rows = [(key, setting.show(loaded.settings) or "-", loaded.origins[key] if with_origin else "") for key, setting in SETTINGS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def as_json(loaded: "Loaded", *, with_origin: bool) -> str:
    """Values as they would be written in a file; null for one that is not set."""
    import msgspec

    from process.settings.reference import SETTINGS

    values = {key: setting.show(loaded.settings) or None for key, setting in SETTINGS.items()}
    if with_origin:
        document: object = {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}
    else:
        document = values
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def as_template() -> str:
    """A forebay.yaml that changes nothing: every setting is commented out, with its default as the value."""
    from process.settings.reference import SETTINGS

    lines = ["# Settings of a Forebay broker. Stronger: FOREBAY_SECTION__NAME in the environment, then --set section.name=value."]
    for section, settings in groupby(SETTINGS.values(), key=lambda setting: setting.key.partition(".")[0]):
        lines += ["", f"{section}:"]
        for setting in settings:
            name = setting.key.partition(".")[2]
            written = setting.notation.show(setting.default)
            note = "" if setting.default_text() == written else f" (default: {setting.default_text()})"
            lines += [f"  # {setting.description}{note}", f"  # {name}: {written}".rstrip()]
    return "\n".join(lines)
