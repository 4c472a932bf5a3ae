"""Who may write to a model folder: one writer at a time, and none from outside while a server is at it.

Locks are flocks: they go with the process, so that a crash leaves none behind. Windows has none, and goes without.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fscil.errors import StoreError
from fscil.runtime.files import cannot_write

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

LOCK, SERVER = ".lock", ".server"

_served_here: set[tuple[int, Path]] = set()  # process and folder: a fork is another process


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Waits for other writers; refused while a server of another process uses the model."""
    with _open(folder / LOCK) as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        if (os.getpid(), folder.resolve()) not in _served_here:
            with _open(folder / SERVER) as server:
                _take(server, folder)
        yield


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """Keeps writers of other processes, and other servers, out."""
    with _open(folder / SERVER) as server:
        with writing(folder):  # so that whoever writes has finished, and whoever comes sees the lock
            _take(server, folder)
        with suppress(OSError):  # it only tells others who is here
            server.truncate(0)
            server.write(json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode())
        me = (os.getpid(), folder.resolve())
        _served_here.add(me)
        try:
            yield
        finally:
            _served_here.discard(me)


@contextmanager
def no_writer(folder: Path) -> Iterator[bool]:
    """For a reader: False if somebody is writing, otherwise nobody will until the block ends."""
    try:
        file = (folder / LOCK).open("rb")
    except OSError:  # no lock, or no right to it: no writer either
        yield True
        return
    with file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        yield alone


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("a+b", buffering=0)
    except OSError as error:
        raise cannot_write(path, error) from error


def _take(server: IO[bytes], folder: Path) -> None:
    """The lock of a server, until the file is closed."""
    try:
        if fcntl is not None:
            fcntl.flock(server, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = ""
        with suppress(OSError, ValueError, LookupError, TypeError):
            server.seek(0)
            holder = json.loads(server.read())
            who = f" (pid {holder['pid']}, since {holder['since']})"
        raise StoreError(
            f"{folder}: a server is using this model{who}. Do this through the server, or stop it first."
        ) from None
