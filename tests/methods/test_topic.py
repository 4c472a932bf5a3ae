"""TOPIC against its losses written out in loops, and what a session does to its nodes."""

import math

import numpy as np
import pytest
import torch
from naive import cross_entropy, record_trainings, some_views, unit

from fscil.data.images import Images
from fscil.methods import topic
from fscil.methods.toolkit import neural_gas
from fscil.methods.toolkit.neural_gas import NO_EDGE
from fscil.methods.topic import anchor_loss, min_max_loss, node_spread
from fscil.training.build import preprocess_of
from helpers import part, small_config, trained_method, untrained_method


def test_anchor_loss_is_the_squared_mahalanobis_distance_of_normalised_features():
    """A sum over dimensions and a mean over nodes; variances are between 0.9 and 1."""
    torch.manual_seed(0)
    features, before, spread = torch.randn(5, 3), torch.randn(5, 3), torch.rand(5, 3) + 0.5
    total = 0.0
    for now, then, variances in zip(features.tolist(), before.tolist(), spread.tolist(), strict=True):
        for x, m, v in zip(unit(now), unit(then), variances, strict=True):
            total += (x - m) ** 2 / min(1.0, max(0.9, v))
    assert float(anchor_loss(features, before, spread)) == pytest.approx(total / 5, rel=1e-5)


def cosine_distance(a, b):
    return 1 - sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def naive_min_max(features, labels, centroids, node_labels, linked, margin):
    total = 0.0
    for feature, label in zip(features, labels, strict=True):
        own = [j for j, other in enumerate(node_labels) if other == label]
        nearest = min(own, key=lambda j: cosine_distance(feature, centroids[j]))
        total += cosine_distance(feature, centroids[nearest])
        for j, other in enumerate(node_labels):
            if linked[nearest][j] and other != label:
                total += max(0.0, margin - cosine_distance(feature, centroids[j]))
    return total / len(features)


@pytest.mark.parametrize("margin", [0.5, 1.5])
def test_min_max_loss_is_the_sum_over_linked_rivals(margin):
    torch.manual_seed(1)
    features, centroids = torch.randn(6, 4), torch.randn(9, 4)
    labels, node_labels = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    linked = torch.rand(9, 9) < 0.5
    linked = linked | linked.T
    found = min_max_loss(features, labels, centroids, node_labels, linked, margin)
    arrays = (each.tolist() for each in (features, labels, centroids, node_labels, linked))
    assert float(found) == pytest.approx(naive_min_max(*arrays, margin), rel=1e-4)


def test_min_max_loss_pulls_to_the_own_node_and_pushes_from_linked_ones():
    feature = torch.tensor([[1.0, 1.0]], requires_grad=True)
    nodes, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([7, 8])
    linked = torch.tensor([[False, True], [True, False]])
    min_max_loss(feature, torch.tensor([7]), nodes, labels, linked).backward()
    assert feature.grad[0, 0] < 0 < feature.grad[0, 1]  # downhill is towards the first node


def test_spread_is_the_variance_about_each_node():
    random = np.random.default_rng(0)
    features = torch.from_numpy(random.normal(size=(40, 3)).astype(np.float32))
    centroids = torch.cat([features[:4], torch.full((1, 3), 100.0)])  # the last is nearest to none
    nearest = [min(range(5), key=lambda j: math.dist(f, centroids[j])) for f in features]
    for j, row in enumerate(node_spread(features, centroids)):
        own = [i for i in range(40) if nearest[i] == j]
        for k in range(3):
            squares = sum(float(features[i, k] - centroids[j, k]) ** 2 for i in own)
            assert float(row[k]) == pytest.approx(squares / max(1, len(own)), rel=1e-4)


def trained(*assignments):
    config = small_config("train.epochs=2", "incremental.steps=5", "incremental.lr=0.01", *assignments)
    return trained_method("topic", config, part([6] * 4, 0), (2,))


def new_images(first, way=2, shots=2):
    images = part([0] * first + [shots] * way, 500)
    assert sorted(images.counts) == list(range(first, first + way))
    return images


def rows(images):
    pixels, _ = images.batch(np.arange(len(images)))
    return [(image.tobytes(), int(label)) for image, label in zip(pixels, images.labels, strict=True)]


def test_the_loss_of_a_session(monkeypatch):
    """Cross-entropy over all classes, the anchor of all nodes and the min-max loss, weighted."""
    monkeypatch.setattr(topic, "NODES", 7)
    method, new = trained(), new_images(4)
    spread, trainings = method.spread, record_trainings(method)
    method.learn(new)
    (training,) = trainings
    assert rows(training.images) == rows(new)
    views, labels = some_views([4, 5, 5])
    features, scores = training.after(views)
    pixels, sizes = method.nodes.batch(np.arange(7))
    preprocess = preprocess_of(method.config)
    images = preprocess(torch.from_numpy(pixels), torch.from_numpy(sizes))
    (held, _), (were, _) = training.after(images), training.before(images)
    centroids = method.gas.centroids.tolist()
    anchors = sum(
        (x - m) ** 2 / min(1.0, max(0.9, v))
        for now, then, variances in zip(held, were, spread.tolist(), strict=True)
        for x, m, v in zip(unit(now), unit(then), variances, strict=True)
    )
    assert anchors > 0
    own = [*method.nodes.labels.tolist()]
    apart = naive_min_max(features, labels.tolist(), centroids, own, method.gas.linked.tolist(), 0.5)
    expected = cross_entropy(scores, labels.tolist()) + 350 * anchors / 7 + 0.005 * apart
    assert training.loss(views, labels).item() == pytest.approx(expected, rel=1e-4)


