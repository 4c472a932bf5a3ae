"""SAVC: the contrastive loss, momentum encoder, queue, crops and averaged scores, written out."""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from naive import BASE, DATA, cosine, fitted, mean, session, unit
from steps import IMAGES, batch_of, log_softmax, network_of, recipe_of

from fscil.config import load_recipe
from fscil.methods import METHODS, savc
from fscil.methods.savc import MOMENTUM, QUEUE, fantasies, queue_contrast
from fscil.training.base_training import recipe_step
from fscil.training.build import preprocess_of
from helpers import SIZE


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def naive_contrast(queries, keys, labels, queue, queue_labels):
    """-log exp(q p / T) / (exp(q p / T) + sum of exp(q n / T)): mean over positives p, then over queries q."""
    found = []
    for q, k, label in zip(queries, keys, labels, strict=True):
        queued = list(zip(queue, queue_labels, strict=True))
        positives = [k, *(vector for vector, other in queued if other == label)]
        negatives = [dot(q, vector) / 0.07 for vector, other in queued if other not in (label, -1)]
        found.append(-mean(log_softmax([dot(q, p) / 0.07, *negatives], 0) for p in positives))
    return mean(found)


def unit_vectors(count, seed):
    return torch.nn.functional.normalize(torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)).double())


@pytest.mark.parametrize("queue_labels", [[0, 1, 2, 1, 0], [-1, 1, -1, 3, 0], [-1] * 5, [7] * 5, [1] * 5])
def test_contrast_with_the_queue(queue_labels):
    queries, keys, queue = unit_vectors(4, 0).requires_grad_(), unit_vectors(4, 1), unit_vectors(5, 2)
    labels = [1, 0, 1, 2]
    found = queue_contrast(queries, keys, torch.tensor(labels), queue, torch.tensor(queue_labels))
    expected = naive_contrast(queries.tolist(), keys.tolist(), labels, queue.tolist(), queue_labels)
    assert found.item() == pytest.approx(expected, abs=1e-9)
    found.backward()
    assert queries.grad.isfinite().all()


