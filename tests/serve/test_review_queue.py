"""Photos that the service did not know: kept if asked, grouped, named, rejected, forgotten without a trace."""

import signal

import pytest

from fscil.classifier import Classifier
from fscil.classifier.review import review_groups, review_queue
from helpers import call
from serving import (
    ENROLL,
    READ,
    Server,
    estimated_classifier,
    form,
    photo,
    process,
    served,
    tiny_classifier,
)

ASKED = [(label, seed) for label in range(3, 13) for seed in (51, 52)]  # of enrolled classes (0 to 5) and of others


@pytest.fixture(scope="module")
def classifier():
    return estimated_classifier()


@pytest.fixture
def model(classifier, tmp_path):
    path = tmp_path / "estimated"
    classifier.save(path)
    return path


@pytest.fixture
def service(model):
    with served(model, keep_unknown=100) as client:
        yield client


def ask(client, *pictures):
    answers = []
    for each in pictures:
        answers += client.post("/predict", files=form(photo(*each))).json()["predictions"]
    return answers


def waiting(client):
    return client.get("/review?limit=2000").json()["photos"]


def waiting_after(client, *pictures):
    ask(client, *pictures)
    return waiting(client)


def traces(model, *digests):
    content = b"".join(path.read_bytes() for path in model.rglob("*") if path.is_file())
    return [digest for digest in digests if digest.encode() in content]


def test_off_by_default(model):
    with served(model) as client:
        ask(client, *ASKED)
        nothing = {"photos": [], "total": 0, "keeping": False, "at_most": 2000}
        assert client.get("/review").json() == nothing
        assert client.get("/review/groups").json() == {"groups": []}
    assert not (model / "review").exists()


def test_the_queue_is_that_of_the_model(service, classifier):
    answers = ask(service, *ASKED, ASKED[0])
    unsure = [each for each, answer in zip(ASKED, answers, strict=False) if answer["state"] != "known"]
    assert len(ASKED) > len(unsure) > 4
    kept = classifier.photos([photo(*each) for each in unsure])
    found = service.get("/review").json()
    assert (found["total"], found["keeping"], found["at_most"]) == (len(unsure), True, 100)
    expected = review_queue(classifier, kept)
    assert [each["id"] for each in found["photos"]] == [each.photo.digest for each in expected]
    for mine, right in zip(found["photos"], expected, strict=True):
        assert (mine["state"], mine["label"]) == (right.answer.state, right.answer.label)
        assert mine["unknown_probability"] == pytest.approx(right.answer.unknown_probability, abs=1e-4)
        assert [each["label"] for each in mine["ranking"]] == [name for name, _ in right.answer.ranking]
    part = service.get("/review?offset=1&limit=2").json()
    assert (part["photos"], part["total"]) == (found["photos"][1:3], len(unsure))
    groups = service.get("/review/groups").json()["groups"]
    assert [[each["id"] for each in group["photos"]] for group in groups] == [
        [each.digest for each in group] for group in review_groups(classifier, kept)
    ]
    image = service.get(f"/{found['photos'][0]['thumbnail']}")
    assert image.headers["content-type"] == "image/jpeg"
    assert image.content[:2] == b"\xff\xd8"


def test_naming_enrolls_on_disk_and_ends_the_review(service, model):
    ask(service, *ASKED)
    before = waiting(service)
    named = [each["id"] for each in before[:3]]
    answer = service.post("/review/name", json={"name": " heron ", "photos": [*named, named[0]]})
    assert answer.status_code == 200
    assert {**answer.json(), "name": "heron", "added": 3, "photos": 3} == answer.json()
    assert {each["id"] for each in waiting(service)} == {each["id"] for each in before[3:]}
    assert {each.digest for each in Classifier.load(model).gallery.photos("heron")} == {*named}
    assert traces(model / "review", *named) == []
    again = service.post("/review/name", json={"name": "heron", "photos": named})
    assert (again.status_code, "no such photo" in again.json()["error"]) == (404, True)


