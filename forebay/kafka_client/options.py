"""The options that every command of a Kafka client has, and what it prints: data on stdout, talk on stderr."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.kafka_client.durations import parse_duration_ms
from forebay.kafka_client.text import check_text, printable, printable_json

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from forebay.kafka_client.connection import ClusterConnection

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_TIMEOUT: Final = "10s"
OTHER_NAMES: Final = "ls is another name of list, rm of delete."
DURATION_MAX_S: Final = 10 * 365 * 86_400


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
        """What `quiet` does not silence."""
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
