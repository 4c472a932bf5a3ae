"""Synthesized features against their formulas written out in loops: subspaces, autoencoder, a session."""

import math

import numpy as np
import pytest
import torch
from word_systems import DATA, TABLE, fitted_method, record_trainings, session

from fscil.methods import synthesized
from fscil.methods.synthesized import LATENT, RANK, SHARPNESS, SUBSPACES, MixtureOfSubspaces, Synthesized, Synthesizer
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.train_on_features import Schedule, generator_of, standardised, train_on_features
from helpers import CONTEXT


@pytest.fixture
def fitted(words):
    return fitted_method(Synthesized, words)


def unit(vector):
    vector = np.asarray(vector, np.float64)
    return vector / math.sqrt((vector**2).sum())


# The mixture of subspaces


def planes(count=2, each=40):
    """Features on planes in 8 dimensions, far from each other; and the planes."""
    random = np.random.default_rng(3)
    features, truth = [], []
    for number in range(count):
        basis, _ = np.linalg.qr(random.normal(size=(8, 2)))
        mean = 20 * np.eye(8)[number]
        features.append(mean + random.normal(size=(each, 2)) @ basis.T)
        truth.append((mean, basis))
    return torch.from_numpy(np.concatenate(features)).float(), truth


def test_subspaces_are_found(monkeypatch):
    monkeypatch.setattr(synthesized, "SUBSPACES", 2)
    features, truth = planes()
    found = MixtureOfSubspaces.of(features, seed=0)
    for mean, basis in truth:
        number = int(((found.means.numpy() - mean) ** 2).sum(1).argmin())
        own = found.bases[number].double().numpy()
        np.testing.assert_allclose(own.T @ own, np.eye(2), atol=1e-5)
        np.testing.assert_allclose(own @ own.T, basis @ basis.T, atol=1e-4)
        distances = found.project(features)[1]
        assert float(distances.amin(1).max()) < 1e-3  # nothing is left outside them
        assert float(found.spread) == pytest.approx(float(distances.mean()), rel=1e-5)


def test_few_features_give_few_directions():
    """As many subspaces as features; a lone one has a place and no direction."""
    features = torch.eye(4)
    found = MixtureOfSubspaces.of(torch.cat([features, features]), seed=0)
    assert found.means.shape == (4, 4)
    assert not found(features).any()


def naive_place(subspaces, feature):
    """One feature -> its coordinates and its square distance from each subspace, by projection."""
    places = []
    for mean, basis in zip(subspaces.means.double().numpy(), subspaces.bases.double().numpy(), strict=True):
        coordinates = [float((feature - mean) @ direction) for direction in basis.T]
        shadow = mean + sum(x * direction for x, direction in zip(coordinates, basis.T, strict=True))
        places.append((coordinates, float(((feature - shadow) ** 2).sum())))
    return places


def naive_description(subspaces, feature):
    places, spread = naive_place(subspaces, feature), float(subspaces.spread)
    shares = [math.exp(-SHARPNESS * distance / spread) for _, distance in places]
    return [
        x * share / sum(shares) for (coordinates, _), share in zip(places, shares, strict=True) for x in coordinates
    ]


def test_a_feature_is_described_by_its_projections():
    torch.manual_seed(0)
    features = torch.randn(60, 8)
    subspaces = MixtureOfSubspaces.of(features, seed=0)
    others = torch.randn(5, 8)
    coordinates, distances = subspaces.project(others)
    for feature, mine, far, description in zip(others, coordinates, distances, subspaces(others), strict=True):
        expected = naive_place(subspaces, feature.double().numpy())
        np.testing.assert_allclose(mine, [each for each, _ in expected], atol=1e-4)
        np.testing.assert_allclose(far, [each for _, each in expected], atol=1e-3)
        np.testing.assert_allclose(description, naive_description(subspaces, feature.double().numpy()), atol=1e-3)


# The autoencoder


def layers(network, vector):
    first, _, last = network
    hidden = first.weight.detach().double().numpy() @ vector + first.bias.detach().double().numpy()
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    return last.weight.detach().double().numpy() @ hidden + last.bias.detach().double().numpy()


def test_the_loss_of_the_autoencoder():
    torch.manual_seed(0)
    synthesizer = Synthesizer(6, 4)
    features, words, noise = torch.randn(3, 6), torch.randn(3, 4), torch.randn(3, LATENT)
    expected = 0.0
    for x, vector, draw in zip(features.double().numpy(), words.double().numpy(), noise.double().numpy(), strict=True):
        word = (vector - vector.mean()) / math.sqrt(((vector - vector.mean()) ** 2).mean())
        code = layers(synthesizer.encoder, np.concatenate([x, word]))
        mean, log_variance = code[:LATENT], code[LATENT:]
        sample = [m + math.exp(v / 2) * e for m, v, e in zip(mean, log_variance, draw, strict=True)]
        again = layers(synthesizer.decoder, np.concatenate([sample, word]))
        expected += sum((a - b) ** 2 for a, b in zip(again, x, strict=True)) / 3
        expected -= sum(1 + v - m**2 - math.exp(v) for m, v in zip(mean, log_variance, strict=True)) / 2 / 3
    assert synthesizer.loss(features, words, noise).item() == pytest.approx(expected, rel=1e-4)


