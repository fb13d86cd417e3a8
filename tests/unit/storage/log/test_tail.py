"""The tail cache and its runs."""

from runtime.telemetry import Telemetry
from storage.log.batch import Append, Batch
from storage.log.runs import BatchRun
from storage.log.tail import DROPPED_KEPT_MAX, JOIN_BELOW_BYTES, RUN_OVERHEAD_BYTES, Tail, TailCache
from storage.recordbatch import parse_header
from tests.unit.storage.log.batches import batch_bytes


def batch(count: int = 1, payload: bytes = b"x" * 20) -> Batch:
    data = batch_bytes(count, payload=payload)
    return Batch(memoryview(data), Append(None, lambda _: None, [None], 1), 0, -1, -1, -1, count, 0, len(data))


def cache(bytes_max: int = 1 << 20) -> TailCache:
    return TailCache(bytes_max=bytes_max, telemetry=Telemetry())


def test_batches_are_stamped_with_their_offsets() -> None:
    tail, kept = Tail(), cache()
    kept.add(tail, [(batch(2), 10), (batch(3), 12)])

    run = tail.find(11)
    assert run is not None
    assert [parse_header(run.buffer, position).base_offset for position in run.positions] == [10, 12]
    assert (run.base, run.last) == (10, 14)


def test_small_batches_are_joined_and_large_ones_stay_where_they_are() -> None:
    tail, kept = Tail(), cache()
    large = [batch(payload=b"y" * JOIN_BELOW_BYTES) for _ in range(2)]
    kept.add(tail, [(batch(), 0), (batch(), 1)])
    kept.add(tail, [(large[0], 2), (large[1], 3)])

    assert tail.find(0) is tail.find(1)
    assert tail.find(2) is not tail.find(3)
    run = tail.find(2)
    assert run is not None
    assert run.buffer.obj is large[0].view.obj, "no copy"


def test_the_oldest_runs_of_any_partition_make_room() -> None:
    one, other = Tail(), Tail()
    size_bytes = len(batch_bytes()) + RUN_OVERHEAD_BYTES
    kept = cache(bytes_max=3 * size_bytes)
    for n in range(3):
        kept.add(one, [(batch(), n)])
    kept.add(other, [(batch(), 0)])

    assert one.find(0) is None
    assert one.find(1) is not None
    assert other.find(0) is not None
    assert kept.size_bytes <= 3 * size_bytes


def test_offsets_of_other_brokers_commits_are_not_found() -> None:
    tail, kept = Tail(), cache()
    kept.add(tail, [(batch(2), 0)])
    kept.add(tail, [(batch(2), 7)])

    assert tail.find(2) is None
    assert tail.find(6) is None
    assert tail.find(8) is not None
    assert tail.find(9) is None


def test_dropping_goes_on_for_ever() -> None:
    tail = Tail()
    for n in range(10 * DROPPED_KEPT_MAX):
        tail.append(BatchRun(n, n, memoryview(b""), (n,), (0,)))
        if n >= 3:
            tail.drop_oldest()

    assert tail.find(10 * DROPPED_KEPT_MAX - 1) is not None
    assert tail.find(10 * DROPPED_KEPT_MAX - 4) is None


def test_a_run_is_cut_at_whole_batches() -> None:
    run = BatchRun(10, 39, memoryview(bytes(300)), (10, 20, 30), (0, 100, 200))

    assert run.from_offset(15, 300, at_least_one=False) == (run.buffer, 40)
    piece = run.from_offset(10, 299, at_least_one=False)
    assert piece is not None
    assert (len(piece[0]), piece[1]) == (200, 30)
    assert run.from_offset(20, 99, at_least_one=False) is None
    forced = run.from_offset(20, 99, at_least_one=True)
    assert forced is not None
    assert (len(forced[0]), forced[1]) == (100, 30)
    last = run.from_offset(39, 1, at_least_one=True)
    assert last is not None
    assert (len(last[0]), last[1]) == (100, 40)
