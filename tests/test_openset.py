"""Scores for "unknown" against their formulas, thresholds against what they promise, leaving out against doing it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscil.errors import ConfigError, DataError
from fscil.gallery import leave_one_class_out, leave_one_out
from fscil.metrics import auroc
from fscil.openset import DEFAULT_SCORE, SCORES, Evidence, threshold_at
from fscil.runtime import memory

ORACLES = {
    "cosine": lambda row: row[0],
    "margin": lambda row: row[0] - row[1],
    "ratio": lambda row: -(1 - row[0]) / (1 - row[1]),
    "neighbours": lambda row: row[0] - np.mean(row[1:11]),
    "contrast": lambda row: row[0] - np.mean(row[1:11]) / 2,
    "softmax": lambda row: 16 * row[0] - math.log(sum(math.exp(16 * cosine) for cosine in row)),
    "energy": lambda row: math.log(sum(math.exp(16 * cosine) for cosine in row)) / 16,
}


def cosines(images, classes, seed=0):
    return torch.rand(images, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.8 - 0.9


def photos(classes, counts, seed=0, spread=0.6, dim=6):
    """Features around one random centre per class, and labels with gaps, in no order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(torch.tensor(counts))
    centres = torch.randn(classes, dim, generator=generator)
    features = centres[labels] + spread * torch.randn(len(labels), dim, generator=generator)
    order = torch.randperm(len(labels), generator=generator)
    return features[order], 3 * labels[order] + 5


def test_every_score_has_an_oracle():
    assert ORACLES.keys() == SCORES.keys()
    assert DEFAULT_SCORE in SCORES


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("classes", [2, 5, 11, 40])
def test_scores_are_their_formulas(name, classes):
    seen = cosines(30, classes)
    expected = [ORACLES[name](sorted(row, reverse=True)) for row in seen.tolist()]
    assert SCORES[name](Evidence(seen)).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SCORES)