def test_each_node_keeps_the_nearest_base_image(monkeypatch):
    monkeypatch.setattr(topic, "NODES", 7)
    method, base = trained(), part([6] * 4, 0)
    features = method.network.features(base).numpy()
    nearest = [int(np.linalg.norm(features - centroid, axis=1).argmin()) for centroid in method.gas.centroids]
    assert rows(method.nodes) == rows(base.select(nearest))
    assert method.memory().images == 7


def test_a_session_adds_a_node_per_class_and_leaves_the_old_ones_in_place(monkeypatch):
    monkeypatch.setattr(topic, "NODES", 7)
    method, new = trained(), new_images(4)
    before, kept, ages = method.gas.centroids.copy(), rows(method.nodes), method.gas.ages.copy()
    method.learn(new)
    assert len(method.nodes) == len(method.gas.centroids) == len(method.spread) == 9
    np.testing.assert_array_equal(method.gas.centroids[:7], before)
    assert rows(method.nodes)[:7] == kept
    features = method.network.features(new).numpy()
    for place, label in ((7, 4), (8, 5)):
        own = features[new.labels == label]
        np.testing.assert_allclose(method.gas.centroids[place], own.mean(0), rtol=1e-4, atol=1e-6)
        assert rows(method.nodes)[place] in rows(new.of_classes([label]))
    assert ages.shape == (7, 7)
    assert (method.gas.ages[7:] != NO_EDGE).any(axis=1).all()


def test_the_anchor_holds_features_in_place(monkeypatch):
    """With it, the images of the nodes end nearer to where they were than without."""
    moved = []
    for weight in (0.0, 350.0):
        monkeypatch.setattr(topic, "ANCHOR_WEIGHT", weight)
        method = trained("incremental.steps=20", "incremental.lr=0.1")
        nodes = method.nodes
        before = method.network.features(nodes)
        method.learn(new_images(4))
        moved.append(float(anchor_loss(method.network.features(nodes), before, torch.ones_like(before))))
    assert moved[1] < moved[0] / 2


def test_features_of_base_images_stay_over_eight_sessions(monkeypatch):
    """A session sees its own images alone: how far features move in each adds up, unless the anchor holds."""
    moved = []
    for weight in (0.0, topic.ANCHOR_WEIGHT):
        monkeypatch.setattr(topic, "ANCHOR_WEIGHT", weight)
        method, base = trained("train.epochs=10", "incremental.steps=20", "incremental.lr=0.02"), part([6] * 4, 0)
        before = method.network.features(base)
        for session in range(8):
            method.learn(new_images(4 + session, way=1))
        moved.append(float(1 - torch.cosine_similarity(before, method.network.features(base)).mean()))
    assert moved[1] < moved[0] / 10


@pytest.mark.parametrize("crops", [1, 2])
def test_nothing_pulls_a_node_before_its_feature_has_moved(monkeypatch, crops):
    """Centroids are not where the images are: an anchor at these would pull from the first step on. The same holds of
    features that are the mean over several crops.
    """
    monkeypatch.setattr(topic, "MIN_MAX_WEIGHT", 0.0)
    method = trained("incremental.steps=0", f"test.crops={crops}")
    trainings = record_trainings(method)
    method.learn(new_images(4))
    views, labels = some_views([4, 5, 5])
    _, scores = trainings[0].before(views)
    assert trainings[0].loss(views, labels).item() == pytest.approx(cross_entropy(scores, labels.tolist()), rel=1e-5)


def test_no_more_nodes_than_base_images():
    assert trained().memory().images == 24


def test_400_nodes_where_there_are_more_base_images(monkeypatch):
    monkeypatch.setattr(neural_gas, "UPDATES", 1)
    method = trained_method("topic", small_config("train.epochs=0"), part([102] * 4, 0), (2,))
    assert method.memory().images == len(method.gas.centroids) == 400


def test_a_node_image_is_a_copy():
    base = part([3] * 3, 0)
    method = trained_method("topic", small_config("train.epochs=1"), base, (1,))
    kept = rows(method.nodes)
    base.pixels.array[:] = 0
    assert rows(method.nodes) == kept
    assert isinstance(method.nodes, Images)


def test_features_move_less_than_in_fine_tuning():
    """From the same network, at the same rate, both train all of it in the same session. The mean over three seeds."""
    base, moved = part([6] * 4, 0), []
    for seed in range(3):
        settings = ("train.epochs=10", "incremental.steps=20", "incremental.lr=0.02", "incremental.trainable=all")
        config = small_config(*settings, f"train.seed={seed}")
        method, plain = trained_method("topic", config, base, (2,)), untrained_method("finetune", config, 4)
        plain.load_state(method.state())
        for each in (method, plain):
            before = each.network.features(base)
            each.learn(new_images(4))
            moved.append(float(1 - torch.cosine_similarity(before, each.network.features(base)).mean()))
    assert sum(moved[0::2]) < 0.5 * sum(moved[1::2])
