"""OrCo against its paper: assignment, orthogonality, the loss of alignment, what a session starts from and keeps."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import BASE, config_of, cosine, cross_entropy, fitted, mean, session, unit
from torch.nn import functional as F

from fscil.errors import ConfigError
from fscil.methods import METHODS, orco
from fscil.methods.base import images_in_training
from fscil.methods.orco import (
    ALIGNED_EPOCHS,
    Orco,
    assigned,
    base_alignment,
    largest_perturbation,
    orco_loss,
    orthogonality,
    perturbed,
    session_alignment,
)
from fscil.methods.toolkit.contrast import supervised_contrast
from fscil.methods.toolkit.fixed_targets import orthonormal
from fscil.protocol import Protocol
from fscil.training.base_training import new_base_network, recipe_step
from fscil.training.batches import Batches
from fscil.training.build import views_of
from helpers import CONTEXT, small_config, trained_method, untrained_method


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
    """log mean exp(a b) over all places b, that of a itself too; the mean over all places a"""
    places = [list(target) for target in targets]
    for label in set(labels):
        own = [vectors[i] for i in range(len(labels)) if labels[i] == label]
        places[label] = unit([mean(column) for column in zip(*own, strict=True)])
    return mean(math.log(mean(math.exp(cosine(a, b)) for b in places)) for a in places)


@given(st.lists(st.integers(0, 4), max_size=8), st.integers(0, 10**6))
def test_orthogonality_in_loops(labels, seed):
    vectors, targets = random_unit(len(labels), 6, seed), orthonormal(6, seed).double()
    expected = naive_orthogonality(vectors.tolist(), labels, targets.tolist())
    found = orthogonality(vectors, torch.tensor(labels, dtype=torch.int64), targets)
    assert float(found) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 7), st.integers(1, 20), st.integers(0, 10**6))
def test_perturbed_are_targets_from_one_on_each_about_as_often_in_two_views(first, count, seed):
    targets, random = orthonormal(8, seed), torch.Generator().manual_seed(seed)
    near, whose = perturbed(targets, first, count, 0.1, random)
    assert near.shape == (2 * count, 8)
    assert torch.equal(whose[:count], whose[count:])
    assert not torch.equal(near[:count], near[count:])
    times = torch.bincount(whose[:count], minlength=8)
    assert times[:first].sum() == 0
    assert times[first:].max() - times[first:].min() <= 1
    for row, number in zip(near.double(), whose.tolist(), strict=True):
        assert row.norm().item() == pytest.approx(1, abs=1e-5)
        target = targets[number].double()  # on the ray through the row there is a point this near to it
        assert any(((stretch * row - target).abs() <= 0.1 + 1e-5).all() for stretch in np.linspace(0.6, 1.4, 801))


LABELS = [0, 2, 1, 3, 3]  # of images of 5 classes, of which 3 are base classes


@pytest.mark.parametrize(("data", "old"), [("cifar100", 0.0), ("cub200", 0.6)])
def test_the_loss_of_a_session_is_contrast_cross_entropy_and_orthogonality(data, old):
    """Orthogonality is of new classes in the first view; images of base classes are in the entropy of CUB200 alone."""
    settings = session_alignment(3, data == "cub200", 128)
    vectors, targets = random_unit(10, 6, 1), orthonormal(6, 2).double()
    near, whose = perturbed(targets, 3, 5, 0.01, torch.Generator().manual_seed(0))
    labels = torch.tensor(LABELS * 2)
    contrast = supervised_contrast(torch.cat([vectors, near]), torch.cat([labels, whose]), 0.07)
    scores = [[cosine(row, target) for target in targets[:5].tolist()] for row in vectors.tolist()]
    place = [i for i in range(10) if LABELS[i % 5] == 3]
    others = [i for i in range(10) if i not in place]
    new = cross_entropy([scores[i] for i in place], [3] * len(place))
    base = cross_entropy([scores[i] for i in others], [LABELS[i % 5] for i in others])
    apart = naive_orthogonality(vectors[3:5].tolist(), [3, 3], targets.tolist())
    found = orco_loss(vectors, labels, targets, near, whose, 5, settings)
    assert float(found) == pytest.approx(float(contrast) + 0.5 * new + old * base + apart, abs=1e-6)


def test_the_loss_of_the_alignment_of_base_classes():
    """All images have the weight 1, and the classes of the first view are in the orthogonality."""
    vectors, targets = random_unit(6, 6, 1), orthonormal(6, 2).double()
    near, whose = perturbed(targets, 3, 3, 0.01, torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 2] * 2)
    contrast = supervised_contrast(torch.cat([vectors, near]), torch.cat([labels, whose]), 0.07)
    entropy = cross_entropy([[cosine(row, t) for t in targets[:3].tolist()] for row in vectors.tolist()], [0, 2, 2] * 2)
    apart = naive_orthogonality(vectors[:3].tolist(), [0, 2, 2], targets.tolist())
    found = orco_loss(vectors, labels, targets, near, whose, 3, base_alignment(128))
    assert float(found) == pytest.approx(float(contrast) + entropy + apart, abs=1e-6)


def test_the_optimizer_of_the_authors_program():
    base, session_, birds = base_alignment(128), session_alignment(6, False, 128), session_alignment(6, True, 128)
    assert (base.descent.weight_decay, session_.descent.weight_decay, birds.descent.weight_decay) == (5e-4, 1e-4, 1e-5)
    assert (base.batch, session_.batch, birds.batch, session_alignment(6, False, 16).batch) == (128, 64, 32, 16)
    for each in (base, session_, birds):
        assert (each.descent.dampening, each.descent.largest_gradient) == (0.9, math.inf)


def test_rate_batch_and_perturbations_of_the_authors_program():
    assert (orco.ALIGNED_LR, orco.ALIGNED_BATCH) == (0.25, 128)
    largest = {data: largest_perturbation(small_config(f"data.name={data}")) for data in ("cifar100", "cub200")}
    assert largest == {"cifar100": 4.5e-5, "cub200": 0.005}


def test_the_length_of_a_session_does_not_depend_on_the_exemplars(monkeypatch):
    """A hundred steps unless the settings say otherwise, however many images there are."""
    assert (Orco.session_steps, untrained_method("orco", small_config("incremental.steps=7"), 6).steps) == (100, 7)
    method, found = fitted("orco"), []
    monkeypatch.setattr(Orco, "_align", lambda self, images, *rest: found.append((len(images), rest[-1])))
    for number in (1, 2):
        method.learn(session(number))
    (first, steps), (second, same) = found
    assert second > first
    assert steps == same == method.steps


def test_base_training_is_nine_tenths_supervised_and_a_tenth_self_supervised_contrast():
    recipe = Orco.base_recipe(small_config())
    assert (recipe.train.objective, recipe.views.count, recipe.mixing.repeats) == ("orco", 2, 0)
    network = new_base_network(recipe, 6, CONTEXT).eval()
    (loss,) = recipe_step(recipe, network, 6)(Batches(BASE, recipe.train, CONTEXT.device).of_step(0))
    batch = Batches(BASE, recipe.train, CONTEXT.device).of_step(0)
    views = views_of(recipe)(batch.pixels, batch.sizes, batch.generator)
    vectors = torch.cat([F.normalize(network.objective.projection(network.backbone(view))) for view in views])
    labels, images = batch.labels.repeat(2), torch.arange(len(batch.labels)).repeat(2)
    expected = 0.9 * supervised_contrast(vectors, labels, 0.2) + 0.1 * supervised_contrast(vectors, images, 0.2)
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


def test_images_seen_count_two_views_in_the_alignment_of_base_classes():
    config = small_config("train.epochs=4", "incremental.batch=16")
    seen = METHODS["orco"].images_seen(config, BASE, Protocol(6, 2, 3, 2))
    assert seen == 4 * (len(BASE) // 8) * 8 * 2 + 4 * len(BASE) * 2


def test_the_alignment_of_base_classes_has_ten_epochs_at_most(monkeypatch):
    monkeypatch.setattr(orco, "ALIGNED_EPOCHS", ALIGNED_EPOCHS)  # as it is without the short trainings of these tests
    for epochs, aligned in ((4, 4), (30, 10)):
        config = small_config(f"train.epochs={epochs}")
        seen = METHODS["orco"].images_seen(config, BASE, Protocol(6, 2, 3, 2))
        assert seen - images_in_training(Orco.base_recipe(config), len(BASE)) == aligned * len(BASE) * 2


def test_alignment_brings_base_images_to_their_targets():
    method = trained_method("orco", config_of("train.epochs=10"), BASE, (2, 1))
    labels = torch.from_numpy(BASE.labels)
    aligned = method.scores(BASE)[torch.arange(len(BASE)), labels].mean()
    method.projection.load_state_dict(method.trained.state_dict())
    assert np.isfinite(float(aligned))
    assert aligned > method.scores(BASE)[torch.arange(len(BASE)), labels].mean()
