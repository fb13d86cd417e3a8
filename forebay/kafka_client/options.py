"""Options and arguments that several commands take, and what they print with: data on stdout, talk on stderr.

Shells complete names of topics and groups by it. `--help` reads this file, so it imports the standard library and Typer alone.
"""

import enum
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.kafka_client.failures import ClientFailed, errors_explained
from forebay.kafka_client.text import check_name, check_names, check_text, printable, printable_json

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from forebay.kafka_client.connection import ClusterConnection
    from process.settings.loading import Loaded

MILLISECONDS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
MILLISECONDS_MAX: Final = 2**53

_NUMBER_AND_UNIT: Final = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)([a-zA-Z]*)", re.ASCII)
_ISO_8601: Final = re.compile(
    r"P(?=.)(?:(\d{1,9})D)?(?:T(?=.)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?", re.ASCII | re.IGNORECASE
)
DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_TIMEOUT: Final = "10s"
OTHER_NAMES: Final = "ls is another name of list, rm of delete."
DURATION_MAX_S: Final = 10 * 365 * 86_400
PARTITIONS_MAX: Final = 10_000
"""What brokers create at once, Forebay's (storage/catalog/topics.py) and Apache Kafka's."""
COMPLETION_WITHIN_S: Final = 1.0
"""Longer than this, nobody waits for a completion."""
OFFERED_MAX: Final = 500

_HARMLESS: Final = re.compile(r"[\w.][\w.@%+=:,/-]*")
"""Anybody may name a group `$(reboot)`, and a shell that put this into a line would run it."""


def parse_duration_ms(text: str) -> int:
    """Raise ValueError with a phrase for what is no duration."""
    if iso := _ISO_8601.fullmatch(text):
        parts = zip(("d", "h", "m", "s"), iso.groups(), strict=True)
        return _whole(sum((Fraction(number) * MILLISECONDS[unit] for unit, number in parts if number is not None), Fraction(0)))
    plain = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if plain is None:
        raise ValueError("is not a duration: write for example 250ms, 5s or 10m")
    number, unit = plain.groups()
    if not unit and Fraction(number) != 0:
        raise ValueError(f"needs a unit: write for example {number}ms or {number}s")
    if unit and unit not in MILLISECONDS:
        raise ValueError(f"has an unknown unit {unit!r}: use {', '.join(reversed(MILLISECONDS))}")
    return _whole(Fraction(number) * MILLISECONDS[unit or "ms"])


def _whole(milliseconds: Fraction) -> int:
    if milliseconds % 1:
        raise ValueError("is finer than a millisecond")
    if abs(milliseconds) > MILLISECONDS_MAX:
        raise ValueError("is longer than any clock runs")
    return int(milliseconds)


