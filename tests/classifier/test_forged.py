"""A model folder of somebody else, with the right checksums and the wrong content: one error, before anything is done.

tests/property/test_hostile_inputs.py forges hundreds at random.
"""

import json

import pytest
import torch

from fscil.classifier import Classifier, StoredClassifier
from fscil.classifier.model_folder import ModelFolder
from fscil.errors import FscilError
from fscil.gallery import Gallery
from helpers import picture


def forged(model, tmp_path, about=None, snapshot=None, decision=None, weights=None, record=None):
    """A copy of a model; each argument changes a part of it in place."""
    found = ModelFolder(model).read()
    for change, part in ((about, found.about), (decision, found.decision), (weights, found.weights)):
        if change:
            change(part)
    if snapshot:
        snapshot(found.snapshot)
    copy = ModelFolder(tmp_path / "forged")
    copy.create(found.weights, found.about, found.snapshot, decision=found.decision)
    if record:
        copy.append(record)
    return copy.path


def refused(path, match):
    with pytest.raises(FscilError, match=match):
        Classifier.load(path, "cpu")
    with pytest.raises(FscilError, match=match), StoredClassifier.open(path, "cpu"):
        pass


def test_unchanged_it_loads(model, tmp_path):
    path = forged(model, tmp_path)
    assert Classifier.load(path, "cpu").predict(picture(0, 9)) == Classifier.load(model, "cpu").predict(picture(0, 9))


@pytest.mark.parametrize("option", ["weights", "pretrained"])
def test_no_other_weights_are_read(model, tmp_path, monkeypatch, option):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "weights.pth")
    reached = []
    monkeypatch.setattr(torch, "load", lambda *args, **options: reached.append(args))
    value = str(tmp_path / "weights.pth") if option == "weights" else True
    refused(
        forged(model, tmp_path, about=lambda about: about["network"]["options"].update({option: value})),
        "not read from",
    )
    assert reached == []


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (["network", "options", "width"], 100_000, "another architecture"),
        (["network", "options", "width"], 10**7, "neither a number nor a name"),
        (["network", "options", "stem"], "/etc/passwd", "neither a number nor a name"),
        (["network", "options", "more"], 1, 'has no option "more"'),
        (["network", "backbone"], "resnet1000", "resnet1000"),
        (["network", "backbone"], ["resnet18"], "Expected `str`"),
        (["network", "preprocess", "std"], [0.2, 0.0, 0.2], "preprocess.std"),
        (["network", "preprocess", "mean"], [0.2], "preprocess.mean"),
        (["network", "preprocess", "crop"], 16_000, "2048 pixels"),
        (["network", "preprocess", "crop"], 0, "preprocess.crop"),
        (["network", "resize", "size"], [16, -1], "2048 pixels"),
        (["network", "resize", "interpolation"], "none", "Invalid enum value"),
        (["network"], None, "network"),
        (["made"], [], "made"),
        (["calibration"], {"score": "cosine"}, "calibration"),
        (["decision", "rule"], "coin", "newer fscil"),
        (["decision", "unknown_prior"], 1, "unknown prior"),
        (["decision", "unknown_prior"], "0.5", "unknown_prior"),
        (["decision", "probability", "temperature"], 0, "temperature"),
        (["decision", "thresholds", "unknown"], 0, "threshold"),
    ],
)
def test_a_description_that_is_not_one(model, tmp_path, path, value, match):
    def change(about):
        for key in path[:-1]:
            about = about[key]
        about[path[-1]] = value

    refused(forged(model, tmp_path, about=change), match)


def classes(change):
    def changed(snapshot):
        found = json.loads(bytes(snapshot["classes"].tolist()))
        change(found)
        snapshot["classes"] = torch.tensor(list(json.dumps(found).encode()), dtype=torch.uint8)

    return changed


def put(name, value):
    return lambda tensors: tensors.__setitem__(name, value(tensors[name]))


def with_number(number):
    def changed(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[0] = number
        return tensor

    return changed


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (classes(lambda found: found[1].update(name=found[0]["name"])), "a class is there twice"),
        (classes(lambda found: found.append({**found[0], "name": "new", "photos": []})), "length >= 1"),
        (classes(lambda found: found.pop()), "features do not belong"),
        (classes(lambda found: found[0]["photos"].__setitem__(1, found[0]["photos"][0])), "a photo twice"),
        (classes(lambda found: found[0].update(name="a\x1b[2Jb")), "no class can be called"),
        (classes(lambda found: found[0].update(name=" ant")), "no class can be called"),
        (classes(lambda found: found[0].update(origin="elsewhere")), "origin"),
        (put("features", with_number(float("nan"))), "not finite"),
        (put("features", lambda features: features[:, :-1].contiguous()), "numbers"),
        (put("features", lambda features: features.double()), "features"),
        (put("offsets", with_number(-1)), "thumbnails overlap"),
        (put("offsets", lambda offsets: offsets.flip(0)), "thumbnails overlap"),
        (put("classes", lambda found: found[:-1].clone()), "JSON"),
    ],
)
def test_a_gallery_that_is_not_one(model, tmp_path, change, match):
    refused(forged(model, tmp_path, snapshot=change), match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (put("psi", with_number(-1.0)), "out of their bounds"),
        (put("psi", with_number(float("inf"))), "not finite"),
        (put("projection", with_number(3e38)), "not finite or out"),
        (put("projection", lambda projection: projection.T.contiguous()[:-1]), "do not fit each other"),
        (put("centre", with_number(float("nan"))), "not finite"),
        (put("correlation", lambda _: torch.tensor(2.0)), "out of their bounds"),
        (lambda state: state.pop("psi"), "missing"),
        (lambda state: state.clear(), "missing"),
    ],
)
def test_a_decision_rule_that_is_not_one(model, tmp_path, change, match):
    refused(forged(model, tmp_path, decision=change), match)


def test_weights_that_are_not_finite(model, tmp_path):
    refused(forged(model, tmp_path, weights=put("conv1.weight", with_number(float("nan")))), "not finite")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"do": "dance"}, "newer fscil"),
        ({"name": 3}, "name"),
        ({"name": "a\nb"}, "control character"),
        ({"photos": "all"}, "photos"),
        ({"photos": [{}]}, "missing required field"),
        ({"origin": "elsewhere"}, "origin"),
    ],
)
def test_a_record_that_is_not_one(model, tmp_path, change, match):
    found = Gallery.record("new", Classifier.load(model, "cpu").photos(picture(8, 0)))
    refused(forged(model, tmp_path, record={**found, **change}), match)


def test_features_that_overflow_are_an_error_and_no_answer(model, tmp_path):
    def change(weights):
        for name, value in weights.items():
            if value.ndim == 4:
                weights[name] = torch.full_like(value, 1e38)

    path = forged(model, tmp_path, weights=change)
    classifier = Classifier.load(path, "cpu")
    with pytest.raises(FscilError, match="not finite"):
        classifier.predict(picture(0, 9))
    with pytest.raises(FscilError, match="not finite"):
        classifier.enroll("new", picture(0, 9))
    with pytest.raises(FscilError, match="not finite"):
        classifier.predict_features(torch.full((1, classifier.encoder.dim), float("nan")))
