"""Which API a file of the code serves: what the watch of the event loop names beside a turn that took long."""

import re
from typing import Final

from broker.protocol import support

_CODEC: Final = re.compile(r"<(?:decoder|encoder) of (\w+)(?:Request|Response) \d+>")
_NAMES: Final = {api.name for api in support.APIS}
_API_OF_FILE: Final = {f"broker/handlers/{api.module.replace('.', '/')}.py": api.name for api in support.APIS} | {
    "broker/handling/validation.py": "Produce",
    "broker/protocol/produce.py": "Produce",
    "broker/protocol/fetch.py": "Fetch",
    "broker/delayed_fetch.py": "Fetch",
}


def api_of_file(filename: str) -> str | None:
    """The API whose handler or codec the file is, named from the root of the repository on; None for any other."""
    codec = _CODEC.fullmatch(filename)
    if codec is not None:
        return codec[1] if codec[1] in _NAMES else None
    return _API_OF_FILE.get(filename)
