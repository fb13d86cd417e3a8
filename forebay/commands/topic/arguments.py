"""What several commands of `forebay topic` take."""

from typing import Annotated

import typer

from forebay.kafka_client.completion import topic_names
from forebay.kafka_client.text import check_name, check_names

TopicNameArgument = Annotated[
    str,
    typer.Argument(
        help="The topic's name; put -- before a name that begins with a dash.",
        metavar="TOPIC",
        autocompletion=topic_names,
        callback=check_name,
    ),
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
