"""Real clients play the scenario of README.md against a real broker, and use the APIs that docs/reference/apis.md says they use.

Which versions a client sends is settled by what it is and by what ApiVersions offers; which APIs, by the steps. Three things see to it that
no API depends on luck: no step ends before the answer it waits for; in `group_of_two` the first member hears of the second by Heartbeat
alone, so that this is always sent; and what a library does only now and then is named under `unsteady` in its client.toml and left out of
the comparison. How often a request is sent counts for nothing.
"""

import os

import pytest

from broker.protocol import apis
from services.build import BuildError
from tests.compat import results, support_table
from tests.compat.clients import Client, clients
from tests.compat.results import Result
from tests.compat.running import PLAY_WITHIN_S, play
from tests.kit.toolchains.kcat import NotOnThisMachineError

READY_WITHIN_S = 90.0
"""For the broker to start and to stop. A client is installed before the first test (tests/conftest.py)."""

ALL = clients()
BY_KEY = {api.name: api for api in apis.APIS}


def checked_out(client: Client) -> None:
    """Skip where nothing can be installed; fail with the reason where it should have been."""
    try:
        client.command()
    except NotOnThisMachineError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    except BuildError as error:
        pytest.fail(str(error))


@pytest.mark.timeout(PLAY_WITHIN_S + READY_WITHIN_S)
@pytest.mark.parametrize("client", [one for one in ALL if one.in_make_test], ids=lambda one: one.name)
def test_a_client_sees_what_it_is_to_see_and_uses_what_is_documented(client: Client) -> None:
    checked_out(client)

    played = play(client)
    assert not played.differences, "\n".join([*played.differences, "its standard error ended:", played.stderr])
    used = results.steady(results.apis_of(played.exercised), client)
    assert used == results.steady(results.read(results.path_of(client.name)).apis, client), f"run `python -m tests.compat {client.name}`"


@pytest.mark.parametrize("described", ALL, ids=lambda one: one.name)
def test_every_client_has_results_of_its_version(described: Client) -> None:
    result = results.read(results.path_of(described.name))

    assert (result.library, result.version, result.lacks) == (described.library, described.version, described.lacks)


@pytest.mark.parametrize("result", results.committed(), ids=lambda one: one.client)
def test_what_a_client_used_is_served(result: Result) -> None:
    assert result.client in {client.name for client in ALL}
    assert result.apis
    for name, versions in result.apis.items():
        assert all(BY_KEY[name].serves(version) for version in versions), name


def test_the_page_is_what_the_table_and_the_results_render() -> None:
    page = support_table.PAGE.read_text(encoding="utf-8")

    assert page == support_table.rendered(results.committed()), "run `python -m tests.compat --page`"


def test_the_page_shows_what_is_advertised_apart_from_what_is_served_and_who_used_it() -> None:
    result = Result(client="one", library="lib", version="1.0", apis={"Produce": (3, 7)}, lacks={"seek": "it cannot"})

    lines = support_table.rendered([result]).splitlines()
    assert any(line.startswith("| Produce | 0 | 0 to ") and "| 3 to " in line for line in lines)
    assert "| API | one |" in lines
    assert "| Produce | 3, 7 |" in lines
    assert "| one | lib | 1.0 | `seek` |" in lines
