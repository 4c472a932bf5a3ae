"""Connections: a limit of their number, and deadlines for clients that do not send their request or read the response.

uvicorn closes connections that are idle between two requests, but waits for ever for the rest of a request header, and
counts a connection only once it has sent one.
"""

import asyncio
import json
import socket
import struct
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from fscil.serve.limits import Limits

RESERVED_DESCRIPTORS = 64  # for the files of the model, temporary files and pipes
ACCEPTED_AT_ONCE = 8  # of the maximum of connections, this part is accepted before others are closed


def _response(status: str, message: str, *headers: str) -> bytes:
    """An error as `middleware.error_response` sends it, for a connection without a request."""
    body = json.dumps({"error": message})
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", body]).encode()


TOO_MANY = _response("503 Service Unavailable", "Too many connections.", "Retry-After: 1")
HEADER_TIMEOUT = _response("408 Request Timeout", "Read timeout: the request header is not complete.")


def max_connections(limits: Limits) -> int:
    """The limit, or fewer where the system allows this process few open files."""
    try:
        import resource
    except ImportError:  # Windows
        return limits.max_connections
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return limits.max_connections
    return max(1, min(limits.max_connections, (allowed - RESERVED_DESCRIPTORS) * 2 // 3))


def accepted_at_once(connections: int) -> int:
    """How many connections asyncio may accept before this module can close others."""
    return max(1, connections // ACCEPTED_AT_ONCE)


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn with these limits. Use `of` to make a class with them, as uvicorn makes the instances."""

    limits: Limits
    max_connections: int

    @classmethod
    def of(cls, limits: Limits) -> type["LimitedProtocol"]:
        return type(cls.__name__, (cls,), {"limits": limits, "max_connections": max_connections(limits)})

    def __init__(self, config: Config, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.waiting_since = self.loop.time()  # for a request
        self._request_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """For a request: there is none that is not answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._set_request_deadline()
        if len(self.connections) > self.max_connections:
            self._close_longest_waiting()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_waiting:
            self._cancel_request_deadline()
        elif self._request_deadline is None:
            self._set_request_deadline()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.read_timeout_seconds, self._reset)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_deadline()
        self._cancel_write_deadline()
        super().connection_lost(exc)

    def _close_longest_waiting(self) -> None:
        """Of all that wait for a request; a client that has just connected gets its turn before one that stalls."""
        waiting = [each for each in self.connections if isinstance(each, LimitedProtocol) and each.is_waiting]
        longest = min(waiting, key=lambda each: each.waiting_since)
        if longest is self:
            self.transport.write(TOO_MANY)
            self.transport.close()
        else:
            self.connections.discard(longest)  # it is lost only a moment later
            longest.transport.abort()

    def _set_request_deadline(self) -> None:
        self._request_deadline = self.loop.call_later(self.limits.header_timeout_seconds, self._end_waiting)

    def _end_waiting(self) -> None:
        self._request_deadline = None
        if self.is_waiting and not self.transport.is_closing():
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:  # the start of a header
                self.transport.write(HEADER_TIMEOUT)
            self.transport.close()

    def _reset(self) -> None:
        """Close without waiting for the client to read what was sent: the system would keep that for it."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _cancel_request_deadline(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
