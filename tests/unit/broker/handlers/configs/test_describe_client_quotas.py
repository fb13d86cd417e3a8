from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.configs import describe_client_quotas
from tests.unit.broker.handlers.asking import cluster, error_of

EXACT, DEFAULT, ANY = range(3)
Component = tuple[str, int, str | None]


async def ask(*components: Component, version: int = 1, strict: bool = False) -> Any:
    cls: Any = load_request_schema(48, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = tuple(module.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components)
    async with cluster() as broker:
        return await broker.ask(describe_client_quotas.handle, cls(components=asked, strict=strict))


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize("components", [(), (("user", EXACT, "alice"), ("client-id", DEFAULT, None)), (("ip", ANY, None),)])
async def test_there_are_no_quotas(version: int, components: tuple[Component, ...]) -> None:
    answer = await ask(*components, version=version, strict=True)

    assert (error_of(answer), answer.error_message, answer.entries) == (ErrorCode.none, None, ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", ANY, None)], ErrorCode.invalid_request),
        ([("user", ANY, None), ("user", EXACT, "alice")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("user", DEFAULT, "alice")], ErrorCode.invalid_request),
        ([("shoe-size", ANY, None)], ErrorCode.unsupported_version),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(components: list[Component], code: ErrorCode) -> None:
    answer = await ask(*components)

    assert (error_of(answer), answer.entries) == (code, None)
    assert answer.error_message
