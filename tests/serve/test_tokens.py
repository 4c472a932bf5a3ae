"""The token of a service without a key file: for a browser by a link, for programs as a key."""

import re

import httpx
import pytest

from fscil.serve.tokens import Token
from serving import form, photo, process, served, tiny_classifier


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = tmp_path_factory.mktemp("token") / "model"
    tiny_classifier().save(path)
    with served(path, token=True) as running:
        yield running


@pytest.fixture
def logged_in(client):
    with httpx.Client(base_url=client.base_url) as browser:
        assert browser.get(f"/?token={client.token}").status_code == 303
        yield browser


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"x-api-key": "w" * 32},
        {"x-api-key": "schlüssel".encode("latin-1")},
        {"cookie": "fscil-80=x"},
        {"cookie": "]]; ="},
    ],
)
def test_without_the_token_requests_are_401(client, headers):
    for method, path in (("GET", "/classes"), ("GET", "/metrics"), ("POST", "/predict"), ("DELETE", "/classes/x")):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert "token" in answer.json()["error"]
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_page_and_health_need_none(client):
    assert [client.get(path).status_code for path in ("/", "/app.js", "/health", "/openapi.json")] == [200] * 4


def test_programs_send_it_as_a_key(client):
    for headers in ({"authorization": f"Bearer {client.token}"}, {"x-api-key": client.token}):
        assert client.post("/classes/one", files=form(photo(1, 0)), headers=headers).status_code == 200
        assert client.get("/classes", headers=headers).json()["may_enroll"] is True


@pytest.mark.parametrize(
    "other", ["a=1", 'settings={"k": "v"}', "two words=1", "alone", "path=/", "mail@host=1", "é=1", ""]
)
def test_cookies_of_other_programs_on_this_host_do_not_matter(other):
    token = Token(8000)
    own = token.set_cookie.partition(";")[0]
    assert token.matches_cookie(f"{other}; {own}")
    assert token.matches_cookie(f"{own}; {other}")
    assert not token.matches_cookie(f"{other}; {own}x")
    assert not token.matches_cookie(f"{other}; x{own}")


def test_the_link_sets_a_cookie_and_leads_to_an_address_without_the_token(client):
    answer = httpx.get(f"{client.base_url}/?token={client.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "./"
    assert answer.headers["referrer-policy"] == "no-referrer"
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert client.token not in cookie


def test_a_wrong_link_sets_no_cookie(client):
    for token in ("", "wrong", client.token[:-1], client.token + "x", "%FF"):
        answer = httpx.get(f"{client.base_url}/?token={token}")
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_the_cookie_allows_everything_but_not_from_other_sites(client, logged_in):
    assert logged_in.post("/classes/two", files=form(photo(2, 0))).status_code == 200
    assert logged_in.get("/classes").json()["may_enroll"] is True
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        assert logged_in.delete("/classes/two", headers=headers).status_code == 403
    assert logged_in.get("/classes", headers={"x-api-key": "of an earlier start"}).status_code == 200
    assert logged_in.delete("/classes/two").status_code == 200


def test_the_cookie_is_no_key(client, logged_in):
    (value,) = logged_in.cookies.values()
    assert client.get("/classes", headers={"x-api-key": value}).status_code == 401


def test_every_start_has_another_token_that_is_not_shown():
    first, second = Token(8000), Token(8000)
    assert first.value != second.value
    assert len(first.value) >= 32
    assert first.value not in repr(first)
    assert not first.matches(second.value.encode())
    assert not first.matches_cookie(second.set_cookie.partition(";")[0])
    assert first.matches_cookie(first.set_cookie.partition(";")[0])


def test_run_prints_a_link_that_logs_in(model):
    with process(model, token=True) as server:
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", server.printed)[0]
        assert server.client.get("/classes").status_code == 401
        with httpx.Client(base_url=server.url, follow_redirects=True) as browser:
            page = browser.get(link)
            assert page.status_code == 200
            assert str(page.url) == f"{server.url}/"
            assert browser.get("/classes").status_code == 200
