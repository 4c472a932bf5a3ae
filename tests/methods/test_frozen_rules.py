"""The rules on frozen features against their formulas: NCM, TEEN, FeCAM, RanPAC, the two-covariance rule."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from naive import BASE, DATA, config_of, cosine, fitted, mean, session, softmax, unit
from scipy.spatial.distance import mahalanobis
from sklearn.linear_model import Ridge

from fscil.config import load_recipe
from fscil.errors import ProtocolError
from fscil.experiments.studies import default_methods
from fscil.gallery import balanced_means, class_means
from fscil.gallery.choosing import choose, start
from fscil.gallery.two_covariance import TwoCovariance
from fscil.methods import METHODS, calibrated_statistics, fecam
from fscil.methods.fecam import shrunk_correlation
from fscil.methods.ranpac import ridge_regression
from fscil.methods.teen import calibrated
from fscil.methods.toolkit.frozen_features import tukey
from fscil.protocol import Protocol
from fscil.runtime.files import load_tensors, save_tensors
from helpers import part, small_config, untrained_method


def means_of(method, images):
    """{class: the mean of its features}"""
    features = method.features(images).double().numpy()
    return {label: features[images.labels == label].mean(0) for label in images.counts}


def test_the_network_is_that_of_cross_entropy():
    config = small_config()
    plain = METHODS["finetune"].base_recipe(config)
    for name in ("ncm", "ncm_balanced", "ncm_plda", "teen", "fecam", "ranpac", "c_fecam", "c_ranpac"):
        assert METHODS[name].base_recipe(config) == plain
    assert METHODS["alice_plda"].base_recipe(config) == config
    assert METHODS["closer_plda"].base_recipe(config) == METHODS["closer"].base_recipe(config)


@pytest.mark.parametrize("setting", ["all", "balanced"])
def test_nearest_means_of_all_or_of_as_many_images(setting):
    """Whatever the recipe says of prototypes."""
    for name in ("ncm", "ncm_balanced"):
        method = fitted(name, f"test.prototypes={setting}")
        method.learn(session(1))
        features, labels = method.features(BASE), torch.from_numpy(BASE.labels)
        base = balanced_means(features, labels, 6, 2) if name == "ncm_balanced" else class_means(features, labels, 6)
        prototypes = [*base.tolist(), *(row.tolist() for row in means_of(method, session(1)).values())]
        expected = [[cosine(row, each) for each in prototypes] for row in method.features(DATA.test).tolist()]
        np.testing.assert_allclose(method.scores(DATA.test).numpy(), expected, atol=1e-4)


# Cross-entropy at equal images


@pytest.mark.parametrize("recipe", ["cifar100", "cub200", "glyphs", "cifar100_cpu"])
def test_cross_entropy_sees_as_many_images_as_alice(recipe):
    config, equal = load_recipe(recipe), METHODS["ncm_equal_images"]
    base, protocol = part([4] * 64, 0), Protocol(64, 1, 1)
    seen = [METHODS[name].images_seen(config, base, protocol) for name in ("alice", "ncm_equal_images")]
    assert seen[0] == seen[1]
    longer, plain = equal.base_recipe(config), METHODS["ncm"].base_recipe(config)
    factor = longer.train.epochs // plain.train.epochs
    assert longer.train.drops == tuple(factor * epoch for epoch in plain.train.drops)
    epochs = replace(longer.train, epochs=plain.train.epochs, drops=plain.train.drops)
    assert replace(longer, train=epochs) == plain
    assert equal.base_recipe(longer) == longer  # the recipe of its run folder gives the same network again
    assert ("ncm_equal_images" in default_methods(config)) == (recipe not in ("cifar100_cpu", "glyphs"))  # one view
    assert "as many images seen as ALICE" in equal.title


# TEEN


def naive_calibrated(new, base, weight):
    """(1 - a) p/|p| + a r/|r|, where r is the sum of softmax(16 cos(p, b)) b/|b|"""
    found, directions = [], [unit(each) for each in base]
    for own in new:
        weights = softmax([16 * cosine(own, each) for each in base])
        columns = zip(*directions, strict=True)
        resembled = unit([sum(w * b for w, b in zip(weights, column, strict=True)) for column in columns])
        found.append([(1 - weight) * p + weight * r for p, r in zip(unit(own), resembled, strict=True)])
    return found


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
def test_teen_moves_means_towards_the_base_means_they_resemble(weight):
    new, base = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)), torch.rand(4, 5)
    expected = naive_calibrated(new.tolist(), base.tolist(), weight)
    np.testing.assert_allclose(calibrated(new, base, weight).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("data", "weight"), [("folder", 0.1), ("cub200", 0.5)])
def test_teen_calibrates_by_the_base_classes_alone(data, weight):
    method = fitted("teen", f"data.name={data}")
    base, new = means_of(method, BASE), {}
    for number in (1, 2):
        method.learn(session(number))
        new |= means_of(method, session(number))
    rows = [row.tolist() for row in base.values()]
    prototypes = [*rows, *naive_calibrated([row.tolist() for row in new.values()], rows, weight)]
    expected = [[cosine(row, each) for each in prototypes] for row in method.features(DATA.test).tolist()]
    np.testing.assert_allclose(method.scores(DATA.test).numpy(), expected, atol=1e-4)


# FeCAM


def naive_correlation(rows, shrinkage):
    covariance = np.cov(np.asarray(rows), rowvar=False)
    covariance = covariance + shrinkage * np.mean(np.diag(covariance)) * np.eye(len(covariance))
    deviations = np.sqrt(np.diag(covariance))
    return covariance / np.outer(deviations, deviations)


def transformed_mean(rows):
    """Tukey's transform of the mean of these features, as a unit vector."""
    centre = np.asarray(rows, np.float64).mean(0)
    root = np.sign(centre) * np.sqrt(np.abs(centre))
    return root / np.linalg.norm(root)


