"""One request as the handlers see it: header facts and a decoded body."""

from dataclasses import dataclass
from typing import Generic, TypeVar

B = TypeVar("B", covariant=True)


@dataclass(frozen=True, slots=True)
class Request(Generic[B]):
    """`body` is the values class that `codec` chooses for this API and version (docstring there)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: B
