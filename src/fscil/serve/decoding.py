"""Decode photos in other processes, within limits of pixels, CPU time and memory."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np

from fscil.data.images import Bytes, Resize
from fscil.errors import BadImageError, HugeImageError, UnsupportedImageError
from fscil.serve import decode_worker
from fscil.serve.limits import Limits

Result = TypeVar("Result")

ERRORS = {kind.__name__: kind for kind in (BadImageError, UnsupportedImageError, HugeImageError)}
CLOSE_SECONDS = 5  # that an idle process gets to exit


class Decoded(NamedTuple):
    pixels: Bytes  # (h, w, 3), resized
    digest: str  # of the whole picture, and its thumbnail: empty unless it is to be kept
    thumbnail: bytes


class DecoderPool:
    """Threads that each use a process of their own, started when it is needed and again after it was killed."""

    def __init__(self, limits: Limits, size: int | None = None) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(size or min(4, os.cpu_count() or 1), "decode")
        self._idle: list[_DecoderProcess] = []  # the last one used is used next
        self._lock = threading.Lock()

    async def run(self, work: Callable[["DecoderPool"], Result]) -> Result:
        """Call work(self), which may use `decode`, in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, self)

    def decode(self, content: bytes, resize: Resize, keep: bool = False) -> Decoded:
        """Decode one photo; with `keep` also its digest and thumbnail. Raises BadImageError as `decode` of fscil.data.

        Called in a thread of `run`.
        """
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or _DecoderProcess(self._limits)
        try:
            found = process.decode(content, resize, keep)
        except BaseException:
            process.kill()
            raise
        with self._lock:
            self._idle.append(process)
        if isinstance(found, BadImageError):
            raise found
        return found

    def close(self) -> None:
        """Finish the work in progress, then end the processes."""
        self._threads.shutdown()
        for process in self._idle:
            process.close()
        self._idle.clear()


class _DecoderProcess:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        numbers = (limits.max_pixels_per_photo, limits.decode_cpu_seconds, limits.decode_memory_bytes)
        # -P and the same path: it imports what this process imports, and nothing else from the current folder.
        path = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", decode_worker.__name__, *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )

    @property
    def _pipes(self) -> tuple[BinaryIO, BinaryIO]:
        requests, responses = self._process.stdin, self._process.stdout
        assert requests is not None
        assert responses is not None
        return requests, responses  # type: ignore[return-value]  # IO[bytes]

    def decode(self, content: bytes, resize: Resize, keep: bool) -> Decoded | BadImageError:
        """An error about the photo is returned, and the process can be used again; others are raised."""
        requests, responses = self._pipes
        try:
            decode_worker.send(requests, {"resize": asdict(resize), "keep": keep}, content)
            header, parts = decode_worker.receive(responses)
        except (EOFError, OSError):
            raise self._cause_of_death() from None
        if "error" in header:
            return ERRORS[header["error"]](header["message"])
        pixels, thumbnail = parts
        return Decoded(np.frombuffer(pixels, np.uint8).reshape(header["shape"]), header["digest"], thumbnail)

    def kill(self) -> None:
        self._process.kill()
        self._release()

    def close(self) -> None:
        requests, _ = self._pipes
        requests.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._release()

    def _release(self) -> None:
        self._process.wait()
        for pipe in self._pipes:
            with suppress(OSError):  # what is still buffered cannot be sent any more
                pipe.close()

    def _cause_of_death(self) -> Exception:
        code = self._process.wait()
        if code == -getattr(signal, "SIGPROF", 0):
            return HugeImageError(f"takes more than {self._limits.decode_cpu_seconds:g} CPU-seconds to decode")
        if code < 0:
            return BadImageError(f"corrupt: it crashed the decoder ({signal.Signals(-code).name})")
        return RuntimeError(f"the decoder exited with status {code}")


class PixelBudget:
    """A limit of the pixels that are decoded at once; who exceeds it waits, first come, first served.

    For one event loop, hence without a lock.
    """

    def __init__(self, capacity: int) -> None:
        self.in_use = 0
        self._capacity = capacity
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, pixels: int) -> AsyncIterator[None]:
        """More than the whole budget is decoded alone."""
        pixels = min(pixels, self._capacity)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((pixels, granted))
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self.in_use -= pixels
            else:
                granted.cancel()
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            pixels, granted = self._waiting[0]
            if not granted.done() and self.in_use + pixels > self._capacity:
                return
            self._waiting.popleft()
            if not granted.done():  # otherwise it was cancelled
                self.in_use += pixels
                granted.set_result(None)
