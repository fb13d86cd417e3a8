"""Claims: which of them may be left when nobody holds them any more."""

from collections.abc import Sequence

import pytest

from compactor.records import Claims, Records
from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete, Key, NotApplied, Put, Unknown, WriteOp, WriteOutcome

KEY = Key("topics/t/0/meta/compactor-claim", "t/0")
LOST = Unknown("the answer was lost")
REFUSED = NotApplied("not now")


class Answering(MemoryMetadataStore):
    """Applies writes; of those of the kind `struck` it says `answer`, and a refused one is not applied."""

    struck: type[WriteOp] | None = None
    answer: WriteOutcome = LOST

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self.struck is None or not isinstance(ops[0], self.struck):
            return await super().write(ops)
        if self.answer is LOST:
            await super().write(ops)
        return self.answer


async def claims_on(store: Answering, name: bytes = b"one") -> Claims:
    session = await store.open_session(timeout_ms=10_000)
    return Claims(Records(store), name=name, session=session)


@pytest.mark.parametrize(("answer", "is_left"), [(LOST, True), (REFUSED, False)])
async def test_a_claim_may_be_left_if_nobody_knows_whether_it_was_put(answer: WriteOutcome, is_left: bool) -> None:
    store = Answering(clock=SystemClock())
    claims = await claims_on(store)
    store.struck, store.answer = Put, answer

    with pytest.raises(Unavailable):
        await claims.take(KEY)

    assert claims.may_be_left == is_left
    assert ((await store.get_many([KEY]))[0] is not None) == is_left


@pytest.mark.parametrize("answer", [LOST, REFUSED])
async def test_a_claim_may_be_left_unless_it_certainly_went(answer: WriteOutcome) -> None:
    store = Answering(clock=SystemClock())
    claims = await claims_on(store)
    version = await claims.take(KEY)
    assert version is not None
    store.struck, store.answer = Delete, answer

    await claims.release(KEY, version)

    assert claims.may_be_left


async def test_a_claim_that_was_left_is_taken_again_by_its_own_and_by_no_other() -> None:
    store = Answering(clock=SystemClock())
    ours, others = await claims_on(store), await claims_on(store, b"two")
    store.struck = Put
    with pytest.raises(Unavailable):
        await ours.take(KEY)
    store.struck = None

    assert await others.take(KEY) is None
    version = await ours.take(KEY)
    assert version is not None
    await ours.release(KEY, version)
    assert await others.take(KEY) is not None
    assert not others.may_be_left
