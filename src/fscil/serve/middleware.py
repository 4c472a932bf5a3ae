"""The door every request passes: is the service open, may the sender come in, is there room; and what went out."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fscil.serve.auth import READING, Guard, Refusal
from fscil.serve.keys import Right
from fscil.serve.limits import RETRY, Limits, Slots, bounded, too_large
from fscil.serve.telemetry import Telemetry

METHODS = ("GET", "POST", "DELETE")
GONE = 499  # counted for senders who left before their request was complete
log = logging.getLogger("fscil.serve")

# The page loads nothing from elsewhere, runs no inline script, and nobody may frame it or embed its pictures.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def problem(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        limits: Limits,
        slots: Slots,
        telemetry: Telemetry,
        closing: Callable[[], bool],
    ) -> None:
        self._app, self._guard, self._limits, self._slots = app, guard, limits, slots
        self._telemetry, self._closing = telemetry, closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            try:
                scope.setdefault("state", {})["right"] = self._admit(scope)
                # Looking is always possible, so that a busy service can be watched.
                with nullcontext() if scope["method"] in READING else self._slots.hold():
                    await self._app(scope, bounded(receive, self._limits.body, self._limits.pause), watched_send)
            except HTTPException as refusal:
                headers = dict(refusal.headers) if refusal.headers else None
                await problem(refusal.status_code, refusal.detail, headers)(scope, receive, watched_send)
            except ClientDisconnect:
                status = GONE
            except Exception:
                log.exception("%s %s failed", scope["method"], ascii(scope["path"]))
                if status:  # half an answer is out: break it off, for there is no way to take it back
                    raise
                message = "Something went wrong in the service; its log says what."
                await problem(500, message)(scope, receive, watched_send)
        finally:
            # Whatever strangers send, the counters stay few.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._telemetry.answered(method, route, status, time.perf_counter() - began)

    def _admit(self, scope: Scope) -> Right:
        if self._closing():
            raise HTTPException(503, "The service is shutting down.", RETRY)
        headers = Headers(scope=scope)
        verdict = self._guard.judge(scope["method"], scope["path"], headers)
        if isinstance(verdict, Refusal):
            challenge = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else None
            raise HTTPException(verdict.status, verdict.message, challenge)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limits.body:
            raise too_large(self._limits.body)
        return verdict
