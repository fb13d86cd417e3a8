"""Where an embedded store is looked at: where it is, or, where none is yet, in a folder of its own on the same file system."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from process import preflight
from process.settings.notation import has_path, path_of, scheme_of
from storage.objects.port import TEMPORARY_FOLDER

TRIAL_PREFIX: Final = ".forebay-doctor-"


def is_there(url: str) -> bool:
    """Whether a broker has used the store of that URL: a metadata file, or a folder that was prepared. True of remote ones.

    Raise OSError where that cannot be seen.
    """
    if not has_path(url):
        return True
    path = path_of(url)
    return path.exists() if scheme_of(url) == "sqlite" else (path / TEMPORARY_FOLDER).is_dir()


def folder_of(url: str) -> Path:
    """The folder that a store of this machine writes to."""
    path = path_of(url)
    return (path.parent if scheme_of(url) == "sqlite" else path).absolute()


@contextlib.contextmanager
def looked_at(url: str, *, key: str) -> Iterator[str]:
    """The URL to open. Raise `StartError` where the folder cannot be written to, or made.

    What is not there is not made: a store in a folder that is gone afterwards shows what its file system can do.
    """
    if not has_path(url):
        yield url
        return
    preflight.check_store_folder(folder_of(url), key=key, url=url, is_made=False)
    if is_there(url):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix=TRIAL_PREFIX, dir=preflight.nearest_there(folder_of(url))) as folder:
        yield f"sqlite:///{folder}/meta.db" if scheme_of(url) == "sqlite" else f"file://{folder}"
