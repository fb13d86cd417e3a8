"""The ways to merge, collect, purge and notice a restore that `merging.py`, `collecting.py`, `purging.py` and `restoring.py` check.

Forebay-*: the design; F-*: wrong on purpose, one condition or step left out.
"""

from typing import Final

from model import collecting, merging, purging, restoring
from model.restoring import NAMED, NEW, START
from model.search import VIOLATION

LATE: Final = (2, 1)
"""Rounds of compactors: three segments, one attempt of which has no answer."""
LOOK_FIRST: Final = ("look", "revoke", "delete")

MERGES: Final = (
    merging.Variant(
        "Forebay-merge",
        "merges beside compactors, a collector and retention; late requests",
        rolled=1,
        wal=1,
        compactors=(1, 1),
        collectors=(1,),
        moves=1,
        late=1,
        reaches=(
            "committed, not put",
            "put, not cleared",
            "a late request behind a merge",
            "log_start inside a merge",
            "log_start above a merge",
        ),
    ),
    merging.Variant(
        "Forebay-merge-late",
        "puts of segment entries arrive behind a merge of them",
        rolled=0,
        wal=2,
        compactors=LATE,
        late=2,
        reaches=("a late request behind a merge",),
    ),
    merging.Variant(
        "Forebay-merge-twice", "two mergers, what is merged is merged again", rolled=3, mergers=(1, 1), late=2, reaches=("merged twice",)
    ),
    merging.Variant("Forebay-merge-split", "the entries are put by two requests", splits=True, rolled=3, mergers=(1, 1), late=2),
    merging.Variant(
        "Forebay-merge-stale",
        "scans are answered from older states; sources are touched",
        rolled=3,
        mergers=(1, 1),
        stale=True,
        touches=True,
        late=1,
    ),
    merging.Variant(
        "Forebay-merge-collectors",
        "two collectors of segment objects",
        rolled=1,
        wal=1,
        compactors=(1,),
        collectors=(1, 1),
        reaches=("two collect at once",),
    ),
    merging.Variant(
        "Forebay-merge-reserved",
        "keys of merged segments are deleted, as places are reserved and filled under their version",
        places="reserved",
        rolled=0,
        wal=2,
        compactors=LATE,
        late=2,
        reaches=("an empty place of one that lost", "a late request behind a merge"),
    ),
    merging.Variant(
        "F-merge-late-put",
        "keys of merged segments are deleted; a late put if absent revives one",
        VIOLATION,
        places="deleted",
        rolled=0,
        wal=2,
        compactors=LATE,
        late=1,
    ),
    merging.Variant(
        "F-merge-place-swept",
        "an empty place that a CAS may yet name is removed",
        VIOLATION,
        places="reserved",
        rolled=0,
        wal=1,
        compactors=(1,),
        bug="places swept",
    ),
    merging.Variant("F-merge-delete-first", "entries of the sources deleted before the merge is committed", VIOLATION, bug="deleted first"),
    merging.Variant(
        "F-merge-newest",
        "the segment that control names is merged, too",
        VIOLATION,
        rolled=1,
        wal=1,
        compactors=(1,),
        moves=1,
        late=1,
        bug="newest",
    ),
    merging.Variant(
        "F-merge-blind",
        "entries put without a version; a late request undoes a later merge",
        VIOLATION,
        rolled=3,
        mergers=(2,),
        late=1,
        bug="blind",
    ),
    merging.Variant(
        "F-merge-scan-first",
        "segments scanned before control is read: a source has changed",
        VIOLATION,
        rolled=3,
        mergers=(1, 1),
        bug="scan first",
    ),
    merging.Variant(
        "F-merge-stale", "segments scanned by a deposed leader, and not touched", VIOLATION, rolled=3, mergers=(1, 1), stale=True
    ),
    merging.Variant("F-merge-loser", "a merger without an answer deletes its object", VIOLATION, late=1, bug="loser"),
    merging.Variant(
        "F-rewritten-nofloor", "a merge is committed whose object was revoked meanwhile", VIOLATION, collectors=(1,), bug="no floor"
    ),
    merging.Variant(
        "F-rewritten-overwritten",
        "a merge is committed over one that is not cleared",
        VIOLATION,
        rolled=3,
        mergers=(1, 1),
        bug="overwritten",
    ),
    merging.Variant("F-rewritten-cleared-early", "cleared when the entries are sent", VIOLATION, late=1, bug="cleared when sent"),
    merging.Variant(
        "F-rewritten-cleared-half", "cleared when one entry is there, old ones beside it", VIOLATION, splits=True, bug="cleared half way"
    ),
    merging.Variant(
        "F-rewritten-below",
        "retention waits for a merge, and one that log_start has passed waits for its entries",
        VIOLATION,
        moves=1,
        bug="finished first",
    ),
    merging.Variant(
        "F-collect-segments-grace", "segment objects deleted after a look alone", VIOLATION, collectors=(1,), collects=("look", "delete")
    ),
    merging.Variant(
        "F-collect-segments-look", "references to a segment looked up before the revoke", VIOLATION, collectors=(1,), collects=LOOK_FIRST
    ),
    merging.Variant(
        "F-collect-segments-stale",
        "references to a segment looked up by a deposed leader",
        VIOLATION,
        collectors=(1,),
        stale=True,
        touches=True,
        bug="stale look",
    ),
)

