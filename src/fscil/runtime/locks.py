"""Locks on folders: one writer at a time, and no writer of another process while a server uses a model.

A lock belongs to a process: a crash leaves none behind. The files stay and hold nothing; who serves is in another one.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fscil.errors import StoreError
from fscil.runtime.files import cannot_write, read_json, write_json
from fscil.runtime.regular_files import require_regular

FILES = LOCK, SERVER, SERVER_INFO = ".lock", ".server", ".server.json"
POLL = 0.01  # seconds between attempts to take a lock that is held

_served_here: set[tuple[int, Path]] = set()  # process and folder: a fork is another process


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the exclusive lock of this file in the block. Without wait, False is yielded where it is held already.

    Every call locks by itself: two threads of one process exclude each other as two processes do. A link or a special
    file is no lock: a StoreError.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=-1 if wait else 0, thread_local=False)
    try:
        require_regular(path)
        lock.acquire(poll_interval=POLL)
        held = True
    except Timeout:
        held = False
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield held
    finally:
        lock.release()


@contextmanager
def writing(folder: Path, wait: bool = True) -> Iterator[None]:
    """Waits for other writers; a StoreError while a server of another process uses the model, or without waiting."""
    with locked(folder / LOCK, wait) as alone:
        if not alone:
            raise StoreError(f"{folder}: another process is writing. Try again when it is done.")
        if (os.getpid(), folder.resolve()) not in _served_here:
            with locked(folder / SERVER, wait=False) as free:
                if not free:
                    raise _is_served(folder)
        yield


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """Keeps writers of other processes, and other servers, out."""
    me = (os.getpid(), folder.resolve())
    with ExitStack() as stack:
        with writing(folder):  # so that the last writer has finished, and the next one finds the lock
            if not stack.enter_context(locked(folder / SERVER, wait=False)):
                raise _is_served(folder)
            with suppress(StoreError):  # only for the messages of others
                since = time.strftime("%Y-%m-%d %H:%M:%S")
                write_json(folder / SERVER_INFO, {"pid": os.getpid(), "since": since})
        _served_here.add(me)
        try:
            yield
        finally:
            _served_here.discard(me)
            with suppress(OSError):
                (folder / SERVER_INFO).unlink(missing_ok=True)


@contextmanager
def no_writer(folder: Path) -> Iterator[bool]:
    """For a reader: False if somebody is writing, otherwise nobody will until the block ends."""
    with ExitStack() as stack:
        alone = True  # where there is no lock file, or no right to it, there is no writer either
        if (folder / LOCK).exists():
            with suppress(StoreError):
                alone = stack.enter_context(locked(folder / LOCK, wait=False))
        yield alone


def _is_served(folder: Path) -> StoreError:
    who = ""
    with suppress(StoreError, LookupError, TypeError):
        server = read_json(folder / SERVER_INFO, follow_links=False)
        who = f" (pid {server['pid']}, since {server['since']})"
    return StoreError(f"{folder}: a server is using this model{who}. Do this through the server, or stop it first.")