def test_a_photo_that_is_enrolled_elsewhere_leaves_too(service):
    ask(service, *ASKED)
    before = waiting(service)
    service.post("/classes/all", files=form(*(photo(*each) for each in ASKED[:10])))
    service.post("/classes/all", files=form(*(photo(*each) for each in ASKED[10:])))
    assert before
    assert waiting(service) == []


def test_a_photo_that_was_learned_does_not_come_back(service):
    """Also where the model is not sure of it afterwards."""
    ids = [each["id"] for each in waiting_after(service, *ASKED)]
    service.post("/review/name", json={"name": "class 0", "photos": ids})
    assert any(each["state"] != "known" for each in ask(service, *ASKED))
    assert {each["id"] for each in waiting(service)}.isdisjoint(ids)


def test_a_client_can_ask_that_nothing_is_kept(service):
    answers = service.post("/predict?keep=false", files=form(*(photo(*each) for each in ASKED))).json()["predictions"]
    assert any(each["state"] != "known" for each in answers)
    assert waiting(service) == []


def test_doubts_are_said_before(service, model):
    """The same picture twice, saved in two sizes: nearly the same photo."""
    strange = next(each for each in waiting_after(service, *ASKED) if each["state"] == "unknown")
    picture = next(each for each in ASKED if Classifier.load(model).photos(photo(*each))[0].digest == strange["id"])
    service.post("/predict", files=form(photo(*picture, size=96)))
    kept = [each["id"] for each in waiting(service)]
    (twin,) = {each.digest for each in Classifier.load(model).photos(photo(*picture, size=96))}
    assert twin in kept
    said = {"name": "new", "photos": [strange["id"], twin]}
    answer = service.post("/review/name?strict=true", json=said)
    assert answer.status_code == 409
    (doubt,) = [each for each in answer.json()["warnings"] if each["kind"] == "duplicate"]
    assert {doubt["id"], doubt["other_id"]} == {strange["id"], twin}  # their files have the same name
    assert len(waiting(service)) == len(kept)
    assert service.post("/review/name", json=said).json()["added"] == 2


def test_not_this_is_remembered(service, model):
    ask(service, *ASKED)
    maybe = next(each for each in waiting(service) if each["label"])
    said = {"name": maybe["label"], "photos": [maybe["id"]]}
    assert service.post("/review/not", json=said).json() == {"name": maybe["label"], "added": 1, "negatives": 1}
    assert service.post("/review/not", json=said).json()["added"] == 0
    after = next(each for each in waiting(service) if each["id"] == maybe["id"])
    assert maybe["label"] not in [each["label"] for each in after["ranking"]]
    counts = {each["name"]: each["negatives"] for each in service.get("/classes").json()["classes"]}
    assert counts == {**dict.fromkeys(counts, 0), maybe["label"]: 1}
    loaded = Classifier.load(model).gallery.negatives(maybe["label"])
    assert [each.digest for each in loaded] == [maybe["id"]]
    (listed,) = service.get("/negatives").json()["negatives"]
    assert (listed["name"], listed["id"], listed["file"]) == (maybe["label"], maybe["id"], "photo0.png")
    assert service.get("/negatives", params={"name": maybe["label"]}).json()["negatives"] == [listed]
    assert service.get(f"/{listed['thumbnail']}").content[:2] == b"\xff\xd8"
    undo = {"params": {"name": maybe["label"]}}
    assert service.delete(f"/negatives/{maybe['id']}", **undo).json() == {"forgotten": 1}
    assert service.delete(f"/negatives/{maybe['id']}", **undo).status_code == 404
    assert next(each for each in waiting(service) if each["id"] == maybe["id"])["label"] == maybe["label"]


def test_forgetting_one_and_all(service, model):
    ask(service, *ASKED)
    ids = [each["id"] for each in waiting(service)]
    assert traces(model, *ids) == ids
    assert service.delete(f"/review/photos/{ids[0]}").json() == {"forgotten": 1}
    assert service.delete(f"/review/photos/{ids[0]}").status_code == 404
    assert traces(model, *ids) == ids[1:]
    assert service.delete("/review").json() == {"forgotten": len(ids) - 1}
    assert traces(model, *ids) == []
    assert service.get("/review").json()["total"] == 0
    ask(service, *ASKED)
    assert len(waiting(service)) == len(ids)