BESIDE = ((0, 1), (0,))
"""An object of two partitions, and one that is committed beside it."""
COLLECTIONS: Final = (
    collecting.Variant(
        "Forebay-collect",
        "two collectors at an object of two partitions, late commits",
        reaches=("two collect the same", "two collect at once", "uploaded again", "a commit on its way"),
    ),
    collecting.Variant("Forebay-collect-void", "one collector; log_start or the cursor moves", collectors=(1,), voids=2),
    collecting.Variant("Forebay-collect-deleted", "one of the partitions is deleted and purged", collectors=(1,), deletions=1),
    collecting.Variant(
        "Forebay-collect-flushes", "two collectors at two objects of one partition", flushes=((0,), (0,)), reaches=("two collect at once",)
    ),
    collecting.Variant(
        "Forebay-collect-early",
        "an early page of two partitions, whose writer may die before it stores the object",
        flushes=BESIDE,
        pages=((0, 1),),
        stores=1,
        collectors=(1,),
        reaches=("stored while it is collected", "uploaded again", "a commit on its way", "pages that nothing names are collected"),
    ),
    collecting.Variant(
        "Forebay-collect-early-pages",
        "the same, a page for each partition",
        flushes=BESIDE,
        pages=((0,), (1,)),
        stores=1,
        collectors=(1,),
        reaches=(
            "a page that the list does not show",
            "stored while it is collected",
            "uploaded again",
            "pages that nothing names are collected",
        ),
    ),
    collecting.Variant(
        "Forebay-collect-early-two",
        "two collectors at an early page of two partitions, its writer has died",
        pages=((0, 1),),
        reaches=("two collect the same", "uploaded again", "a commit on its way"),
    ),
    collecting.Variant(
        "Forebay-collect-early-void",
        "an early page of two partitions, log_start or the cursor moves",
        pages=((0, 1),),
        stores=1,
        collectors=(1,),
        voids=1,
        reaches=("stored while it is collected", "uploaded again"),
    ),
    collecting.Variant(
        "Forebay-collect-early-deleted",
        "an early page of two partitions, of which one is deleted and purged",
        pages=((0, 1),),
        collectors=(1,),
        deletions=1,
    ),
    collecting.Variant(
        "F-collect-grace", "an object of two partitions deleted after a look alone", VIOLATION, collectors=(1,), bug="no floor"
    ),
    collecting.Variant(
        "F-collect-look",
        "references in all partitions looked up before the floors are raised",
        VIOLATION,
        collectors=(1,),
        bug="look first",
    ),
    collecting.Variant(
        "F-collect-header", "the floor raised in the first partition alone", VIOLATION, collectors=(1,), bug="one partition"
    ),
    collecting.Variant(
        "F-collect-floor-lowered", "a second collector puts its own, lower floor", VIOLATION, flushes=((0,), (0,)), bug="floor lowered"
    ),
    collecting.Variant(
        "F-collect-absent",
        "a manifest that a deposed leader does not know is taken for purged",
        VIOLATION,
        collectors=(1,),
        bug="absent",
    ),
    collecting.Variant("F-collect-stale", "index/ scanned by a deposed leader", VIOLATION, collectors=(1,), bug="past scans"),
    collecting.Variant(
        "F-collect-early-look",
        "references looked for in one of the partitions that the early pages name",
        VIOLATION,
        pages=((0, 1),),
        collectors=(1,),
        bug="one look",
    ),
    collecting.Variant(
        "F-collect-early-header",
        "the floor raised in one of them",
        VIOLATION,
        flushes=BESIDE,
        pages=((0, 1),),
        collectors=(1,),
        bug="one partition",
    ),
    collecting.Variant(
        "F-collect-early-age",
        "early pages deleted by age alone",
        VIOLATION,
        pages=((0, 1),),
        collectors=(1,),
        bug="age alone",
    ),
    collecting.Variant(
        "F-collect-early-all",
        "all early pages of the object deleted, and not those alone that the list showed",
        VIOLATION,
        flushes=BESIDE,
        pages=((0,), (1,)),
        collectors=(1,),
        bug="all pages",
    ),
    collecting.Variant(
        "F-collect-early-compactor",
        "the compactor deletes an early page that another partition shares",
        VIOLATION,
        pages=((0, 1),),
        collectors=(),
        voids=1,
        bug="compactor deletes pages",
    ),
)

