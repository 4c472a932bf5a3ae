"""LUCIR against its paper written out: ranking, less-forget and its weight, the imprinted class vectors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import BASE, cosine, cross_entropy, fitted, mean, record_trainings, session, some_views, unit

from fscil.methods.lucir import Lucir, less_forget_weight, margin_ranking
from fscil.methods.toolkit.imprinting import imprinted
from helpers import small_config


def naive_ranking(cosines, labels, first):
    losses = []
    for row, label in zip(cosines, labels, strict=True):
        if label < first:
            hardest = sorted(row[first:], reverse=True)[:2]
            losses.append(sum(max(0.0, 0.5 - row[label] + other) for other in hardest))
    return mean(losses) if losses else 0.0


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 8), st.integers(0, 10**6))
def test_margin_ranking_in_loops(old, new, images, seed):
    generator = torch.Generator().manual_seed(seed)
    cosines = torch.rand(images, old + new, generator=generator, dtype=torch.float64) * 2 - 1
    labels = torch.randint(old + new, (images,), generator=generator)
    expected = naive_ranking(cosines.tolist(), labels.tolist(), old)
    assert float(margin_ranking(cosines, labels, old)) == pytest.approx(expected, abs=1e-9)


def test_the_weight_of_less_forget():
    assert less_forget_weight(60, 5) == pytest.approx(5 * math.sqrt(12))
    assert less_forget_weight(7, 7) == 5


def test_the_loss_of_a_session():
    method = fitted("lucir")
    method.learn(session(1))
    trainings = record_trainings(method)
    method.learn(session(2))
    (training,) = trainings
    views, labels = some_views([0, 5, 6, 7, 8, 9])
    old_features, _ = training.before(views)
    with torch.no_grad():
        features = method.network.backbone(views).double().tolist()
    vectors, scale = method.network.head.weight.double().tolist(), method.scale.item()
    cosines = [[cosine(row, vector) for vector in vectors] for row in features]
    forgotten = mean(1 - cosine(now, before) for now, before in zip(features, old_features, strict=True))
    assert forgotten > 1e-5
    expected = (
        cross_entropy([[scale * value for value in row] for row in cosines], labels.tolist())
        + 5 * math.sqrt(8 / 2) * forgotten
        + naive_ranking(cosines, labels.tolist(), 8)
    )
    assert training.loss(views, labels).item() == pytest.approx(expected, abs=1e-4)


def test_new_class_vectors_begin_at_the_mean_of_their_features():
    """As far as they reach no nearer to base images than old vectors do."""
    method = fitted("lucir", "incremental.steps=0")
    old = method.network.head.weight.detach().clone()
    new = session(1)
    features = method.network.features(new).tolist()
    method.learn(new)
    weight = method.network.head.weight.detach()
    own = [[unit(features[place]) for place in np.flatnonzero(new.labels == label)] for label in (6, 7)]
    means = torch.tensor([[mean(column) for column in zip(*rows, strict=True)] for rows in own])
    length = mean(math.hypot(*row) for row in old.tolist())
    np.testing.assert_allclose(weight[6:].numpy(), length * imprinted(means, old, method.base).numpy(), atol=1e-4)


def test_old_class_vectors_stay_and_everything_else_learns():
    method = fitted("lucir", "incremental.lr=0.1")
    before = method.state()
    method.learn(session(1))
    after, imprinted = method.state(), fitted("lucir", "incremental.steps=0")
    imprinted.learn(session(1))
    assert torch.equal(after["head.weight"][:6], before["head.weight"])
    assert not torch.equal(after["head.weight"][6:], imprinted.state()["head.weight"][6:])
    last = "backbone.layer4.1.conv2.weight"
    assert not torch.equal(after[last], before[last])
    assert before["scale"] == 16
    assert after["scale"] != 16


def test_a_session_is_learned_from_its_images_and_the_exemplars():
    method = fitted("lucir")
    trainings = record_trainings(method)
    method.learn(session(1))
    assert trainings[0].images.counts == {**dict.fromkeys(range(6), 3), 6: 2, 7: 2}
    assert method.exemplars.counts == trainings[0].images.counts


def test_scores_are_cosines():
    method = fitted("lucir")
    method.learn(session(1))
    vectors = method.network.head.weight.tolist()
    expected = [[cosine(row, vector) for vector in vectors] for row in method.network.features(BASE).tolist()]
    np.testing.assert_allclose(method.scores(BASE).numpy(), expected, atol=1e-5)


def test_base_training_is_a_cosine_classifier_at_temperature_16():
    recipe = Lucir.base_recipe(fitted("lucir").config)
    assert (recipe.model.head, recipe.model.projection, recipe.views.count) == ("cosine", 0, 1)
    assert (recipe.loss.kind, recipe.loss.scale, recipe.mixing.repeats) == ("softmax", 16.0, 0)


def test_features_have_both_signs_where_the_backbone_allows_it():
    """Or imprinted means would be near every image."""
    method = fitted("lucir")
    features = method.network.features(BASE)
    assert (features < 0).any(1).all()
    assert (features > 0).any(1).all()
    other = Lucir.base_recipe(small_config("model.backbone=efficientnet_lite0"))
    assert other.model.last_relu
