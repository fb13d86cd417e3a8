"""What all tests share: the profile of Hypothesis, how several run at a time (tests/kit/workers.py), and real servers.

`oxia_server` and `s3_server` are one each for the whole run; when several tests run at a time, one each for every worker. What a test
leaves there, the next one finds: topics have names of their own.

FOREBAY_TEST_SERVICES=containers takes them from a Docker engine instead of building them; an engine that does not answer is an error.
Tests that kill or pause a server start their own, with `running_oxia` and `running_s3`.
"""

import contextlib
import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer, WorkerInteractor

from services.build import OXIA, PROGRAMS, VERSITYGW, BuildError, Program, built
from services.oxia import OxiaServer, running_oxia
from services.versitygw import S3Server, running_s3
from tests.compat.clients import Client
from tests.kit import once_more, workers
from tests.kit.alone import Room
from tests.kit.process_log import restored_log
from tests.kit.serving import loop_may_be_held

# Of every property: an example takes as long as the machine lets it, and one that fails says how to see it again.
settings.register_profile("forebay", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("forebay")

NOT_INSTALLED: Final = Path(__file__).parent / "kit" / "not_installed"
"""Modules that processes started by tests do not find, as if they were not installed."""
GARBAGE_LOOKED_FOR_AFTER: Final = 20_000
"""New objects; Python's own 700 are for programs that are short of memory sooner."""

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


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    with restored_log():
        yield


@pytest.fixture(scope="session")
def oxia_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaServer]:
    with _oxia(tmp_path_factory.mktemp("oxia")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with _s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--against", choices=("forebay", "kafka"), default="forebay", help="what the tests of tests/spark read")
    once_more.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    once_more.register(config)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`auto`: every kind of test. `logical`: small tests."""
    return workers.count(workers.processors(), of_small_tests=config.option.numprocesses == "logical")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> workers.Scheduling:
    return workers.Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if workers.starts_processes(item.nodeid):
            item.add_marker("starts_processes")
        if workers.gives_way(item.nodeid) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(workers.GIVING_WAY_WITHIN_S))
    if hasattr(config, "workerinput"):
        items[:] = workers.in_order(items)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the test's timeout: another's time is not its own
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not hasattr(item.config, "workerinput"):
        return (yield)
    if workers.gives_way(item.nodeid):
        workers.lower_priority()
        return (yield)
    # The controller's folder, in which each worker has one.
    with Room(item.config._tmp_path_factory.getbasetemp().parent).entered(alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        # Not of the one that starts workers: they are tests themselves.
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{NOT_INSTALLED}{os.pathsep}{others}" if others else str(NOT_INSTALLED)
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == WorkerInteractor.__name__:  # a worker runs a copy of the module
            workers.say_less(plugin)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell without a terminal leaves it to what runs in the background. Tests interrupt themselves and what they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until the tests are collected: what is made meanwhile stays


def pytest_collection_finish() -> None:
    """Nine thousand tests and what they import stay until the end: looking through them for garbage took a fifth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_LOOKED_FOR_AFTER)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before a worker asks for its tests
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
    from tests.kit.containers import oxia_container

    return oxia_container()


def _s3(folder: Path) -> AbstractContextManager[S3Server]:
    if not _in_containers():
        return running_s3(folder)
    from tests.kit.containers import s3_container

    return s3_container()
