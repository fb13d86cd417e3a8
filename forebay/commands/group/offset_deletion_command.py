"""`forebay group delete-offsets`."""

from typing import TYPE_CHECKING, Annotated

import typer

from forebay.kafka_client.failures import ClientFailed, confirm, exit_if_any, failures_reported, noting_failure
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    GroupNameArgument,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    open_connection,
    topic_names,
)
from forebay.kafka_client.text import check_names

if TYPE_CHECKING:
    from forebay.commands.group.resetting import Scope


def delete_offsets(
    name: GroupNameArgument,
    topics: Annotated[
        list[str],
        typer.Argument(
            help="Delete the offsets of these topics, or of some of their partitions.",
            metavar="TOPIC[:0,1]...",
            autocompletion=topic_names,
            callback=check_names,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete committed offsets of a group, after asking. No member of the group may be subscribed to the topics."""
    with failures_reported():
        scopes = [_scope(text) for text in topics]
        from forebay.commands.group import offset_deletion
        from forebay.commands.group.resetting import DeletedOffset
        from forebay.commands.group.views import offsets_table
        from forebay.commands.topic.administration import counted
        from runtime.clock import SystemClock

        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        there, failed = offset_deletion.find_committed(connection, admin, name, scopes)
        for each in failed.values():
            terminal.warn(str(each))
        if there and not yes:
            confirm(
                f'Deleting offsets of group "{name}"',
                f'Delete {counted(len(there), "committed offset")} of group "{name}" ({", ".join(map(offset_deletion.shown, there))})?',
            )
        outcome = offset_deletion.delete_committed(connection, admin, name, there, clock=SystemClock()) if there else {}
        deleted = []
        for at, offset in there.items():
            with noting_failure(failed, offset_deletion.shown(at)):
                failure = outcome.get(at, ClientFailed(f"{offset_deletion.shown(at)}: the coordinator did not say what became of it."))
                if failure is not None:
                    raise failure
                deleted.append(DeletedOffset(topic=at[0], partition=at[1], offset=offset))
        failures = [{"name": where, "error": str(each)} for where, each in failed.items()]
        document = {"group": name, "deleted": deleted, "failed": failures}
        if deleted:
            terminal.show(document, offsets_table(deleted))
            terminal.say(f'Deleted {counted(len(deleted), "committed offset")} of group "{name}".')
        else:
            terminal.show_json(document)
        exit_if_any(failed, of=len(failed) + len(deleted))


def _scope(text: str) -> "Scope":
    from forebay.commands.group.resetting import parse_scope

    try:
        return parse_scope(text)
    except ValueError as error:
        raise typer.BadParameter(f'"{text}" {error}') from error
