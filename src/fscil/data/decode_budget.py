"""A limit of the memory that threads take together to decode photos."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fscil.data.images import FORMATS, MAX_FILE_BYTES
from fscil.data.photos import Source
from fscil.data.upright import MAX_DECODE_BYTES, decode_bytes
from fscil.runtime.allocator import release_freed_memory
from fscil.runtime.regular_files import open_regular

LARGE_BYTES = 2**26  # that a photo takes: of smaller ones threads may keep the memory for the next


class DecodeBudget:
    """Threads decode as many photos at once as take no more than the largest one that is decoded at all."""

    def __init__(self, capacity: int = MAX_DECODE_BYTES) -> None:
        self._capacity, self._in_use = capacity, 0
        self._changed = threading.Condition()

    @contextmanager
    def acquire(self, cost: int) -> Iterator[None]:
        """Wait until so many bytes are free, and take them. More than the whole budget is decoded alone."""
        cost = min(cost, self._capacity)
        with self._changed:
            self._changed.wait_for(lambda: self._in_use + cost <= self._capacity)
            self._in_use += cost
        try:
            yield
        finally:
            if cost > LARGE_BYTES:
                release_freed_memory()
            with self._changed:
                self._in_use -= cost
                self._changed.notify_all()


def decode_cost(source: Source) -> int:
    """About how many bytes it takes to decode a photo, from its header; 0 of one that is in memory or is no photo."""
    if isinstance(source, Image.Image | np.ndarray):
        return 0
    try:
        stream = (
            BytesIO(source) if isinstance(source, bytes) else open_regular(Path(source).expanduser(), MAX_FILE_BYTES)
        )
        with stream, Image.open(stream, formats=FORMATS) as image:
            return decode_bytes(image)
    except UnidentifiedImageError:
        return MAX_DECODE_BYTES  # HEIC, whose decoder reads the whole file to know its size; others fail at once
    except Exception:  # Pillow raises exceptions of any type on damaged files: decoding tells which
        return 0
