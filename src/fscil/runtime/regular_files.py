"""Open only regular files: one in a folder from somebody else may be a pipe, a device, or a link to one of ours.

To open a pipe waits for its other end, a device may have no end, and to write through a link changes another file.
"""

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STALE_SECONDS = 10.0  # time for a new temporary file to be claimed
DAY = 86400.0


def open_regular(
    path: Path,
    max_bytes: int | None,
    follow_links: bool = True,
    flags: int = os.O_RDONLY,
    mode: int = 0o666,
    buffering: int = -1,
) -> BinaryIO:
    """Open without waiting, for reading or as the flags say.

    Raises an OSError also for anything that is no regular file, for a larger one, and for a link if they are not
    followed (where the system can tell).
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from error
        raise
    try:
        state = os.fstat(handle)
        if stat.S_ISDIR(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if max_bytes is not None and state.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        kind = "r+b" if flags & os.O_RDWR else "ab" if flags & os.O_WRONLY else "rb"
        return os.fdopen(handle, kind, buffering)  # type: ignore[return-value]  # of any buffering
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, max_bytes: int, follow_links: bool = True) -> bytes:
    """The content. Raises an OSError as open_regular does."""
    content = bytearray()
    with open_regular(path, max_bytes, follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        while part := file.read(max(size + 1 - len(content), 2**16)):  # files of the kernel are longer than they say
            content += part
            if len(content) > max_bytes:
                raise _too_large(path, max_bytes)
    return bytes(content)


def _too_large(path: Path, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {max_bytes >> 20} MiB", str(path))


def require_regular(path: Path) -> None:
    """Raise an OSError for a link or a special file. There may be no file."""
    with suppress(FileNotFoundError):
        kind = path.lstat().st_mode
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, "is a symbolic link", str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "not a regular file", str(path))


def claim(handle: int) -> None:
    """Mark a temporary file as in use, for as long as it is open."""
    if fcntl is not None:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_stale(folder: Path, pattern: str) -> None:
    """Remove temporary files of processes that were killed."""
    for path in folder.glob(pattern):
        with suppress(OSError):
            if _is_stale(path):
                path.unlink()


def _is_stale(path: Path) -> bool:
    age = time.time() - path.lstat().st_mtime
    if fcntl is None:
        return age > DAY
    if age < STALE_SECONDS:
        return False
    with open_regular(path, None, follow_links=False) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES) and age > DAY
    return True
