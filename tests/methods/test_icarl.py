"""iCaRL against its paper written out: herding, distillation, the loss of a session, the nearest mean of exemplars."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import (
    BASE,
    cross_entropy,
    fitted,
    herded_pixels,
    mean,
    record_trainings,
    running_distances,
    session,
    some_views,
    unit,
)
from naive import cosine as naive_cosine
from naive import distillation as naive_distillation

from fscil.methods import METHODS
from fscil.methods.toolkit.distillation import distillation, frozen
from fscil.methods.toolkit.exemplars import herding
from helpers import small_config


@given(st.integers(1, 12), st.integers(1, 14), st.integers(0, 10**6))
def test_herding_against_trying_every_image(images, count, seed):
    """No image left would have brought the mean nearer, at any step. Equally near ones may come in any order."""
    features = torch.randn(images, 3, generator=torch.Generator().manual_seed(seed)).relu()
    chosen = herding(features, count).tolist()
    assert len(set(chosen)) == len(chosen) == min(images, count)
    for step, image in enumerate(chosen):
        distances = running_distances(features.tolist(), chosen[:step])
        assert distances[image] <= min(distances.values()) + 1e-9


def test_herding_is_not_taking_the_images_nearest_to_the_mean():
    features = torch.tensor([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5], [1.0, -0.4], [1.0, -0.4]])  # the mean is near 0.14
    assert herding(features, 3).tolist() == [0, 3, 1]


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
def test_distillation_in_loops(images, outputs, seed):
    now, before = torch.randn(2, images, outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = naive_distillation(now.tolist(), before.tolist())
    assert float(distillation(now, before)) == pytest.approx(expected, abs=1e-9)
    assert float(distillation(now, now)) == pytest.approx(0, abs=1e-9)


def test_a_frozen_copy_stays_as_it_is():
    layer = torch.nn.Linear(3, 2)
    before, images = frozen(layer), torch.randn(4, 3)
    expected = layer(images).detach()
    with torch.no_grad():
        layer.weight += 1
    assert torch.equal(before(images), expected)
    assert not before(images).requires_grad
    assert layer.weight.requires_grad


def test_the_loss_of_a_session():
    """Cross-entropy over all classes, and the old outputs against those of the network before the session."""
    method = fitted("icarl", "incremental.lr=0.1", "incremental.steps=4")
    trainings = record_trainings(method)
    method.learn(session(1))
    method.learn(session(2))
    views, labels = some_views([0, 5, 6, 7, 8, 9])
    last = trainings[1]
    _, now = last.after(views)
    _, before = last.before(views)
    apart = naive_distillation([row[:8] for row in now], [row[:8] for row in before])
    assert apart > 0.001
    assert last.loss(views, labels).item() == pytest.approx(cross_entropy(now, labels.tolist()) + apart, abs=1e-4)


def test_a_session_is_learned_from_its_images_and_the_exemplars():
    method = fitted("icarl")
    trainings = record_trainings(method)
    new = session(1)
    exemplars, _ = method.exemplars.batch(np.arange(18))
    method.learn(new)
    (training,) = trainings
    pixels, _ = training.images.batch(np.arange(len(training.images)))
    np.testing.assert_array_equal(pixels, np.concatenate([exemplars, new.batch(np.arange(4))[0]]))
    assert training.images.counts == {**dict.fromkeys(range(6), 3), 6: 2, 7: 2}


def test_exemplars_are_herded_by_the_network_that_has_learned_them():
    method = fitted("icarl")
    expected = herded_pixels(BASE, method.network.features(BASE), 3)
    for number in (0, 1):
        if number:
            new = session(1, shots=5)
            method.learn(new)
            expected |= herded_pixels(new, method.network.features(new), 3)
        for label, pixels in expected.items():
            own = method.exemplars.of_classes([label])
            np.testing.assert_array_equal(own.batch(np.arange(len(own)))[0], pixels)
        assert sorted(method.exemplars.counts) == sorted(expected)


def test_scores_are_nearness_to_the_means_of_exemplars_measured_anew():
    method = fitted("icarl")
    old_means = method.means()
    method.learn(session(1))
    features = method.network.features(method.exemplars).tolist()
    means = []
    for label in range(8):
        own = [unit(features[place]) for place in np.flatnonzero(method.exemplars.labels == label)]
        means.append([mean(column) for column in zip(*own, strict=True)])
    test = session(2)
    expected = [[naive_cosine(row, each) for each in means] for row in method.network.features(test).tolist()]
    np.testing.assert_allclose(method.scores(test).numpy(), expected, atol=1e-5)
    assert not torch.allclose(old_means, method.means()[:6], atol=1e-4)  # the network has moved on


def test_starts_from_the_network_of_finetune():
    config = small_config()
    assert METHODS["icarl"].base_recipe(config) == METHODS["finetune"].base_recipe(config)
