"""NC-FSCIL against its paper: dot-regression and its gradient, the loss of base training, what a session sees."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import BASE, fitted, mean, session, unit
from torch.nn import functional as F

from fscil.methods.nc_fscil import LARGEST_GRADIENT, NcFscil, balanced, dot_regression, mixed_regression
from fscil.methods.toolkit.train_on_features import generator_of
from fscil.training.base_training import new_base_network, recipe_step
from fscil.training.batches import Batches
from fscil.training.build import views_of
from helpers import CONTEXT, small_config


def random_unit(rows, dim, generator):
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64))


@given(st.integers(1, 6), st.integers(2, 8), st.integers(0, 10**6))
def test_dot_regression_in_loops(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    mapped = 3 * torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    targets, weights = random_unit(rows, dim, generator), torch.rand(rows, generator=generator, dtype=torch.float64)
    each = []
    for row, target in zip(mapped.tolist(), targets.tolist(), strict=True):
        each.append(0.5 * (sum(a * b for a, b in zip(unit(row), target, strict=True)) - 1) ** 2)
    assert float(dot_regression(mapped, targets)) == pytest.approx(mean(each), abs=1e-9)
    weighted = mean(w * value for w, value in zip(weights.tolist(), each, strict=True))
    assert float(dot_regression(mapped, targets, weights)) == pytest.approx(weighted, abs=1e-9)


def test_its_gradient_is_a_pull_to_the_class_vector_alone():
    """-(1 - cos) times the class vector, along the sphere; cross-entropy would have a push from each other class."""
    generator = torch.Generator().manual_seed(0)
    feature, target = random_unit(1, 5, generator).requires_grad_(), random_unit(1, 5, generator)
    (found,) = torch.autograd.grad(dot_regression(feature, target), feature)
    cosine = float((feature.detach() * target).sum())
    tangent = target - cosine * feature.detach()
    torch.testing.assert_close(found, -(1 - cosine) * tangent)


def test_weights_give_every_class_in_the_batch_the_same_share():
    labels = torch.tensor([4, 4, 4, 0, 7, 7])
    weights = balanced(labels)
    assert float(weights.mean()) == pytest.approx(1)
    for label in (0, 4, 7):
        assert float(weights[labels == label].sum()) == pytest.approx(2)


def test_base_training_minimises_ten_times_dot_regression_to_the_simplex():
    recipe = NcFscil.base_recipe(small_config())
    assert (recipe.train.objective, recipe.mixing.repeats, recipe.views.count) == ("nc_fscil", 0, 1)
    assert recipe.train.lr == pytest.approx(7 * small_config().train.lr)
    network = new_base_network(recipe, 6, CONTEXT).eval()
    batch = Batches(BASE, recipe.train, CONTEXT.device).of_step(0)
    (loss,) = recipe_step(recipe, network, 6)(batch)
    again = Batches(BASE, recipe.train, CONTEXT.device).of_step(0)
    (view,) = views_of(recipe)(again.pixels, again.sizes, again.generator)
    mapped = network.objective.projection(network.backbone(view)).tolist()
    targets = network.objective.targets[again.labels].tolist()
    cosines = [sum(a * b for a, b in zip(unit(row), t, strict=True)) for row, t in zip(mapped, targets, strict=True)]
    assert loss.item() == pytest.approx(10 * mean(0.5 * (value - 1) ** 2 for value in cosines), abs=1e-4)


def test_the_first_targets_are_of_the_base_classes_and_the_others_wait():
    method = fitted("nc_fscil")
    assert method.scores(BASE).shape == (len(BASE), 6)
    before = method.targets.clone()
    method.learn(session(1))
    assert torch.equal(method.targets, before)
    assert method.scores(BASE).shape == (len(BASE), 8)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 0, 2, 3], [1, 1]])
def test_mixed_regression_in_loops(labels):
    """Halfway to the partner, half of the loss for each of the two classes; every class has the same weight."""
    generator = torch.Generator().manual_seed(0)
    count = len(labels)
    mapped = 3 * torch.randn(count, 5, generator=generator, dtype=torch.float64)
    targets, partners = random_unit(4, 5, generator), torch.randperm(count, generator=generator).tolist()
    found = mixed_regression(mapped, torch.tensor(labels), torch.tensor(partners), targets)
    total, rows = 0.0, mapped.tolist()
    for row, partner, label in zip(rows, partners, labels, strict=True):
        between = unit([0.5 * a + 0.5 * b for a, b in zip(row, rows[partner], strict=True)])
        for target in (label, labels[partner]):
            cosine = sum(a * b for a, b in zip(between, targets[target].tolist(), strict=True))
            total += 0.5 * 0.5 * (cosine - 1) ** 2 / labels.count(target) / len(set(labels))
    assert float(found) == pytest.approx(total, abs=1e-6)


def first_step(method, new, mixes):
    """The projection after one step of SGD on the new images' features and the means of the classes before, all classes
    weighted alike; and whether features were mixed."""
    features = torch.cat([method.features(new), method.means])
    labels = torch.cat([torch.from_numpy(new.labels), torch.arange(8)])
    random = generator_of(method.config.train.seed, 8)
    order = torch.randperm(len(labels), generator=random)
    features, labels = features[order], labels[order]
    partners = torch.arange(len(labels))  # mixed with itself, a feature stays the same
    mixed = mixes and float(torch.rand((), generator=random)) < 0.75
    if mixed:
        partners = torch.randperm(len(labels), generator=random)
    counts = {label: labels.tolist().count(label) for label in labels.tolist()}
    projection = NcFscil.new_projection(method.backbone.feature_dim, method.targets.shape[1])
    projection.load_state_dict(method.projection.state_dict())
    mapped = projection(features)
    mapped, total = F.normalize((mapped + mapped[partners]) / 2), 0.0
    for row, label, partner in zip(mapped, labels.tolist(), partners.tolist(), strict=True):
        for target in (label, int(labels[partner])):
            total = total + 0.25 * (row @ method.targets[target] - 1) ** 2 / counts[target] / len(counts)
    (10 * total).backward()
    norm = math.sqrt(sum(float(value.grad.square().sum()) for value in projection.parameters()))
    shortened = min(1.0, LARGEST_GRADIENT / norm)
    return mixed, {
        name: value - 0.05 * (shortened * value.grad + 5e-4 * value.detach())
        for name, value in projection.named_parameters()
    }


@pytest.mark.parametrize("data", ["folder", "cifar100", "mini_imagenet", "cub200"])
def test_the_first_step_of_a_session_written_out(data):
    """In three of four steps features are mixed, but not on the last two data sets."""
    was_mixed = set()
    for seed in range(6):
        settings = (f"data.name={data}", f"train.seed={seed}", "incremental.steps=1", "incremental.lr=0.05")
        method, new = fitted("nc_fscil", *settings), session(2)
        method.learn(session(1))
        mixed, expected = first_step(method, new, data in ("folder", "cifar100"))
        was_mixed.add(mixed)
        method.learn(new)
        for name, value in method.projection.named_parameters():
            np.testing.assert_allclose(value.detach().numpy(), expected[name].detach().numpy(), atol=2e-5)
    assert was_mixed == ({True, False} if data in ("folder", "cifar100") else {False})


def test_the_mean_feature_of_every_class_is_kept():
    method = fitted("nc_fscil")
    new = session(1)
    method.learn(new)
    assert method.means.shape == (8, method.backbone.feature_dim)
    assert method.memory().floats == method.means.numel()
    for images in (BASE, new):
        features = method.features(images)
        for label in images.counts:
            rows = features[np.flatnonzero(images.labels == label)].tolist()
            expected = [mean(column) for column in zip(*rows, strict=True)]
            np.testing.assert_allclose(method.means[label].numpy(), expected, atol=1e-5)


def test_sessions_bring_new_images_to_their_vectors():
    start, trained = (fitted("nc_fscil", f"incremental.steps={steps}", "incremental.lr=0.25") for steps in (0, 60))
    new = session(1)
    found = []
    for method in (start, trained):
        method.learn(new)
        found.append(method.scores(new)[torch.arange(len(new)), torch.from_numpy(new.labels)])
    assert (found[1] > found[0] + 0.2).all()
