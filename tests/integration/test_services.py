"""The servers of `services`: what they promise tests, and what `make services` promises people."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import obstore
import pytest
from obstore.store import S3Store

from runtime.clock import SystemClock
from services.build import OXIA, VERSITYGW, BuildError, Fix, built
from services.oxia import OxiaServer, running_oxia
from services.ports import HOST, free_port, is_free
from services.process import ServerError, interrupts_deferred
from services.readiness import http_answers, oxia_answers
from services.versitygw import S3Server, running_s3
from tests.kit.official_oxia import official_client

ROOT: Final = Path(__file__).parents[2]
WITHIN_S: Final = 60.0
GONE_WITHIN_S: Final = 60.0

_clock = SystemClock()


class InBackground:
    """`python -m services` over a folder and ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.oxia_port = free_port()
        self.s3_port = free_port()

    def run(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        environ = {
            **os.environ,
            "FOREBAY_SERVICES_OXIA_PORT": str(self.oxia_port),
            "FOREBAY_SERVICES_S3_PORT": str(self.s3_port),
            "FOREBAY_SERVICES_FOLDER": str(self.folder),
        }
        command = [sys.executable, "-m", "services", action, *options]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False)

    def start(self) -> str:
        done = self.run("start")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pid(self, name: str) -> int:
        return int((self.folder / name / "server.pid").read_text().splitlines()[0])

    def answer(self) -> tuple[bool, bool]:
        return oxia_answers(self.oxia_port), http_answers(self.s3_port)


