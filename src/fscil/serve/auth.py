"""Who gets in: a key where keys are asked for; without keys only this machine's own programs and pages.

A page of another site, open in a browser on this machine, can send requests to a loopback address too. It betrays
itself: its Origin is not ours, and after DNS rebinding the Host is its own name.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from fscil.serve.keys import Keys, Right

READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Refusal:
    status: int
    message: str


@dataclass(frozen=True)
class Guard:
    keys: Keys | None
    open_paths: frozenset[str]  # what needs no key: the page that asks for one, and the sign of life

    def judge(self, method: str, path: str, headers: Mapping[str, str]) -> Right | Refusal:
        """What the sender of this request may do, or why it is turned away."""
        if self.keys is None:
            return _from_here(method, headers)
        if path in self.open_paths:
            return "read"
        key = _presented(headers)
        if key is None:
            return Refusal(401, "A key is needed: send it as Authorization: Bearer KEY or as X-API-Key: KEY.")
        right = self.keys.right(key)
        if right is None:
            return Refusal(401, "This key is not known here.")
        return right


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without its port, can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _presented(headers: Mapping[str, str]) -> bytes | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    found = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return found.encode("latin-1") if found else None


def _from_here(method: str, headers: Mapping[str, str]) -> Right | Refusal:
    host = headers.get("host", "")
    if not is_loopback(urlsplit(f"//{host}").hostname or "" if _well_formed(host) else ""):
        return Refusal(403, "Without keys this service answers only under a loopback name such as localhost.")
    origin = headers.get("origin")
    if method not in READING and origin is not None and origin != f"http://{host}":
        return Refusal(403, "Without keys this service takes no requests from pages of other sites.")
    return "enroll"


def _well_formed(host: str) -> bool:
    try:
        urlsplit(f"//{host}").port  # noqa: B018  (it raises where the port is no number)
    except ValueError:
        return False
    return not set(host) & set("/?#@\\ ")
