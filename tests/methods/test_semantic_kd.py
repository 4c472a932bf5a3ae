"""Semantic-aware distillation against its formulas written out in loops."""

import math

import numpy as np
import pytest
import torch
from word_systems import BASE, DATA, TABLE, build_method, fitted_method, record_trainings, session

from fscil.methods import semantic_kd
from fscil.methods.semantic_kd import SemanticKD, SemanticMapping, superclasses
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.train_on_features import standardised


@pytest.fixture
def fitted(words):
    return fitted_method(SemanticKD, words)


# The formulas


def softmax(values):
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def times(layer, vector):
    return (layer.weight.double() @ vector + layer.bias.double()).detach()


def naive_mapping(mapping, feature):
    """One feature -> its place in word space, and its attention."""
    attention = softmax(times(mapping.attention, feature).tolist())
    everything = times(mapping.embeddings, feature)
    width = len(everything) // len(attention)
    embedding = torch.zeros(width, dtype=torch.float64)
    for number, share in enumerate(attention):
        own = everything[number * width : (number + 1) * width]
        embedding += share * torch.where(own > 0, own, 0.01 * own)
    first, _, last = mapping.mapping
    hidden = times(first, torch.cat([feature, embedding]))
    return times(last, torch.where(hidden > 0, hidden, 0.01 * hidden)), attention


def unit(vector):
    vector = np.asarray(vector, np.float64)
    return torch.from_numpy(vector / math.sqrt((vector**2).sum()))


def naive_scores(mapping, feature, classes):
    place = unit(naive_mapping(mapping, feature)[0])
    return [16 * float(place @ unit(TABLE[label])) for label in range(classes)]


def test_embeddings_of_superclasses_are_mixed_by_attention():
    torch.manual_seed(0)
    mapping = SemanticMapping(7, 5, superclasses=3)
    features = torch.randn(4, 7)
    mapped, logits = mapping(features)
    for feature, place, logit in zip(features, mapped, logits, strict=True):
        expected, attention = naive_mapping(mapping, feature.double())
        np.testing.assert_allclose(place.detach(), expected, atol=1e-5)
        np.testing.assert_allclose(softmax(logit.tolist()), attention, atol=1e-6)


def test_a_class_scores_by_the_similarity_to_its_word_vector(fitted):
    features = standardised(fitted.network.features(DATA.test)).double()
    for classes in (6, 8):
        expected = [naive_scores(fitted.mapping, feature, classes) for feature in features]
        np.testing.assert_allclose(fitted.scores(DATA.test), expected, atol=1e-4)
        fitted.learn(session(1)) if classes == 6 else None


def test_features_are_standardised():
    feature = [1.0, 2.0, 6.0, 7.0]
    found = standardised(torch.tensor([feature, [10 * value for value in feature]]))
    expected = [(value - 4) / math.sqrt((9 + 4 + 4 + 9) / 4) for value in feature]
    np.testing.assert_allclose(found, [expected, expected], atol=1e-5)


def naive_distillation(scores, old):
    """Kullback-Leibler divergence at temperature 2 over the old classes, times its square."""
    total = 0.0
    for ours, theirs in zip(scores, old, strict=True):
        p, q = softmax([x / 2 for x in theirs]), softmax([x / 2 for x in ours[: len(theirs)]])
        total += 4 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total / len(scores)


def cross_entropy(rows, labels):
    return -sum(math.log(softmax(row)[label]) for row, label in zip(rows, labels, strict=True)) / len(rows)


def test_the_base_loss_is_the_right_word_and_the_right_superclass(words):
    method = build_method(SemanticKD, words)
    trainings = record_trainings(method)
    method.fit_base(BASE, (2,))
    [(part, examples, loss)] = trainings
    features, labels = examples()
    assert part is method.mapping
    assert torch.equal(features, standardised(method.network.features(BASE)))
    assert labels.tolist() == BASE.labels.tolist()
    groups = superclasses(torch.stack([unit(vector) for vector in TABLE[:6]]).float(), seed=0)
    scores = [naive_scores(part, feature, 6) for feature in features.double()]
    attention = [naive_mapping(part, feature)[1] for feature in features.double()]
    right = [math.log(row[groups[label]]) for row, label in zip(attention, labels.tolist(), strict=True)]
    expected = cross_entropy(scores, labels.tolist()) - sum(right) / len(right)
    assert loss(features, labels).item() == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_a_session_is_the_right_word_and_distillation(fitted):
    new, trainings = session(1), record_trainings(fitted)
    fitted.learn(new)
    [(part, examples, loss)] = trainings
    features, labels = examples()
    assert torch.equal(features, standardised(fitted.network.features(new)))
    assert labels.tolist() == new.labels.tolist()
    assert part is fitted.mapping.mapping  # embeddings and attention stay as they are
    old = [naive_scores(fitted.mapping, feature, 6) for feature in features.double()]
    with torch.no_grad():
        part[2].weight.add_(torch.randn(part[2].weight.shape, generator=torch.Generator().manual_seed(0)))
    scores = [naive_scores(fitted.mapping, feature, 8) for feature in features.double()]
    expected = cross_entropy(scores, labels.tolist()) + semantic_kd.DISTILLATION * naive_distillation(scores, old)
    assert expected > cross_entropy(scores, labels.tolist()) + 0.1
    assert loss(features, labels).item() == pytest.approx(expected, rel=1e-4)


# Superclasses


def test_superclasses_are_clusters_of_words():
    """Nine classes in three groups that anybody can see."""
    random = np.random.default_rng(0)
    truth = random.permutation(np.repeat(np.arange(3), 3))
    words = torch.from_numpy(10 * np.eye(3)[truth] + 0.1 * random.normal(size=(9, 3))).float()
    found = superclasses(words, seed=0).numpy()
    assert sorted(set(found)) == [0, 1, 2]
    np.testing.assert_array_equal(found[:, None] == found, truth[:, None] == truth)


def test_equal_words_are_one_superclass():
    assert superclasses(torch.ones(9, 3), seed=0).tolist() == [0] * 9


# Sessions


def test_only_the_mapping_goes_on_learning(fitted):
    before = fitted.state()
    fitted.learn(session(1))
    after = fitted.state()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"words", *(f"mapping.mapping.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias"))}


def test_distillation_holds_the_old_answers(words, monkeypatch):
    moved = []
    for weight in (0.0, 10.0):
        monkeypatch.setattr(semantic_kd, "DISTILLATION", weight)
        monkeypatch.setattr(semantic_kd, "SESSION_RATE", 1e-3)
        method = fitted_method(SemanticKD, words)
        before = method.scores(session(1))
        method.learn(session(1))
        moved.append(float(distillation(method.scores(session(1))[:, :6], before)))
    assert moved[1] < 0.5 * moved[0]


def test_word_vectors_are_its_memory(fitted):
    assert (fitted.memory().images, fitted.memory().floats) == (0, 6 * 5)
    fitted.learn(session(1))
    assert (fitted.memory().images, fitted.memory().floats) == (0, 8 * 5)
