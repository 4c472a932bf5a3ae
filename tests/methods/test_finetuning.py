"""Training on a session's images: one step against the formula, the rate, and a training that goes wrong."""

import math

import pytest
import torch
from naive import BASE
from torch import nn

from fscil.errors import TrainingError
from fscil.methods.finetuning import descend, new_outputs
from fscil.training import Trainer
from helpers import small_config

CONFIG = small_config("incremental.epochs=4", "incremental.batch=16", "incremental.lr=0.1")
TRAINER = Trainer(CONFIG.train, torch.device("cpu"), quiet=True)


def test_descends_by_nesterov_sgd_along_half_a_cosine():
    """The loss 3w has the gradient 3 everywhere, cut to 1: 4 epochs of 3 steps on 48 images, written out."""
    weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    descend([weight], BASE, lambda views, labels: 3 * weight, CONFIG, TRAINER, "test", seed=0)
    expected, speed = 2.0, 0.0
    for epoch in range(4):
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * epoch / 4))
        for _ in range(3):
            gradient = 1 + 5e-4 * expected
            speed = 0.9 * speed + gradient
            expected -= rate * (gradient + 0.9 * speed)
    assert weight.item() == pytest.approx(expected, abs=1e-5)  # torch cuts to a millionth below the norm asked for


def test_a_gentle_gradient_is_left_as_it_is():
    weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    descend([weight], BASE, lambda views, labels: 0.5 * weight, CONFIG, TRAINER, "test", seed=0, epochs=1)
    expected, speed = 2.0, 0.0
    for _ in range(3):
        gradient = 0.5 + 5e-4 * expected
        speed = 0.9 * speed + gradient
        expected -= 0.1 * (gradient + 0.9 * speed)
    assert weight.item() == pytest.approx(expected, abs=1e-12)


def test_a_group_of_parameters_may_have_a_rate_of_its_own():
    """Both have the same gradient and begin at zero, so that the paths differ as the rates do."""
    quick, slow = (nn.Parameter(torch.tensor(0.0, dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [quick]}, {"params": [slow], "lr": 0.001}]
    descend(groups, BASE, lambda views, labels: 3 * (quick + slow), CONFIG, TRAINER, "test", seed=0)
    assert slow.item() == pytest.approx(0.01 * quick.item(), rel=1e-2)
    assert quick.item() < -0.5


def test_every_image_is_seen_once_an_epoch_with_its_label():
    weight, seen = nn.Parameter(torch.tensor(1.0)), []

    def loss(views, labels):
        assert views.shape[1:] == (3, 16, 16)
        seen.append(labels)
        return weight * 0

    descend([weight], BASE, loss, CONFIG, TRAINER, "test", seed=0, epochs=2)
    assert [len(labels) for labels in seen] == [16] * 6
    for epoch in (seen[:3], seen[3:]):
        assert sorted(torch.cat(epoch).tolist()) == sorted(BASE.labels.tolist())
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))


def test_a_training_that_diverges_says_so():
    weight = nn.Parameter(torch.tensor(2.0))
    with pytest.raises(TrainingError, match=r"test: .* 48 images .* 50\. Use a lower incremental.lr"):
        descend([weight], BASE, lambda views, labels: (1e30 * weight) ** 2, CONFIG, TRAINER, "test", seed=0, lr=50.0)


@pytest.mark.parametrize("bias", [True, False])
def test_new_outputs_are_small_and_the_old_ones_stay(bias):
    old = nn.Linear(400, 3, bias=bias)
    grown = new_outputs(old, 50, seed=1)
    assert torch.equal(grown.weight[:3], old.weight)
    assert grown.weight[3:].std().item() == pytest.approx(0.001, rel=0.05)
    assert torch.equal(grown.weight, new_outputs(old, 50, seed=1).weight)
    if bias:
        assert torch.equal(grown.bias, torch.cat([old.bias, torch.zeros(50)]))