@pytest.fixture
def background(tmp_path: Path) -> Iterator[InBackground]:
    services = InBackground(tmp_path / "services")
    yield services
    assert services.run("clean").returncode == 0


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` that counts its calls in a file and makes what it is told to, slowly enough for two to meet."""
    folder = tmp_path / "path"
    folder.mkdir()
    calls = tmp_path / "calls"
    program = folder / "go"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nsleep 0.3\nwhile [ "$1" != -o ]; do shift; done\necho fresh > "$2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return calls


def put_and_get(server: OxiaServer, *, key: str, value: str) -> bytes:
    with official_client(server.address) as client:
        client.put(key, value)
        return bytes(client.get(key)[1])


def get(server_address: str, key: str) -> bytes:
    with official_client(server_address) as client:
        return bytes(client.get(key)[1])


def bucket(server: S3Server) -> S3Store:
    return S3Store(
        server.bucket,
        endpoint=server.endpoint,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        client_options={"allow_http": True},
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_gone_soon(pid: int) -> bool:
    give_up_s = _clock.monotonic_s() + GONE_WITHIN_S
    while is_running(pid) and _clock.monotonic_s() < give_up_s:
        time.sleep(0.02)
    return not is_running(pid)


def test_oxia_keeps_what_it_acknowledged_through_a_kill(tmp_path: Path) -> None:
    with running_oxia(tmp_path) as server:
        put_and_get(server, key="k", value="kept")
        first = server.pid
        server.kill9()
        assert not is_running(first)
        server.start()

        assert server.pid != first
        assert get(server.address, "k") == b"kept"


def test_s3_keeps_what_it_acknowledged_through_a_kill(tmp_path: Path) -> None:
    with running_s3(tmp_path) as server:
        obstore.put(bucket(server), "a/b", b"kept")
        server.kill9()
        server.start()

        assert bytes(obstore.get(bucket(server), "a/b").bytes()) == b"kept"


def test_a_paused_server_does_not_answer_until_it_is_resumed(tmp_path: Path) -> None:
    with running_s3(tmp_path) as server:
        server.pause()
        paused = http_answers(server.port)
        server.resume()

        assert not paused
        assert http_answers(server.port)


def test_leaving_ends_a_server_that_is_paused(tmp_path: Path) -> None:
    with running_oxia(tmp_path) as server:
        server.pause()

    assert not is_running(server.pid)


def test_methods_that_have_nothing_to_do_do_nothing(tmp_path: Path) -> None:
    with running_s3(tmp_path) as server:
        first = server.pid
        server.start()
        assert server.pid == first
        server.stop()
        server.stop()
        server.kill9()

        assert is_free(server.port)


def test_the_servers_of_the_run_are_ready_and_their_urls_lead_to_them(oxia_server: OxiaServer, s3_server: S3Server) -> None:
    obstore.put(bucket(s3_server), "test-services/k", b"v")

    assert oxia_server.url == f"oxia://{oxia_server.address}/default"
    assert put_and_get(oxia_server, key="test-services", value="v") == b"v"
    assert s3_server.url("p") == f"s3://{s3_server.bucket}/p?endpoint={s3_server.endpoint}&region={s3_server.region}&path_style=true"


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from services.versitygw import running_s3\n"
        f"with running_s3(Path({str(tmp_path)!r})) as s: print(s.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()

        assert is_gone_soon(pid)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        socket.create_server((HOST, 0)) as taken,
        pytest.raises(ServerError) as refused,
        running_oxia(tmp_path, port=taken.getsockname()[1]),
    ):
        pass

    assert "oxia ended before it was ready" in str(refused.value)
    assert "address already in use" in str(refused.value)


def test_a_program_is_built_once_even_by_two_at_a_time(tmp_path: Path, fake_go: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(lambda _: built(VERSITYGW, cache=tmp_path / "cache"), range(2)))
    again = built(VERSITYGW, cache=tmp_path / "cache")

    assert files == [again, again]
    assert again.read_text() == "fresh\n"
    assert len(fake_go.read_text().splitlines()) == 1
    assert [path for path in again.parent.iterdir() if path.is_dir()] == []


def test_a_kept_program_is_named_by_the_version_in_go_mod(tmp_path: Path) -> None:
    assert (OXIA.version, VERSITYGW.version) == ("0.14.0", "1.8.0")
    assert OXIA.file_name.startswith("oxia-0.14.0-")
    assert OXIA.file_name != VERSITYGW.file_name


def test_a_module_is_built_with_its_fix_and_one_that_has_changed_is_refused(
    tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module"
    module.mkdir()
    source = module / "a.go"
    source.write_text("wrong\n")
    program = fake_go.with_name("path") / "go"
    program.write_text(
        "#!/bin/sh\n"
        f"""if [ "$2" = download ]; then echo '{{"Dir": "{module}"}}'; exit; fi\n"""
        "for word; do case $word in -modfile=*) mod=${word#-modfile=};; esac; done\n"
        'while [ "$1" != -o ]; do shift; done\n'
        'cat "$(sed -n "s/^replace .* => //p" "$mod")/a.go" > "$2"\n'
    )
    fixed = replace(OXIA, fixes=(Fix(path="a.go", before="wrong", after="right"),))

    assert built(fixed, cache=tmp_path / "cache").read_text() == "right\n"
    assert source.read_text() == "wrong\n"
    assert fixed.file_name not in {OXIA.file_name, replace(OXIA, fixes=()).file_name}
    source.write_text("other\n")
    with pytest.raises(BuildError, match=r"oxia 0\.14\.0 is not as its fix in services/build\.py expects it: a\.go"):
        built(fixed, cache=tmp_path / "other")


def test_a_build_that_fails_leaves_nothing_and_quotes_go(tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_go.with_name("path") / "go"
    program.write_text('#!/bin/sh\necho "dial tcp: no route to host" >&2\nexit 1\n')

    with pytest.raises(BuildError, match=r"building versitygw 1\.8\.0 failed[\s\S]*no route to host"):
        built(VERSITYGW, cache=tmp_path / "cache")
    assert [path for path in (tmp_path / "cache" / "bin").iterdir() if not path.name.endswith(".lock")] == []


def test_without_go_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path))

    with pytest.raises(BuildError) as refused:
        built(OXIA)
    assert str(refused.value).startswith("oxia 0.14.0 has to be built and there is no `go` on the PATH. Install Go")
    assert len(str(refused.value).splitlines()) == 1


def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # nobody's

    with pytest.raises(BuildError, match=r"no home folder .* Name a folder in FOREBAY_CACHE\."):
        built(OXIA)


def test_go_has_a_home_even_if_the_user_has_none(tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_go.with_name("path") / "go"
    program.write_text('#!/bin/sh\necho "HOME=$HOME" >&2\nexit 1\n')
    monkeypatch.delenv("HOME")

    with pytest.raises(BuildError, match=f"HOME={tmp_path}/cache/go"):
        built(OXIA, cache=tmp_path / "cache")


def test_a_cache_may_be_named_from_here(tmp_path: Path, fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREBAY_CACHE", "cache")

    assert built(VERSITYGW) == tmp_path / "cache" / "bin" / VERSITYGW.file_name


def test_starting_in_the_background_twice_starts_once(background: InBackground) -> None:
    first = background.start()
    pids = background.pid("oxia"), background.pid("s3")
    second = background.start()

    assert "Oxia started" in first
    assert "S3 (versitygw) started" in first
    assert second.count("was already running") == 2
    assert (background.pid("oxia"), background.pid("s3")) == pids
    assert background.answer() == (True, True)
    assert background.run("status").returncode == 0


def test_two_starts_at_once_are_one_start(background: InBackground) -> None:
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: background.start(), range(2)))

    assert sorted("already running" in one for one in said) == [False, True]


def test_stopping_and_starting_again_keeps_the_data(background: InBackground) -> None:
    background.start()
    address = f"{HOST}:{background.oxia_port}"
    with official_client(address) as client:
        client.put("k", "kept")
    pids = background.pid("oxia"), background.pid("s3")
    stopped = background.run("stop")
    assert background.answer() == (False, False)
    background.start()

    assert stopped.returncode == 0
    assert not any(map(is_running, pids))
    assert get(address, "k") == b"kept"


def test_cleaning_stops_and_deletes_but_nothing_of_others(background: InBackground) -> None:
    background.start()
    (background.folder / "notes").write_text("mine")
    pids = background.pid("oxia"), background.pid("s3")

    assert background.run("clean").returncode == 0
    assert not any(map(is_running, pids))
    assert {path.name for path in background.folder.iterdir()} == {"notes", "lock"}


def test_stopping_what_never_ran_is_no_error(background: InBackground) -> None:
    done = background.run("stop")

    assert done.returncode == 0
    assert done.stdout.count("was not running") == 2
    assert background.run("status").returncode == 1


def test_a_taken_port_is_named_with_who_has_it(background: InBackground) -> None:
    with socket.create_server((HOST, background.s3_port)):
        done = background.run("start")

    assert done.returncode == 1
    assert done.stderr.startswith(f"Port {background.s3_port} on {HOST} is in use (pid {os.getpid()}, ")
    assert done.stderr.endswith("Choose another with --s3-port.\n")
    assert len(done.stderr.splitlines()) == 1


def test_running_on_other_ports_than_asked_for_is_said_and_left_alone(background: InBackground) -> None:
    background.start()
    done = background.run("start", "--oxia-port", str(free_port()))

    assert done.returncode == 1
    assert "Stop it first" in done.stderr
    assert background.answer() == (True, True)


def test_a_stale_pid_file_gets_nobody_killed(background: InBackground) -> None:
    background.start()
    remembered = (background.folder / "oxia" / "server.pid").read_text().splitlines()
    assert background.run("stop").returncode == 0
    with subprocess.Popen(["/bin/sleep", "60"]) as stranger:
        (background.folder / "oxia" / "server.pid").write_text(f"{stranger.pid}\n{remembered[1]}\n")
        done = background.run("stop")
        survived = stranger.poll() is None
        stranger.send_signal(signal.SIGKILL)

    assert done.returncode == 0
    assert "Oxia was not running" in done.stdout
    assert survived
    assert not (background.folder / "oxia" / "server.pid").exists()


def test_a_server_that_was_killed_by_hand_is_started_again(background: InBackground) -> None:
    background.start()
    os.kill(background.pid("oxia"), signal.SIGKILL)
    assert is_gone_soon(background.pid("oxia"))
    said = background.start()

    assert "Oxia started" in said
    assert "S3 (versitygw) was already running" in said


def test_the_env_file_gives_a_shell_what_a_broker_and_its_clients_read(background: InBackground) -> None:
    said = background.start()
    names = ("FOREBAY_METADATA__URL", "FOREBAY_STORAGE__URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    shown = " ".join(f'"${name}"' for name in names)
    done = subprocess.run(
        ["/bin/sh", "-c", f'. "{background.folder}/env" && printf "%s\\n" {shown}'], env={}, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [
        f"oxia://{HOST}:{background.oxia_port}/default",
        f"s3://forebay/llog?endpoint=http://{HOST}:{background.s3_port}&region=us-east-1&path_style=true",
        "forebay",
        "forebay-secret",
        "us-east-1",
    ]
    assert said.endswith(f"Next:\n  . {background.folder}/env\n  .venv/bin/forebay serve\n")


def test_an_interrupt_while_a_process_starts_comes_when_its_caller_knows_it() -> None:
    known: list[int] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a SparkContext of an earlier test has one of its own

    def start() -> None:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            known.append(1)

    with pytest.raises(KeyboardInterrupt):
        start()

    assert known == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_processes_start_as_ever() -> None:
    started: list[int] = []

    def start() -> None:
        with interrupts_deferred():
            started.append(1)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    assert started == [1]
