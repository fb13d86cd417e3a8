"""docs/internals/formats shows what the code writes."""

import asyncio
import re

import pytest

from storage.formats import early_page, manifest, segment, wal
from storage.formats.early_page import decode_page
from storage.formats.wal import decode_header, object_key
from storage.metadata.keys import place_of_page
from tests.unit.forebay.commands.debug.format_examples import (
    PAGES,
    Example,
    early_object_text,
    make,
    object_text,
    page_text,
    record_text,
    renewed,
    segment_text,
    texts,
)

ROOT = PAGES.parents[2]
RENEW = "run `python -m tests.unit.forebay.commands.debug.format_examples`"


@pytest.fixture(scope="module")
def example() -> Example:
    return asyncio.run(make())


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.md")))
def test_a_page_has_the_examples_of_the_code(name: str, example: Example) -> None:
    page = (PAGES / name).read_text()

    assert renewed(page, texts(example)) == page, RENEW


def test_every_example_is_shown_once(example: Example) -> None:
    pages = "".join(path.read_text() for path in PAGES.glob("*.md"))

    assert sorted(re.findall(r"<!-- example: (\S+) -->", pages)) == sorted(texts(example))


def test_the_same_cluster_comes_out_each_time(example: Example) -> None:
    assert asyncio.run(make()) == example


def shown(text: str) -> bytes:
    """The bytes of an example, each at the position that is written before it."""
    found = b""
    for at, data in re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?)+)", text, re.MULTILINE):
        assert int(at) == len(found)
        found += bytes.fromhex(data)
    return found


def test_the_object_is_shown_to_its_last_byte(example: Example) -> None:
    assert shown(object_text(example.object_key, example.body)) == example.body
    assert len(decode_header(example.body, key=example.object_key).slices) == 2


def test_the_segment_is_shown_to_its_last_byte(example: Example) -> None:
    body = b"".join(example.segment.parts)

    assert shown(segment_text(example.segment)) == body
    assert segment.decode_footer(body, size_bytes=len(body), key=example.segment.key) == example.segment.footer


def test_an_object_with_its_directory_behind_the_slices_is_shown_to_its_last_byte(example: Example) -> None:
    early = example.early

    assert shown(early_object_text(early.object_key, early.body)) == early.body
    before, behind = decode_header(example.body, key="test"), decode_header(early.body, key="test")
    assert [one.length for one in behind.slices] == [one.length for one in before.slices]


def test_the_early_page_has_the_bytes_of_its_object_and_is_shown_to_the_last(example: Example) -> None:
    early = example.early
    page = decode_page(early.page, path=early.page_key)
    place = place_of_page(early.page_key)

    assert shown(page_text(early.page_key, early.page)) == early.page
    assert place is not None
    assert object_key(place[0]) == early.object_key
    assert early.body[place[1] :].startswith(page.data)


def test_of_a_long_list_the_ends_are_shown() -> None:
    assert record_text("k", b'{"a":[[1],[2],[3],[4],[5]]}') == '```\nk\n\n{"a": [[1],\n   … 3 more …,\n   [5]]}\n```'
    assert record_text("k", b'{"a":[[1],[2],[3]],"b":[]}') == '```\nk\n\n{"a": [[1],\n   [2],\n   [3]],\n "b": []}\n```'


def test_every_field_of_the_manifest_has_its_row() -> None:
    page = (PAGES / "metadata.md").read_text()
    rows = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))

    for field in manifest.Manifest.__struct_encode_fields__:
        assert f"`{field}`" in rows or field == "fmt", field


def test_the_table_of_formats_names_files_that_exist_and_their_numbers() -> None:
    page = (PAGES / "README.md").read_text()

    for path in re.findall(r"`((?:storage|tests)/\S+\.py)`", page):
        assert (ROOT / path).exists(), path
    assert f"| {wal.FMT}; {wal.FMT_EARLY}: the directory is behind the slices | `storage/formats/wal.py`" in page
    assert f"| {early_page.FMT} | `storage/formats/early_page.py`" in page
    assert f"| {segment.FMT} | `storage/formats/segment.py`" in page
    merging = f"{manifest.FMT_REWRITTEN}: a manifest while a merge is under way"
    carrying = f"{manifest.FMT_INLINE}: a manifest or index chunk with an inline entry"
    early = f"{manifest.FMT_EARLY}: one with an early entry"
    assert f"| {manifest.FMT}; {merging}; {carrying}; {early} | `storage/formats/manifest.py`" in page


def test_the_pictures_of_the_object_are_those_of_its_module() -> None:
    pictures = re.findall(r"^     0   8   magic.*?(?:base offset 0|of the directory)$", wal.__doc__ or "", re.MULTILINE | re.DOTALL)

    assert len(pictures) == 2
    for picture in pictures:
        assert picture in (PAGES / "objects.md").read_text()


def test_the_picture_of_the_early_page_is_that_of_its_module() -> None:
    picture = re.search(
        r"^     0   4   magic.*?from the position that the key names on$", early_page.__doc__ or "", re.MULTILINE | re.DOTALL
    )

    assert picture is not None
    assert picture.group() in (PAGES / "metadata.md").read_text()


def test_the_picture_of_the_segment_is_that_of_its_module() -> None:
    picture = re.search(r"^     0   8   magic.*FOREBAYE\"$", segment.__doc__ or "", re.MULTILINE | re.DOTALL)

    assert picture is not None
    assert picture.group() in (PAGES / "objects.md").read_text()
