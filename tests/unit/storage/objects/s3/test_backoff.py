import asyncio
import random

from sim.loop import VirtualClock, VirtualLoop
from storage.objects.s3.object_store import PAUSE_FIRST_S, Backoff

PAUSE_S_MAX = 3.0


def pauses(*, timeout_s: float, tries_max: int, seed: int = 1) -> list[float]:
    async def main() -> list[float]:
        clock = VirtualClock(asyncio.get_running_loop())
        backoff = Backoff(
            clock=clock,
            chance=random.Random(seed),
            timeout_s=timeout_s,
            tries_max=tries_max,
            pause_s_max=PAUSE_S_MAX,
            signed_with=None,
        )
        found = []
        while True:
            began_s = clock.monotonic_s()
            if not await backoff.pause():
                return found
            found.append(clock.monotonic_s() - began_s)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_pauses_grow_and_are_bounded_and_so_is_their_number() -> None:
    found = pauses(timeout_s=1_000, tries_max=20)

    assert len(found) == 19
    assert all(pause_s <= min(PAUSE_S_MAX, PAUSE_FIRST_S * 2 ** (number + 1)) + 1e-6 for number, pause_s in enumerate(found))
    assert max(found) > PAUSE_S_MAX / 2


def test_the_timeout_ends_before_a_pause_that_would_outlast_it() -> None:
    for seed in range(50):
        assert sum(pauses(timeout_s=2.0, tries_max=1_000, seed=seed)) < 2.0


def test_callers_who_were_refused_together_come_back_apart() -> None:
    assert len({round(pauses(timeout_s=10, tries_max=2, seed=seed)[0], 6) for seed in range(20)}) == 20
