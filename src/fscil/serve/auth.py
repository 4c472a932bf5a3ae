"""Authentication: by API key, or, without a key file, by the token of the service on this machine.

A page of another site, open in a browser on this machine, can send requests to a loopback address too. Two headers
show it: its Origin is another one (cross-site request forgery), and after DNS rebinding the Host is that site's name.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from fscil.serve.keys import Keys, Permission
from fscil.serve.tokens import Token

INVALID_TOKEN = "This token is not valid: it changes at every start. Open the URL that the service printed last."
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # as RFC 9110 defines them: they change nothing


@dataclass(frozen=True)
class Authenticator:
    keys: Keys | None  # None: requests of other machines and sites are rejected
    public_paths: frozenset[str]  # need neither key nor token
    token: Token | None = None  # without keys: what local requests must have; None: nothing

    def authenticate(self, method: str, path: str, headers: Mapping[str, str]) -> Permission:
        """What the request may do. Raises HTTPException: 401 without a valid key or token, 403 if it is not local."""
        if self.keys is None:
            _require_local(method, headers)
            if self.token is None:
                return "enroll"
        if path in self.public_paths:
            return "read"
        key = _key_of(headers)
        if self.token is not None:
            return _require_token(self.token, key, headers.get("cookie", ""))
        assert self.keys is not None
        if key is None:
            raise _unauthorized("A key is required: send it as Authorization: Bearer KEY or as X-API-Key: KEY.")
        permission = self.keys.permission(key)
        if permission is None:
            raise _unauthorized("This key is not valid.")
        return permission


def _require_token(token: Token, key: bytes | None, cookies: str) -> Permission:
    if token.matches_cookie(cookies) or (key is not None and token.matches(key)):
        return "enroll"
    if key is None:
        raise unknown_token("A token is required: open the URL that the service printed, or send its token as a key.")
    raise unknown_token()


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without its port, can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def unknown_token(message: str = INVALID_TOKEN) -> HTTPException:
    return HTTPException(401, message, {"WWW-Authenticate": 'Bearer realm="token"'})


def _unauthorized(message: str) -> HTTPException:
    return HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


def _key_of(headers: Mapping[str, str]) -> bytes | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    key = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key.encode("latin-1") if key else None


def _require_local(method: str, headers: Mapping[str, str]) -> None:
    host = headers.get("host", "")
    if not is_loopback(_host_name(host)):
        raise HTTPException(403, "Without a key file the Host must be a loopback name such as localhost.")
    origin = headers.get("origin")
    if method not in SAFE_METHODS and origin is not None and origin != f"http://{host}":
        raise HTTPException(403, "Without a key file, requests from pages of other sites are rejected.")


def _host_name(host: str) -> str:
    """A Host header without its port; empty if it is malformed."""
    if set(host) & set("/?#@\\ "):
        return ""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  (raises if the port is not a number)
    except ValueError:
        return ""
    return parts.hostname or ""
