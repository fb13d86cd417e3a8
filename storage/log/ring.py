"""The ring of pending entries, pure: it leaves the control record as a whole, as ONE index chunk (docs/design/commit.md, I3).

A commit drains a full ring, upkeep one to which nobody appends. Both make the same chunk, because a ring only grows at its end until it
leaves: two chunks whose last entries are the same are equal, and a shorter chunk of the same ring begins where the longer one does. So
of all chunks of a ring, whoever put them and whenever they arrive, the one with the lowest key at or above an offset holds it:

    ring a b c … an idle drain reads it … a commit adds d … the CAS of the drain fails, its chunk lands: index/c has a b c
               … a commit drains a b c d: index/d has a b c d     an offset of b: index/c     an offset of d: index/d
"""

from storage.formats.control import Control, IndexChunk


def drained(control: Control) -> IndexChunk:
    """All that `control` has pending, which must be something. It may be put whatever becomes of the CAS beside it."""
    assert control.pending, "an empty ring leaves no chunk"
    return IndexChunk(entries=control.pending)
