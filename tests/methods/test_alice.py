"""ALICE against its paper written out in loops: the loss of a step, and the prototypes after it."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fscil.data.images import Images
from fscil.errors import ProtocolError, StoreError
from fscil.experiments.sessions import base_images
from fscil.methods import Alice
from fscil.protocol import Protocol
from fscil.training.build import views_of
from fscil.training.loop import Batch, Trainer
from helpers import SIZE, part, small_config, tiny_dataset

CPU = torch.device("cpu")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def alice(*assignments, blank=False):
    config = small_config(*assignments)
    return Alice(config, Trainer(config.train, CPU, quiet=True), blank=blank)


# The loss


def batch_of(images, seed, progress=0.0):
    pixels, sizes = images.batch(np.arange(len(images)))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.from_numpy(images.labels)
    return Batch(torch.from_numpy(pixels), torch.from_numpy(sizes), labels, generator, progress)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def literal_loss(network, batch, config, classes):
    """One sample after the other, one class after the other; the network alone sees a view as a whole."""
    generator, size = batch.generator, len(batch.labels)
    plain = replace(views_of(config), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    views = plain(batch.pixels, batch.sizes, generator)
    pairs = [(a, b) for a in range(classes) for b in range(a + 1, classes)]
    order = torch.rand(config.mixing.repeats, size, generator=generator).argsort(1) if config.mixing.repeats else []
    couples = [(i, int(j)) for row in order for i, j in enumerate(row) if batch.labels[i] != batch.labels[j]]
    weights = torch.empty(len(couples)).uniform_(0.4, 0.6, generator=generator) if couples else []

    total = 0.0
    for view in views:
        images = torch.stack([(view[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)
        labels = batch.labels.tolist()
        inputs = list(images)
        for (i, j), lam in zip(couples, weights, strict=True):
            inputs.append(lam * images[i] + (1 - lam) * images[j])
            labels.append(classes + pairs.index(tuple(sorted((labels[i], labels[j])))))
        with torch.no_grad():
            features = network.projection(network.backbone(torch.stack(inputs))).double().tolist()
        classifier = network.head.weight.detach().double().tolist()
        scale, margin = config.loss.scale, config.loss.margin if config.loss.kind == "cosface" else 0.0
        losses = []
        for feature, label in zip(features, labels, strict=True):
            own = math.exp(scale * (cosine(feature, classifier[label]) - margin))
            others = 0.0
            for other, weight in enumerate(classifier):
                if other != label:
                    others += math.exp(scale * cosine(feature, weight))
            losses.append(-math.log(own / (own + others)))
        total += sum(losses) / len(losses)
    return total / len(views), len(inputs)


@pytest.mark.parametrize(
    ("assignments", "outputs"),
    [
        (["mixing.repeats=2"], 15),
        (["mixing.repeats=0"], 5),
        (["mixing.repeats=1", "model.projection=0"], 15),
        (["mixing.repeats=0", "views.count=1", "loss.kind=softmax", "model.projection=0"], 5),
    ],
)
def test_the_loss_of_a_step_is_the_papers(assignments, outputs):
    method = alice(*assignments)
    images = part([4, 3, 2, 2, 1], 0)
    network = method.network(5).train()
    assert len(network.head.weight) == outputs
    found = sum(method.step(network, 5)(batch_of(images, 7)))
    network = copy.deepcopy(network)
    expected, inputs = literal_loss(network, batch_of(images, 7), method.config, 5)
    assert found.item() == pytest.approx(expected, rel=1e-4)
    assert inputs > len(images) or not method.config.mixing.repeats


@pytest.mark.parametrize(("progress", "margin"), [(0.0, 0.0), (0.2, 0.2), (0.4, 0.4), (0.9, 0.4)])
def test_the_margin_grows_in_the_warm_up(progress, margin):
    images = part([4, 3, 2, 2, 1], 0)
    growing, fixed = (
        alice("mixing.repeats=0", "loss.margin_warmup=0.4"),
        alice("mixing.repeats=0", f"loss.margin={margin}"),
    )
    found, expected = (
        sum(method.step(method.network(5), 5)(batch_of(images, 7, progress))) for method in (growing, fixed)
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("progress", "mixed"), [(0.0, False), (0.49, False), (0.5, True), (1.0, True)])
def test_class_augmentation_begins_when_told(progress, mixed):
    method, seen = alice("mixing.repeats=2", "mixing.start=0.5"), []
    network = method.network(5)
    network.backbone.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    images = part([4, 3, 2, 2, 1], 0)
    assert len(list(method.step(network, 5)(batch_of(images, 7, progress)))) == len(seen)
    assert (seen[0] > len(images)) == mixed


def test_each_view_passes_on_its_own():
    """So that BatchNorm's statistics are those of one view."""
    method = alice("mixing.repeats=2")
    network = method.network(3)
    passed = []
    network.backbone.register_forward_hook(lambda module, inputs, output: passed.append(inputs[0].shape))
    losses = list(method.step(network, 3)(batch_of(part([4, 4, 4], 0), 1)))
    assert len(passed) == len(losses) == 2
    assert passed[0] == passed[1]
    assert 12 < passed[0][0] <= 12 + 2 * 12
    assert passed[0][1:] == (3, SIZE, SIZE)


