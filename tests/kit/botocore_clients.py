"""What every client of botocore reads again when it is made, tests read once: 0.1 s each, more than most tests take."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.loaders
import certifi
import pytest

_END_OF_CERTIFICATE = "-----END CERTIFICATE-----\n"
_read = botocore.loaders.JSONFileLoader.load_file
_list_services = botocore.loaders.Loader.list_available_services


@functools.cache
def _kept(path: str) -> Any:
    return _read(botocore.loaders.JSONFileLoader(), path)


@functools.cache
def _services(type_name: str) -> Any:
    return _list_services(botocore.loaders.Loader(), type_name)


@pytest.fixture(autouse=True, scope="module")
def clients_are_made_cheaply(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The descriptions of services are kept, and of the authorities that nobody asks over http there is one."""
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition(_END_OF_CERTIFICATE)
    authorities = tmp_path_factory.mktemp("authorities") / "first.pem"
    authorities.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(botocore.loaders.JSONFileLoader, "load_file", lambda _, path: _kept(path))
        patched.setattr(botocore.loaders.Loader, "list_available_services", lambda _, type_name: _services(type_name))
        patched.setenv("AWS_CA_BUNDLE", str(authorities))
        yield
