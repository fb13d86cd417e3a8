"""What several commands of `forebay group` take."""

from typing import Annotated

import typer

from forebay.kafka_client.completion import group_names
from forebay.kafka_client.text import check_name

GroupNameArgument = Annotated[
    str,
    typer.Argument(
        help="The group's name; put -- before a name that begins with a dash.",
        metavar="GROUP",
        autocompletion=group_names,
        callback=check_name,
    ),
]
