"""A port that stays ours while nobody listens on it."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

HOST: Final = "127.0.0.1"


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free port of this machine. Others cannot be assigned it while the block runs; whoever asks for it by number may listen on it, and
    connections are refused while nobody does.
    """
    # A socket that is bound but does not listen: the system lets another one with SO_REUSEADDR bind and listen beside it.
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]
