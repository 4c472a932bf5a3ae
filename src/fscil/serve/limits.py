"""Limits of one request and of all concurrent requests together."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

MIB = 2**20
RETRY_AFTER = {"Retry-After": "1"}  # seconds


@dataclass(frozen=True)
class Limits:
    max_request_bytes: int = 64 * MIB  # of the body
    max_photos_per_request: int = 32
    max_pixels_per_photo: int = 64_000_000
    max_pixels_in_flight: int = 64_000_000  # decoded at once, of all requests together; other photos wait
    decode_cpu_seconds: float = 2.0  # per photo
    decode_memory_bytes: int = 512 * MIB  # per photo
    max_concurrent_requests: int = 128  # of those that are not safe methods
    max_queued_photos: int = 512  # accepted and not answered yet, of all requests together
    max_connections: int = 512  # fewer where the system allows few open files
    header_timeout_seconds: float = 10.0  # for a whole request header
    body_timeout_seconds: float = 120.0  # for a whole request body
    read_timeout_seconds: float = 30.0  # between two parts of a request body, or without reading the response
    max_batch_size: int = 32  # photos per forward pass of the network


def request_too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"The request is larger than {max_bytes / MIB:.3g} MiB. Send fewer or smaller photos.")


def limited_receive(receive: Receive, limits: Limits) -> Receive:
    """Receives the same request, and raises 413 once its body exceeds the limit, whatever its Content-Length says.

    Raises 408 after the read timeout or the timeout of the body, because a slow request counts as a concurrent one.
    """
    received, deadline = 0, asyncio.get_running_loop().time() + limits.body_timeout_seconds

    async def receive_within_limits() -> Message:
        nonlocal received
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(deadline, now + limits.read_timeout_seconds)):
                message = await receive()
        except TimeoutError:
            raise _read_timeout(limits, whole=asyncio.get_running_loop().time() >= deadline) from None
        received += len(message.get("body", b""))
        if received > limits.max_request_bytes:
            raise request_too_large(limits.max_request_bytes)
        return message

    return receive_within_limits


def _read_timeout(limits: Limits, whole: bool) -> HTTPException:
    text = f"Read timeout: no data was received for {limits.read_timeout_seconds:g} seconds."
    if whole:
        text = f"Read timeout: the request was not complete after {limits.body_timeout_seconds:g} seconds."
    return HTTPException(408, text, {"Connection": "close"})


class CapacityLimit:
    """A counting semaphore that raises an HTTP error instead of waiting. For one event loop, hence without a lock."""

    def __init__(self, capacity: int, status: int, message: str) -> None:
        self.in_use = 0
        self._capacity, self._status, self._message = capacity, status, message

    @contextmanager
    def acquire(self, count: int = 1) -> Iterator[None]:
        if self.in_use + count > self._capacity:
            raise HTTPException(self._status, self._message, RETRY_AFTER)
        self.in_use += count
        try:
            yield
        finally:
            self.in_use -= count
