"""Class augmentation: pair labels, which images are mixed, with which weights."""

import doctest
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fscil import mixing
from fscil.mixing import Mixtures, PairClasses, draw_mixtures, mix_classes, pair_label

UNLIKELY = 1e-4  # a statistic rarer than this, under a fixed seed, is a defect


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("classes", range(2, 61))
def test_pair_labels_are_a_bijection(classes):
    pairs = list(combinations(range(classes), 2))
    low, high = torch.tensor(pairs).T
    found = pair_label(low, high, classes)
    assert found.dtype == torch.int64
    assert sorted(found.tolist()) == list(range(classes, classes + classes * (classes - 1) // 2))
    assert torch.equal(pair_label(high, low, classes), found)
    literal = [classes + a * (2 * classes - a - 1) // 2 + (b - a) - 1 for a, b in pairs]
    assert found.tolist() == literal
    assert PairClasses(classes).outputs == classes + len(pairs)


def test_pair_labels_of_any_shape():
    a, b = torch.tensor([[0, 5], [3, 1]]), torch.tensor([[4, 2], [0, 2]])
    assert torch.equal(pair_label(a, b, 6), pair_label(a.view(-1), b.view(-1), 6).view(2, 2))
    assert PairClasses(60).outputs == 1830


def solve(mixed, views, first, second):
    """lambda and largest error of mixed = lambda * first + (1 - lambda) * second, over all views at once."""
    one, other = views[:, first].reshape(-1), views[:, second].reshape(-1)
    direction = one - other
    weight = float((mixed.reshape(-1) - other) @ direction / (direction @ direction))
    return weight, float((weight * one + (1 - weight) * other - mixed.reshape(-1)).abs().max())


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.integers(0, 4),
    st.sampled_from(["uniform", "beta"]),
    st.integers(1, 3),
    st.integers(0, 2**31),
)
def test_every_mixture_can_be_taken_apart(labels, repeats, lam, count, seed):
    labels = torch.tensor(labels)
    views = torch.rand(count, len(labels), 3, 4, 5, generator=seeded(seed), dtype=torch.float64)
    out, out_labels = mix_classes(views, labels, 5, repeats, lam, seeded(seed + 1))
    assert torch.equal(out[:, : len(labels)], views)
    assert torch.equal(out_labels[: len(labels)], labels)
    assert out.shape == (count, len(out_labels), 3, 4, 5)
    assert len(out_labels) <= len(labels) * (1 + repeats)
    used = np.zeros(len(labels), int)
    for place in range(len(labels), len(out_labels)):
        found = []
        for first, second in combinations(range(len(labels)), 2):
            weight, error = solve(out[:, place], views, first, second)
            if error < 1e-6:
                found.append((first, second, weight))
        assert len(found) == 1  # the same pair and the same lambda in all views
        first, second, weight = found[0]
        assert 0.4 - 1e-6 <= weight <= 0.6 + 1e-6
        assert labels[first] != labels[second]
        assert out_labels[place] == pair_label(labels[first], labels[second], 5)
        used[[first, second]] += 1
    # In a round everyone comes once as itself and once as somebody's partner.
    assert (used <= 2 * repeats).all()
    if len(set(labels.tolist())) == len(labels):
        assert (used % 2 == 0).all()


@settings(max_examples=40)
@given(st.integers(2, 30), st.integers(1, 500), st.integers(0, 9))
def test_drawn_pairs_are_as_many_as_asked_for_and_numbered_one_after_the_other(classes, limit, seed):
    pairs = PairClasses(classes, limit, seed)
    low, high = torch.combinations(torch.arange(classes)).T
    found = pairs.label(low, high)
    every = classes * (classes - 1) // 2
    assert sorted(found[found >= 0].tolist()) == list(range(classes, classes + min(limit, every)))
    assert pairs.outputs == classes + min(limit, every)
    assert torch.equal(pairs.label(high, low), found)
    assert (pairs.label(low, low) == -1).all()
    assert torch.equal(PairClasses(classes, limit, seed).label(low, high), found)


def test_other_seeds_draw_other_pairs_and_all_pairs_have_the_papers_numbers():
    low, high = torch.combinations(torch.arange(40)).T
    first, second = (PairClasses(40, 100, seed).label(low, high) >= 0 for seed in (0, 1))
    assert 0 < (first & second).sum() < 50  # about 13 of 100 agree by chance
    for limit in (0, 780, 1000):
        assert torch.equal(PairClasses(40, limit).label(low, high), pair_label(low, high, 40))


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 7), min_size=2, max_size=9), st.integers(1, 27), st.integers(1, 3), st.integers(0, 2**31)
)
def test_with_drawn_pairs_the_images_mixed_are_any_two_that_make_one(labels, limit, repeats, seed):
    labels, pairs = torch.tensor(labels), PairClasses(8, limit)
    views = torch.rand(1, len(labels), 3, 4, 5, generator=seeded(seed), dtype=torch.float64)
    out, out_labels = mix_classes(views, labels, pairs, repeats, "uniform", seeded(seed + 1))
    made = {
        (i, j): int(pairs.label(labels[i : i + 1], labels[j : j + 1])) for i, j in combinations(range(len(labels)), 2)
    }
    possible = {pair for pair, label in made.items() if label >= 0}
    taken = []
    for place in range(len(labels), len(out_labels)):
        found = [pair for pair in made if solve(out[:, place], views, *pair)[1] < 1e-6]
        assert len(found) == 1
        assert out_labels[place] == made[found[0]]
        taken += found
    assert set(taken) <= possible
    assert len(taken) == len(set(taken)) == min(len(possible), repeats * len(labels))