def test_it_makes_features_of_the_word_that_is_asked_for():
    """Trained on two words far apart, it makes features around the mean of the right one."""
    torch.manual_seed(0)
    words, means = torch.eye(2), torch.tensor([[4.0, 0, 0], [0, 4.0, 0]])
    labels = torch.arange(2).repeat_interleave(40)
    features = means[labels] + 0.5 * torch.randn(80, 3)
    synthesizer, random = Synthesizer(3, 2), generator_of(0, 0)

    def loss(features, labels):
        return synthesizer.loss(features, words[labels], torch.randn(len(labels), LATENT, generator=random))

    train_on_features(synthesizer, lambda: (features, labels), loss, Schedule(150, 40, 3e-3), random, CONTEXT, "")
    for label in (0, 1):
        made = synthesizer(words[label].expand(200, 2), torch.randn(200, LATENT, generator=random))
        assert not made.requires_grad
        np.testing.assert_allclose(made.mean(0), means[label], atol=1)


# The method


def test_a_class_scores_by_the_cosine_to_its_word_vector(fitted):
    features = standardised(fitted.network.features(DATA.test)).double().numpy()
    for classes in (6, 8):
        expected = []
        for feature in features:
            described = np.concatenate([feature, naive_description(fitted.subspaces, feature)])
            place = unit(layers(fitted.mapping, described))
            expected.append([16 * place @ unit(TABLE[label]) for label in range(classes)])
        np.testing.assert_allclose(fitted.scores(DATA.test), expected, atol=2e-2)
        fitted.learn(session(1)) if classes == 6 else None


def test_a_session_learns_among_generated_features_of_old_classes(fitted):
    """In every epoch one of each class: generated for the old ones, any of its images for a new one. For both parts."""
    trainings = record_trainings(fitted)
    new, width = session(1), fitted.network.backbone.feature_dim
    fitted.learn(new)
    real = standardised(fitted.network.features(new))
    assert [part for part, _, _ in trainings] == [fitted.mapping, fitted.synthesizer]
    for (_, examples, loss), inputs in zip(trainings, (fitted.mapping[0].in_features, width), strict=True):
        drawn = [examples() for _ in range(12)]
        assert all(math.isfinite(loss(*each).item()) for each in drawn)
        for features, labels in drawn:
            assert features.shape == (8, inputs)
            assert labels.tolist() == list(range(8))
        generated = torch.stack([features[:6, :width] for features, _ in drawn])
        assert generated.var(0).sum(1).min() > 0  # no two alike
        for label in (6, 7):
            own = {tuple(feature) for feature in real[new.labels == label].tolist()}
            assert {tuple(features[label, :width].tolist()) for features, _ in drawn} == own


def naive_scores(mapping, described, classes):
    """(n, classes): scaled cosines of what the mapping makes of each row to the word vectors"""
    places = [unit(layers(mapping, row)) for row in described.detach().double().numpy()]
    return torch.tensor([[16 * place @ unit(TABLE[label]) for label in range(classes)] for place in places])


def test_the_loss_of_a_session_is_cross_entropy_and_distillation(fitted):
    """Before any step, old and new mapping agree, so that only cross-entropy is left."""
    trainings = record_trainings(fitted)
    fitted.learn(session(1))
    mapping, examples, loss = trainings[0]
    described, labels = examples()
    scores = naive_scores(mapping, described, 8)
    before = torch.nn.functional.cross_entropy(scores, labels).item()
    assert loss(described, labels).item() == pytest.approx(before, abs=1e-4)
    with torch.no_grad():
        mapping[2].weight.add_(torch.randn(mapping[2].weight.shape, generator=torch.Generator().manual_seed(0)))
    changed = naive_scores(mapping, described, 8)
    after = torch.nn.functional.cross_entropy(changed, labels) + distillation(changed[:, :6], scores[:, :6])
    assert loss(described, labels).item() == pytest.approx(after.item(), rel=1e-4)
    assert after > before


def test_backbone_and_subspaces_stay_as_they_are(fitted):
    before = fitted.state()
    fitted.learn(session(1))
    after = fitted.state()
    for name in before:
        if name.startswith(("backbone.", "subspaces.")):
            assert torch.equal(before[name], after[name])
        elif name.endswith("weight") and name.startswith(("mapping.", "synthesizer.")):
            assert not torch.equal(before[name], after[name])


def test_what_stands_for_old_data_is_its_memory(fitted):
    width, rank = fitted.network.backbone.feature_dim, min(RANK, fitted.network.backbone.feature_dim // 4)
    subspaces = SUBSPACES * (width + width * rank) + 1
    maker = sum(each.numel() for each in Synthesizer(width, 5).parameters())
    assert (fitted.memory().images, fitted.memory().floats) == (0, 6 * 5 + subspaces + maker)
    fitted.learn(session(1))
    assert (fitted.memory().images, fitted.memory().floats) == (0, 8 * 5 + subspaces + maker)
