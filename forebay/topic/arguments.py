"""What several commands of `forebay topic` take."""

from typing import Annotated

import typer

from forebay.kafka_client.completion import topic_names

Name = Annotated[
    str, typer.Argument(help="The topic's name; behind -- if it begins with a dash.", metavar="TOPIC", autocompletion=topic_names)
]
