"""`forebay generate …`: dashboards, rules, a scrape configuration, and what a shell runs to complete a line."""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.kafka_client.failures import failures_reported

if TYPE_CHECKING:
    from process.settings.notation import HttpAddress
    from runtime.telemetry import Metric

PORT_MAX = 65_535
_BASH: Final = r"""_forebay_completion() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" answer typed head
    COMPREPLY=()
    typed="${line##*[[:space:]]}"
    # readline replaces only what follows the last colon or equals sign of a word.
    head="${typed%"${typed##*[:=]}"}"
    for answer in $(_FOREBAY_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null); do
        answer="${answer%%$'\t'*}"
        COMPREPLY+=("${answer#"$head"}")
    done
}
complete -o default -F _forebay_completion forebay
"""
_ZSH: Final = r"""#compdef forebay
_forebay_completion() {
    eval "$(_FOREBAY_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" forebay 2>/dev/null)"
}
compdef _forebay_completion forebay
"""
_FISH: Final = r"""function __forebay_complete
    env _FOREBAY_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] _TYPER_COMPLETE_ARGS=(commandline -cp) forebay 2>/dev/null
end
complete --command forebay --no-files --arguments "(__forebay_complete get-args)" --condition "__forebay_complete is-args"
"""
COMPLETION_SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

generate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write files for other programs.")


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class DashboardName(enum.StrEnum):
    OVERVIEW = "overview"
    WRITE = "write"
    READ = "read"
    CACHE = "cache"
    COMPACTOR = "compactor"
    STORE = "store"
    GROUPS = "groups"
    RUNTIME = "runtime"
    OXIA = "oxia"


@generate.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the completion script of a shell. It completes commands, and names of topics and groups.

    bash: eval "$(forebay generate completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, behind compinit.
    fish: forebay generate completion fish > ~/.config/fish/completions/forebay.fish
    """

    typer.echo(COMPLETION_SCRIPTS[shell], nl=False)


@generate.command()
def grafana(
    name: Annotated[DashboardName | None, typer.Argument(help="The dashboard.", show_default="overview")] = None,
    folder: Annotated[Path | None, typer.Option("--all", help="Write every dashboard to this folder, as NAME.json.", metavar="DIR")] = None,
) -> None:
    """Print a dashboard, to be imported by Grafana 10.1 or newer."""
    with failures_reported():
        from forebay.commands.generate.dashboards import as_grafana, dashboards

        if name is not None and folder is not None:
            raise typer.BadParameter("name a dashboard, or write all of them with --all DIR")
        made = {one: as_grafana(one, dashboard) for one, dashboard in dashboards(_table()).items()}
        if folder is None:
            typer.echo(made[name or DashboardName.OVERVIEW], nl=False)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for one, text in made.items():
            (folder / f"{one}.json").write_text(text, encoding="utf-8")
        typer.echo(f"wrote {len(made)} dashboards to {folder}", err=True)


@generate.command()
def alerts(
    for_: Annotated[
        str | None,
        typer.Option("--for", help="Let every alert wait this long, to try it.", show_default="its own time", metavar="DURATION"),
    ] = None,
) -> None:
    """Print alerts as a rule file of Prometheus."""
    from forebay.commands.generate.rules import alerts, alerts_yaml

    typer.echo(alerts_yaml(alerts(_table()), for_=None if for_ is None else _duration(for_, "--for")), nl=False)


@generate.command()
def recording() -> None:
    """Print recording rules as a rule file of Prometheus."""
    from forebay.commands.generate.rules import recordings, recordings_yaml

    typer.echo(recordings_yaml(recordings(_table())), nl=False)


@generate.command()
def prometheus(
    brokers: Annotated[
        list[str] | None,
        typer.Option("--broker", help="Scrape this broker. Repeatable.", show_default="127.0.0.1:8070", metavar="HOST:PORT"),
    ] = None,
    compactors: Annotated[
        list[str] | None,
        typer.Option(
            "--compactor", help="Scrape this compactor. Repeatable.", show_default="100 ports above each broker", metavar="HOST:PORT"
        ),
    ] = None,
    has_compactors: Annotated[bool, typer.Option("--compactors/--no-compactors", help="Scrape compactors, too.")] = True,
    rules: Annotated[list[str] | None, typer.Option("--rules", help="Load this rule file. Repeatable.", metavar="FILE")] = None,
    interval: Annotated[str, typer.Option(help="Scrape, and look at rules, this often.", metavar="DURATION")] = "15s",
    cluster: Annotated[
        str | None, typer.Option(help="Give all series this label, where one Prometheus has several clusters.", metavar="NAME")
    ] = None,
) -> None:
    """Print a configuration for a Prometheus that scrapes a cluster."""
    from forebay.commands.generate.rules import scrape_yaml
    from forebay.processes.compactor import beside

    asked = [_address(one, "--broker") for one in brokers or ("127.0.0.1:8070",)]
    named = [_address(one, "--compactor") for one in compactors or ()]
    if named and not has_compactors:
        raise typer.BadParameter("--compactor names what --no-compactors leaves out")
    beyond = [str(one) for one in asked if beside(one).port > PORT_MAX]
    if beyond and has_compactors and not named:
        raise typer.BadParameter(
            f"--broker {beyond[0]} has no compactor 100 ports above it: name it with --compactor, or use --no-compactors"
        )
    for text in (*(rules or ()), cluster or ""):
        if not text.isprintable():
            raise typer.BadParameter(f"{text!r} has characters that a configuration cannot have")
    configuration = scrape_yaml(
        brokers=[str(one) for one in asked],
        compactors=[str(one) for one in named or map(beside, asked)] if has_compactors else (),
        interval=_duration(interval, "--interval"),
        rule_files=rules or (),
        cluster=cluster,
    )
    typer.echo(configuration, nl=False)


def _table() -> "Mapping[str, Metric]":
    from forebay.imports import import_without_extras

    import_without_extras()
    from forebay.reference import shown_metrics

    return shown_metrics()


def _duration(text: str, option: str) -> str:
    """The duration as Prometheus writes it."""
    from forebay.kafka_client.options import parse_duration_ms

    try:
        given_ms = parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f'{option} "{text}" {error}') from error
    if given_ms < 0 or (given_ms == 0 and option == "--interval"):
        raise typer.BadParameter(f'{option} "{text}" must be longer than nothing')
    return f"{given_ms // 1_000}s" if given_ms % 1_000 == 0 else f"{given_ms}ms"


def _address(text: str, option: str) -> "HttpAddress":
    from process.settings.notation import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text}: {error}") from error
