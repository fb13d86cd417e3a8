"""Why a batch was not appended, in words (decide.py says it in outcomes)."""

from storage.errors import Fenced, InvalidProducerEpoch, NotFound, OutOfOrderSequence, PredecessorMissing, StorageError, Unavailable
from storage.log.batch import Batch
from storage.log.decide import Outcome, Verdict
from storage.log.partition import PartitionLog


def refusal(batch: Batch, verdict: Verdict, log: PartitionLog) -> StorageError:
    facts = f"partition={log.partition} producer_id={batch.producer_id} epoch={batch.producer_epoch} sequence={batch.first_seq}"
    match verdict.outcome:
        case Outcome.OUT_OF_ORDER_SEQUENCE:
            return OutOfOrderSequence(f"the sequence does not follow the last one appended: {facts}")
        case Outcome.NO_PREDECESSOR:
            return PredecessorMissing(f"what comes before it may be on its way through another broker: {facts}")
        case Outcome.NO_ROOM:
            return Unavailable(f"too many producers have appended lately; ids of producers should be kept and reused: {facts}")
        case Outcome.INVALID_PRODUCER_EPOCH:
            return InvalidProducerEpoch(f"a newer epoch of this producer has appended: {facts}")
        case Outcome.FENCED:
            return Fenced(f"the partition is fenced: {facts}")
        case Outcome.DELETED:
            return NotFound(f"the partition was deleted: {facts}")
        case Outcome.APPENDED | Outcome.DUPLICATE:
            raise AssertionError(f"not a refusal: {verdict}")
