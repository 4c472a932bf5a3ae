"""The HTTP API over real sockets: predictions agree with the classifier, and a photo is enrolled once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

import pytest

from fscil.classifier import Classifier, StoredClassifier
from serving import estimated_classifier, form, photo, served, tiny_classifier

NAMES = ["red panda", "鹿", "a/b", "50% off?", "x#y&z=1", "thumbnail", "a/thumbnail", "Ünïcödé", "🦊", "x/", "a+b"]


def class_url(name):
    return f"/classes/{quote(name, safe='')}"


@pytest.fixture
def fresh(client):
    """The shared service without any class."""
    for known in client.get("/classes").json()["classes"]:
        assert client.delete(class_url(known["name"])).status_code == 200
    return client


def test_health(client):
    answer = client.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


def test_nothing_enrolled(fresh):
    (found,) = fresh.post("/predict", files=form(photo(0, 0))).json()["predictions"]
    nothing = {"label": None, "score": 0, "runner_up": None, "margin": 0, "ranking": []}
    unsure = {"state": "unknown", "probability": None, "unknown_probability": None}
    assert found == {"file": "photo0.png", **nothing, **unsure}
    nothing = {"classes": [], "total": 0, "calibrated": False, "thresholds": None}
    assert fresh.get("/classes").json() == {**nothing, "may_enroll": True, "limits": {"photos": 32, "bytes": 2**26}}


def test_predictions_are_those_of_the_classifier(fresh):
    classifier = tiny_classifier()
    for label in range(5):
        shots = [photo(label, seed) for seed in range(3)]
        classifier.gallery.enroll(f"class {label}", classifier.photos(shots))
        answer = fresh.post(class_url(f"class {label}"), files=form(*shots))
        counts = {"name": f"class {label}", "added": 3, "photos": 3}
        assert {**answer.json(), **counts} == answer.json()
    asked = [photo(label, 10 + label) for label in range(5)]
    found = fresh.post("/predict?top=3", files=form(*asked)).json()["predictions"]
    expected = classifier.predict(asked, top=3)
    assert [each["file"] for each in found] == [f"photo{number}.png" for number in range(5)]
    for mine, right in zip(found, expected, strict=True):
        assert (mine["label"], mine["runner_up"]) == (right.label, right.runner_up)
        assert [each["label"] for each in mine["ranking"]] == [name for name, _ in right.ranking]
        assert [each["score"] for each in mine["ranking"]] == pytest.approx(
            [score for _, score in right.ranking], abs=1e-5
        )
        assert mine["score"] == mine["ranking"][0]["score"]
        assert mine["margin"] == pytest.approx(right.margin, abs=1e-5)


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "IMAGE/PNG; charset=x"])
def test_a_photo_as_the_body_gives_the_same_prediction(fresh, kind):
    fresh.post("/classes/one", files=form(photo(1, 0)))
    raw = fresh.post("/predict", content=photo(1, 1), headers={"content-type": kind}).json()["predictions"]
    (sent,) = fresh.post("/predict", files=form(photo(1, 1))).json()["predictions"]
    assert raw == [{**sent, "file": "photo"}]


def test_a_photo_counts_once_in_its_class(fresh):
    assert fresh.post("/classes/one", files=form(photo(1, 0), photo(1, 0))).json()["added"] == 1
    again = fresh.post("/classes/one", files=form(photo(1, 0))).json()
    assert again == {"name": "one", "added": 0, "photos": 1, "warnings": []}
    assert fresh.post("/classes/one", files=form(photo(1, 0), photo(1, 1))).json()["photos"] == 2


@pytest.mark.parametrize("name", NAMES)
def test_names_with_any_characters(fresh, name):
    answer = fresh.post(class_url(name), files=form(photo(2, 0)))
    assert answer.json()["name"] == name
    (known,) = fresh.get("/classes").json()["classes"]
    assert known["name"] == name
    assert known["sources"] == ["photo0.png"]
    picture = fresh.get("/" + known["thumbnail"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content[:2] == b"\xff\xd8"
    (found,) = fresh.post("/predict", files=form(photo(2, 1))).json()["predictions"]
    assert found["label"] == name
    assert fresh.delete(class_url(name)).json() == {"forgotten": name}
    assert fresh.get("/classes").json()["total"] == 0
    assert fresh.get("/" + known["thumbnail"]).status_code == 404


def test_equivalent_unicode_names_are_one_class(fresh):
    fresh.post(class_url("e\N{COMBINING ACUTE ACCENT}"), files=form(photo(2, 0)))
    assert fresh.post(class_url("\N{LATIN SMALL LETTER E WITH ACUTE}"), files=form(photo(2, 1))).json()["photos"] == 2


def test_the_list_with_limit_offset_and_search(fresh):
    names = [f"Bird {number}" for number in range(5)] + ["fish"]
    for number, name in enumerate(names):
        fresh.post(class_url(name), files=form(photo(number, 0)))

    def listed(**query):
        found = fresh.get("/classes", params=query).json()
        return [known["name"] for known in found["classes"]], found["total"]

    assert listed() == (names[::-1], 6)
    assert listed(limit=2, offset=1) == (["Bird 4", "Bird 3"], 6)
    assert listed(offset=9) == ([], 6)
    assert listed(search="bIRD", limit=1) == (["Bird 4"], 5)


def test_each_photo_has_its_thumbnail(fresh):
    fresh.post("/classes/two", files=form(photo(0, 0), photo(5, 0)))
    first, second = (fresh.get(f"/classes/two/thumbnail?photo={number}").content for number in (0, 1))
    assert first != second
    assert fresh.get("/classes/two/thumbnail").content == first
    assert fresh.get("/classes/two/thumbnail?photo=2").status_code == 404


def test_a_class_without_a_thumbnail(model):
    with StoredClassifier.open(model) as stored:
        (found,) = stored.classifier.photos([photo(1, 0)])
        stored.enroll_photos("unseen", [replace(found, thumbnail=b"")])
    with served(model) as client:
        (known,) = client.get("/classes").json()["classes"]
        assert known["thumbnail"] is None
        assert client.get("/classes/unseen/thumbnail").status_code == 404


def test_concurrent_predictions(fresh):
    for label in range(6):
        fresh.post(class_url(str(label)), files=form(photo(label, 0)))
    asked = [(label, seed) for label in range(6) for seed in range(8)]
    alone = [fresh.post("/predict", files=form(photo(*each))).json() for each in asked]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda each: fresh.post("/predict", files=form(photo(*each))).json(), asked))
    for mine, right in zip(together, alone, strict=True):
        (mine,), (right,) = mine["predictions"], right["predictions"]
        assert mine["label"] == right["label"]
        assert mine["score"] == pytest.approx(right["score"], abs=1e-5)


def test_concurrent_enrollments(model):
    jobs = [(f"class {number % 4}", photo(number % 4, number)) for number in range(32)]
    with served(model) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: client.post(f"/classes/{job[0]}", files=form(job[1])), jobs))
        assert [answer.json()["added"] for answer in answers] == [1] * 32
        asked = photo(2, 99)
        (found,) = client.post("/predict", files=form(asked)).json()["predictions"]
    alone = tiny_classifier()
    for name, content in jobs:
        alone.enroll(name, [content])
    stored = Classifier.load(model)
    assert {known.name: known.photos for known in stored.classes()} == {f"class {number}": 8 for number in range(4)}
    (right,) = alone.predict([asked])
    assert found["label"] == right.label
    assert found["score"] == pytest.approx(right.score, abs=1e-5)


def test_unknown_after_calibration(model, tmp_path):
    others = tmp_path / "others"
    others.mkdir()
    for seed in range(8):
        (others / f"{seed}.png").write_bytes(photo(6, seed))
    with StoredClassifier.open(model) as stored:
        stored.enroll("one", [photo(1, seed) for seed in range(3)])
        stored.calibrate(others, false_accept=0.01)
    with served(model) as client:
        assert client.get("/classes").json()["calibrated"] is True
        known, other = client.post("/predict", files=form(photo(1, 0), photo(6, 0))).json()["predictions"]
    assert known["label"] == "one"
    assert other["label"] is None
    assert other["ranking"][0]["label"] == "one"


def test_probabilities_are_those_of_the_classifier_and_unknown_needs_no_calibration(tmp_path):
    classifier = estimated_classifier()
    classifier.save(tmp_path / "model")
    asked = [photo(1, 50), photo(3, 50), photo(9, 50)]
    with served(tmp_path / "model") as client:
        assert client.get("/classes").json()["calibrated"] is True
        found = client.post("/predict?top=3", files=form(*asked)).json()["predictions"]
    for mine, right in zip(found, classifier.predict(asked, top=3), strict=True):
        assert mine["label"] == right.label
        assert (mine["label"] is None) == (mine["unknown_probability"] > 0.5)
        assert mine["probability"] == pytest.approx(right.probability, abs=1e-4)
        assert mine["unknown_probability"] == pytest.approx(right.unknown_probability, abs=1e-4)
        probabilities = [each["probability"] for each in mine["ranking"]]
        assert probabilities == pytest.approx(list(right.probabilities), abs=1e-4)
        assert mine["probability"] == probabilities[0] == max(probabilities)


def test_metrics(fresh):
    def value(name):
        lines = fresh.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    predicted = 'fscil_requests_total{method="POST",route="/predict",status="200"}'
    rejected = 'fscil_requests_total{method="POST",route="/predict",status="415"}'
    before = [value(name) for name in (predicted, rejected, "fscil_batch_images_sum", "fscil_request_seconds_count")]
    fresh.post("/predict", files=form(photo(0, 0), photo(0, 1), photo(0, 2)))
    fresh.post("/predict", files=form(b"no photo"))
    fresh.post("/classes/one", files=form(photo(0, 0)))
    fresh.request("NONSENSE", "/predict")
    after = [value(name) for name in (predicted, rejected, "fscil_batch_images_sum", "fscil_request_seconds_count")]
    assert [new - old for new, old in zip(after, before, strict=True)][:3] == [1, 1, 4]
    assert after[3] > before[3]
    assert value("fscil_classes ") == 1
    assert value("fscil_in_flight ") == 0
    assert "NONSENSE" not in fresh.get("/metrics").text


def test_openapi_has_every_route_with_examples(client):
    described = client.get("/openapi.json").json()
    routes = {(path, method) for path, methods in described["paths"].items() for method in methods}
    assert routes == {
        ("/predict", "post"),
        ("/classes", "get"),
        ("/classes/{name}", "post"),
        ("/classes/{name}", "delete"),
        ("/classes/{name}/thumbnail", "get"),
        ("/review", "get"),
        ("/review", "delete"),
        ("/review/groups", "get"),
        ("/review/name", "post"),
        ("/review/not", "post"),
        ("/review/photos/{photo}", "delete"),
        ("/review/photos/{photo}/thumbnail", "get"),
        ("/negatives", "get"),
        ("/negatives", "post"),
        ("/negatives/{photo}", "delete"),
        ("/negatives/{photo}/thumbnail", "get"),
        ("/health", "get"),
        ("/metrics", "get"),
    }
    assert set(described["paths"]["/predict"]["post"]["responses"]) >= {"200", "401", "413", "415", "422", "429", "503"}
    assert "multipart/form-data" in described["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert described["components"]["schemas"]["Enrolled"]["properties"]["name"]["examples"] == ["red panda"]
    assert set(described["components"]["securitySchemes"]) == {"HTTPBearer", "APIKeyHeader"}


def test_openapi_tells_keys_limits_and_errors(client):
    described = client.get("/openapi.json").json()
    paths = described["paths"]
    assert "security" not in paths["/health"]["get"]  # as it answers without
    either = [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    for path, methods in paths.items():
        for route in methods.values():
            assert path == "/health" or route["security"] == either
            if "{name}" in path:
                (name,) = [each for each in route["parameters"] if each["in"] == "path"]
                assert (name["schema"]["minLength"], name["schema"]["maxLength"]) == (1, 200)
    assert "404" in paths["/classes/{name}"]["delete"]["responses"]
    assert "404" in paths["/classes/{name}/thumbnail"]["get"]["responses"]
    body = paths["/classes/{name}"]["post"]["requestBody"]
    assert body["content"]["multipart/form-data"]["schema"]["properties"]["files"]["maxItems"] == 32
    assert "64 MiB" in body["description"]


def test_classes_in_order_of_their_names(fresh):
    for name in ("Zebra", "ant", "Bear"):
        fresh.post(class_url(name), files=form(photo(len(name), 0)))
    listed = fresh.get("/classes?order=name").json()["classes"]
    assert [each["name"] for each in listed] == ["ant", "Bear", "Zebra"]
    assert fresh.get("/classes?order=size").status_code == 422
