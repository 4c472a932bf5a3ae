"""Training on a session's images: one step against the formula, the rate, and a training that goes wrong."""

import math

import pytest
import torch
from naive import BASE
from torch import nn

from fscil.errors import TrainingError
from fscil.methods.toolkit.train_on_images import Descent, train_on_images
from helpers import CONTEXT, small_config

CONFIG = small_config("incremental.batch=16")


def test_nesterov_sgd_with_cosine_decay():
    """The loss 3w has the gradient 3 everywhere, clipped to 1: 6 steps, written out."""
    weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    train_on_images([weight], BASE, lambda views, labels: 3 * weight, CONFIG, CONTEXT, "test", 0, lr=0.1, steps=6)
    expected, speed = 2.0, 0.0
    for step in range(6):
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 6))
        gradient = 1 + 5e-4 * expected
        speed = 0.9 * speed + gradient
        expected -= rate * (gradient + 0.9 * speed)
    assert weight.item() == pytest.approx(expected, abs=1e-5)  # torch clips to a millionth below the given norm


def test_dampened_momentum_without_a_limit():
    """The loss 3w: 20 steps, the first 2 of which warm up. Torch does not dampen the first gradient."""
    weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    descent = Descent(weight_decay=0.01, dampening=0.9, largest_gradient=math.inf, warm_up=0.1)
    train_on_images(
        [weight], BASE, lambda views, labels: 3 * weight, CONFIG, CONTEXT, "test", 0, lr=0.1, steps=20, descent=descent
    )
    expected, speed = 2.0, 0.0
    for step in range(20):
        rate = 0.1 * ((0.5, 1.0)[step] if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / 18)))
        gradient = 3 + 0.01 * expected
        speed = 0.9 * speed + 0.1 * gradient if step else gradient
        expected -= rate * speed
    assert weight.item() == pytest.approx(expected, abs=1e-9)


def test_a_constant_rate():
    assert [Descent(decays=False).factor(step, 4) for step in range(4)] == [1.0] * 4


def test_a_small_gradient_is_not_clipped():
    weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    train_on_images([weight], BASE, lambda views, labels: 0.5 * weight, CONFIG, CONTEXT, "test", 0, lr=0.1, steps=1)
    gradient = 0.5 + 5e-4 * 2.0
    assert weight.item() == pytest.approx(2.0 - 0.1 * (gradient + 0.9 * gradient), abs=1e-12)


def test_every_image_is_seen_once_an_epoch_with_its_label():
    weight, seen = nn.Parameter(torch.tensor(1.0)), []

    def loss(views, labels):
        assert views.shape[1:] == (3, 16, 16)
        seen.append(labels)
        return weight * 0

    train_on_images([weight], BASE, loss, CONFIG, CONTEXT, "test", 0, lr=0.1, steps=6)
    assert [len(labels) for labels in seen] == [16] * 6
    for epoch in (seen[:3], seen[3:]):
        assert sorted(torch.cat(epoch).tolist()) == sorted(BASE.labels.tolist())
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))


def test_a_training_that_diverges_says_so():
    weight = nn.Parameter(torch.tensor(2.0))

    def loss(views, labels):
        return (1e30 * weight) ** 2

    with pytest.raises(TrainingError, match=r"test: .* 48 images .* 50\. Use a lower incremental.lr"):
        train_on_images([weight], BASE, loss, CONFIG, CONTEXT, "test", 0, lr=50.0, steps=6)
