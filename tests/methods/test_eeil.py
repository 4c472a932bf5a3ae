"""EEIL against its paper written out: a distillation term per head, and the balanced fine-tuning after it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from naive import cross_entropy, distillation, fitted, herded_pixels, record_trainings, session, some_views

from fscil.methods import METHODS
from helpers import small_config


def per_head(now, before, borders):
    return sum(
        distillation([row[start:stop] for row in now], [row[start:stop] for row in before])
        for start, stop in pairwise(borders)
    )


def test_cross_distilled_loss_of_a_session():
    """The third session: the base head and two others, each distilled on its own."""
    method = fitted("eeil", "incremental.lr=0.4", "incremental.steps=8")
    for number in (1, 2):
        method.learn(session(number))
    trainings = record_trainings(method)
    method.learn(session(3))
    views, labels = some_views([0, 5, 6, 8, 10, 11])
    _, now = trainings[1].after(views)
    _, before = trainings[0].before(views)
    together, apart = per_head(now, before, [0, 10]), per_head(now, before, [0, 6, 8, 10])
    assert abs(together - apart) > 1e-4
    expected = cross_entropy(now, labels.tolist()) + apart
    assert trainings[0].loss(views, labels).item() == pytest.approx(expected, abs=1e-4)


def test_balanced_fine_tuning_holds_the_new_head_to_what_it_has_just_learned():
    method = fitted("eeil", "incremental.lr=0.4", "incremental.steps=8")
    trainings = record_trainings(method)
    method.learn(session(1))
    cross_distilled, balanced = trainings
    views, labels = some_views([0, 5, 6, 7])
    _, now = balanced.after(views)
    _, before = cross_distilled.before(views)
    _, trained = cross_distilled.after(views)
    new_head = per_head(now, trained, [6, 8])
    assert new_head > 1e-5
    expected = cross_entropy(now, labels.tolist()) + per_head(now, before, [0, 6]) + new_head
    assert balanced.loss(views, labels).item() == pytest.approx(expected, abs=1e-5)
    assert cross_distilled.lr is None  # the recipe's
    assert balanced.lr == pytest.approx(0.04)


@pytest.mark.parametrize(("shots", "each"), [(5, 3), (2, 2), (1, 1)])
def test_balanced_fine_tuning_sees_equally_many_of_each_class(shots, each):
    method = fitted("eeil")
    trainings = record_trainings(method)
    method.learn(session(1, shots))
    assert trainings[0].images.counts == {**dict.fromkeys(range(6), 3), **dict.fromkeys((6, 7), shots)}
    assert trainings[1].images.counts == dict.fromkeys(range(8), each)


def test_the_images_of_balanced_fine_tuning_are_the_most_representative():
    """Herded by the network as it then is, of which a first training that moves nothing leaves the old one."""
    method = fitted("eeil", "incremental.lr=0")
    trainings = record_trainings(method)
    new = session(1, shots=5)
    expected = herded_pixels(new, method.network.features(new), 3)
    method.learn(new)
    for images in (trainings[1].images, method.exemplars):
        for label, pixels in expected.items():
            own = images.of_classes([label])
            np.testing.assert_array_equal(own.batch(np.arange(len(own)))[0], pixels)


def test_scores_are_the_outputs_of_all_heads():
    method = fitted("eeil")
    method.learn(session(1))
    test = session(2)
    weight, features = method.network.head.weight.detach(), method.network.features(test)
    lengths = weight.norm(dim=1) * features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(method.scores(test), (features @ weight.T) / lengths)


def test_heads_are_saved():
    method, other = fitted("eeil"), fitted("eeil")
    method.learn(session(1))
    other.load_state(method.state())
    assert other.borders == method.borders == [0, 6, 8]


def test_starts_from_the_network_of_finetune():
    config = small_config()
    assert METHODS["eeil"].base_recipe(config) == METHODS["finetune"].base_recipe(config)
