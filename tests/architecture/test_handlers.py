"""What is advertised is served, and by the handler that is named after it."""

import inspect

import pytest

from broker.handlers.table import HANDLERS
from broker.protocol import apis, codec


def test_every_api_that_is_served_has_its_handler_in_the_module_that_the_table_names() -> None:
    for api in apis.APIS:
        if api.key not in (codec.PRODUCE, codec.FETCH):
            assert inspect.iscoroutinefunction(HANDLERS[api.key])
            assert HANDLERS[api.key].__module__ == f"broker.handlers.{api.module}"


@pytest.mark.parametrize("api_key", [codec.PRODUCE, codec.FETCH, 4, -1])
def test_what_is_not_served_by_a_handler_has_none(api_key: int) -> None:
    with pytest.raises(KeyError):
        HANDLERS[api_key]
