"""A token for the service on this machine: other users of it can reach a loopback address, but do not know the token.

It is made at every start and printed as part of the URL. Opening that URL logs the browser in with a cookie.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie


def _random() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Token:
    """Both values are secret; the cookie is another one, so that it is of no use as a key elsewhere."""

    port: int  # of the service: browsers send a cookie to all ports of a host
    value: str = field(default_factory=_random, repr=False)
    _session: str = field(default_factory=_random, repr=False)

    def matches(self, presented: bytes) -> bool:
        """Whether this is the token. Takes the same time for every wrong one of its length."""
        return hmac.compare_digest(presented, self.value.encode())

    def matches_cookie(self, header: str) -> bool:
        """Whether a Cookie header is of a browser that has been logged in."""
        try:
            found = SimpleCookie(header).get(self._cookie_name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._session.encode())

    @property
    def set_cookie(self) -> str:
        """The Set-Cookie header that logs a browser in until it is closed."""
        return f"{self._cookie_name}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    @property
    def _cookie_name(self) -> str:
        return f"fscil-{self.port}"
