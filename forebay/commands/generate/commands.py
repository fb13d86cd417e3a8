"""`forebay generate …`."""

import enum
from typing import Annotated

import typer

generate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write files for other programs.")


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@generate.callback()
def _commands() -> None:
    """Keeps the name of a command even while there is one alone."""


@generate.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the completion script of a shell. It completes commands, and names of topics and groups.

    bash: eval "$(forebay generate completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, behind compinit.
    fish: forebay generate completion fish > ~/.config/fish/completions/forebay.fish
    """
    from forebay.commands.generate.completion import SCRIPTS

    typer.echo(SCRIPTS[shell], nl=False)
