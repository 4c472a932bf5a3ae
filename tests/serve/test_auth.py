"""Who gets in: with keys by the key, without keys by where the request comes from."""

import pytest

from fscil.serve.auth import Guard, Refusal, is_loopback
from fscil.serve.keys import Keys

READ, ENROLL = "r" * 16, "e" * 16


@pytest.fixture
def keyed(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(f"read {READ}\nenroll {ENROLL}\n")
    return Guard(Keys.load(path), frozenset({"/", "/health"}))


OPEN = Guard(None, frozenset())


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "192.168.1.2", "example.org", "127.0.0.1.example.org", "localhost.example.org"]
)
def test_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost:8000", "localhost", "127.0.0.1:80", "[::1]:8000", "[::1]"])
def test_without_keys_this_machine_may_do_everything(host):
    assert OPEN.judge("DELETE", "/classes/x", {"host": host}) == "enroll"
    assert OPEN.judge("POST", "/predict", {"host": host, "origin": f"http://{host}"}) == "enroll"


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
def test_without_keys_another_name_is_a_rebound_one(host, method):
    verdict = OPEN.judge(method, "/classes", {"host": host})
    assert isinstance(verdict, Refusal)
    assert verdict.status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://localhost:8000", "http://localhost:9000", "http://127.0.0.1:8000"],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_without_keys_pages_of_other_sites_change_nothing(origin, method):
    verdict = OPEN.judge(method, "/classes/x", {"host": "localhost:8000", "origin": origin})
    assert isinstance(verdict, Refusal)
    assert verdict.status == 403


@pytest.mark.parametrize(
    ("headers", "right"),
    [
        ({"authorization": f"Bearer {READ}"}, "read"),
        ({"authorization": f"bearer  {ENROLL} "}, "enroll"),
        ({"x-api-key": ENROLL}, "enroll"),
        ({"x-api-key": READ, "host": "photos.example.org", "origin": "https://photos.example.org"}, "read"),
    ],
)
def test_a_key_lets_in_from_anywhere(keyed, headers, right):
    assert keyed.judge("POST", "/classes/x", headers) == right


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
def test_no_key_no_entry(keyed, headers):
    verdict = keyed.judge("GET", "/classes", headers)
    assert isinstance(verdict, Refusal)
    assert verdict.status == 401


def test_the_page_and_the_sign_of_life_need_no_key(keyed):
    assert keyed.judge("GET", "/", {}) == "read"
    assert keyed.judge("GET", "/health", {}) == "read"
    assert isinstance(keyed.judge("GET", "/metrics", {}), Refusal)