def test_shrunk_correlation_against_numpy():
    rows = np.random.default_rng(0).normal(size=(5, 8))
    found = shrunk_correlation(torch.from_numpy(np.cov(rows, rowvar=False)), 3.0)
    np.testing.assert_allclose(found.numpy(), naive_correlation(rows, 3.0), rtol=1e-9, atol=1e-12)


def test_fecam_is_the_mahalanobis_distance_under_the_correlation_of_each_class():
    method, new = fitted("fecam"), session(1)
    method.learn(new)
    everything = [(BASE, range(6)), (new, (6, 7))]
    features = tukey(method.features(DATA.test)).numpy()
    found = method.scores(DATA.test).numpy()
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1)
    for images, classes in everything:
        rows = tukey(method.features(images)).numpy()
        for label in classes:
            inverse = np.linalg.inv(naive_correlation(rows[images.labels == label], 100.0))  # of base classes too
            centre = transformed_mean(method.features(images).numpy()[images.labels == label])
            expected = [-(mahalanobis(row, centre, inverse) ** 2) for row in features]
            np.testing.assert_allclose(found[:, label], expected, rtol=1e-3, atol=1e-4)


def test_a_class_with_one_image_has_the_covariance_of_the_base_classes():
    method = fitted("fecam")
    method.learn(session(1, shots=1))
    assert torch.equal(method.factors[6], method.shared)
    assert torch.equal(method.factors[7], method.shared)


# RanPAC


def test_ridge_regression_against_scikit_learn():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(40, 6)), random.integers(4, size=40)
    targets = np.eye(4)[labels]
    expected = Ridge(alpha=2.5, fit_intercept=False).fit(features, targets).coef_.T
    x = torch.from_numpy(features)
    found = ridge_regression(x.T @ x, x.T @ torch.from_numpy(targets), 2.5)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_ranpac_is_the_ridge_regression_of_all_data_seen():
    method = fitted("ranpac")
    for number in (1, 2):
        method.learn(session(number))
    layer = torch.randn(16, 128, generator=torch.Generator().manual_seed(0))  # 8 times as wide as the features

    def widened(images):
        return method.features(images).double().numpy() @ layer.double().numpy()

    parts = [BASE, session(1), session(2)]
    features = np.maximum(0, np.concatenate([widened(images) for images in parts]))
    targets = np.eye(10)[np.concatenate([images.labels for images in parts])]
    ridge = Ridge(alpha=method.ridge, fit_intercept=False, solver="cholesky").fit(features, targets)
    expected = ridge.predict(np.maximum(0, widened(DATA.test)))
    np.testing.assert_allclose(method.scores(DATA.test).numpy(), expected, atol=1e-3)


