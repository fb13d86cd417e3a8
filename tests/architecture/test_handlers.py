"""What is advertised is served, and by the handler that is named after it."""

from broker.handlers.table import HANDLERS
from broker.protocol import codec, support


def test_every_api_that_is_served_has_its_handler() -> None:
    assert {api.key for api in support.APIS} == {codec.PRODUCE, codec.FETCH, *HANDLERS}


def test_a_handler_is_in_the_module_that_the_table_names() -> None:
    for api in support.APIS:
        if api.key in HANDLERS:
            assert HANDLERS[api.key].__module__ == f"broker.handlers.{api.module}"
