"""`forebay group …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.commands.group.lag_command import lag
from forebay.commands.group.offset_deletion_command import delete_offsets
from forebay.commands.group.reset_command import reset_offsets
from forebay.kafka_client.failures import EXIT_FAILED, ClientFailed, confirm, exit_if_any, failures_reported, noting_failure
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    OTHER_NAMES,
    Bootstrap,
    GroupNameArgument,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    group_names,
    open_connection,
)
from forebay.kafka_client.text import check_names

if TYPE_CHECKING:
    from forebay.commands.group.administration import GroupFacts

group = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show and change consumer groups and their offsets.", epilog=OTHER_NAMES
)


class State(enum.StrEnum):
    """As brokers write it."""

    STABLE = "Stable"
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    DEAD = "Dead"
    UNKNOWN = "Unknown"


class Type(enum.StrEnum):
    CLASSIC = "Classic"
    CONSUMER = "Consumer"


@group.command("ls", hidden=True)
@group.command("list")
def list_groups(
    state: Annotated[State | None, typer.Option("--state", case_sensitive=False, help="List only groups in this state.")] = None,
    kind: Annotated[Type | None, typer.Option("--type", case_sensitive=False, help="List only groups of this protocol.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the groups by name."""
    with failures_reported():
        from forebay.commands.group.administration import read_groups
        from forebay.commands.group.views import groups_table

        terminal = Terminal(output, quiet)
        found = read_groups(*open_connection(bootstrap, timeout))
        groups = [one for one in found.groups if (state is None or one.state == state) and (kind is None or one.type == kind)]
        if groups or output is Output.JSON:
            terminal.show(groups, groups_table(groups))
        elif not found.failures:
            terminal.say(
                "No group is like that." if found.groups else "There are no groups. Make one: forebay topic consume TOPIC -g GROUP"
            )
        if found.failures:
            raise ClientFailed(f"Groups may be missing: {' '.join(found.failures)}", exit_code=EXIT_FAILED)


@group.command()
def describe(
    name: GroupNameArgument,
    members: Annotated[bool, typer.Option("--members", help="Show only the members, with their ids.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a group's state, coordinator and members. Each member is shown with the partitions that it reads."""
    with failures_reported():
        from forebay.commands.group.administration import look_up_group
        from forebay.commands.group.views import group_table, members_table

        terminal = Terminal(output, quiet)
        found = look_up_group(*open_connection(bootstrap, timeout), name)
        if not members:
            terminal.show(found, group_table(found))
        elif found.members or output is Output.JSON:
            terminal.show(found.members, members_table(found.members))
        else:
            terminal.say(f'Group "{name}" has no members.')


group.command("lag")(lag)
group.command("reset-offsets")(reset_offsets)
group.command("delete-offsets")(delete_offsets)


@group.command("rm", hidden=True)
@group.command("delete")
def delete(
    names: Annotated[
        list[str],
        typer.Argument(
            help="The groups' names; put -- before a name that begins with a dash.",
            metavar="GROUP...",
            autocompletion=group_names,
            callback=check_names,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete groups without members, after asking. Their committed offsets go, too. Groups that cannot be deleted are named."""
    with failures_reported():
        from forebay.commands.group import administration

        terminal = Terminal(output, quiet)
        names = list(dict.fromkeys(names))
        connection, admin = open_connection(bootstrap, timeout)
        failed: dict[str, ClientFailed] = {}
        for name in names:
            with noting_failure(failed, name):
                _refuse_members(administration.look_up_group(connection, admin, name))
        left = [name for name in names if name not in failed]
        if left and not yes:
            what = f"group{'' if len(left) == 1 else 's'} " + ", ".join(f'"{name}"' for name in left)
            confirm(f"Deleting {what}", f"Delete {what} and all committed offsets?")
        deleted = []
        for name in left:
            with noting_failure(failed, name):
                administration.delete(connection, admin, name)
                deleted.append(name)
                terminal.say(f'Deleted group "{name}".')
        if len(names) > 1 and failed:
            terminal.say(f"Deleted {len(deleted)} of {len(names)} groups.")
        failures = [{"name": name, "error": str(failed[name])} for name in names if name in failed]
        terminal.show_json({"deleted": deleted, "failed": failures})
        exit_if_any(failed, of=len(names))


def _refuse_members(found: "GroupFacts") -> None:
    if found.members:
        from forebay.commands.group.administration import member_count

        raise ClientFailed(
            f'Group "{found.name}" cannot be deleted: it has {member_count(len(found.members))} (state {found.state}). '
            f"Stop its consumers first; they are shown by: forebay group describe {found.name}"
        )
