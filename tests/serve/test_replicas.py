"""Two real servers of one gallery in PostgreSQL: what one has learned the other answers, whoever is killed."""

import signal
import threading
import time
from contextlib import suppress

import httpx
import pytest

from databases import unreachable
from fscil.classifier import StoredClassifier
from serving import Server, estimated_classifier, form, photo

PATIENCE = 60  # seconds, on a machine that is busy with other things; usually milliseconds


@pytest.fixture
def two_servers(database):
    estimated_classifier().save(database)
    servers = [Server(database), Server(database)]
    yield servers
    for server in servers:
        code, errors = server.end()
        assert "Traceback" not in errors
        assert code in (0, -signal.SIGKILL), errors


def known(server):
    return {each["name"]: each["photos"] for each in server.client.get("/classes").json()["classes"]}


def rejected(server):
    return server.client.get("/negatives").json()["negatives"]


def answers(server, query):
    return server.client.post("/predict", files=query).json()["predictions"]


def until(condition):
    """Asks until it is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "not in time"


def test_two_servers_share_a_gallery(two_servers, database, postgres):
    one, two = two_servers
    assert "postgres@" in one.printed
    assert one.client.post("/classes/new", files=form(photo(9, 0), photo(9, 1))).json()["added"] == 2
    until(lambda: known(two).get("new") == 2)
    query = form(photo(9, 5), photo(1, 5))
    assert [each["label"] for each in answers(one, query)] == [each["label"] for each in answers(two, query)]
    assert two.client.post("/classes/new", files=form(photo(9, 1), photo(9, 2))).json() == {
        **two.client.post("/classes/new", files=form(photo(9, 2))).json(),
        "added": 1,
    }
    assert two.client.delete("/classes/class 0").status_code == 200
    until(lambda: known(one) == known(two))
    assert "class 0" not in known(one)

    with StoredClassifier.open(database) as other:
        assert other.reject("class 1", photo(1, 9)) == 1
    until(lambda: all(len(rejected(server)) == 1 for server in two_servers))
    (example,) = rejected(two)
    assert one.client.get(example["thumbnail"]).headers["Content-Type"] == "image/jpeg"
    assert [each["label"] == "class 1" for each in answers(one, form(photo(1, 9)))] == [False]
    assert one.client.delete(f"/negatives/{example['id']}", params={"name": "class 1"}).status_code == 200
    until(lambda: not rejected(two))
    said = one.client.post("/negatives", params={"name": "class 1"}, files=form(photo(1, 9)))
    assert said.json() == {"name": "class 1", "added": 1, "negatives": 1}
    until(lambda: [each["id"] for each in rejected(two)] == [example["id"]])
    assert one.client.post("/negatives", params={"name": "new"}, files=form(photo(9, 0))).status_code == 422  # its own

    with unreachable(postgres, database):
        answer = one.client.post("/classes/other", files=form(photo(8, 0)))
        assert answer.status_code == 503
        assert "cannot be reached" in answer.json()["error"]
        assert answer.headers["Retry-After"]
        assert one.client.post("/predict", files=query).status_code == 200  # from memory
    assert one.client.post("/classes/other", files=form(photo(8, 0))).status_code == 200
    until(lambda: "other" in known(two))

    acknowledged = []

    def enroll():
        with suppress(httpx.TransportError):  # once the server is killed
            for number in range(10_000):
                answer = one.client.post(f"/classes/n{number}", files=form(photo(7, number), photo(6, number)))
                if answer.status_code == 200:
                    acknowledged.append(f"n{number}")

    thread = threading.Thread(target=enroll)
    thread.start()
    until(lambda: len(acknowledged) >= 5)
    one.process.kill()
    thread.join()
    until(lambda: {*acknowledged} <= {*known(two)})
    assert {known(two)[name] for name in known(two) if name.startswith("n") and name != "new"} == {2}
    assert two.client.post("/classes/later", files=form(photo(5, 0))).status_code == 200
    again = Server(database)
    try:
        assert known(again) == known(two)
        for mine, theirs in zip(answers(again, query), answers(two, query), strict=True):
            assert mine["label"] == theirs["label"]
            assert mine["score"] == pytest.approx(theirs["score"], abs=1e-3)  # sums of batches of another size
    finally:
        assert again.end()[0] == 0
