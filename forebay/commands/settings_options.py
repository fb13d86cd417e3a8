"""Where a command that needs settings takes them from."""

from pathlib import Path
from typing import Annotated

import typer

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
