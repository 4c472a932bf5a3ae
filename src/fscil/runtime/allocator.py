"""Keep freed memory in the process: training frees and takes the same large blocks in every step.

By default glibc hands such blocks back to the system and fetches them again, page by page. Raising its thresholds costs
some resident memory and nothing else. It concerns the whole process, so programs ask for it; importing fscil does not.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune_allocator() -> bool:
    """Whether it could be done: on Linux with glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        # Older versions take no more than 32 MiB here, and the rest does harm where this is refused.
        if not any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in (2**31 - 1, 32 * 2**20)):
            return False
        return bool(libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) and libc.mallopt(_M_TOP_PAD, 256 * 2**20))
    except (OSError, AttributeError):
        return False
