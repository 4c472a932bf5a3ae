"""Keep freed memory in the process: training frees and takes the same large blocks in every step.

By default glibc hands such blocks back to the system and fetches them again, page by page. Raising its thresholds costs
some resident memory and nothing else. It affects the whole process, so programs call it; importing fscil does not.
"""

import ctypes
import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune_allocator() -> bool:
    """Keep freed memory in this process.

    Returns
    -------
    bool
        Whether it could be done: on Linux with glibc.

    Examples
    --------
    >>> from fscil import tune_allocator
    >>> tune_allocator() in (True, False)
    True
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        # Older versions accept at most 32 MiB here, and without this one the other thresholds do harm.
        if not any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in (2**31 - 1, 32 * 2**20)):
            return False
        return bool(libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) and libc.mallopt(_M_TOP_PAD, 256 * 2**20))
    except (OSError, AttributeError):
        return False


def release_freed_memory() -> None:
    """Give the system what is free, where that is possible. glibc keeps it in a pool of each thread, for this thread
    alone: eight threads that decode a large photo one after the other keep eight times its memory.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