def test_never_more_than_asked_for(model):
    with served(model, keep_unknown=3) as client:
        ask(client, *ASKED)
        late = [each["id"] for each in waiting(client)]
        assert len(late) == 3
        assert len(list((model / "review").iterdir())) == 3
    with served(model) as client:  # no longer keeping, but what is there can be reviewed
        ask(client, (9, 77), (8, 77))
        found = client.get("/review").json()
        assert (found["total"], found["keeping"]) == (3, False)


def test_a_service_that_knows_nothing_begins_here(tmp_path):
    tiny_classifier().save(tmp_path / "model")
    with served(tmp_path / "model", keep_unknown=50) as client:
        ask(client, *((label, seed) for label in (1, 6) for seed in range(4)))
        groups = client.get("/review/groups").json()["groups"]
        for number, group in enumerate(groups):
            ids = [each["id"] for each in group["photos"]]
            assert client.post("/review/name", json={"name": f"class {number}", "photos": ids}).status_code == 200
        assert len(client.get("/classes").json()["classes"]) == len(groups) >= 1


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("GET", "/review", None),
        ("GET", "/review/groups", None),
        ("GET", f"/review/photos/{'0' * 64}/thumbnail", None),
        ("POST", "/review/name", {"name": "x", "photos": ["0" * 64]}),
        ("POST", "/review/not", {"name": "x", "photos": ["0" * 64]}),
        ("DELETE", f"/review/photos/{'0' * 64}", None),
        ("DELETE", "/review", None),
        ("GET", "/negatives", None),
        ("DELETE", f"/negatives/{'0' * 64}?name=x", None),
    ],
)
def test_needs_the_right_to_enroll(keyed, method, path, json):
    def status(**headers):
        return keyed.request(method, path, json=json, headers=headers).status_code

    assert status() == 401
    assert status(**{"X-API-Key": READ}) == 403
    assert status(**{"X-API-Key": ENROLL}) in (200, 404)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"name": "x"},
        {"name": "x", "photos": []},
        {"name": "x", "photos": ["../../etc"]},
        {"name": 3, "photos": [1]},
    ],
)
def test_what_is_no_answer(client, said):
    for path in ("/review/name", "/review/not"):
        answer = client.post(path, json=said)
        assert (answer.status_code, list(answer.json())) == (422, ["error"])
    assert client.delete("/review/photos/..%2f..%2fx").status_code in (404, 405, 422)
    assert client.post("/review/name", content=b"{", headers={"Content-Type": "application/json"}).status_code == 422


def test_kept_through_a_kill_and_deleted_by_the_command_line(model, capsys):
    server = Server(model, keep_unknown=20)
    ask(server.client, *ASKED)
    ids = [each["id"] for each in waiting(server.client)]
    assert call("review", model, "--clear") == 1
    assert "a server is using this model" in capsys.readouterr().err
    server.end(signal.SIGKILL)
    with process(model, keep_unknown=20) as again:
        assert "can be reviewed" not in again.printed
        assert sorted(each["id"] for each in waiting(again.client)) == sorted(ids)
    assert call("review", model) == 0
    printed = capsys.readouterr().out
    assert all(each[:12] in printed for each in ids)
    assert call("review", model, "--forget", ids[0][:10]) == 0
    assert f"1 kept photo deleted, {len(ids) - 1} left" in capsys.readouterr().out
    assert call("review", model, "--forget", "xyz") == 1
    assert traces(model, *ids) == ids[1:]
    assert call("review", model, "--clear") == 0
    assert traces(model, *ids) == []
    assert call("review", model) == 0
    assert "No photo is kept" in capsys.readouterr().out


def test_a_read_only_model_keeps_nothing(model):
    model.chmod(0o555)
    try:
        with pytest.raises(AssertionError, match="read-only: it keeps no photos"):
            Server(model, unprivileged=True, keep_unknown=5)
    finally:
        model.chmod(0o755)