def test_autocast_does_not_make_the_contrast_coarse():
    queries, keys, queue = (unit_vectors(count, seed).float() for count, seed in ((40, 0), (40, 1), (200, 2)))
    labels, queue_labels = torch.arange(40) % 4, torch.arange(200) % 5 - 1
    expected = queue_contrast(queries, keys, labels, queue, queue_labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = queue_contrast(queries, keys, labels, queue, queue_labels)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_fantasy_is_the_image_turned_upside_down():
    images = torch.rand(3, 3, 5, 5)
    assert torch.equal(fantasies(images), torch.cat([images, torch.rot90(images, 2, (2, 3))]))


@pytest.fixture
def watched():
    """A network, the step, and what its backbones are given: (momentum encoder or not, input) of each call."""
    recipe = recipe_of("savc")
    network, inputs = network_of(recipe), []
    network.backbone.register_forward_pre_hook(lambda _, given: inputs.append((False, given[0].detach().clone())))
    network.objective.slow_backbone.register_forward_pre_hook(lambda _, given: inputs.append((True, given[0].clone())))
    return recipe, network, recipe_step(recipe, network, 3), inputs


def test_the_parts_of_a_step(watched):
    """Cross-entropy over real and fantasy classes, contrast of a large crop (0.2) and of four small ones (0.8 / 4)."""
    recipe, network, step, inputs = watched
    list(step(batch_of(recipe, 1)))  # fills the queue
    inputs.clear()
    before = deepcopy(network.objective)
    found = [part.item() for part in step(batch_of(recipe, 2))]
    assert len(found) == len(inputs) - 1 == 3
    (classified,), (key,), (query, crops) = (
        [inputs[0][1]],
        [given for slow, given in inputs if slow],
        [given for slow, given in inputs[1:] if not slow],
    )
    small = crops.chunk(4)  # in one pass
    labels = batch_of(recipe).labels.tolist()
    labels += [label + 3 for label in labels]

    vectors = [*network.head.weight.tolist(), *before.fantasy_head.weight.tolist()]
    with torch.no_grad():
        features = network.backbone(classified).double().tolist()
        keys = [unit(row) for row in network.objective.slow_projector(network.objective.slow_backbone(key)).tolist()]
        queries = [network.objective.projector(network.backbone(each)).tolist() for each in (query, *small)]
    rows = [[16 * cosine(feature, vector) for vector in vectors] for feature in features]
    expected = [-mean(log_softmax(row, label) for row, label in zip(rows, labels, strict=True))]
    queue, queue_labels = before.queue.tolist(), before.queue_labels.tolist()
    each = [naive_contrast([unit(row) for row in rows], keys, labels, queue, queue_labels) for rows in queries]
    expected += [0.2 * each[0], 0.8 * mean(each[1:])]
    assert found == pytest.approx(expected, rel=1e-3)


def test_crops_are_of_two_sizes_and_in_all_fantasies(watched):
    recipe, _, step, inputs = watched
    list(step(batch_of(recipe)))
    small = round(18 / 32 * SIZE)
    sizes = [(slow, *given.shape[2:]) for slow, given in inputs]
    assert sizes == [(False, SIZE, SIZE), (True, SIZE, SIZE), (False, SIZE, SIZE), (False, small, small)]
    assert [len(given) // (2 * len(IMAGES)) for _, given in inputs] == [1, 1, 1, 4]
    crops = [crop for _, given in inputs for crop in given.split(2 * len(IMAGES))]
    for crop in crops:
        upright, turned = crop.chunk(2)
        assert torch.equal(turned, torch.rot90(upright, 2, (2, 3)))
    assert not any(torch.equal(one, other) for one, other in pairwise(crops))
    assert savc.SavcObjective.passes(recipe) == len(crops) * 2
    assert METHODS["savc"].base_recipe(recipe).train.objective == "savc"


def test_the_momentum_encoder_follows_ever_more_slowly(watched, monkeypatch):
    monkeypatch.setattr(savc, "MOMENTUM", 0.15)
    recipe, network, step, _ = watched
    objective = network.objective
    for number, kept in enumerate([0.1, 0.15, 0.15]):  # 1/10, then 2/11 and 3/12, which are above 0.15
        torch.nn.init.normal_(network.backbone.conv1.weight, generator=torch.Generator().manual_seed(number))
        torch.nn.init.normal_(objective.projector[0].bias, generator=torch.Generator().manual_seed(number))
        pairs = [
            (objective.slow_backbone.conv1.weight, network.backbone.conv1.weight),
            (objective.slow_projector[0].bias, objective.projector[0].bias),
        ]
        expected = [kept * slow.detach() + (1 - kept) * fast.detach() for slow, fast in pairs]
        for part in step(batch_of(recipe, number)):
            part.backward()
        for (slow, _), wanted in zip(pairs, expected, strict=True):
            torch.testing.assert_close(slow.detach(), wanted)
            assert slow.grad is None


def test_queue_and_momentum_are_the_papers():
    assert (QUEUE, MOMENTUM) == (8192, 0.995)  # the queue as it is without the short one of these tests


def test_the_queue_holds_the_newest_keys_and_their_classes(monkeypatch):
    """9 images in 2 fantasies are 18 keys: in a queue of 25 the second step overwrites the first 11."""
    monkeypatch.setattr(savc, "QUEUE", 25)
    recipe = recipe_of("savc")
    network = network_of(recipe)
    step, objective = recipe_step(recipe, network, 3), network.objective
    seen = []
    objective.slow_projector.register_forward_hook(lambda _, given, out: seen.extend(out.tolist()))
    labels = [*IMAGES.labels.tolist(), *(IMAGES.labels + 3).tolist()]
    for count in (1, 2):
        list(step(batch_of(recipe, count)))
        places = {number % 25: number for number in range(18 * count)}
        for place in range(25):
            known = place in places
            expected = unit(seen[places[place]]) if known else [0.0] * 128
            np.testing.assert_allclose(objective.queue[place].numpy(), expected, atol=1e-5)
            assert objective.queue_labels[place] == (labels[places[place] % 18] if known else -1)
    assert objective.place == 11


def test_scores_are_averaged_over_the_fantasies():
    method = fitted("savc")
    new = session(1)
    method.learn(new)

    def features(images, turns):
        pixels, sizes = (torch.from_numpy(each) for each in images.batch(np.arange(len(images))))
        views = preprocess_of(method.config)(pixels, sizes)
        with torch.no_grad():
            return method.backbone.eval()(torch.rot90(views, turns, (2, 3))).numpy()

    expected = np.zeros((len(DATA.test), 8))
    for turns in (0, 2):
        base, few = features(BASE, turns), features(new, turns)
        means = [base[BASE.labels == label].mean(0) for label in range(6)]
        means += [few[new.labels == label].mean(0) for label in (6, 7)]
        expected += [[cosine(row, each) / 2 for each in means] for row in features(DATA.test, turns)]
    np.testing.assert_allclose(method.scores(DATA.test).numpy(), expected, atol=1e-4)
    assert method.memory().floats == 8 * 2 * method.backbone.feature_dim


def test_large_pictures_have_the_crops_of_the_paper_for_them():
    few, many = (METHODS["savc"].base_recipe(load_recipe(name)).views for name in ("cifar100", "cub200"))
    assert (few.scale, many.scale) == ((0.9, 1.0), (0.2, 1.0))
    assert (many.count, many.jitter, many.grayscale) == (2, 0.8, 0.2)