def test_the_ridge_has_the_smallest_error_on_held_out_base_images():
    method = fitted("ranpac")
    method.fit_base(BASE, (2,))
    layer = torch.randn(16, 128, generator=torch.Generator().manual_seed(0)).double().numpy()
    features, targets = np.maximum(0, method.features(BASE).double().numpy() @ layer), np.eye(6)[BASE.labels]
    held_out = np.random.default_rng(0).random(len(BASE)) < 0.2
    errors = {}
    for ridge in (10.0**power for power in range(-4, 9)):
        fit = Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(features[~held_out], targets[~held_out])
        errors[ridge] = float(np.square(fit.predict(features[held_out]) - targets[held_out]).mean())
    assert method.ridge == min(errors, key=errors.__getitem__)
    assert errors[method.ridge] < min(errors[1e-4], errors[1e8])


# C-FeCAM and C-RanPAC


def naive_blend(mean, base):
    """Weights of the base classes: softmax of 16 cosines."""
    powers = [math.exp(16 * cosine(mean, each)) for each in base]
    return np.array(powers) / sum(powers)


@pytest.mark.parametrize(("data", "share"), [("folder", 0.25), ("cub200", 0.1)])
@pytest.mark.parametrize("shots", [1, 3])
def test_c_fecam_borrows_mean_and_covariance_of_similar_base_classes(shots, data, share):
    method, new = fitted("c_fecam", f"data.name={data}"), session(1, shots=shots)
    method.learn(new)
    rows = tukey(method.features(BASE)).numpy()
    base = [rows[BASE.labels == label] for label in range(6)]
    queries, found = tukey(method.features(DATA.test)).numpy(), method.scores(DATA.test).numpy()
    raw, raw_new = method.features(BASE).numpy(), method.features(new).numpy()
    directions = [transformed_mean(raw[BASE.labels == label]) for label in range(6)]
    for label in (6, 7):
        own = tukey(method.features(new)).numpy()[new.labels == label]
        centre = transformed_mean(raw_new[new.labels == label])
        weights = naive_blend(centre, directions)
        borrowed = sum(w * each for w, each in zip(weights, directions, strict=True))
        mean = (1 - share) * centre + share * borrowed / np.linalg.norm(borrowed)
        mean = mean / np.linalg.norm(mean)
        spread = sum(w * np.cov(each, rowvar=False) for w, each in zip(weights, base, strict=True))
        spread = spread + (np.cov(own, rowvar=False) if shots > 1 else 0)
        shrunk = spread + 100 * np.mean(np.diag(spread)) * np.eye(len(spread))
        inverse = np.linalg.inv(shrunk / np.sqrt(np.outer(np.diag(shrunk), np.diag(shrunk))))
        expected = [-(mahalanobis(row, mean, inverse) ** 2) for row in queries]
        np.testing.assert_allclose(found[:, label], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("data", "share"), [("folder", 0.25), ("cub200", 0.1)])
@pytest.mark.parametrize("shots", [1, 3])
def test_c_ranpac_learns_from_as_many_features_as_their_gaussian_gives(shots, data, share):
    """Sums of the widened features of 800 draws are, within the chance of 800, those of the calibrated Gaussian."""
    method, new = fitted("c_ranpac", f"data.name={data}"), session(1, shots=shots)
    before = method.gram.clone()
    method.learn(new)
    layer = torch.randn(16, 128, generator=torch.Generator().manual_seed(0)).double().numpy()
    rows = method.features(BASE).double().numpy()
    base = [rows[BASE.labels == label] for label in range(6)]
    random, expected_gram = np.random.default_rng(0), np.zeros((128, 128))
    for place, label in enumerate((6, 7)):
        own = method.features(new).double().numpy()[new.labels == label]
        weights = naive_blend(own.mean(0), [each.mean(0) for each in base])
        borrowed = sum(w * each.mean(0) for w, each in zip(weights, base, strict=True))
        mean = (1 - share) * own.mean(0) + share * borrowed
        spread = sum(w * np.cov(each, rowvar=False) for w, each in zip(weights, base, strict=True))
        spread = (spread + (np.cov(own, rowvar=False) if shots > 1 else 0)) / 2
        widened = np.maximum(0, random.multivariate_normal(mean, spread, 20_000) @ layer)
        chance = 5 * widened.std(0) / 800**0.5 + 1e-6
        assert (np.abs(method.sums[6 + place].numpy() / 800 - widened.mean(0)) < chance).all()
        expected_gram += 800 * widened.T @ widened / len(widened)
    added = (method.gram - before).numpy()
    assert np.linalg.norm(added - expected_gram) < 0.1 * np.linalg.norm(expected_gram)


