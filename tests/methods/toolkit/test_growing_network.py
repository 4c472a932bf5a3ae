"""A network that grows: new outputs among the old ones, and a copy of what it was."""

import pytest
import torch

from fscil.errors import ProtocolError
from fscil.methods.toolkit.growing_network import Learner
from fscil.training.base_training import plain_recipe
from fscil.training.loop import Trainer
from helpers import SIZE, part, small_config


@pytest.fixture
def learner():
    config = small_config("train.epochs=1")
    learner = Learner(plain_recipe(config), Trainer(config.train, quiet=True))
    learner.fit_base(part([6, 6, 6], 0))
    return learner


def new_images(first, classes=2):
    return part([0] * first + [2] * classes, 1)


def test_a_grown_network_says_of_the_old_classes_what_it_said(learner):
    images = part([3, 3, 3], 2)
    before = learner.scores(images)
    assert learner.grow(new_images(3)) == 3
    after = learner.scores(images)
    assert after.shape == (9, 5)
    torch.testing.assert_close(after[:, :3], before)


def test_new_outputs_are_of_the_old_length_in_directions_of_their_own(learner):
    old = learner.head.weight.detach().clone()
    learner.grow(new_images(3))
    added = learner.head.weight.detach()[3:]
    torch.testing.assert_close(added.norm(dim=1), old.norm(dim=1).mean().expand(2))
    assert abs(torch.cosine_similarity(added[0], added[1], dim=0)) < 0.99


def test_a_session_out_of_turn_is_refused_and_changes_nothing(learner):
    with pytest.raises(ProtocolError, match="numbered from 3"):
        learner.grow(new_images(4))
    assert learner.head.out_features == 3


def test_a_frozen_copy_does_not_learn(learner):
    images = torch.randn(2, 3, SIZE, SIZE)
    copy = learner.frozen()
    said = copy(images)
    torch.testing.assert_close(said, learner(images))
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(1)
    torch.testing.assert_close(copy(images), said)
    assert not said.requires_grad
