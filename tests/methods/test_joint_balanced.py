"""Balanced joint training: the loss allows for the numbers of images, and the classifier predicts."""

import math

import numpy as np
import pytest
import torch
from naive import BASE, DATA, cosine, fitted, mean, session

from fscil.methods import METHODS
from fscil.training.base_training import base_step, new_base_network
from fscil.training.batches import Batches
from fscil.training.build import preprocess_of
from helpers import CONTEXT, part, small_config


def test_balanced_softmax_weights_every_class_by_its_number_of_images():
    """-log of n_y exp(s_y) / sum n_c exp(s_c)"""
    recipe = METHODS["joint"].base_recipe(small_config("views.padding=0", "views.flip=0"))
    images, counts = part([6, 2, 1], 0), [6, 2, 1]
    network = new_base_network(recipe, 3, CONTEXT).eval()
    prior = torch.tensor([math.log(count / 9) for count in counts])
    batch = Batches(images, recipe.train, CONTEXT.device).of_images(np.arange(9), 0, 0.5)
    (loss,) = base_step(recipe, network, 3, prior)(batch)
    (unbalanced,) = base_step(recipe, network, 3)(batch)
    assert unbalanced.item() != pytest.approx(loss.item())
    found = []
    with torch.no_grad():
        scores = (16 * network(preprocess_of(recipe)(batch.pixels, batch.sizes))).double().tolist()
    for row, label in zip(scores, batch.labels.tolist(), strict=True):
        weights = [count * math.exp(value) for count, value in zip(counts, row, strict=True)]
        found.append(-math.log(weights[label] / sum(weights)))
    assert loss.item() == pytest.approx(mean(found), rel=1e-4)


def test_the_numbers_are_those_of_all_images_received():
    """8 of each base class, 2 of the others."""
    method = fitted("joint_balanced", "views.padding=0", "views.flip=0")
    method.learn(session(1))
    recipe = method.base_recipe(method.config)
    network = new_base_network(recipe, 8, CONTEXT).eval()
    prior = torch.tensor([math.log(count / 52) for count in [8] * 6 + [2] * 2])
    batch = Batches(session(1), recipe.train, CONTEXT.device).of_images(np.arange(4), 0, 0.5)
    (found,) = method.joint_step(recipe, network, 8)(batch)
    (expected,) = base_step(recipe, network, 8, prior)(batch)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_classifier_of_a_network_trained_on_all_images_predicts():
    """The largest cosine of a feature with the trained class vectors."""
    method = fitted("joint_balanced")
    method.learn(session(1))
    found = method.scores(DATA.test)
    assert found.shape == (len(DATA.test), 8)
    vectors, features = method.network.head.weight.tolist(), method.network.features(DATA.test).tolist()
    expected = [[cosine(row, vector) for vector in vectors] for row in features]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_the_nearest_mean_of_all_images_received_predicts_with_the_same_network():
    method, balanced = fitted("joint_balanced_ncm"), fitted("joint_balanced")
    for one in (method, balanced):
        one.learn(session(1))
    found = method.scores(DATA.test)
    balanced.scores(DATA.test)
    assert torch.equal(method.network.head.weight, balanced.network.head.weight)
    everything = [*zip(method.network.features(BASE).tolist(), BASE.labels, strict=True)]
    everything += zip(method.network.features(session(1)).tolist(), session(1).labels, strict=True)
    means = []
    for label in range(8):
        units = [[value / math.hypot(*row) for value in row] for row, of in everything if of == label]
        means.append([mean(column) for column in zip(*units, strict=True)])
    expected = [[cosine(row, centre) for centre in means] for row in method.network.features(DATA.test).tolist()]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


def test_it_is_trained_otherwise_than_plain_joint_training():
    plain, balanced = fitted("joint"), fitted("joint_balanced")
    assert METHODS["joint_balanced"].base_recipe(plain.config) == METHODS["joint"].base_recipe(plain.config)
    for method in (plain, balanced):
        method.learn(session(1))
        method.scores(BASE)
    assert not torch.equal(plain.network.head.weight, balanced.network.head.weight)
    assert METHODS["joint_balanced"].judged == "last"