def test_the_order_of_classes_does_not_matter(name):
    seen = cosines(30, 15)
    turned = seen[:, torch.randperm(15, generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(SCORES[name](Evidence(turned)), SCORES[name](Evidence(seen)))


@pytest.mark.parametrize("name", SCORES)
def test_one_class_is_ranked_by_its_cosine(name):
    seen = cosines(30, 1)
    rank = SCORES[name](Evidence(seen)).argsort()
    assert rank.tolist() == seen[:, 0].argsort().tolist()


@pytest.mark.parametrize("name", SCORES)
def test_an_image_upon_a_prototype_is_known_best(name):
    """Even where two classes have the same prototype, a score is a number."""
    seen = torch.tensor([[1.0, 0.1, 0.2, 0.0], [0.5, 0.4, 0.45, 0.3], [1.0, 1.0, 1.0, 1.0]])
    scores = SCORES[name](Evidence(seen))
    assert scores[0] > scores[1]
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", SCORES)
def test_known_images_score_higher_than_unknown_ones(name):
    """Tight classes, far apart: nobody who looks at the cosines sensibly can miss them."""
    features, labels = photos(30, [6] * 30, spread=0.1, dim=32)
    known, unknown = leave_one_class_out(features, labels, name)
    assert auroc(known.numpy(), unknown.numpy()) > 0.99


# Thresholds


@given(
    st.lists(st.integers(-4, 4).map(lambda value: value / 8), min_size=1, max_size=60),
    st.sampled_from([0, 0.01, 0.05, 0.07, 0.1, 0.5, 0.93, 0.999]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_threshold_is_the_smallest_that_keeps_the_rate(scores, wanted, dtype):
    unknown = torch.tensor(scores, dtype=dtype)
    threshold = threshold_at(unknown, wanted)
    assert int((unknown >= threshold).sum()) <= wanted * len(scores) + 1e-9
    assert (unknown.double() >= threshold).equal(unknown >= threshold)
    below = unknown[unknown < threshold].max()  # there is one, for not all may be accepted
    assert int((unknown >= below).sum()) > wanted * len(scores) + 1e-9
    assert threshold == pytest.approx(float(below), abs=1e-6)


def test_rates_are_counted_exactly():
    """0.07 * 100 is 7.000000000000001 to a computer, 0.29 * 100 is 28.999999999999996."""
    unknown = torch.arange(100.0)
    for percent in range(100):
        assert int((unknown >= threshold_at(unknown, percent / 100)).sum()) == percent


@pytest.mark.parametrize("wanted", [-0.1, 1, 5, math.nan])
def test_an_impossible_rate_is_refused(wanted):
    with pytest.raises(ConfigError, match="false-accept rate"):
        threshold_at(torch.arange(3.0), wanted)


def test_no_unknown_image_is_an_error():
    with pytest.raises(DataError, match="no image of an unknown class"):
        threshold_at(torch.empty(0), 0.05)


# Leaving one class out


def cosine_to_means(image, gallery):
    """(1, classes) by the definition, class after class."""
    means = [np.mean(np.array(rows, np.float64), 0) for rows in gallery]
    return [[float(image @ mean / np.linalg.norm(image) / np.linalg.norm(mean)) for mean in means]]


def left_out_one_by_one(features, labels, score):
    """Rebuild the gallery for every photo."""
    features, labels = features.double().numpy(), labels.tolist()
    known, unknown = [], []
    for place, (image, label) in enumerate(zip(features, labels, strict=True)):
        without_class = [
            [features[row] for row, its in enumerate(labels) if its == other] for other in sorted({*labels} - {label})
        ]
        own = [features[row] for row, its in enumerate(labels) if its == label and row != place]
        unknown.append(float(SCORES[score](Evidence(torch.tensor(cosine_to_means(image, without_class))))))
        if own:
            gallery = [*without_class, own]
            known.append(float(SCORES[score](Evidence(torch.tensor(cosine_to_means(image, gallery))))))
    return known, unknown


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("counts", [[5] * 14, [1, 4, 2, 1], [1, 1, 1], [3, 2]], ids=str)
def test_leaving_out_is_what_rebuilding_the_gallery_gives(score, counts):
    features, labels = photos(len(counts), counts)
    known, unknown = leave_one_class_out(features, labels, score)
    expected = left_out_one_by_one(features, labels, score)
    assert known.tolist() == pytest.approx(expected[0], abs=1e-5)
    assert unknown.tolist() == pytest.approx(expected[1], abs=1e-5)


def test_a_large_gallery_is_compared_in_parts(monkeypatch):
    features, labels = photos(9, [4] * 9)
    whole = leave_one_class_out(features, labels, "contrast")
    monkeypatch.setattr(memory, "MAX_VALUES", 2 * 9)
    torch.testing.assert_close(leave_one_class_out(features, labels, "contrast"), whole)


def test_of_a_very_large_gallery_some_photos_are_enough(monkeypatch):
    features, labels = photos(9, [4] * 9)
    known, unknown = leave_one_class_out(features, labels, "cosine")
    monkeypatch.setattr(leave_one_out, "MAX_PHOTOS", 8)
    some_known, some_unknown = leave_one_class_out(features, labels, "cosine")
    rows = [0, 5, 10, 15, 20, 25, 30, 35]  # from the first to the last
    torch.testing.assert_close(some_known, known[rows])
    torch.testing.assert_close(some_unknown, unknown[rows])


def test_nothing_is_left_when_the_only_class_is_left_out():
    features, labels = photos(1, [5])
    with pytest.raises(DataError, match="at least two classes, not 1"):
        leave_one_class_out(features, labels, "cosine")


def test_leaving_out_does_not_change_the_photos():
    features, labels = photos(4, [3] * 4)
    before = features.clone(), labels.clone()
    leave_one_class_out(features, labels, "cosine")
    assert torch.equal(features, before[0])
    assert torch.equal(labels, before[1])