# The two-covariance rule


def test_scores_are_log_likelihood_ratios_of_gaussians():
    """Given n photos of a class with the mean m: N(x; nB/(nB+W) m, W + B/(nB+W)) over N(x; 0, W + B), where W is 1."""
    method = fitted("alice_plda")
    method.learn(session(1))
    model, psi = method.model, method.model.psi.tolist()
    mapped = model.transform(method.features(DATA.test)).double().tolist()
    photos = {label: [] for label in range(8)}
    for images in (BASE, session(1)):
        for row, label in zip(model.transform(method.features(images)).double().tolist(), images.labels, strict=True):
            photos[int(label)].append(row)

    def log_density(x, centre, variance):
        return -0.5 * (math.log(2 * math.pi * variance) + (x - centre) ** 2 / variance)

    found = method.scores(DATA.test)
    for n, query in enumerate(mapped[:5]):
        for label, rows in photos.items():
            count, total = len(rows) / (1 + model.correlation * (len(rows) - 1)), 0.0
            for k, p in enumerate(psi):
                centre = count * p / (count * p + 1) * mean(row[k] for row in rows)
                total += log_density(query[k], centre, 1 + p / (count * p + 1)) - log_density(query[k], 0.0, 1 + p)
            assert float(found[n, label]) == pytest.approx(total, rel=1e-2, abs=1e-2)


def test_constants_of_an_untouched_network_are_chosen_of_a_trained_one_fixed():
    features, labels = fitted("alice_plda").features(BASE), torch.from_numpy(BASE.labels)
    for epochs, constants in ((0, choose(features, labels, (2,)).constants), (1, start(6))):
        expected = TwoCovariance.fit(features, labels, **asdict(constants))
        torch.testing.assert_close(fitted("alice_plda", f"train.epochs={epochs}").model.psi, expected.psi)


def test_a_class_is_a_sum_and_a_count():
    method = fitted("ncm_plda")
    before = method.memory().floats
    method.learn(session(1))
    assert method.counts.tolist() == [8] * 6 + [2] * 2
    assert method.memory().floats == before + 2 * len(method.model.psi)
    assert method.memory().images == 0
    assert method.alternatives(DATA.test) == {}
    assert isinstance(method.model, TwoCovariance)


def test_one_base_class_is_too_few_for_two_covariances():
    method = untrained_method("alice_plda", small_config(), 1)
    with pytest.raises(ProtocolError, match="two base classes"):
        method.fit_base(part([6], 0), (2,))


@pytest.mark.parametrize("name", ["fecam", "c_fecam", "c_ranpac"])
def test_with_wide_features_classes_share_a_covariance_and_the_state_can_be_saved(name, tmp_path, monkeypatch):
    """Wide: as those of pretrained networks are. The rule goes on from the file as it would have without."""
    for module in (fecam, calibrated_statistics):
        monkeypatch.setattr(module, "MAX_OWN_WIDTH", 1)
    method = untrained_method(name, config_of(), 6)
    method.fit_base(BASE, (2, 1))
    save_tensors(tmp_path / "fitted.safetensors", method.state())
    again = untrained_method(name, config_of(), 6)
    again.load_state(load_tensors(tmp_path / "fitted.safetensors")[0])
    for each in (method, again):
        each.learn(session(1))
    torch.testing.assert_close(again.scores(BASE), method.scores(BASE))
    if name != "c_ranpac":
        (factor,), queries = method.factors.double(), tukey(method.features(BASE), 0.5)
        means = [mean / mean.norm() for mean in method.means.double()]
        distances = [[((query - mean) @ factor.T).square().sum() for mean in means] for query in queries]
        torch.testing.assert_close(
            -method.scores(BASE).double(), torch.tensor(distances).double(), rtol=1e-4, atol=1e-4
        )