_BEHIND = ("keys behind the tombstone", "a late request behind the deletion", "a late creation behind the deletion", "half made")
PURGES: Final = (
    purging.Variant(
        "Forebay-purge",
        "tombstones of settled topics go, the record in topic-ids stays",
        reaches=_BEHIND,
    ),
    purging.Variant(
        "Forebay-purge-list",
        "the same, leftovers are found by their keys and a newer list of topics, and the record goes",
        finds="list",
        keeps_record=False,
        reaches=_BEHIND,
    ),
    purging.Variant("F-purge-keys-first", "keys removed before control is a tombstone", VIOLATION, bug="keys first"),
    purging.Variant("F-purge-tombstone-early", "the tombstone goes while a creation may be under way", VIOLATION, bug="tombstone early"),
    purging.Variant("F-purge-record", "the record in topic-ids goes; nobody finds what arrives late", VIOLATION, keeps_record=False),
    purging.Variant("F-purge-half-made", "logs of a half-made topic buried before its name is marked", VIOLATION, bug="half made"),
    purging.Variant(
        "F-purge-old-list", "a list of topics that is older than a key says that its topic is dead", VIOLATION, finds="list", bug="old list"
    ),
)

ALONE: Final = (1,)
_ACCEPTS: Final = ("keep", "take")
RESTORES: Final = (
    restoring.Variant(
        "Forebay-restore",
        "two collectors, one copy, put back once; all start again",
        reaches=("refused", "not refused", "not refused, and collected", "two raise", "a delete under way behind the restore"),
    ),
    restoring.Variant(
        "Forebay-restore-late",
        "the same with one object: a raise or a marker has no answer or is late, a process is killed",
        objects=(NAMED,),
        late=1,
        deaths=1,
        reaches=("refused", "not refused", "a marker under way behind the restore"),
    ),
    restoring.Variant(
        "Forebay-restore-unaware",
        "one process or both go on behind the restore, as do brokers",
        objects=(NEW,),
        unaware=True,
        reaches=("refused", "not refused, and collected", "named again behind the look"),
    ),
    restoring.Variant(
        "Forebay-restore-unaware-late",
        "the same, and a raise or a marker is late",
        objects=(NAMED,),
        late=1,
        unaware=True,
        reaches=("named again behind the look", "a marker under way behind the restore"),
    ),
    restoring.Variant(
        "Forebay-restore-accept",
        "a refusal is accepted, a collector goes on unaware",
        objects=(NAMED,),
        unaware=True,
        accepts=_ACCEPTS,
        reaches=("refused", "kept"),
    ),
    restoring.Variant(
        "Forebay-restore-accept-collect",
        "a refusal is accepted, what becomes garbage later is collected",
        collectors=(2,),
        accepts=_ACCEPTS,
        reaches=("refused", "kept", "collected behind the acceptance"),
    ),
    restoring.Variant(
        "Forebay-restore-marks",
        "marks of commits, one commit is late, a process is killed",
        objects=(NEW, NEW),
        collectors=(0,),
        late=1,
        deaths=1,
        unaware=True,
        marks=True,
        reaches=("refused", "not refused"),
    ),
    restoring.Variant(
        "F-restore-delete-first",
        "an object deleted before the marker is put",
        VIOLATION,
        objects=(NAMED,),
        collectors=ALONE,
        cycle=(*START, "look", "raise", "delete", "mark"),
    ),
    restoring.Variant(
        "F-restore-put-first",
        "the marker put before the raise",
        VIOLATION,
        objects=(NAMED,),
        cycle=(*START, "look", "mark", "raise", "delete"),
    ),
    restoring.Variant(
        "F-restore-look-last",
        "the raise before the look; a copy between them names the object",
        VIOLATION,
        objects=(NAMED,),
        collectors=ALONE,
        cycle=(*START, "raise", "mark", "look", "delete"),
    ),
    restoring.Variant(
        "F-restore-one-raise",
        "one raise for two looks",
        VIOLATION,
        collectors=ALONE,
        cycle=(*START, "look", "raise", "mark", "delete", "look", "delete"),
    ),
    restoring.Variant(
        "F-restore-blind",
        "the record raised without a version; two have the same n",
        VIOLATION,
        objects=(NAMED,),
        bugs=frozenset({"blind raise"}),
    ),
    restoring.Variant(
        "F-restore-read-once",
        "refused by a record that was read before the list",
        VIOLATION,
        objects=(NAMED,),
        bugs=frozenset({"read once"}),
    ),
    restoring.Variant(
        "F-restore-stale", "the record read again from a deposed leader", VIOLATION, objects=(NAMED,), bugs=frozenset({"stale"})
    ),
    restoring.Variant(
        "F-restore-own",
        "any marker that is there taken for that of another",
        VIOLATION,
        objects=(NAMED,),
        collectors=ALONE,
        late=1,
        bugs=frozenset({"own"}),
    ),
    restoring.Variant(
        "F-restore-overwrite", "the marker put over that of another", VIOLATION, objects=(NEW,), unaware=True, bugs=frozenset({"overwrite"})
    ),
    restoring.Variant(
        "F-restore-number", "markers compared by number alone", VIOLATION, objects=(NAMED,), unaware=True, bugs=frozenset({"number alone"})
    ),
    restoring.Variant(
        "F-restore-looked-once",
        "no second look; the first was at newer metadata",
        VIOLATION,
        objects=(NAMED,),
        collectors=ALONE,
        unaware=True,
        bugs=frozenset({"looked once"}),
    ),
    restoring.Variant(
        "F-restore-revoked-once",
        "the second look without a revoke",
        VIOLATION,
        objects=(NEW,),
        unaware=True,
        bugs=frozenset({"revoked once"}),
    ),
    restoring.Variant(
        "F-restore-compared-once", "no second comparison", VIOLATION, objects=(NEW,), unaware=True, bugs=frozenset({"compared once"})
    ),
    restoring.Variant("F-restore-accept-deletes", "an acceptance that keeps nothing", VIOLATION, collectors=(2,), accepts=("take",)),
    restoring.Variant(
        "F-restore-accept-order", "an acceptance takes over the counter, then keeps", VIOLATION, collectors=(2,), accepts=("take", "keep")
    ),
    restoring.Variant(
        "F-restore-accept-at-once",
        "an acceptance while a delete is under way",
        VIOLATION,
        collectors=ALONE,
        accepts=_ACCEPTS,
        bugs=frozenset({"accepted at once"}),
    ),
    restoring.Variant(
        "F-restore-accept-kept",
        "what is kept is not read again before the delete",
        VIOLATION,
        objects=(NAMED,),
        unaware=True,
        accepts=_ACCEPTS,
        bugs=frozenset({"kept before"}),
    ),
    restoring.Variant(
        "F-restore-mark-early",
        "a commit is marked before its answer",
        VIOLATION,
        objects=(NEW,),
        collectors=(0,),
        deaths=1,
        marks=True,
        bugs=frozenset({"mark early"}),
    ),
    restoring.Variant(
        "F-restore-mark-version",
        "a mark names a version alone; brokers that go on reach it",
        VIOLATION,
        objects=(NEW, NEW),
        collectors=(0,),
        unaware=True,
        marks=True,
        bugs=frozenset({"version alone"}),
    ),
)
