"""Real servers for tests that need them: `oxia_server` and `s3_server`, one each for the whole run.

FOREBAY_TEST_SERVICES=containers takes them from a Docker engine instead of building them; an engine that does not answer is an error.
Tests that kill or pause a server start their own, with `running_oxia` and `running_s3`.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from services.build import OXIA, PROGRAMS, VERSITYGW, BuildError, Program, built
from services.oxia import OxiaServer, running_oxia
from services.versitygw import S3Server, running_s3
from tests.compat.clients import Client
from tests.integration.serving import loop_may_be_held

# An example takes as long as the machine lets it: how long says nothing.
settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")

_NEEDS: Final[dict[str, Program]] = {"oxia_server": OXIA, "s3_server": VERSITYGW, "running_oxia": OXIA, "running_s3": VERSITYGW}


def _in_containers() -> bool:
    chosen = os.environ.get("FOREBAY_TEST_SERVICES", "native")
    assert chosen in {"native", "containers"}, f"FOREBAY_TEST_SERVICES={chosen}: expected native or containers"
    return chosen == "containers"


@pytest.fixture(autouse=True)
def _holding(request: pytest.FixtureRequest) -> Iterator[None]:
    """Brokers of tests marked `holds_loop` may hold their event loop."""
    marker = request.node.get_closest_marker("holds_loop")
    with contextlib.nullcontext() if marker is None else loop_may_be_held(*marker.args):
        yield


@pytest.fixture(scope="session")
def oxia_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaServer]:
    with _oxia(tmp_path_factory.mktemp("oxia")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with _s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def pytest_runtestloop(session: pytest.Session) -> None:
    """Build what the chosen tests need before the first of them begins: a build takes longer than a test may."""
    if session.config.option.collectonly:
        return
    needed = set() if _in_containers() else {program for item in session.items for program in _needed_by(item)}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        for program in PROGRAMS:
            if program in needed:
                # A program that cannot be built fails the tests that need it, each with this reason, and no others.
                with contextlib.suppress(BuildError):
                    built(program)
        for client in _played(session.items):
            with contextlib.suppress(BuildError):
                client.command()


def _needed_by(item: pytest.Item) -> Iterator[Program]:
    names = {*getattr(item, "fixturenames", ()), *vars(getattr(item, "module", None) or object)}
    yield from (program for name, program in _NEEDS.items() if name in names)


def _played(items: list[pytest.Item]) -> list[Client]:
    """The clients that tests were parametrised with, under the name `client`."""
    given = [item.callspec.params.get("client") for item in items if hasattr(item, "callspec")]
    return [client for client in given if isinstance(client, Client)]


def _oxia(folder: Path) -> AbstractContextManager[OxiaServer]:
    if not _in_containers():
        return running_oxia(folder)
    from tests.containers import oxia_container

    return oxia_container()


def _s3(folder: Path) -> AbstractContextManager[S3Server]:
    if not _in_containers():
        return running_s3(folder)
    from tests.containers import s3_container

    return s3_container()
