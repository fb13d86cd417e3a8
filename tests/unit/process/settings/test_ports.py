import errno
import os
import socket
from pathlib import Path

import pytest

from process.settings.ports import cannot_listen, owner_of_port

FIX = "--set http.listen=127.0.0.1:8071"


def test_a_port_in_use_names_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as refused:
            socket.create_server(("127.0.0.1", port))

        error = cannot_listen(refused.value, host="127.0.0.1", port=port, fix=FIX)

    assert error.exit_code == 1
    assert str(error).startswith(f"Port {port} on 127.0.0.1 is in use")
    assert str(error).endswith(f". Choose another with {FIX}.")
    if Path("/proc/net/tcp").exists():
        assert f"(pid {os.getpid()}, " in str(error)


@pytest.mark.parametrize(
    ("error", "message", "exit_code"),
    [
        (OSError(errno.EACCES, "Permission denied"), "Port 80 on h needs rights this process does not have. Choose one above 1023 with", 2),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), "h is not an address of this machine. Choose another with", 2),
        (socket.gaierror(-2, "Name or service not known"), "h does not resolve (Name or service not known). Choose another with", 2),
        (
            OSError(-2, "Name unknown (while attempting to bind on address ('h', 80))"),
            "h does not resolve (Name unknown). Choose another with",
            2,
        ),
        (OSError(errno.EMFILE, "Too many open files"), "Cannot listen on h:80 (Too many open files). Choose another with", 1),
    ],
)
def test_other_reasons_are_told_apart(error: OSError, message: str, exit_code: int) -> None:
    told = cannot_listen(error, host="h", port=80, fix=FIX)

    assert (str(told), told.exit_code) == (f"{message} {FIX}.", exit_code)


def test_a_system_that_does_not_tell_gives_no_owner(tmp_path: Path) -> None:
    assert owner_of_port(9092, proc=tmp_path) == ""


def test_a_listener_of_another_user_has_no_owner_we_may_see(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("head\n 0: 0100007F:2384 00000000:0000 0A 0:0 0:0 0 1000 0 77 1\n")
    (tmp_path / "17").mkdir()
    (tmp_path / "self").mkdir()

    assert owner_of_port(9092, proc=tmp_path) == ""


def test_the_owner_is_found_by_the_inode_of_its_socket(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp6").write_text(
        "head\n 0: 00:2384 00:0000 01 0:0 0:0 0 1000 0 76 1\n 1: 00:2384 00:0000 0A 0:0 0:0 0 1000 0 77 1\n"
    )
    for pid, inode in (("16", 76), ("17", 77)):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to(f"socket:[{inode}]")
    (tmp_path / "17" / "comm").write_text("java\n")
    (tmp_path / "17" / "fd" / "2").write_text("no link: it was closed and is gone, as far as its reader can see")

    assert owner_of_port(9092, proc=tmp_path) == "pid 17, java"
