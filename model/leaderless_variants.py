"""The ways to run a leaderless log that `leaderless.py` checks.

Forebay*: the design. F-*: wrong on purpose, one condition or step left out. A to G: what the design came from, right and wrong; seed: the
first draft, which put each entry into the index after its CAS.
"""

from typing import Final

from model.leaderless import Variant
from model.search import VIOLATION

SEED = ("segment", "index", "cursor", "objects")
CURSOR_FIRST = ("cursor", "index", "objects")
LONG = ((1, 2), (2,))
"""The first writer has two batches."""
GC = ("revoke", "look", "delete")
FLOOR = ("revoke up to", "look", "delete")

VARIANTS: Final = (
    Variant(
        "A", "seed; a late index put overwrites the compacted entry", VIOLATION, commit="seed", index="overwrite", retry="look", order=SEED
    ),
    Variant(
        "A1", "seed, if-absent; a late put revives a deleted key", VIOLATION, commit="seed", index="if-absent", retry="look", order=SEED
    ),
    Variant("A2", "seed, WAL entries below the cursor are void", commit="seed", index="void", retry="look"),
    Variant("A3", "seed, segments in their own namespace", commit="seed", retry="look"),
    Variant(
        "Bn",
        "own index put beside its CAS; it lands when the CAS fails",
        VIOLATION,
        commit="own",
        index="if-absent",
        retry="look",
        compactors=(),
    ),
    Variant("B0", "index put with the next commit, unconditional", VIOLATION, index="overwrite", retry="look", order=SEED),
    Variant("B1", "the same, if-absent and void below the cursor", index="void", retry="look"),
    Variant("B2", "the same, with a namespace for segments", retry="look"),
    Variant("R0", "blind retry after a timeout appends twice", VIOLATION, retry="blind", compactors=()),
    Variant("R1", "retry looks for its own entry in pending, index/, segments/", retry="look"),
    Variant("R2", "retry looks for its commit number in control"),
    Variant("G0", "orphans deleted after a grace time; a late CAS commits one", VIOLATION, gc=("look", "delete")),
    Variant("G1", "orphans revoked in control first", gc=GC),
    Variant(
        "Forebay",
        "ring, chunks, idle drain, commit numbers, compaction",
        ring=2,
        batches=LONG,
        reaches=("overlapping chunks", "cursor inside a chunk", "late chunk below cursor"),
    ),
    Variant("Forebay-gc", "with collection of WAL objects", ring=2, gc=GC, reaches=("overlapping chunks",)),
    Variant("Forebay-floor", "revoked is a floor of object ids: bounded", ring=2, gc=FLOOR, drains=0),
    Variant("Forebay-retention", "with log_start", ring=2, retention=1, reaches=("all truncated", "log_start above cursor")),
    Variant(
        "Forebay-compactors",
        "two at once, the loser deletes nothing",
        ring=2,
        drains=0,
        compactors=(2, 2),
        reaches=("overlapping segments",),
    ),
    Variant(
        "Forebay-prune",
        "writers may be pruned: absent and version moved = outcome unknown for ever",
        ring=2,
        batches=LONG,
        prunes=1,
        compactors=(),
    ),
    Variant(
        "Forebay-segment",
        "cursor CAS carries the segment entry, so orphans can go",
        ring=2,
        drains=0,
        segments="control",
        order=CURSOR_FIRST,
        gc=GC,
        collects=(str,),
        compactors=(1, 1),
    ),
    Variant(
        "Forebay-all",
        "the same, a floor for WAL and segment objects, log_start",
        ring=2,
        drains=0,
        segments="control",
        order=CURSOR_FIRST,
        gc=FLOOR,
        collects=(int, str),
        retention=1,
    ),
    Variant(
        "Forebay-inline",
        "some batches travel in their entries, no object; all else as Forebay-all",
        ring=2,
        drains=0,
        segments="control",
        order=CURSOR_FIRST,
        gc=FLOOR,
        collects=(int, str),
        retention=1,
        inline=(0,),
    ),
    Variant(
        "Forebay-inlines",
        "all of them do; idle drain, two compactors",
        ring=2,
        compactors=(1, 1),
        inline=(0, 1),
        reaches=("overlapping chunks", "overlapping segments"),
    ),
    Variant(
        "F-inline",
        "a drained chunk names inline batches and leaves their bytes behind",
        VIOLATION,
        bug="chunks name inline batches",
        inline=(0,),
        ring=2,
    ),
    Variant(
        "F-inline-own",
        "inline bytes drained beside the CAS that creates them",
        VIOLATION,
        commit="own",
        inline=(0, 1),
        ring=2,
        batches=LONG,
    ),
    Variant("F-own", "chunk beside the CAS that creates its last entry", VIOLATION, commit="own", ring=2, batches=LONG),
    Variant(
        "F-cursor",
        "cursor moved before the segment entry is put",
        VIOLATION,
        order=("cursor", "segment", "index", "objects"),
        ring=2,
        batches=LONG,
    ),
    Variant(
        "F-objects",
        "WAL objects deleted before the cursor moves",
        VIOLATION,
        order=("segment", "objects", "cursor", "index"),
        ring=2,
        batches=LONG,
    ),
    Variant("F-ack", "ack before the outcome of the CAS is known", VIOLATION, bug="ack before CAS", ring=2, batches=LONG),
    Variant("F-next", "next offset derived from the index, all of it truncated", VIOLATION, bug="next from index", retention=1, ring=2),
    Variant(
        "F-conflict",
        'a conflict after an unknown attempt taken for "not applied"',
        VIOLATION,
        bug="conflict is final",
        ring=2,
        batches=LONG,
    ),
    Variant(
        "F-absent",
        'own number absent from writers (pruned) taken for "not applied"',
        VIOLATION,
        bug="absent is not applied",
        prunes=1,
        ring=2,
        batches=LONG,
    ),
    Variant("F-revoked", "the list of revoked objects is cut to stay short", VIOLATION, bug="revoked is shortened", gc=GC, ring=2),
    Variant("F-look", "references looked up before the revoke", VIOLATION, gc=("look", "revoke", "delete"), ring=2),
    Variant(
        "F-loser",
        "the compactor that loses the cursor CAS deletes its object",
        VIOLATION,
        bug="loser deletes its object",
        compactors=(1, 1),
        ring=2,
    ),
    Variant(
        "F-orphan", "segment objects collected, entry put before the cursor CAS", VIOLATION, gc=GC, collects=(str,), compactors=(2,), ring=2
    ),
    Variant("F-base", "index entries that begin below the cursor deleted", VIOLATION, bug="delete by base", ring=2),
)
