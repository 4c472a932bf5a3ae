"""ALICE's prototypes against the paper written out in loops; its loss is tested with base training."""

import doctest
import math

import numpy as np
import pytest
import torch

from fscil.data.images import Images
from fscil.errors import ProtocolError, StoreError
from fscil.methods import alice as alice_module
from fscil.protocol import Protocol
from fscil.training.build import base_images
from helpers import base_trained_method, small_config, tiny_dataset, untrained_method


def alice(*assignments):
    """On an untrained network: any features will do."""
    return untrained_method("alice", small_config(*assignments), 6)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


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
    method.fit_base(base_images(dataset, PROTOCOL), shots)
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

    shuffled.fit_base(shuffle(base_images(dataset, PROTOCOL)), (2, 1))
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
    other = alice("train.seed=9")
    other.features(dataset.test)  # of other weights: must not be cached beyond load_state
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


def test_prototypes_are_those_of_the_trained_network(dataset):
    """And fit_base leaves the network as base training did."""
    base = base_images(dataset, PROTOCOL)
    method = base_trained_method("alice", small_config("train.epochs=1"), base)
    untrained = alice("train.epochs=1")
    assert not torch.equal(method.features(base), untrained.features(base))
    before = {name: value.clone() for name, value in method.backbone.state_dict().items()}
    method.fit_base(base, (2,))
    assert all(torch.equal(before[name], value) for name, value in method.backbone.state_dict().items())
    scores = method.scores(dataset.test)
    method.features.clear()
    expected = naive_scores(method, naive_prototypes(method, dataset, by_class(base), None), dataset.test)
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-5)


def test_the_example_of_the_docstring():
    failed, tried = doctest.testmod(alice_module)
    assert not failed
    assert tried