def test_a_batch_of_the_paper_grows_about_fivefold():
    """128 images of 60 classes and four rounds: about 628 images."""
    sizes = []
    for seed in range(30):
        labels = torch.randint(60, (128,), generator=seeded(seed))
        sizes.append(len(mix_classes(torch.zeros(1, 128, 3, 1, 1), labels, 60, generator=seeded(seed))[1]))
    assert np.mean(sizes) == pytest.approx(628, abs=4)


def test_every_sample_of_another_class_is_mixed():
    """With two classes of equal size a round pairs on average half the batch."""
    labels = torch.arange(2000) % 2
    out = mix_classes(torch.zeros(1, 2000, 3, 1, 1), labels, 2, 4, generator=seeded(5))[1]
    assert len(out) - 2000 == pytest.approx(4000, abs=150)


@pytest.mark.parametrize("lam", ["uniform", "beta"])
@pytest.mark.parametrize("labels", [[3, 3, 3], [2], []])
def test_one_class_gives_no_mixture(labels, lam):
    views, labels = torch.rand(2, len(labels), 3, 4, 4), torch.tensor(labels, dtype=torch.int64)
    out, out_labels = mix_classes(views, labels, 5, 4, lam, seeded())
    assert torch.equal(out, views)
    assert torch.equal(out_labels, labels)


def test_no_repeats_no_mixture():
    views, labels = torch.rand(2, 4, 3, 4, 4), torch.arange(4)
    out, out_labels = mix_classes(views, labels, 4, 0)
    assert torch.equal(out, views)
    assert torch.equal(out_labels, labels)


def mixing_weights(lam):
    """Mixtures of a black and a white class show lambda, or 1 - lambda, which is distributed alike."""
    count = 30_000
    labels = torch.arange(count) % 2
    views = labels.double()[None, :, None, None, None].expand(1, count, 3, 1, 1)
    out, _ = mix_classes(views, labels, 2, 4, lam, seeded(6))
    return out[0, count:, 0, 0, 0].numpy()


def test_uniform_lambda():
    assert stats.kstest(mixing_weights("uniform"), "uniform", (0.4, 0.2)).pvalue > UNLIKELY


def test_beta_lambda_is_a_half_where_it_falls_outside():
    drawn = mixing_weights("beta")
    beta = stats.beta(20, 20)
    outside = 2 * beta.cdf(0.4)
    assert stats.binomtest(int((drawn == 0.5).sum()), len(drawn), outside).pvalue > UNLIKELY
    inside = drawn[drawn != 0.5]
    assert inside.min() >= 0.4 - 1e-6
    assert inside.max() <= 0.6 + 1e-6
    assert stats.kstest(inside, lambda x: (beta.cdf(x) - beta.cdf(0.4)) / (1 - outside)).pvalue > UNLIKELY


def test_lambda_is_drawn_for_every_sample():
    assert len(np.unique(mixing_weights("uniform"))) > 10_000


def test_unknown_lambda():
    with pytest.raises(ValueError, match='"uniform" or "beta"'):
        mix_classes(torch.rand(1, 4, 3, 2, 2), torch.arange(4), 4, lam="gamma")


@pytest.mark.parametrize("lam", ["uniform", "beta"])
def test_same_generator_same_mixtures_and_the_global_state_is_left_alone(lam):
    views, labels = torch.rand(2, 12, 3, 4, 4), torch.arange(12) % 5
    before = torch.get_rng_state()
    (first, one), (second, two), (other, three) = (
        mix_classes(views, labels, 5, 4, lam, seeded(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert torch.equal(one, two)
    assert first.shape != other.shape or not torch.equal(first, other)
    assert len(one) != len(three) or not torch.equal(one, three)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_batch_given_is_not_changed():
    views, labels = torch.rand(2, 6, 3, 4, 4), torch.arange(6)
    copies = views.clone(), labels.clone()
    mix_classes(views, labels, 6)
    assert torch.equal(views, copies[0])
    assert torch.equal(labels, copies[1])


@given(st.lists(st.integers(0, 4), min_size=2, max_size=9), st.integers(1, 4), st.integers(0, 2**31))
def test_mixtures_in_parts_are_those_of_the_whole_batch(labels, repeats, seed):
    labels = torch.tensor(labels)
    views = torch.rand(2, len(labels), 3, 4, 5, generator=seeded(seed))
    whole, whole_labels = mix_classes(views, labels, 5, repeats, generator=seeded(seed))
    drawn = draw_mixtures(labels, 5, repeats, "uniform", seeded(seed))
    half, middle = len(labels) // 2, len(drawn) // 2
    first = drawn[:middle].added_to(views, slice(0, half))
    second = drawn[middle:].added_to(views, slice(half, len(labels)))
    assert isinstance(drawn[:middle], Mixtures)
    rest = len(labels) - half
    again = torch.cat([first[:, :half], second[:, :rest], first[:, half:], second[:, rest:]], 1)
    assert torch.equal(again, whole)
    assert torch.equal(torch.cat([labels, drawn.labels]), whole_labels)


def test_the_examples_of_the_docstrings():
    failed, tried = doctest.testmod(mixing)
    assert not failed
    assert tried
