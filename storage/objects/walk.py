"""Objects of a disk store in the byte order of whole keys.

`/` (0x2f) sorts after `-` and `.` and before digits and letters, so the objects of folder `a` come after file `a-b` and
before file `a0`. Sorting the children of each folder, with a slash at the end of the names of folders, gives that order,
because no key is a path prefix of another.
"""

import os
from collections.abc import Iterator

from storage.objects.port import TEMPORARY_FOLDER, ObjectStat, is_key, is_segment


def walk(root: str, *, prefix: str, start_after: str) -> Iterator[ObjectStat]:
    """Objects below `root` whose key starts with `prefix` and is greater than `start_after`. Blocking; OSError passes.

    Lazy: it reads a folder when it comes to it, and holds the names in the folders on the way to the current object.
    Objects and folders that vanish meanwhile are left out. Names that no key has are ignored.
    """
    folder = prefix[: prefix.rfind("/") + 1]
    # A prefix is any string: one such as `../` must not lead out of the root.
    if not folder or is_key(folder[:-1]):
        yield from _walk_folder(root, folder, prefix, start_after)


def _walk_folder(root: str, folder: str, prefix: str, start_after: str) -> Iterator[ObjectStat]:
    """`folder` is empty or ends in a slash."""
    for name in _sorted_children(f"{root}/{folder}"):
        key = folder + name
        if name.endswith("/"):
            may_match = key.startswith(prefix) or prefix.startswith(key)
            may_be_after = key > start_after or start_after.startswith(key)
            if may_match and may_be_after and key != f"{TEMPORARY_FOLDER}/":
                yield from _walk_folder(root, key, prefix, start_after)
        elif key > start_after and key.startswith(prefix):
            try:
                status = os.stat(f"{root}/{key}")
            except FileNotFoundError:
                continue
            yield ObjectStat(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _sorted_children(path: str) -> list[str]:
    names = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not is_segment(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    names.append(f"{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names.sort()
    return names
