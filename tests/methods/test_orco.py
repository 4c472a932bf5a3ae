"""OrCo against its paper: assignment, orthogonality, the loss of alignment, what a session starts from and keeps."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import BASE, cosine, cross_entropy, fitted, mean, session, unit
from torch.nn import functional as F

from fscil.errors import ConfigError
from fscil.methods import METHODS
from fscil.methods.orco import Orco, alignment, assigned, orthogonality
from fscil.methods.toolkit.contrast import supervised_contrast
from fscil.methods.toolkit.fixed_targets import orthonormal
from fscil.protocol import Protocol
from fscil.training.base_training import new_base_network, recipe_step
from fscil.training.batches import Batches
from fscil.training.build import views_of
from helpers import CONTEXT, small_config


def random_unit(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64))


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(4, 6), st.integers(0, 10**6))
def test_classes_get_the_targets_that_suit_them_best_together(classes, count, seed):
    means, targets = random_unit(classes, 6, seed), orthonormal(6, seed).double()[:count]
    found = assigned(means, targets).tolist()
    total = sum(cosine(mean_.tolist(), targets[place].tolist()) for mean_, place in zip(means, found, strict=True))
    best = max(
        sum(cosine(means[i].tolist(), targets[place].tolist()) for i, place in enumerate(places))
        for places in itertools.permutations(range(count), classes)
    )
    assert total == pytest.approx(best, abs=1e-9)
    assert len(set(found)) == classes


def naive_orthogonality(vectors, labels, targets):
    places = [list(target) for target in targets]
    for label in set(labels):
        own = [vectors[i] for i in range(len(labels)) if labels[i] == label]
        places[label] = unit([mean(column) for column in zip(*own, strict=True)])
    losses = []
    for label in set(labels):
        others = [math.exp(cosine(places[label], place)) for j, place in enumerate(places) if j != label]
        losses.append(math.log(mean(others)))
    return mean(losses)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 10**6))
def test_orthogonality_in_loops(labels, seed):
    vectors, targets = random_unit(len(labels), 6, seed), orthonormal(6, seed).double()
    expected = naive_orthogonality(vectors.tolist(), labels, targets.tolist())
    assert float(orthogonality(vectors, torch.tensor(labels), targets)) == pytest.approx(expected, abs=1e-6)


def test_the_loss_of_alignment_is_contrast_cross_entropy_and_orthogonality():
    """Perturbed targets are in the contrast, those of free classes too; base and new classes weigh the same."""
    labels, base, classes = torch.tensor([0, 0, 1, 2, 3, 3]), 3, 4
    vectors, targets = random_unit(6, 6, 1), orthonormal(6, 2).double()
    perturbed = F.normalize(targets + 0.01 * (2 * torch.rand(2, 6, 6, dtype=torch.float64) - 1), dim=2)
    everything = torch.cat([vectors, perturbed[0], perturbed[1]])
    contrast = supervised_contrast(everything, torch.tensor([*labels.tolist(), *range(6), *range(6)]), 0.07)
    scores = [[cosine(row, target) for target in targets[:classes].tolist()] for row in vectors.tolist()]
    old, new = cross_entropy(scores[:4], [0, 0, 1, 2]), cross_entropy(scores[4:], [3, 3])
    expected = (
        float(contrast) + (old + new) / 2 + naive_orthogonality(vectors.tolist(), labels.tolist(), targets.tolist())
    )
    found = alignment(vectors, labels, targets, perturbed, classes, base)
    assert float(found) == pytest.approx(expected, abs=1e-6)
    only_old = alignment(vectors[:4], labels[:4], targets, perturbed, base, base)
    assert only_old.isfinite()


def test_base_training_is_supervised_and_a_tenth_of_self_supervised_contrast():
    recipe = Orco.base_recipe(small_config())
    assert (recipe.train.objective, recipe.views.count, recipe.mixing.repeats) == ("orco", 2, 0)
    network = new_base_network(recipe, 6, CONTEXT).eval()
    (loss,) = recipe_step(recipe, network, 6)(Batches(BASE, recipe.train, CONTEXT.device).of_step(0))
    batch = Batches(BASE, recipe.train, CONTEXT.device).of_step(0)
    views = views_of(recipe)(batch.pixels, batch.sizes, batch.generator)
    vectors = torch.cat([F.normalize(network.objective.projection(network.backbone(view))) for view in views])
    labels, images = batch.labels.repeat(2), torch.arange(len(batch.labels)).repeat(2)
    expected = supervised_contrast(vectors, labels, 0.07) + 0.1 * supervised_contrast(vectors, images, 0.07)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-3)


def test_one_view_is_refused():
    recipe = small_config("mixing.repeats=0", "views.count=1", "train.objective=orco")
    with pytest.raises(ConfigError, match=r"views\.count"):
        new_base_network(recipe, 6, CONTEXT)


def test_targets_stay_the_same_vectors_and_those_of_classes_do_not_move():
    method = fitted("orco")
    before = method.targets.clone()
    method.learn(session(1))
    assert torch.equal(method.targets[:6], before[:6])
    assert sorted(map(tuple, method.targets.tolist())) == sorted(map(tuple, before.tolist()))
    torch.testing.assert_close(method.targets @ method.targets.T, torch.eye(len(before)), atol=1e-5, rtol=0)


def test_every_session_starts_from_the_projection_of_the_base_classes():
    method = fitted("orco", "incremental.steps=0")
    base = {name: value.clone() for name, value in method.projection.state_dict().items()}
    trained = fitted("orco", "incremental.steps=3", "incremental.lr=0.1")
    trained.learn(session(1))
    moved = trained.projection.state_dict()
    assert not all(torch.equal(moved[name], base[name]) for name in base)
    state = trained.state()
    method.load_state(state)
    method.learn(session(2))  # with no steps
    assert all(torch.equal(method.projection.state_dict()[name], base[name]) for name in base)


def test_exemplars_of_every_class_are_kept_and_nothing_else_of_them():
    method = fitted("orco")
    method.learn(session(1))
    assert method.exemplars.counts == {**dict.fromkeys(range(6), 3), 6: 2, 7: 2}
    assert method.memory().images == len(method.exemplars)
    assert method.memory().floats == 0


def test_alignment_brings_base_images_to_their_targets():
    config = small_config("train.epochs=4", "incremental.batch=16")
    seen = METHODS["orco"].images_seen(config, BASE, Protocol(6, 2, 3, 2))
    assert seen == 4 * (len(BASE) // 8) * 8 * 2 + 4 * len(BASE) * 2
    method = fitted("orco")
    labels = torch.from_numpy(BASE.labels)
    aligned = method.scores(BASE)[torch.arange(len(BASE)), labels].mean()
    method.projection.load_state_dict(method.trained.state_dict())
    assert np.isfinite(float(aligned))
    assert aligned > method.scores(BASE)[torch.arange(len(BASE)), labels].mean()
