"""Files that a data set's own lists name: found under its root, never outside it."""

import os
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath

from fscil.errors import DataError
from fscil.runtime.regular_files import read_regular

MAX_BYTES = 2**28  # of a list


class Listing:
    """Which files are under a root; each folder is read once, so that sixty thousand lookups stay cheap."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names = lru_cache(maxsize=None)(self._read)

    def _read(self, folder: str) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self._root / folder))  # noqa: PTH208 (ten times faster than Path.iterdir)
        except OSError:
            return frozenset()

    def __contains__(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self._names(folder)


def checked(path: str, where: str) -> str:
    """The path, if it is a plain one that stays below the folder it is relative to."""
    windows = PureWindowsPath(path)
    strange = windows.drive or windows.root or "\\" in path or "\0" in path
    if not path or strange or ".." in PurePosixPath(path).parts:
        raise DataError(f"{where}: {path!r} is not a path inside the data set. The list is not the published one.")
    return path


def read_lines(path: Path, fetch: str) -> list[str]:
    """The lines of a list; fetch says how to get it where it is missing."""
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. {fetch}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from error
