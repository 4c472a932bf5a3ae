"""How much one request, and all together, may ask for."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

MIB = 2**20
RETRY = {"Retry-After": "1"}


@dataclass(frozen=True)
class Limits:
    body: int = 64 * MIB  # bytes of a request
    files: int = 32  # photos of a request
    pixels: int = 64_000_000  # of a photo
    in_flight: int = 128  # requests at work at once
    queued: int = 512  # photos waiting for their features, of all requests together
    pause: float = 30.0  # seconds that the rest of a request may let wait for itself
    batch: int = 32  # photos that pass through the network at once


def too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The request is larger than {limit / MIB:.3g} MiB. Send fewer or smaller photos.")


def bounded(receive: Receive, limit: int, pause: float) -> Receive:
    """The same request, which ends with 413 once its body has grown beyond the limit, whatever length it claimed.

    And with 408 once it has stopped for so many seconds, because it holds one of the places.
    """
    seen = 0

    async def bounded_receive() -> Message:
        nonlocal seen
        try:
            async with asyncio.timeout(pause):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"The request stopped for {pause:g} seconds.", {"Connection": "close"}) from None
        seen += len(message.get("body", b""))
        if seen > limit:
            raise too_large(limit)
        return message

    return bounded_receive


class Slots:
    """A number of places; who finds none is refused instead of waiting."""

    def __init__(self, places: int, full: Callable[[], HTTPException]) -> None:
        self.taken = 0
        self._places, self._full = places, full

    @contextmanager
    def hold(self, places: int = 1) -> Iterator[None]:
        """Used from the event loop only, hence no lock."""
        if self.taken + places > self._places:
            raise self._full()
        self.taken += places
        try:
            yield
        finally:
            self.taken -= places
