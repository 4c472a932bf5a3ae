"""FACT: virtual prototypes in training and at test, written out; where the network is cut to mix inside it."""

import math

import numpy as np
import pytest
import torch
from naive import BASE, DATA, cosine, fitted, mean, session, softmax
from scipy.stats import beta, kstest
from steps import IMAGES, batch_of, log_softmax, network_of, recipe_of
from torch import nn

from fscil.methods import METHODS
from fscil.methods.fact import halves, mixing_weight, second_loss
from fscil.models import Backbone, build_backbone
from fscil.training.base_training import TrainedNetwork, recipe_step, train_base_network
from fscil.training.build import views_of
from helpers import CONTEXT, part


def cross_entropy(rows, targets):
    return -mean(log_softmax(row, target) for row, target in zip(rows, targets, strict=True))


def without(rows, places):
    return [[value for each, value in enumerate(row) if each != place] for row, place in zip(rows, places, strict=True)]


def naive_second_loss(rows, first, second):
    """Cross-entropy of the second target in rows from which the first one's output has been removed."""
    moved = [b - (b > a) for a, b in zip(first, second, strict=True)]
    return cross_entropy(without(rows, first), moved)


def nearest(row, places):
    return max(places, key=lambda place: row[place])


def test_the_second_target_competes_without_the_first():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    first, second = [0, 2, 5, 1], [4, 3, 1, 0]
    found = second_loss(logits, torch.tensor(first), torch.tensor(second))
    assert found.item() == pytest.approx(naive_second_loss(logits.tolist(), first, second))
    found.backward()
    assert logits.grad.isfinite().all()


def test_the_weight_of_a_mixture_is_beta_distributed():
    drawn = [mixing_weight(torch.Generator().manual_seed(seed)).item() for seed in range(2000)]
    assert kstest(drawn, beta(0.5, 0.5).cdf).pvalue > 0.01


@pytest.mark.parametrize(("name", "last"), [("resnet18", "layer2"), ("resnet20", "layer2"), ("resnet10", "layer2")])
def test_a_resnet_is_cut_behind_its_second_stage(name, last):
    backbone = build_backbone(name, width=4).eval()
    before, behind = halves(backbone)
    assert before[-1] is getattr(backbone, last)
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(nn.Sequential(*before, *behind)(images), backbone(images))


def test_a_network_without_stages_is_not_cut():
    backbone = Backbone(4, network=nn.Conv2d(3, 4, 16), flatten=nn.Flatten())
    assert halves(backbone) == ([], list(backbone))


@pytest.mark.parametrize(("data", "weight"), [("folder", 0.01), ("cifar100", 0.001)])
def test_the_loss_of_a_step(data, weight):
    """An image: its class among classes, then the nearest virtual one; a mixture: that, then the nearest class."""
    recipe = recipe_of("fact", f"data.name={data}")
    network = network_of(recipe)
    (loss,) = recipe_step(recipe, network, 3)(batch_of(recipe))

    batch = batch_of(recipe)
    (view,) = views_of(recipe)(batch.pixels, batch.sizes, batch.generator)
    partner = torch.randperm(9, generator=batch.generator).tolist()
    share = math.sin(torch.rand((), generator=batch.generator).item() * math.pi / 2) ** 2
    labels = batch.labels.tolist()
    vectors = [*network.head.weight.tolist(), *network.objective.virtual.tolist()]
    real, virtual = range(3), range(3, 6)

    def logits(hidden):
        with torch.no_grad():
            feature = nn.Sequential(*halves(network.backbone)[1])(hidden[None])[0].double().tolist()
        return [16 * cosine(feature, vector) for vector in vectors]

    with torch.no_grad():
        hidden = nn.Sequential(*halves(network.backbone)[0])(view)
    rows = [logits(each) for each in hidden]
    classified = cross_entropy([row[:3] for row in rows], labels)
    reserved = naive_second_loss(rows, labels, [nearest(row, virtual) for row in rows])
    pairs = [(i, j) for i, j in enumerate(partner) if labels[i] != labels[j]]
    assert 0 < len(pairs) < 9
    mixed = [logits(share * hidden[i] + (1 - share) * hidden[j]) for i, j in pairs]
    to_virtual, to_real = ([nearest(row, among) for row in mixed] for among in (virtual, real))
    forecast = cross_entropy(mixed, to_virtual) + naive_second_loss(mixed, to_virtual, to_real)
    assert loss.item() == pytest.approx(classified + weight * (reserved + forecast), rel=1e-4)


def test_images_of_one_class_are_not_mixed():
    recipe = recipe_of("fact")
    network = network_of(recipe)
    (loss,) = recipe_step(recipe, network, 3)(batch_of(recipe, images=part([5], 0)))
    assert loss.isfinite()


def test_virtual_prototypes_begin_orthogonal_and_are_trained():
    recipe = recipe_of("fact", "train.epochs=2")
    network = network_of(recipe)
    before = TrainedNetwork.of(recipe, network).extras["virtual"]
    torch.testing.assert_close(before @ before.T, torch.eye(3))
    after = train_base_network(recipe, IMAGES, CONTEXT).extras["virtual"]
    assert after.shape == before.shape
    assert not torch.equal(after, before)


def test_scores_add_the_way_over_virtual_prototypes():
    """0.9 softmax of 16 cos(x, w), plus 0.1 softmax of the sum over v of cos(x, v) cos(v, w)."""
    method = fitted("fact")
    new = session(1)
    method.learn(new)
    means = [method.features(BASE)[BASE.labels == label].mean(0).tolist() for label in range(6)]
    means += [method.features(new)[new.labels == label].mean(0).tolist() for label in (6, 7)]
    virtual = method.virtual.tolist()
    assert len(virtual) == 6
    expected = []
    for feature in method.features(DATA.test).tolist():
        direct = softmax([16 * cosine(feature, each) for each in means])
        over = softmax([sum(cosine(feature, v) * cosine(v, each) for v in virtual) for each in means])
        expected.append([0.9 * a + 0.1 * b for a, b in zip(direct, over, strict=True)])
    np.testing.assert_allclose(method.scores(DATA.test).numpy(), expected, atol=1e-4)


def test_views_are_those_of_the_plain_recipe():
    recipe = recipe_of("fact")
    assert recipe.views == METHODS["ncm"].base_recipe(recipe).views
    assert recipe.train.objective == "fact"
