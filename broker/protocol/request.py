"""One request as the handlers see it: header facts and a decoded body."""

from typing import Generic, TypeVar

import msgspec

B = TypeVar("B", covariant=True)


class Request(msgspec.Struct, Generic[B], frozen=True):
    """`body` is the values class that `codec` chooses for this API and version (docstring there)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: B
