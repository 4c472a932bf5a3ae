"""Optimisers by name: their update by the formula, and one of a plugin."""

import pytest
import torch

from fscil.config import load_recipe
from fscil.errors import ConfigError
from fscil.training.optimizers import OPTIMIZERS


def settings(*assignments):
    return load_recipe("glyphs", ["train.lr=0.1", "train.momentum=0.8", "train.weight_decay=0.01", *assignments]).train


def test_sgd_with_nesterov_momentum_by_hand():
    value = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = OPTIMIZERS["sgd"]([value], settings("train.nesterov=true"))
    expected, velocity = value.detach().clone(), torch.zeros(2)
    for gradient in (torch.tensor([0.5, 1.0]), torch.tensor([-1.0, 0.25])):
        value.grad = gradient.clone()
        optimizer.step()
        slope = gradient + 0.01 * expected
        velocity = 0.8 * velocity + slope
        expected = expected - 0.1 * (slope + 0.8 * velocity)
    torch.testing.assert_close(value.detach(), expected)


def test_adamw_by_hand():
    value = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = OPTIMIZERS["adamw"]([value], settings())
    expected, first, second = value.detach().clone(), torch.zeros(2), torch.zeros(2)
    for step, gradient in enumerate((torch.tensor([0.5, 1.0]), torch.tensor([-1.0, 0.25])), 1):
        value.grad = gradient.clone()
        optimizer.step()
        first, second = 0.8 * first + 0.2 * gradient, 0.999 * second + 0.001 * gradient**2
        moved = first / (1 - 0.8**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        expected = expected * (1 - 0.1 * 0.01) - 0.1 * moved
    torch.testing.assert_close(value.detach(), expected)


def test_an_unknown_one_is_told():
    with pytest.raises(ConfigError, match=r'no optimizer named "adam".*"adamw"'):
        OPTIMIZERS["adam"]
