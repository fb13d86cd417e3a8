"""Forebay's answers beside those that Apache Kafka gave to the same requests; `make second-opinion` asks Kafka again."""

from collections.abc import Iterator

import pytest

from tests.compat.second_opinion.asking import Asked
from tests.compat.second_opinion.differences import Difference, differences
from tests.compat.second_opinion.page import PAGE, renewed, stale, unexplained
from tests.compat.second_opinion.probing import FOREBAY_SETTINGS, probe_all
from tests.kit.recorded_answers import ANSWERS, read, written
from tests.kit.serving import serving


@pytest.fixture(scope="module")
def found() -> Iterator[list[Difference]]:
    with serving(None, settings=FOREBAY_SETTINGS) as forebay:
        yield list(differences(read(ANSWERS.read_text()), probe_all(forebay.kafka_port)))


def test_every_difference_from_apache_kafka_has_an_explanation(found: list[Difference]) -> None:
    assert unexplained(found) == []


def test_every_deviation_that_is_explained_is_there(found: list[Difference]) -> None:
    assert stale(found) == []


def test_the_page_of_deviations_says_what_was_answered(found: list[Difference]) -> None:
    page = PAGE.read_text()

    assert renewed(page, found) == page, "run `make second-opinion`"


def test_answers_survive_their_file() -> None:
    answers = {"Heartbeat 0: in time": {"error_code": 0}, "Heartbeat 1: in time": {"error_code": 0}, "Fetch 4: at: the end": None}

    assert read(written(answers)) == answers


def test_the_page_is_the_same_from_answers_that_were_kept_in_their_file() -> None:
    kafka = {f"Fetch {version}: {title}": {"z": version, "a": title} for version in (4, 5) for title in ("one", "two")}
    forebay = {probe: {"z": -1, "a": None} for probe in kafka}

    assert list(differences(read(written(kafka)), forebay)) == list(differences(kafka, forebay))


def test_lists_are_compared_in_the_same_order_whatever_tells_their_elements_apart() -> None:
    asked = Asked(port=0)
    parts = [{"index": index, "error_code": code} for index, code in ((0, 0), (1, 87), (9, 3))]
    others = [{"odd": number} for number in range(3)]
    asked.keep("as sent", "Produce", 9, {"responses": parts, "others": others})
    asked.keep("in another order", "Produce", 9, {"responses": parts[::-1], "others": others[::-1]})

    first, second = asked.answers.values()
    assert first == second


def test_a_field_of_another_value_is_a_difference_with_its_place() -> None:
    (one,) = differences({"X 3: a: b": {"topics": [{"code": 1}]}}, {"X 3: a: b": {"topics": [{"code": 2}]}})

    assert (one.api, one.version, one.title, one.where, one.kafka, one.forebay) == ("X", 3, "a: b", "topics.*.code", "1", "2")


def test_more_words_than_kafkas_are_no_difference() -> None:
    assert not list(differences({"X 0: a": {"error_message": None}}, {"X 0: a": {"error_message": "text"}}))
    assert list(differences({"X 0: a": {"error_message": "text"}}, {"X 0: a": {"error_message": None}}))
