"""Why a request, or one part of it, is answered with an error."""

from typing import NamedTuple

from kio.schema.errors import ErrorCode


class Refusal(NamedTuple):
    error: ErrorCode
    message: str | None