class Output(enum.StrEnum):
    TABLE = "table"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="FOREBAY_BOOTSTRAP", help="Ask these brokers first; separate several with commas.", metavar="HOST:PORT"
    ),
]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="Write data to stdout in this form.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Write only errors to stderr.")]
Timeout = Annotated[str, typer.Option("--timeout", help="Wait this long for brokers, e.g. 500ms or 60s.", metavar="DURATION")]


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command writes."""

    output: Output = Output.TABLE
    quiet: bool = False

    def say(self, line: str) -> None:
        if not self.quiet:
            typer.echo(printable(line), err=True)

    def warn(self, line: str) -> None:
        """Say what `quiet` does not silence."""
        typer.echo(printable(line), err=True)

    def show(self, data: object, table: str) -> None:
        """Data as JSON, or as the table given."""
        if self.output is Output.TABLE:
            typer.echo(table)
        self.show_json(data)

    def show_json(self, data: object) -> None:
        """Nothing unless JSON is wanted: what `say` says is enough for people."""
        if self.output is Output.JSON:
            import msgspec

            typer.echo(printable_json(msgspec.json.format(msgspec.json.encode(data), indent=2).decode()))


def load_settings(file: Path | None, assignments: list[str] | None) -> "Loaded":
    """The settings of a broker that starts here. Raise `typer.Exit` when lines on stderr have said what is wrong with them."""
    from process.settings.loading import load

    with errors_explained():
        return load(file=file, environ=os.environ, assignments=assignments or ())


def open_connection(bootstrap: str, timeout: str) -> "tuple[ClusterConnection, AdminClient]":
    """Raise `BadParameter`, or `ClientFailed` if there is no way to the brokers."""
    from forebay.kafka_client.connection import connect

    connection = connect(bootstrap, timeout_s=seconds(timeout))
    return connection, connection.admin()


def seconds(text: str, *, option: str = "--timeout") -> float:
    """Raise `BadParameter` for what is no duration, or no time at all."""
    try:
        given_ms = parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f'{option} "{text}" {error}') from error
    if given_ms <= 0:
        raise typer.BadParameter(f'{option} "{text}" must be longer than nothing')
    if given_ms > DURATION_MAX_S * 1_000:
        raise typer.BadParameter(f'{option} "{text}" is longer than ten years')
    return given_ms / 1_000


def pairs(given: list[str] | None, *, option: str, example: str) -> dict[str, str]:
    """`name=value`, each once. Raise `BadParameter` for anything else."""
    found: dict[str, str] = {}
    for one in given or ():
        name, separator, value = check_text(one, option=option).partition("=")
        if not separator or not name:
            raise typer.BadParameter(f'{option} "{one}": write NAME=VALUE, for example {option} {example}')
        if name in found:
            raise typer.BadParameter(f"{option} {name} is given twice")
        found[name] = value
    return found


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    return _offered(context, incomplete, lambda connection, admin: connection.metadata(admin).topics)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    return _offered(context, incomplete, _groups)


def _groups(connection: "ClusterConnection", admin: "AdminClient") -> Iterable[str]:
    from forebay.commands.group.administration import read_groups

    return [group.name for group in read_groups(connection, admin).groups]


def _offered(context: typer.Context, incomplete: str, names: "Callable[[ClusterConnection, AdminClient], Iterable[str]]") -> list[str]:
    from forebay.kafka_client.connection import connect

    try:
        connection = connect(context.params.get("bootstrap") or DEFAULT_BOOTSTRAP, timeout_s=COMPLETION_WITHIN_S)
        found = names(connection, connection.admin())
    except ClientFailed:
        return []
    return sorted(name for name in found if name.startswith(incomplete) and _HARMLESS.fullmatch(name))[:OFFERED_MAX]


TopicNameArgument = Annotated[
    str,
    typer.Argument(
        help="The topic's name; put -- before a name that begins with a dash.",
        metavar="TOPIC",
        autocompletion=topic_names,
        callback=check_name,
    ),
]

Configs = Annotated[list[str] | None, typer.Option("--config", "-c", help="Set this config of the topic; repeatable.", metavar="KEY=VALUE")]

ReplicationFactor = Annotated[
    int | None,
    typer.Option("--replication-factor", "-r", min=1, max=10_000, help="Ask Apache Kafka for this many replicas; Forebay needs none."),
]

TopicNamesArgument = Annotated[
    list[str],
    typer.Argument(
        help="The topics' names; put -- before a name that begins with a dash.",
        metavar="TOPIC...",
        autocompletion=topic_names,
        callback=check_names,
    ),
]


def partition_count(given: int | None) -> int | None:
    """For options that create partitions. Raise `BadParameter` for more than brokers create at once."""
    if given is not None and given > PARTITIONS_MAX:
        raise typer.BadParameter(f"{given:,} partitions are too many: brokers create {PARTITIONS_MAX:,} at most")
    return given


GroupNameArgument = Annotated[
    str,
    typer.Argument(
        help="The group's name; put -- before a name that begins with a dash.",
        metavar="GROUP",
        autocompletion=group_names,
        callback=check_name,
    ),
]


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="FOREBAY_CONFIG",
        help="Read settings from this file.  [default: ./forebay.yaml, if it exists]",
        metavar="FILE",
    ),
]
SettingOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set one setting; it overrides file and environment. Repeatable.  [env var: FOREBAY_SECTION__NAME]",
        metavar="KEY=VALUE",
    ),
]
