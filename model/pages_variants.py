"""The ways to spill that `pages.py` checks. Forebay-*: the design; F-*: wrong on purpose; others hold, but under conditions."""

from model.pages import Variant
from model.search import VIOLATION

REGISTERS = "registers"
VARIANTS = (
    Variant(
        "Forebay-pages",
        "immutable pages that control names",
        reaches=(
            "a page was replaced",
            "an old control names a page that was deleted",
            "an older state of a hot producer in a page",
            "applied, and its broker does not know",
        ),
    ),
    Variant("Forebay-pages-10", "immutable pages that control names", timeouts=(1, 0)),
    Variant("Forebay-pages-00", "immutable pages that control names", timeouts=(0, 0)),
    Variant("Forebay-pages-death", "a broker dies", lives=(2, 1), timeouts=(0, 0)),
    Variant("Forebay-pages-touch", "touch", touches=1, timeouts=(0, 0)),
    Variant("Forebay-pages-split", "split", page_max=1, timeouts=(1, 0), reaches=("two pages",)),
    Variant("Forebay-pages-gather", "gather", gather=2, timeouts=(0, 0)),
    Variant("Forebay-pages-expiry", "expiry", expiry="page", timeouts=(1, 0)),
    Variant("Forebay-pages-drop", "drops copies", keeps_copies=False, timeouts=(1, 0)),
    Variant(
        "Forebay-pages-key",
        "three producers, garbage is not left out",
        timeouts=(0,),
        lives=(1,),
        producers=2,
        page_max=3,
        is_reduced=False,
    ),
    Variant("Forebay-pages-three", "three producers", timeouts=(0,), lives=(1,), producers=3, page_max=2),
    Variant("F-page-expiry", "hot expiry", VIOLATION, expiry="hot", timeouts=(0,), lives=(1,)),
    Variant("F-spill", "today's: state taken before the version", VIOLATION, design=REGISTERS, stale=False, timeouts=(0, 0)),
    Variant("Spill-order", "right order, no stale gets", design=REGISTERS, stale=False, order="version first", timeouts=(0, 0)),
    Variant("F-spill-stale", "right order, stale gets", VIOLATION, design=REGISTERS, order="version first", timeouts=(0, 0)),
    Variant("F-page-sweep", "sweep w/o versions", VIOLATION, sweep="any", timeouts=(0, 0)),
    Variant("F-page-sweep-equal", "sweep v<=c", VIOLATION, sweep="up to", timeouts=(0, 0)),
    Variant("F-page-absent", "absent = unknown", VIOLATION, absent="unknown producer", timeouts=(0, 0)),
    Variant("F-page-delete", "deletes beside the CAS", VIOLATION, deletes="beside", timeouts=(0, 0)),
    Variant("F-page-key", "key of epoch and number", VIOLATION, key="epoch and number", timeouts=(0, 0), sweep="never"),
    Variant("F-page-key-number", "no number", VIOLATION, key="no number", timeouts=(0,), lives=(1,), producers=3, page_max=3),
    Variant("F-page-key-version", "version only", VIOLATION, key="version", timeouts=(0,), lives=(1,), producers=3, page_max=3),
    Variant("F-page-overwrite", "no attempt, overwritten", VIOLATION, key="no attempt", overwrites=True, timeouts=(1, 0), sweep="never"),
    Variant("Page-key-attempt", "no attempt", key="no attempt", timeouts=(1, 0)),
)
