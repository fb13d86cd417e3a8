"""API key → handler, as broker/protocol/apis.py names its module. Produce and Fetch are not here: their codecs and their handlers are
their own (broker/dispatch.py).

A handler is imported when its API is first asked for: most clients use a dozen of these, and to import all of them, with kio's dataclasses
of their newest versions, takes longer than all the rest of a broker's start.
"""

import importlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.handling.context import Context
from broker.protocol import apis, codec
from broker.protocol.wire import Request

Handler = Callable[[Context, Request[Any]], Awaitable[object]]


class _Handlers(dict[int, Handler]):
    def __missing__(self, api_key: int) -> Handler:
        api = apis.find(api_key)
        if api is None or api_key in (codec.PRODUCE, codec.FETCH):
            raise KeyError(api_key)
        handler: Handler = importlib.import_module(f"broker.handlers.{api.module}").handle
        self[api_key] = handler
        return handler


HANDLERS: Final[dict[int, Handler]] = _Handlers()
