"""A model that was written when the schema was 1 loads for ever, answers as it did then, and goes on learning."""

import json
import shutil
from pathlib import Path

import pytest

from fscil import Classifier
from fscil.classifier import StoredClassifier
from helpers import picture

FIXTURE = Path(__file__).parents[1] / "fixtures" / "model-schema1"


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(FIXTURE / "model", tmp_path / "model")


def test_it_is_of_schema_1_with_a_snapshot_and_a_journal():
    manifest = json.loads((FIXTURE / "model" / "model.json").read_text(encoding="utf-8"))
    assert manifest["schema"] == 1
    assert len((FIXTURE / "model" / manifest["journal"]).read_text(encoding="utf-8").splitlines()) == 2


def test_it_answers_as_it_did(model):
    classifier = Classifier.load(model, device="cpu")
    expected = json.loads((FIXTURE / "expected.json").read_text(encoding="utf-8"))
    assert {answer["label"] for answer in expected.values()} > {None}  # some are unknown, some are not
    for file, answer in expected.items():
        (found,) = classifier.predict(FIXTURE / file, top=4)
        assert (found.label, found.runner_up) == (answer["label"], answer["runner_up"])
        assert [name for name, _ in found.ranking] == [name for name, _ in answer["ranking"]]
        assert [score for _, score in found.ranking] == pytest.approx(
            [score for _, score in answer["ranking"]], abs=1e-4
        )
        assert found.margin == pytest.approx(answer["margin"], abs=1e-4)


def test_what_it_knows_is_all_there(model):
    classifier = Classifier.load(model)
    assert [(info.name, info.photos, info.origin) for info in classifier.classes()] == [
        ("ant", 3, "base"),
        ("Bär", 2, "enrolled"),
        ("red panda", 2, "enrolled"),
        ("鹿", 2, "enrolled"),
    ]
    assert classifier.calibration is not None
    assert (classifier.calibration.score, classifier.calibration.threshold) == ("cosine", 0.85)
    assert all(photo.thumbnail for name in classifier.gallery.names for photo in classifier.gallery.photos(name))


def test_it_goes_on_learning(model):
    with StoredClassifier.open(model) as stored:
        assert stored.enroll("鹿", [picture(3, 0), picture(3, 5)]) == 1
        stored.forget("ant")
    assert Classifier.load(model).gallery.names == ("Bär", "red panda", "鹿")
    assert Classifier.load(model).gallery.info("鹿").photos == 3
