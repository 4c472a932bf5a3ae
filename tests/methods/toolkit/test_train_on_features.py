"""Training on features: the updates against the formula, and what each epoch shows."""

import math

import pytest
import torch
from torch import nn

from fscil.methods.toolkit.train_on_features import Schedule, generator_of, train_on_features
from helpers import CONTEXT


class Weight(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))


def train(part, examples, loss, schedule, seed=0):
    train_on_features(part, examples, loss, schedule, generator_of(seed, 0), CONTEXT, "test")


def test_adamw_with_cosine_decay():
    """The loss 3w has the gradient 3 everywhere, of which Adam makes a step of the learning rate; weight decay 5e-4."""
    part, examples = Weight(2.0), (torch.zeros(4, 1), torch.zeros(4))
    train(part, lambda: examples, lambda features, labels: 3 * part.value, Schedule(epochs=5, batch=2, rate=0.1))
    expected = 2.0
    for epoch in range(5):
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * epoch / 5))
        for _ in range(2):
            expected = expected * (1 - rate * 5e-4) - rate
    assert part.value.item() == pytest.approx(expected, abs=1e-7)


def epochs_seen(seed=0):
    part, drawn, seen = Weight(1.0), [], []

    def examples():
        drawn.append(len(drawn))
        return torch.full((7, 1), float(len(drawn))), torch.arange(7)

    def loss(features, labels):
        assert (features == len(drawn)).all(), "the examples of this epoch"
        seen.append(labels.tolist())
        return part.value

    train(part, examples, loss, Schedule(epochs=3, batch=3, rate=0.1), seed)
    assert len(drawn) == 3, "drawn once an epoch"
    return [seen[first : first + 3] for first in (0, 3, 6)]


def test_every_example_is_seen_once_an_epoch():
    for epoch in epochs_seen():
        assert [len(batch) for batch in epoch] == [3, 3, 1]
        assert sorted(label for batch in epoch for label in batch) == list(range(7))


def test_the_order_depends_on_the_seed_and_the_epoch():
    first, second, third = epochs_seen(seed=1)
    assert len({str(first), str(second), str(third)}) == 3
    assert epochs_seen(seed=1) == [first, second, third]
    assert epochs_seen(seed=2) != [first, second, third]


@pytest.mark.parametrize(("slope", "moved"), [(10.0, 0.3), (-10.0, -0.3), (0.2, 0.2)])
def test_a_gradient_is_shortened_to_the_largest_norm(slope, moved):
    """One step of SGD at the rate 1, in the direction of the gradient or against it."""
    part = Weight(1.0)
    schedule = Schedule(epochs=1, batch=1, rate=1.0, momentum=0.0, largest_gradient=0.3)
    train(part, lambda: (torch.zeros(1, 1), torch.zeros(1)), lambda *_: slope * part.value.sum(), schedule)
    assert part.value.item() == pytest.approx(1.0 - moved, abs=1e-3)
