"""Batches: which images a step gets, in which order, with which randomness."""

import numpy as np
import pytest
import torch
from small_training import BASE, CLASSES, numbered

from fscil.config import TrainConfig
from fscil.training.batches import Batches, fingerprint
from helpers import CONTEXT, SIZE


def numbers_seen(images, batch, epochs, seed=0, first=0):
    """(numbers of the images, progress) of each step from the first on."""
    seen, draws = [], []
    settings = TrainConfig(epochs=epochs, batch=batch, seed=seed)
    for step, batch in Batches(images, settings, CONTEXT.device).from_step(first):
        assert step == first + len(seen)
        number = batch.pixels[:, 0, 0, 0].long()
        assert torch.equal(batch.labels, number % CLASSES)
        assert batch.sizes.tolist() == [[SIZE, SIZE]] * len(number)
        draws.append(torch.rand(2, generator=batch.generator).tolist())
        seen.append((number.tolist(), batch.progress))
    assert len(set(map(tuple, draws))) == len(seen), "each step has a random generator of its own"
    return seen


def test_an_epoch_shows_each_image_at_most_once():
    seen = numbers_seen(numbered(26), batch=8, epochs=6)
    assert [len(numbers) for numbers, _ in seen] == [8] * 18
    epochs = [[number for numbers, _ in seen[3 * e : 3 * e + 3] for number in numbers] for e in range(6)]
    assert all(len(set(epoch)) == 24 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert set().union(*epochs) == set(range(26)), "the two left out must not always be the same"
    assert [progress for _, progress in seen] == pytest.approx([step / 18 for step in range(18)])


def test_fewer_images_than_a_batch_make_one_step():
    seen = numbers_seen(numbered(5), batch=8, epochs=2)
    assert [sorted(numbers) for numbers, _ in seen] == [[0, 1, 2, 3, 4]] * 2


def test_the_order_depends_on_the_seed():
    first, again, other = (numbers_seen(numbered(26), 8, 1, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_starting_later_gives_the_same_batches():
    assert numbers_seen(numbered(26), 8, 3, first=4) == numbers_seen(numbered(26), 8, 3)[4:]
    assert numbers_seen(numbered(26), 8, 3, first=9) == []


def test_a_step_has_the_same_randomness_however_it_is_reached():
    batches = Batches(numbered(26), TrainConfig(epochs=3, batch=8, seed=5), CONTEXT.device)
    for step, batch in batches.from_step(0):
        again = batches.of_step(step)
        assert torch.equal(batch.pixels, again.pixels)
        assert torch.rand(3, generator=batch.generator).equal(torch.rand(3, generator=again.generator))


@pytest.mark.parametrize("change", ["one less", "another order", "another label"])
def test_the_fingerprint_changes_with_the_images(change):
    order = np.arange(len(BASE))
    other = {
        "one less": lambda: BASE.select(order[:-1]),
        "another order": lambda: BASE.select(order[::-1]),
        "another label": lambda: BASE.relabel([1, 0, 2, 3]),
    }[change]()
    assert fingerprint(BASE) == fingerprint(BASE.select(order))
    assert fingerprint(other) != fingerprint(BASE)