def test_a_step_never_waits_for_a_number(monkeypatch):
    """On a device every such wait would stall the queue."""
    method = alice("mixing.repeats=2")
    network = method.network(3).train()
    step, batch = method.step(network, 3), batch_of(part([4, 4, 4], 0), 1)
    asked = []
    for name in ("item", "__float__", "__int__", "__bool__"):
        original = getattr(torch.Tensor, name)

        def counting(self, original=original, name=name):
            asked.append(name)
            return original(self)

        monkeypatch.setattr(torch.Tensor, name, counting)
    for loss in step(batch):
        loss.backward()
    assert asked == []
    assert loss.item() > 0
    assert asked == ["item"]


def test_the_network_depends_on_the_seed_alone():
    torch.manual_seed(5)
    first = alice().network(4).state_dict()
    torch.rand(3)
    second, other = alice().network(4).state_dict(), alice("train.seed=1").network(4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["backbone.conv1.weight"], other["backbone.conv1.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


# Prototypes


@pytest.fixture(scope="module")
def dataset():
    return tiny_dataset(train=9, test=4)


PROTOCOL = Protocol(6, 2, 3, shots=2, order=(3, 0, 7, 1, 9, 10, 2, 11, 4, 5, 8, 6))


def session_images(dataset, session, draw=0, shots=2):
    protocol = PROTOCOL.with_shots(shots)
    chosen = dataset.train.select(protocol.samples(dataset.train.labels, session, draw))
    return chosen.relabel(protocol.seen(session))


def ready(dataset, *assignments, shots=(2, 1)):
    method = alice(*assignments)
    method.describe_base(base_images(dataset, PROTOCOL), shots)
    return method


def naive_prototypes(method, dataset, images_by_class, k):
    """Mean of raw features; with k, of the k nearest by cosine to the mean of all."""
    prototypes = []
    for images in images_by_class:
        features = method.features(images).numpy().astype(np.float64)
        mean = sum(features) / len(features)
        if k is not None and k < len(features):
            ranked = sorted(range(len(features)), key=lambda i: (-cosine(features[i], mean), i))
            mean = sum(features[i] for i in ranked[:k]) / k
        prototypes.append(mean)
    return prototypes


def naive_scores(method, prototypes, images):
    features = method.features(images).numpy().astype(np.float64)
    return np.array([[cosine(feature, prototype) for prototype in prototypes] for feature in features])


def by_class(images):
    return [images.select(images.labels == label) for label in sorted(images.counts)]


@pytest.mark.parametrize("prototypes", ["balanced", "all"])
def test_scores_are_nearest_means_written_out(dataset, prototypes):
    method = ready(dataset, f"test.prototypes={prototypes}")
    base = by_class(base_images(dataset, PROTOCOL))
    test = dataset.test
    everything = naive_prototypes(method, dataset, base, None)
    # Session 0 is with all data, whatever comes later.
    np.testing.assert_allclose(method.scores(test).numpy(), naive_scores(method, everything, test), atol=1e-5)

    novel = []
    for session in (1, 2):
        new = session_images(dataset, session)
        method.learn(new)
        novel += naive_prototypes(method, dataset, by_class(new), None)
        kept = everything if prototypes == "all" else naive_prototypes(method, dataset, base, 2)
        expected = naive_scores(method, [*kept, *novel], test)
        found = method.scores(test).numpy()
        assert found.shape == (len(test), 6 + 2 * session)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_balanced_and_all_differ(dataset):
    """Or the test above would prove nothing."""
    both = [ready(dataset, f"test.prototypes={kind}") for kind in ("balanced", "all")]
    for method in both:
        method.learn(session_images(dataset, 1))
    balanced, everything = (method.scores(dataset.test) for method in both)
    assert (balanced - everything)[:, :6].abs().max() > 1e-4
    assert torch.equal(balanced[:, 6:], everything[:, 6:])


def test_each_number_of_shots_has_its_own_balance(dataset):
    method = ready(dataset)
    method.learn(session_images(dataset, 1, shots=1))
    base = by_class(base_images(dataset, PROTOCOL))
    expected = naive_scores(method, naive_prototypes(method, dataset, base, 1), dataset.test)
    np.testing.assert_allclose(method.scores(dataset.test)[:, :6].numpy(), expected, atol=1e-5)


def test_alternatives_are_the_balanced_scores_of_session_0(dataset):
    method = ready(dataset)
    base = by_class(base_images(dataset, PROTOCOL))
    found = method.alternatives(dataset.test)
    assert list(found) == ["balanced, 2-shot", "balanced, 1-shot"]
    for k in (2, 1):
        expected = naive_scores(method, naive_prototypes(method, dataset, base, k), dataset.test)
        np.testing.assert_allclose(found[f"balanced, {k}-shot"].numpy(), expected, atol=1e-5)
    method.learn(session_images(dataset, 1))
    assert method.alternatives(dataset.test) == {}
    assert ready(dataset, "test.prototypes=all").alternatives(dataset.test) == {}


def test_the_order_of_images_does_not_matter(dataset):
    straight, shuffled = ready(dataset), alice()
    random = np.random.default_rng(0)

    def shuffle(images):
        return images.select(random.permutation(len(images)))

    shuffled.describe_base(shuffle(base_images(dataset, PROTOCOL)), (2, 1))
    for session in (1, 2):
        straight.learn(session_images(dataset, session))
        shuffled.learn(shuffle(session_images(dataset, session)))
    assert torch.equal(straight.scores(dataset.test), shuffled.scores(dataset.test))


def test_a_base_class_with_fewer_images_than_shots_stands_with_all_it_has(dataset):
    method = ready(dataset, shots=(50,))
    alternative = method.alternatives(dataset.test)["balanced, 50-shot"]
    assert torch.allclose(alternative, method.scores(dataset.test), atol=1e-6)


# Going on


def test_a_state_goes_on_as_if_nothing_had_happened(dataset):
    method = ready(dataset)
    method.learn(session_images(dataset, 1))
    other = alice("train.seed=9", blank=True)
    other.features(dataset.test)  # of other weights: must not be remembered beyond load_state
    other.load_state(method.state())
    assert torch.equal(other.scores(dataset.test), method.scores(dataset.test))
    for session in (2, 3):
        method.learn(session_images(dataset, session))
        other.learn(session_images(dataset, session))
    assert torch.equal(other.scores(dataset.test), method.scores(dataset.test))
    assert method.scores(dataset.test).shape == (len(dataset.test), 12)


def test_a_state_is_not_changed_by_what_comes_after(dataset):
    method = ready(dataset)
    before = method.scores(dataset.test)
    start = method.state()
    method.learn(session_images(dataset, 1))
    method.load_state(start)
    assert torch.equal(method.scores(dataset.test), before)


def test_a_state_of_another_architecture_is_refused(dataset):
    state = ready(dataset).state()
    with pytest.raises(StoreError, match="another architecture"):
        alice("model.width=3").load_state(state)


@pytest.mark.parametrize("labels", [[5, 6], [7, 8], [6, 8]])
def test_new_classes_must_follow_on(dataset, labels):
    method = ready(dataset)
    images = session_images(dataset, 1)
    wrong = Images(images.pixels, np.repeat(labels, 2), images.rows)
    before = method.scores(dataset.test)
    with pytest.raises(ProtocolError, match=r"numbered from 6; got \["):
        method.learn(wrong)
    assert torch.equal(method.scores(dataset.test), before)


def test_shots_that_were_not_announced_are_refused(dataset):
    method = ready(dataset, shots=(5,))
    method.learn(session_images(dataset, 1))
    with pytest.raises(ProtocolError, match=r"made for 5 shots, not for 2"):
        method.scores(dataset.test)


def test_memory_is_prototypes_only(dataset):
    method = ready(dataset)
    width = method.backbone.feature_dim
    assert method.memory().images == 0
    assert method.memory().floats == 6 * width * 3  # all data, 2 shots, 1 shot
    method.learn(session_images(dataset, 1))
    assert method.memory().floats == 6 * width * 3 + 2 * width


def test_fit_base_trains_and_describes(dataset):
    method = alice("train.epochs=1")
    before = {name: value.clone() for name, value in method.backbone.state_dict().items()}
    base = base_images(dataset, PROTOCOL)
    method.features(base)  # remembered features of the untrained backbone must not be used
    method.fit_base(base, (2,))
    assert any(not torch.equal(before[name], value) for name, value in method.backbone.state_dict().items())
    scores = method.scores(dataset.test)
    method.features.forget()
    expected = naive_scores(method, naive_prototypes(method, dataset, by_class(base), None), dataset.test)
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-5)
