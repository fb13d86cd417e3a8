"""Time in these tests is that of their loop, which jumps to the next timer: no session ends because a machine is busy."""

from sim.loop import VirtualLoop


def pytest_asyncio_loop_factories() -> dict[str, type[VirtualLoop]]:
    return {"virtual": VirtualLoop}
