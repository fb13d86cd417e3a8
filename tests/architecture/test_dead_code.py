"""Every function, class and constant of the packages is used by something beside tests."""

import ast
from pathlib import Path
from typing import Final

from broker.protocol import apis
from tests.architecture.dead_code import Source, sources, unused

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("forebay", "sim", "broker", "compactor", "process", "storage", "runtime")
USERS: Final = ("services", "model", "bench", "examples", "docs", "spark")
GENERATED: Final = {"wire_pb2.py"}

ONLY_TESTS_USE: Final = {
    "broker.protocol.codec request_class": "says what decode_request answers with: tests build requests and compare types by it",
    "broker.protocol.compiler compile_decoder": "the decoder without pauses, for tests that decode whole messages",
    "broker.protocol.compiler compile_encoder": "the encoder without pauses, which the second opinion writes its requests with",
    "sim.groups.history longest_pause_s": "judges real brokers in tests/chaos as the simulation does its own",
    "sim.groups.history unprocessed": "judges real brokers in tests/chaos as the simulation does its own",
    "storage.limits MANIFEST_BYTES_TARGET": "what a test holds an encoded manifest to",
    "storage.metadata.port sort_key": "the order of keys in words of the contract, which each store's own order is compared with",
    "storage.records LZ4": "the number of a codec, beside those of the others",
    "storage.records SNAPPY": "the number of a codec, beside those of the others",
}
"""What may be there for tests alone, and why."""

HANDLERS: Final = {f"broker.handlers.{api.module} handle" for api in apis.APIS}
"""Found by name: tests/architecture/test_handlers.py."""


def found() -> set[str]:
    return unused(list(sources(ROOT, PACKAGES, generated=GENERATED)), list(sources(ROOT, USERS))) - HANDLERS


def test_nothing_is_there_that_only_tests_or_nobody_uses() -> None:
    dead = found()

    assert sorted(dead - ONLY_TESTS_USE.keys()) == [], "delete them, or say above why tests alone may use them"
    assert sorted(ONLY_TESTS_USE.keys() - dead) == [], "they are used now, or gone: take them off the list"


def source(module: str, text: str) -> Source:
    return Source(module, ast.parse(text))


DEFINING: Final = """
from typing import Final

LIMIT_MAX: Final = 5
class Kind: ...
def twice(number): return twice(number) if number else _once(number)
def _once(number): return number
__all__ = ["Exported"]
class Exported: ...
@application.command()
def listed(): ...
"""


def test_what_nothing_uses_is_named_with_its_module() -> None:
    assert unused([source("a.b", DEFINING)], []) == {"a.b LIMIT_MAX", "a.b Kind", "a.b twice"}


def test_a_use_is_an_import_an_attribute_of_the_module_or_a_string_that_names_it() -> None:
    uses = ["from a.b import LIMIT_MAX", "from a import b as other\nother.Kind", 'load("a.b:twice")']

    assert unused([source("a.b", DEFINING)], [source("c", text) for text in uses]) == set()


def test_a_name_of_another_module_is_no_use() -> None:
    uses = ["from c import LIMIT_MAX", "import c\nc.Kind", "self.twice", '"twice as much"']

    assert unused([source("a.b", DEFINING)], [source("d", text) for text in uses]) == {"a.b LIMIT_MAX", "a.b Kind", "a.b twice"}
