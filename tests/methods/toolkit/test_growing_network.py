"""A network that grows: new outputs among the old ones, and a copy of what it was."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from naive import mean, unit

from fscil.errors import ProtocolError, StoreError
from fscil.methods.toolkit.growing_network import GrowingNetwork
from fscil.methods.toolkit.imprinting import FeatureMoments, imprinted
from fscil.training.base_training import plain_recipe, train_base_network
from helpers import CONTEXT, SIZE, part, small_config

RECIPE = plain_recipe(small_config("train.epochs=1"))


@pytest.fixture(scope="module")
def trained():
    return train_base_network(RECIPE, part([6, 6, 6], 0), CONTEXT)


@pytest.fixture
def network(trained):
    return GrowingNetwork(RECIPE, deepcopy(trained), CONTEXT)


def new_images(first, classes=2):
    return part([0] * first + [2] * classes, 1)


@pytest.fixture
def base(network):
    return FeatureMoments.of(network.features(part([6, 6, 6], 0)))


def test_a_grown_network_says_of_the_old_classes_what_it_said(network, base):
    images = part([3, 3, 3], 2)
    before = network.scores(images)
    assert network.grow(new_images(3), base) == 3
    after = network.scores(images)
    assert after.shape == (9, 5)
    torch.testing.assert_close(after[:, :3], before)


def test_new_outputs_are_imprinted_class_means_of_the_old_length(network, base):
    old, new = network.head.weight.detach().clone(), new_images(3)
    features = [unit(row) for row in network.features(new).tolist()]
    network.grow(new, base)
    length = mean(math.hypot(*row) for row in old.tolist())
    means = []
    for label in (3, 4):
        own = [features[place] for place in range(len(new)) if new.labels[place] == label]
        means.append([mean(column) for column in zip(*own, strict=True)])
    expected = length * imprinted(torch.tensor(means), old, base)
    torch.testing.assert_close(network.head.weight[3:].detach(), expected, rtol=1e-3, atol=1e-5)


def test_a_session_out_of_turn_is_refused_and_changes_nothing(network):
    with pytest.raises(ProtocolError, match="numbered from 3"):
        network.grow(new_images(4), FeatureMoments(torch.zeros(16), torch.eye(16)))
    assert network.head.out_features == 3


def test_a_frozen_copy_does_not_learn(network):
    images = torch.randn(2, 3, SIZE, SIZE)
    copy = network.frozen_copy()
    said = copy(images)
    torch.testing.assert_close(said, network(images))
    with torch.no_grad():
        for parameter in [*network.backbone.parameters(), *network.head.parameters()]:
            parameter.add_(1)
    torch.testing.assert_close(copy(images), said)
    assert not said.requires_grad


def test_without_a_classifier_on_the_features_there_is_nothing_to_grow(trained):
    with pytest.raises(StoreError, match=r"no cosine classifier .* Train it again, by the method's own base recipe"):
        GrowingNetwork(RECIPE, replace(trained, head=None), CONTEXT)
