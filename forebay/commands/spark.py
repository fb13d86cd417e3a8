"""`forebay spark …`. A job has settings of its own, which it reads itself."""

import os
from typing import Annotated

import typer

spark = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Turn topics into tables, and check and replay them.")

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@spark.command(context_settings=_PASSED_ON)
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The job; without one, they are listed.", metavar="[NAME]")] = "--help",
) -> None:
    """Run a job. `forebay spark run NAME --help` lists its settings."""
    from spark.jobs.named import run_named

    raise typer.Exit(run_named([name, *context.args]))


@spark.command()
def check() -> None:
    """Say which pyspark, Java and jars there are."""
    from spark.errors import SparkUnavailable
    from spark.requirements import found_java, found_pyspark
    from spark.session import kept_jars

    try:
        pyspark, java, jars = found_pyspark(), found_java(), kept_jars()
    except SparkUnavailable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(os.EX_UNAVAILABLE) from error
    typer.echo(f"pyspark  {pyspark.version} in {pyspark.folder}")
    typer.echo(f"java     {java.version}, {java.program}")
    typer.echo(f"jars     {len(jars)} in {jars[0].parent}")
