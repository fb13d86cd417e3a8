"""docs/internals/formats shows what the code writes."""

import asyncio
import re

import pytest

from storage.formats import manifest, segment, wal
from storage.formats.wal import decode_header
from tests.unit.forebay.commands.debug.format_examples import PAGES, Example, make, object_text, record_text, renewed, segment_text, texts

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


def test_the_object_is_shown_to_its_last_byte(example: Example) -> None:
    rows = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?)+)", object_text(example.object_key, example.body), re.MULTILINE)

    assert bytes.fromhex("".join(data for _, data in rows)) == example.body
    assert len(decode_header(example.body, key=example.object_key).slices) == 2
    position = 0
    for at, data in rows:
        assert int(at) == position
        position += len(bytes.fromhex(data))


def test_the_segment_is_shown_to_its_last_byte(example: Example) -> None:
    body = b"".join(example.segment.parts)
    rows = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?)+)", segment_text(example.segment), re.MULTILINE)

    assert bytes.fromhex("".join(data for _, data in rows)) == body
    assert segment.decode_footer(body, size_bytes=len(body), key=example.segment.key) == example.segment.footer
    position = 0
    for at, data in rows:
        assert int(at) == position
        position += len(bytes.fromhex(data))


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
    assert f"| {wal.FMT} | `storage/formats/wal.py`" in page
    assert f"| {segment.FMT} | `storage/formats/segment.py`" in page
    merging = f"{manifest.FMT_REWRITTEN}: a manifest while a merge is under way"
    carrying = f"{manifest.FMT_INLINE}: a manifest or index chunk with an inline entry"
    assert f"| {manifest.FMT}; {merging}; {carrying} | `storage/formats/manifest.py`" in page


def test_the_picture_of_the_object_is_that_of_its_module() -> None:
    picture = re.search(r"^     0   8   magic.*?base offset 0$", wal.__doc__ or "", re.MULTILINE | re.DOTALL)

    assert picture is not None
    assert picture.group() in (PAGES / "objects.md").read_text()


def test_the_picture_of_the_segment_is_that_of_its_module() -> None:
    picture = re.search(r"^     0   8   magic.*FOREBAYE\"$", segment.__doc__ or "", re.MULTILINE | re.DOTALL)

    assert picture is not None
    assert picture.group() in (PAGES / "objects.md").read_text()
