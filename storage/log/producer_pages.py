"""Producer states beside the manifest, pure: which stay hot in it, and the pages that hold the rest (ADR 13).

A page is written in the request of the CAS that names it, under a name that no other attempt has, and never changes: what a page says can
be read from anybody, at any age. Which page holds a producer is in the manifest, where every decision is made (I7).
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol

from storage.formats.manifest import Manifest, PageRef, ProducerPage, ProducerState
from storage.limits import (
    COMMIT_BATCHES_MAX,
    PRODUCER_BATCHES_KEPT,
    PRODUCER_KEPT_MS_MIN,
    PRODUCER_PAGES_MAX,
    PRODUCERS_HOT_BYTES_MAX,
)
from storage.log.limits import LogLimits
from storage.recordbatch import NO_PRODUCER

PRODUCER_BYTES = 32
PRODUCER_BATCH_BYTES = 52
"""Estimates of what a producer and each of its batches take in an encoded record."""

Pages = Mapping[str, Mapping[int, ProducerState]]
"""The contents of pages, by name."""
NO_PAGES: Pages = MappingProxyType({})


class Produced(Protocol):
    @property
    def producer_id(self) -> int: ...


class NewPage(NamedTuple):
    name: str
    page: ProducerPage


class PagedStates(NamedTuple):
    hot: dict[int, ProducerState]
    refs: tuple[PageRef, ...]
    written: tuple[NewPage, ...]
    """Pages that `refs` names and that do not exist yet."""


_first_pid = attrgetter("first_pid")


def page_name(*, version: int, epoch: int, commit_seq: int, attempt: int) -> str:
    """What the pages of one attempt are named after: a CAS at `version` is the only one that can ever name them."""
    return f"{version}-{epoch}-{commit_seq}-{attempt}"


def prepared_for(name: str) -> int:
    """The version that the CAS naming this page expects."""
    return int(name.split("-", 1)[0])


def find(manifest: Manifest, pages: Pages, producer_id: int) -> ProducerState | None:
    """The newest state of a producer. `pages` must hold the page that covers the id, if `pages_needed` named it."""
    hot = manifest.producers.get(producer_id)
    if hot is not None or not manifest.pages:
        return hot
    if not _is_covered(manifest.pages, producer_id):
        return None
    return pages[manifest.pages[_place(manifest.pages, producer_id)].name].get(producer_id)


def pages_needed(manifest: Manifest, claims: Sequence[Produced], limits: LogLimits) -> list[str]:
    """Names of the pages that deciding `claims` may look into: those of their producers, and those that may have to take others."""
    refs = manifest.pages
    if not refs:
        return []
    hot = manifest.producers
    wanted: dict[str, None] = {}
    claimed = {claim.producer_id for claim in claims if claim.producer_id != NO_PRODUCER}
    others = claimed.difference(hot)
    for producer_id in others:
        if _is_covered(refs, producer_id):
            wanted[refs[_place(refs, producer_id)].name] = None
    if claimed and len(hot) + len(others) > _sure_room(limits):
        for producer_id in (*hot, *others):
            wanted[refs[_place(refs, producer_id)].name] = None
    return list(wanted)


def fitting(manifest: Manifest, claims: Sequence[Produced], limits: LogLimits) -> int:
    """How many of `claims`, from the first on, one commit takes; at least one. The rest is for the commits after it."""
    most = min(len(claims), COMMIT_BATCHES_MAX)
    crowd = _sure_room(limits) // 2
    if most <= 1 or most <= crowd:
        return most
    refs = manifest.pages
    producers: set[int] = set()
    places: set[int] = set()
    for index, claim in enumerate(claims[:most]):
        producer_id = claim.producer_id
        if producer_id == NO_PRODUCER or producer_id in producers:
            continue
        producers.add(producer_id)
        places.add(_place(refs, producer_id))
        is_crowd = len(producers) > crowd
        if is_crowd and (len(places) > limits.producer_pages_written_max or len(producers) > limits.producers_per_commit_max):
            return index
    return most


def has_no_room(refs: Sequence[PageRef], *, now_ms: int) -> bool:
    """True if a producer that nobody knows finds no room: there are too many, and all have appended lately."""
    return len(refs) >= PRODUCER_PAGES_MAX and min(ref.newest_ms for ref in refs) >= now_ms - PRODUCER_KEPT_MS_MIN


def has_room(hot: Mapping[int, ProducerState], *, expired_before_ms: int, limits: LogLimits) -> bool:
    """False if `make_room` might change anything, of a partition without pages. `hot` is in the order of last use."""
    oldest = next(iter(hot.values()), None)
    return len(hot) <= _sure_room(limits) and (oldest is None or not is_expired(oldest, before_ms=expired_before_ms))


def is_expired(state: ProducerState, *, before_ms: int) -> bool:
    return state.txn_first_offset is None and (not state.batches or state.batches[-1].at_ms < before_ms)


def forget_expired(refs: tuple[PageRef, ...], hot: dict[int, ProducerState], *, before_ms: int) -> tuple[PageRef, ...]:
    """Take out of `hot`, which is in the order of last use, who has expired. Return the pages that have not."""
    kept_refs = tuple([ref for ref in refs if ref.newest_ms >= before_ms])
    for producer_id, state in list(hot.items()):
        if not is_expired(state, before_ms=before_ms):
            break
        # One that a page may hold an older copy of leaves by way of that page: its state must not go back (model F-page-expiry).
        if not _is_covered(kept_refs, producer_id):
            del hot[producer_id]
    return kept_refs


def make_room(
    refs: tuple[PageRef, ...],
    hot: dict[int, ProducerState],
    pages: Pages,
    *,
    claimed: Collection[int],
    now_ms: int,
    expired_before_ms: int,
    limits: LogLimits,
    name: str,
) -> PagedStates:
    """Forget what has expired, and when `hot` is over its bounds, move states into pages until half of the bounds is free.

    `hot` is in the order of last use, and is changed. Of `claimed`, the producers of this commit, few stay hot and many go: into the pages
    that they are in anyway. `pages` must hold what `pages_needed` named. New pages are named after `name`, which is unique to the attempt.
    """
    kept_refs = forget_expired(refs, hot, before_ms=expired_before_ms)
    if len(hot) <= _sure_room(limits):
        return PagedStates(hot, kept_refs, ())
    excess_bytes = sum(map(_size_bytes, hot.values())) - PRODUCERS_HOT_BYTES_MAX
    excess_count = len(hot) - limits.producers_hot_max
    if excess_bytes <= 0 and excess_count <= 0:
        return PagedStates(hot, kept_refs, ())
    excess_bytes += PRODUCERS_HOT_BYTES_MAX // 2
    excess_count += limits.producers_hot_max // 2
    is_crowd = len(claimed) > _sure_room(limits) // 2
    replaced: dict[int, list[PageRef]] = {}
    written: list[NewPage] = []
    for place, leaving in _by_place(refs, hot, claimed, is_crowd=is_crowd, places_max=limits.producer_pages_written_max):
        if excess_bytes <= 0 and excess_count <= 0:
            break
        content = {
            producer_id: state
            for producer_id, state in (pages[refs[place].name].items() if refs else ())
            if producer_id not in hot and not is_expired(state, before_ms=expired_before_ms)
        }
        for producer_id in leaving:
            if excess_bytes <= 0 and excess_count <= 0:
                break
            state = content[producer_id] = hot.pop(producer_id)
            excess_bytes -= _size_bytes(state)
            excess_count -= 1
        begin = min(refs[place].first_pid if refs else leaving[0], *content)
        last = refs[place].last_pid if refs else -1
        replaced[place] = []
        for part in _parts(sorted(content), content, last, page_bytes_max=limits.producer_page_bytes_max):
            new = NewPage(f"{name}-{len(written)}", ProducerPage(producers={producer_id: content[producer_id] for producer_id in part}))
            written.append(new)
            newest_ms = max(state.batches[-1].at_ms if state.batches else now_ms for state in new.page.producers.values())
            replaced[place].append(PageRef(new.name, begin if part[0] == min(content) else part[0], part[-1], newest_ms))
    # Placed by all of `refs`, as `pages_needed` was: a page that expires takes what falls into its range, or goes.
    kept = [one for place, ref in enumerate(refs) for one in replaced.pop(place, (ref,) if ref.newest_ms >= expired_before_ms else ())]
    kept += replaced.pop(0, ())  # there were none
    return PagedStates(hot, _forget_oldest(kept, {page.name for page in written}, now_ms), tuple(written))


def _by_place(
    refs: Sequence[PageRef], hot: Mapping[int, ProducerState], claimed: Collection[int], *, is_crowd: bool, places_max: int
) -> Iterator[tuple[int, list[int]]]:
    """Producers that may leave, oldest first, by the page they go to; as few pages as possible."""
    groups: dict[int, list[int]] = {}
    claimed_places: set[int] = set()
    for producer_id, state in hot.items():
        is_claimed = producer_id in claimed
        if state.txn_first_offset is not None or (is_claimed and not is_crowd):
            continue
        place = _place(refs, producer_id)
        groups.setdefault(place, []).append(producer_id)
        if is_claimed:
            claimed_places.add(place)
    ranked = sorted(groups.items(), key=lambda group: (group[0] in claimed_places, len(group[1])), reverse=True)
    return iter(ranked[:places_max])


def _parts(producer_ids: list[int], content: Mapping[int, ProducerState], last_pid: int, *, page_bytes_max: int) -> Iterator[list[int]]:
    """Cut sorted ids into pages: full ones where ids only grow, else equal ones, so that both halves can."""
    total_bytes = sum(_size_bytes(content[producer_id]) for producer_id in producer_ids)
    count = -(-total_bytes // page_bytes_max)
    is_growing = last_pid < 0 or all(producer_id > last_pid for producer_id in producer_ids[-max(1, len(producer_ids) // 8) :])
    part_bytes_max = page_bytes_max if count <= 1 or is_growing else -(-total_bytes // count)
    part: list[int] = []
    part_bytes = 0
    for producer_id in producer_ids:
        size_bytes = _size_bytes(content[producer_id])
        if part and part_bytes + size_bytes > part_bytes_max:
            yield part
            part, part_bytes = [], 0
        part.append(producer_id)
        part_bytes += size_bytes
    if part:
        yield part


def _forget_oldest(refs: list[PageRef], written: Collection[str], now_ms: int) -> tuple[PageRef, ...]:
    while len(refs) > PRODUCER_PAGES_MAX:
        oldest = min((ref for ref in refs if ref.name not in written), key=lambda ref: ref.newest_ms, default=None)
        if oldest is None or oldest.newest_ms >= now_ms - PRODUCER_KEPT_MS_MIN:
            break
        refs.remove(oldest)
    return tuple(refs)


def _place(refs: Sequence[PageRef], producer_id: int) -> int:
    return max(bisect_right(refs, producer_id, key=_first_pid) - 1, 0)


def _is_covered(refs: Sequence[PageRef], producer_id: int) -> bool:
    """True if a page may hold the producer."""
    if not refs:
        return False
    ref = refs[_place(refs, producer_id)]
    return ref.first_pid <= producer_id <= ref.last_pid


def _sure_room(limits: LogLimits) -> int:
    """So many producers stay hot whatever they hold."""
    return min(limits.producers_hot_max, PRODUCERS_HOT_BYTES_MAX // (PRODUCER_BYTES + PRODUCER_BATCH_BYTES * PRODUCER_BATCHES_KEPT))


def _size_bytes(state: ProducerState) -> int:
    return PRODUCER_BYTES + PRODUCER_BATCH_BYTES * len(state.batches)
