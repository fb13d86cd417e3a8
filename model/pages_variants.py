"""The ways to spill that `pages.py` checks. Forebay-*: the design; F-*: wrong on purpose; others should hold, but under conditions."""

from typing import Final

from model.pages import Variant
from model.search import VIOLATION

REGISTERS = "registers"
VARIANTS: Final = (
    Variant(
        "Forebay-pages",
        "immutable pages that control names; two brokers, each may have a reply lost",
        reaches=(
            "a page was replaced",
            "an old control names a page that was deleted",
            "an older state of a hot producer in a page",
            "applied, and its broker does not know",
        ),
    ),
    Variant("Forebay-pages-10", "the same, one reply may be lost", timeouts=(1, 0)),
    Variant("Forebay-pages-00", "the same, no reply is lost", timeouts=(0, 0)),
    Variant("Forebay-pages-death", "a broker dies", lives=(2, 1), timeouts=(0, 0)),
    Variant("Forebay-pages-touch", "control is put again as it is, as the proof of a refusal does", touches=1, timeouts=(0, 0)),
    Variant("Forebay-pages-split", "a page that is full becomes two", page_max=1, timeouts=(1, 0), reaches=("two pages",)),
    Variant("Forebay-pages-gather", "a commit has batches of two producers", gather=2, timeouts=(0, 0)),
    Variant("Forebay-pages-expiry", "a page is dropped when all in it that are not hot have expired", expiry="page", timeouts=(1, 0)),
    Variant(
        "Forebay-pages-drop",
        "a page that is written anew leaves out who is hot, as storage/log/producer_pages.py does",
        keeps_copies=False,
        timeouts=(1, 0),
    ),
    Variant(
        "Forebay-pages-key",
        "garbage and lost attempts are not left out",
        timeouts=(0,),
        lives=(1,),
        producers=2,
        page_max=3,
        is_reduced=False,
    ),
    Variant("Forebay-pages-three", "three producers", timeouts=(0,), lives=(1,), producers=3, page_max=2),
    Variant("F-page-expiry", "a hot state expires, an older one is in a page", VIOLATION, expiry="hot", timeouts=(0,), lives=(1,)),
    Variant("F-spill", "registers: state taken before the version", VIOLATION, design=REGISTERS, stale=False, timeouts=(0, 0)),
    Variant(
        "Spill-order",
        "registers: version read before the state, no get is stale",
        design=REGISTERS,
        stale=False,
        order="version first",
        timeouts=(0, 0),
    ),
    Variant(
        "F-spill-stale", "registers: the same, but gets may be stale", VIOLATION, design=REGISTERS, order="version first", timeouts=(0, 0)
    ),
    Variant("F-page-sweep", "a sweep deletes what control does not name, whatever its version", VIOLATION, sweep="any", timeouts=(0, 0)),
    Variant("F-page-sweep-equal", "a sweep at version c deletes pages prepared for c, too", VIOLATION, sweep="up to", timeouts=(0, 0)),
    Variant("F-page-absent", "a page that is not found makes its producers unknown", VIOLATION, absent="unknown producer", timeouts=(0, 0)),
    Variant("F-page-delete", "replaced pages are deleted beside the CAS, which may fail", VIOLATION, deletes="beside", timeouts=(0, 0)),
    Variant(
        "F-page-key",
        "a page is named after epoch and commit number alone: an attempt finds the page of the one before",
        VIOLATION,
        key="epoch and number",
        timeouts=(0,),
        lives=(1,),
        sweep="never",
    ),
    Variant(
        "F-page-key-number",
        "a page is named without the commit number",
        VIOLATION,
        key="no number",
        timeouts=(0,),
        lives=(1,),
        producers=3,
        page_max=3,
    ),
    Variant(
        "F-page-key-version",
        "a page is named after the version alone",
        VIOLATION,
        key="version",
        timeouts=(0,),
        lives=(1,),
        producers=3,
        page_max=3,
    ),
    Variant(
        "F-page-overwrite",
        "a page is named without the attempt, and overwritten",
        VIOLATION,
        key="no attempt",
        overwrites=True,
        timeouts=(1,),
        lives=(1,),
        sweep="never",
    ),
    Variant(
        "Page-key-attempt",
        "a page is named without the attempt, and put if absent: still unique under one version",
        key="no attempt",
        timeouts=(1, 0),
    ),
)
