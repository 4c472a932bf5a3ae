"""Groups of photos that look alike, against agglomeration written out pair by pair."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fscil.gallery import COSINE, Gallery, Photo, TwoCovariance, TwoCovarianceRule
from fscil.gallery.similar import pair_scores, similar_groups

DIM = 6
RANDOM = np.random.default_rng(3)
TRAIN = np.abs(RANDOM.uniform(0, 3, (12, 1, DIM)) + RANDOM.normal(0, 0.5, (12, 5, DIM)))
LABELS = torch.arange(12).repeat_interleave(5)
RULE = TwoCovarianceRule(TwoCovariance.fit(torch.from_numpy(TRAIN).float().reshape(-1, DIM), LABELS))


def photos(classes, per_class, seed):
    """(classes * per_class, DIM), shuffled, and their classes."""
    random = np.random.default_rng(seed)
    means = random.uniform(0, 3, (classes, 1, DIM))
    found = np.abs(means + random.normal(0, 0.3, (classes, per_class, DIM))).reshape(-1, DIM)
    order = random.permutation(len(found))
    return torch.from_numpy(found[order]).float(), np.repeat(np.arange(classes), per_class)[order]


def joined(scores, threshold):
    """The two groups with the largest mean score become one, until that is below the threshold."""
    groups = [[row] for row in range(len(scores))]
    while len(groups) > 1:
        mean = {(a, b): np.mean([scores[i, j] for i in groups[a] for j in groups[b]])
                for a, b in combinations(range(len(groups)), 2)}  # fmt: skip
        a, b = max(mean, key=mean.get)
        if mean[a, b] < threshold:
            break
        groups[a] = sorted(groups[a] + groups.pop(b))
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))


@pytest.mark.parametrize("rule", [COSINE, RULE], ids=["cosine", "two_covariance"])
@settings(max_examples=25)
@given(classes=st.integers(1, 5), per_class=st.integers(1, 4), seed=st.integers(0, 99), share=st.floats(0.02, 0.98))
def test_as_written_out(rule, classes, per_class, seed, share):
    features, _ = photos(classes, per_class, seed)
    scores = pair_scores(features, rule).numpy()
    threshold = float(np.quantile(scores, share))
    assert similar_groups(features, rule, threshold) == joined(scores, threshold)


@pytest.mark.parametrize("rule", [COSINE, RULE], ids=["cosine", "two_covariance"])
def test_a_pair_scores_as_an_image_against_a_class_of_one_photo(rule):
    features, _ = photos(3, 3, 5)
    gallery = Gallery(DIM, rule)
    for number, feature in enumerate(features):
        gallery.enroll(f"{number}", [Photo(f"{number}", feature, "", "2026-01-01T00:00:00+00:00")])
    torch.testing.assert_close(pair_scores(features, rule).float(), gallery.scores(features), rtol=1e-4, atol=1e-3)


def test_photos_of_one_class_come_together():
    features, classes = photos(4, 6, 11)
    groups = similar_groups(features, RULE)
    assert sorted(row for group in groups for row in group) == list(range(24))
    assert [set(classes[group].tolist()) for group in groups] == [{classes[group[0]]} for group in groups]
    assert len(groups) == 4
    assert similar_groups(features, RULE) == groups


def test_few_photos():
    one = torch.ones(1, DIM)
    assert similar_groups(torch.empty(0, DIM), COSINE) == []
    assert similar_groups(one, COSINE) == []
    assert similar_groups(torch.cat([one, one]), COSINE) == [[0, 1]]
    assert similar_groups(torch.eye(DIM), COSINE) == []
