"""Buffers that are counted for as long as they exist: from allocation until the last view of them is gone, whoever holds it.

A frame is in one account at a time. It leaves the account by itself when it dies, in whatever thread the last view of it is dropped (stores
send bytes from threads of their own), so an account learns of it in the middle of anything: it only counts, and calls back later.
"""

import ctypes
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

Soon = Callable[[Callable[[], None]], object]
"""Calls back on the event loop, from any thread, as `call_soon_threadsafe` does."""

FRAME_OVERHEAD_BYTES: Final = 3 * 1024
"""Counted on top of a frame's bytes for the objects that stand for it while it is worked on: 3.0 KB for a Produce request of one batch."""


MAPPED_FROM_BYTES: Final = 16 * 1024 * 1024
"""Larger frames come straight from the kernel, which clears their pages one at a time as they fill. To clear 100 MiB at once took 37 to 97
ms of one turn of the loop on an idle machine and 320 ms on a busy one. Smaller ones are faster from the heap, whose pages are there."""

_resize: Final[Callable[[bytearray, int], int]] = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_ssize_t)(
    ("PyByteArray_Resize", ctypes.pythonapi)
)


class Account:
    """What is held, here and in the `whole` that it is a part of. `held_bytes` may change in any thread: no call is between reading and
    writing it, where threads might be switched.
    """

    __slots__ = ("coming_bytes", "held_bytes", "is_watched", "whole")

    def __init__(self, whole: "Account | None" = None) -> None:
        self.whole = whole
        self.held_bytes = 0
        self.coming_bytes = 0
        """Bytes set aside for frames that are to grow. Changed by the event loop alone."""
        self.is_watched = False
        """`on_less` is called whenever a frame has left; of a part, that of its whole."""

    def change(self, by_bytes: int) -> None:
        """More is held, or less."""
        self.held_bytes += by_bytes
        whole = self.whole
        if whole is not None:
            whole.held_bytes += by_bytes
        else:
            whole = self
        if by_bytes < 0 and whole.is_watched:
            whole.on_less()

    def set_aside(self, by_bytes: int) -> None:
        """Set more aside, or less."""
        self.coming_bytes += by_bytes
        if self.whole is not None:
            self.whole.coming_bytes += by_bytes

    @property
    def claimed_bytes(self) -> int:
        """Bytes that are held, or set aside."""
        return self.held_bytes + self.coming_bytes

    def on_less(self) -> None:
        """Called from any thread and from within anything: may do no more than ask the event loop for a call."""


class Frame:
    """A buffer in an account. Made by `make_frame` alone. Of its views, and of what it says of itself, only the bytes may change."""

    if not TYPE_CHECKING:
        __slots__ = ()  # in those that are made

    account: Account
    runs: int
    """In how many places the account that has taken it over keeps it; of no meaning to others."""

    if TYPE_CHECKING:

        def __len__(self) -> int: ...

        def __buffer__(self, flags: int, /) -> memoryview: ...

    @property
    def cost_bytes(self) -> int:
        return len(self) + FRAME_OVERHEAD_BYTES

    def move_to(self, account: Account) -> None:
        """From now on it counts there."""
        before, cost_bytes = self.account, self.cost_bytes
        account.change(cost_bytes)
        self.account = account
        before.change(-cost_bytes)

    def __del__(self) -> None:
        account = getattr(self, "account", None)
        if account is None:
            return  # there was no memory for it
        cost_bytes = len(self) + FRAME_OVERHEAD_BYTES
        account.held_bytes -= cost_bytes
        whole = account.whole
        if whole is not None:
            whole.held_bytes -= cost_bytes
            account = whole
        if account.is_watched:
            account.on_less()


class HeapFrame(Frame, bytearray):
    __slots__ = ("account", "runs")


class MappedFrame(Frame, mmap.mmap):
    """Holds zeros. Memory is taken for a page when something is first written there."""

    __slots__ = ("account", "runs")


def make_frame(content: memoryview | bytearray | int, account: Account) -> Frame:
    """Make a frame of these bytes, or of that number of bytes. The caller knows whether there is room for it.

    Where a number is asked for, whatever was in that memory before is there until it is written over. Raises MemoryError.
    """
    frame = _of_size(content) if isinstance(content, int) else HeapFrame(content)
    frame.account = account
    cost_bytes = len(frame) + FRAME_OVERHEAD_BYTES
    account.held_bytes += cost_bytes
    whole = account.whole
    if whole is not None:
        whole.held_bytes += cost_bytes
    return frame


def _of_size(size_bytes: int) -> Frame:
    if size_bytes <= MAPPED_FROM_BYTES:
        # `bytearray(n)` writes n zeros, all of which would be written over.
        frame = HeapFrame()
        _resize(frame, size_bytes)
        return frame
    try:
        return MappedFrame(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a request of {size_bytes} bytes") from error
