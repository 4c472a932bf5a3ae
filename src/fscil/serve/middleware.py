"""ASGI middleware around the whole application: authentication, limits, security headers, JSON errors, metrics."""

import errno
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fscil.serve.auth import SAFE_METHODS, Authenticator
from fscil.serve.keys import Permission
from fscil.serve.limits import RETRY_AFTER, CapacityLimit, Limits, limited_receive, request_too_large
from fscil.serve.metrics import ServiceMetrics

METHOD_LABELS = ("GET", "POST", "DELETE")
ONCE = (b"host", b"origin", b"authorization", b"x-api-key", b"content-type", b"content-length")  # headers
CLIENT_CLOSED_REQUEST = 499  # recorded when the client disconnects before its request is complete, as nginx does
INTERNAL_ERROR = HTTPException(500, "Internal server error. The log of the service has the details.")
NO_SPACE = HTTPException(507, "There is no space left for the photos of this request.")
NO_FILES = HTTPException(503, "Too many open files.", RETRY_AFTER)
RESOURCE_ERRORS = {  # of temporary files
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
    errno.EFBIG: NO_SPACE,
    errno.EMFILE: NO_FILES,
    errno.ENFILE: NO_FILES,
}
log = logging.getLogger("fscil.serve")

# The page loads nothing from other origins, runs no inline script, and cannot be framed or its images embedded.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def error_response(error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class ResponseSender:
    """Sends a response with the security headers, and keeps its status."""

    def __init__(self, send: Send) -> None:
        self.status = 0  # until the response has started
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


class ServiceMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        limits: Limits,
        concurrent_requests: CapacityLimit,
        metrics: ServiceMetrics,
        is_shutting_down: Callable[[], bool],
    ) -> None:
        self._app, self._authenticator, self._limits = app, authenticator, limits
        self._concurrent_requests, self._metrics = concurrent_requests, metrics
        self._is_shutting_down = is_shutting_down

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, sender = time.perf_counter(), ResponseSender(send)
        try:
            await self._respond(scope, receive, sender)
        finally:
            # A fixed set of label values, whatever clients send.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHOD_LABELS else "other"
            self._metrics.observe_request(method, route, sender.status, time.perf_counter() - started)

    async def _respond(self, scope: Scope, receive: Receive, sender: ResponseSender) -> None:
        try:
            scope.setdefault("state", {})["permission"] = self._admit(scope)
            with self._capacity(scope["method"]):
                await self._app(scope, limited_receive(receive, self._limits), sender)
        except HTTPException as error:
            await error_response(error)(scope, receive, sender)
        except OSError as error:
            if sender.status or error.errno not in RESOURCE_ERRORS:
                await self._fail(scope, receive, sender)
            else:
                log.warning("%s %s: %s", scope["method"], ascii(scope["path"]), error)
                await error_response(RESOURCE_ERRORS[error.errno])(scope, receive, sender)
        except ClientDisconnect:
            sender.status = CLIENT_CLOSED_REQUEST
        except Exception:
            await self._fail(scope, receive, sender)

    async def _fail(self, scope: Scope, receive: Receive, sender: ResponseSender) -> None:
        """Called where an exception is handled."""
        log.exception("%s %s failed", scope["method"], ascii(scope["path"]))
        if sender.status:  # the response has started and cannot be replaced: abort the connection
            raise
        await error_response(INTERNAL_ERROR)(scope, receive, sender)

    def _admit(self, scope: Scope) -> Permission:
        """What the request may do, by its headers alone. Raises HTTPException if it is rejected."""
        if self._is_shutting_down():
            raise HTTPException(503, "The service is shutting down.", RETRY_AFTER)
        _require_unambiguous(scope["headers"])
        headers = Headers(scope=scope)
        permission = self._authenticator.authenticate(scope["method"], scope["path"], headers)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limits.max_request_bytes:
            raise request_too_large(self._limits.max_request_bytes)
        return permission

    def _capacity(self, method: str) -> AbstractContextManager[None]:
        """Safe methods are not limited, so that a busy service can be monitored."""
        return nullcontext() if method in SAFE_METHODS else self._concurrent_requests.acquire()


def _require_unambiguous(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Two programs, such as a proxy and this one, may understand such a request differently."""
    names = [name.lower() for name, _ in headers]
    problem = next((f"more than one {name.decode()} header" for name in ONCE if names.count(name) > 1), None)
    if b"content-length" in names and b"transfer-encoding" in names:
        problem = "both Content-Length and Transfer-Encoding"
    if problem:
        raise HTTPException(400, f"The request has {problem}.", {"Connection": "close"})
