"""Authentication: by key, or, without a key file, by whether the request is local."""

import pytest
from starlette.exceptions import HTTPException

from fscil.serve.auth import Authenticator, is_loopback
from fscil.serve.keys import Keys

READ, ENROLL = "r" * 16, "e" * 16


@pytest.fixture
def keyed(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(f"read {READ}\nenroll {ENROLL}\n")
    return Authenticator(Keys.load(path), frozenset({"/", "/health"}))


WITHOUT_KEYS = Authenticator(None, frozenset())


def rejected(authenticator, *request):
    """The status of a request that is rejected."""
    with pytest.raises(HTTPException) as caught:
        authenticator.authenticate(*request)
    return caught.value.status_code


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "192.168.1.2", "example.org", "127.0.0.1.example.org", "localhost.example.org"]
)
def test_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost:8000", "localhost", "127.0.0.1:80", "[::1]:8000", "[::1]"])
def test_without_keys_local_requests_may_do_everything(host):
    assert WITHOUT_KEYS.authenticate("DELETE", "/classes/x", {"host": host}) == "enroll"
    assert WITHOUT_KEYS.authenticate("POST", "/predict", {"host": host, "origin": f"http://{host}"}) == "enroll"


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "localhost:x",
        "[::1",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_keys_any_other_host_is_rejected(host, method):
    assert rejected(WITHOUT_KEYS, method, "/classes", {"host": host}) == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://localhost:8000", "http://localhost:9000", "http://127.0.0.1:8000"],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_without_keys_requests_of_other_origins_are_rejected(origin, method):
    assert rejected(WITHOUT_KEYS, method, "/classes/x", {"host": "localhost:8000", "origin": origin}) == 403


@pytest.mark.parametrize(
    ("headers", "permission"),
    [
        ({"authorization": f"Bearer {READ}"}, "read"),
        ({"authorization": f"bearer  {ENROLL} "}, "enroll"),
        ({"x-api-key": ENROLL}, "enroll"),
        ({"x-api-key": READ, "host": "photos.example.org", "origin": "https://photos.example.org"}, "read"),
    ],
)
def test_a_key_is_accepted_from_any_host_and_origin(keyed, headers, permission):
    assert keyed.authenticate("POST", "/classes/x", headers) == permission


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost"},
        {"authorization": f"Basic {READ}"},
        {"authorization": READ},
        {"authorization": "Bearer "},
        {"x-api-key": READ + "x"},
        {"authorization": f"Bearer {'x' * 16}", "x-api-key": READ},
    ],
)
def test_without_a_valid_key_a_request_is_rejected(keyed, headers):
    assert rejected(keyed, "GET", "/classes", headers) == 401


def test_public_paths_need_no_key(keyed):
    assert keyed.authenticate("GET", "/", {}) == "read"
    assert keyed.authenticate("GET", "/health", {}) == "read"
    assert rejected(keyed, "GET", "/metrics", {}) == 401
