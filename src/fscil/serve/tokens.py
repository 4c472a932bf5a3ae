"""A token for the service on this machine: other users of it can reach a loopback address, but do not know the token.

It is made at every start and printed as part of the URL. Opening that URL logs the browser in with a cookie.
"""

import hmac
import secrets
from dataclasses import dataclass, field


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
        """Whether a Cookie header is of a browser that has been logged in.

        Browsers send along what other programs on this host have set. `http.cookies` ends at the first of those that is
        not of the standard, such as JSON, and would not see this one.
        """
        pairs = (pair.strip().partition("=") for pair in header.split(";"))
        found = [value for name, _, value in pairs if name == self._cookie_name]
        return any(hmac.compare_digest(value.encode(), self._session.encode()) for value in found)

    @property
    def set_cookie(self) -> str:
        """The Set-Cookie header that logs a browser in until it is closed."""
        return f"{self._cookie_name}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    @property
    def _cookie_name(self) -> str:
        return f"fscil-{self.port}"
