"""CLOSER: its three terms written out, their signs and weights, and the views of its paper."""

from dataclasses import replace

import pytest
import torch
from naive import cosine, mean
from steps import batch_of, log_softmax, network_of, recipe_of
from torch.nn import functional as F

from fscil.config import load_recipe
from fscil.errors import ConfigError
from fscil.methods import METHODS
from fscil.methods.closer import closeness
from fscil.methods.toolkit.contrast import self_supervised_contrast
from fscil.training.base_training import new_base_network, recipe_step
from fscil.training.build import views_of
from helpers import CONTEXT, small_config


def naive_contrast(features, images):
    """-log exp(32 cos(z, z')) / sum of exp(32 cos(z, a)) over all a but z, for the other views z' of z's image."""
    found = []
    for i, own in enumerate(features):
        others = [j for j in range(len(features)) if j != i]
        row = [32 * cosine(own, features[j]) for j in others]
        partners = [j for j in others if j % images == i % images]
        found.append(-mean(log_softmax(row, others.index(j)) for j in partners))
    return mean(found)


def naive_closeness(features, labels):
    pairs = [(i, j) for i in range(len(labels)) for j in range(i) if labels[i] != labels[j]]
    return mean(cosine(features[i], features[j]) for i, j in pairs) if pairs else 0.0


def unit_vectors(count):
    return F.normalize(torch.randn(count, 5, generator=torch.Generator().manual_seed(count), dtype=torch.float64))


@pytest.mark.parametrize("views", [2, 3])
def test_contrast(views):
    features = unit_vectors(views * 4)
    assert self_supervised_contrast(features, 4, 1 / 32).item() == pytest.approx(naive_contrast(features.tolist(), 4))


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2], [0, 0, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1]])
def test_closeness(labels):
    features = unit_vectors(6)
    assert closeness(features, torch.tensor(labels)).item() == pytest.approx(
        naive_closeness(features.tolist(), labels), abs=1e-12
    )


@pytest.mark.parametrize(
    ("data", "spread", "close"), [("folder", 0.1, 1.0), ("mini_imagenet", 0.1, 0.5), ("cub200", 0.01, 1.5)]
)
def test_the_loss_of_a_step(data, spread, close):
    """Cross-entropy of 32 cosines, plus contrast, minus closeness, which it is meant to increase."""
    recipe = recipe_of("closer", f"data.name={data}")
    network = network_of(recipe)
    (loss,) = recipe_step(recipe, network, 3)(batch_of(recipe))
    batch = batch_of(recipe)
    views = views_of(recipe)(batch.pixels, batch.sizes, batch.generator)
    with torch.no_grad():
        features = torch.cat([network.backbone(view) for view in views]).double().tolist()
    labels, classifier = batch.labels.tolist() * 2, network.head.weight.tolist()
    rows = [[32 * cosine(feature, vector) for vector in classifier] for feature in features]
    classified = -mean(log_softmax(row, label) for row, label in zip(rows, labels, strict=True))
    expected = classified + spread * naive_contrast(features, 9) - close * naive_closeness(features, labels)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_views_are_the_papers_or_milder():
    views = METHODS["closer"].base_recipe(load_recipe("cifar100")).views
    assert (views.kind, views.count, views.scale, views.ratio) == ("resized", 2, (0.25, 1.0), (1.0, 1.0))
    assert (views.jitter, views.grayscale) == (0.5, 0.0)
    assert METHODS["closer"].base_recipe(load_recipe("cub200")).views.jitter == 0.0
    assert METHODS["closer"].base_recipe(load_recipe("glyphs")).views.scale == (0.7, 1.0)


def test_base_training_is_its_own_and_sessions_are_those_of_the_nearest_mean():
    config = small_config()
    recipe = METHODS["closer"].base_recipe(config)
    assert recipe.train.objective == "closer"
    assert recipe != METHODS["ncm"].base_recipe(config)
    assert METHODS["closer"].learn is METHODS["ncm"].learn


def test_one_view_is_refused():
    recipe = recipe_of("closer")
    with pytest.raises(ConfigError, match=r"views\.count"):
        new_base_network(replace(recipe, views=replace(recipe.views, count=1)), 3, CONTEXT)
