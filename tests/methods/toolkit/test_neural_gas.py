"""Neural gas against its update written out in loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscil.methods.toolkit.neural_gas import NO_EDGE, NeuralGas


def naive_update(centroids, edges, feature):
    """One feature: new centroids as lists, edges as a dict from pairs to ages; nothing is changed in place."""
    distances = [math.dist(feature, centroid) for centroid in centroids]
    order = sorted(range(len(centroids)), key=lambda node: distances[node])
    moved = [list(centroid) for centroid in centroids]
    for rank, node in enumerate(order):
        for k, value in enumerate(feature):
            moved[node][k] += 0.02 * math.exp(-rank / 1.0) * (value - centroids[node][k])
    winner, second = order[:2]
    older = {pair: age + 1 if winner in pair else age for pair, age in edges.items()}
    older[frozenset((winner, second))] = 0
    return moved, {pair: age for pair, age in older.items() if age <= 200}


def edges_of(gas):
    pairs = zip(*np.nonzero(gas.ages != NO_EDGE), strict=True)
    return {frozenset(map(int, pair)): int(gas.ages[pair]) for pair in pairs}


@given(seed=st.integers(0, 2**31), nodes=st.integers(2, 40))
def test_updates_are_those_of_the_formula(seed, nodes):
    random = np.random.default_rng(seed)
    start = random.normal(size=(nodes, 3)).astype(np.float32)
    gas, centroids, edges = NeuralGas(start.copy()), start.tolist(), {}
    for feature in random.normal(size=(25, 3)).astype(np.float32):
        gas.adapt(feature)
        centroids, edges = naive_update(centroids, edges, feature.tolist())
        assert edges_of(gas) == edges
    np.testing.assert_allclose(gas.centroids, centroids, atol=1e-5)
    np.testing.assert_array_equal(gas.ages, gas.ages.T)


def test_an_edge_not_confirmed_for_201_wins_is_dropped():
    """Three nodes on a line; the middle one wins every time, first next to the left one, then next to the right."""
    gas = NeuralGas(np.array([[-1.0], [0.0], [1.0]], np.float32))
    gas.link(np.array([-0.1], np.float32))
    for _ in range(200):
        gas.link(np.array([0.1], np.float32))
    assert edges_of(gas) == {frozenset((0, 1)): 200, frozenset((1, 2)): 0}
    gas.link(np.array([0.1], np.float32))
    assert edges_of(gas) == {frozenset((1, 2)): 0}


def test_linking_moves_nothing():
    gas = NeuralGas(np.eye(3, dtype=np.float32))
    gas.link(np.array([0.9, 0.8, 0.0], np.float32))
    np.testing.assert_array_equal(gas.centroids, np.eye(3))
    assert edges_of(gas) == {frozenset((0, 1)): 0}


def test_new_nodes_leave_the_old_ones_as_they_are():
    gas = NeuralGas(np.eye(3, dtype=np.float32))
    gas.link(np.array([0.9, 0.8, 0.0], np.float32))
    gas.grow(np.full((2, 3), 5, np.float32))
    assert gas.centroids.shape == (5, 3)
    np.testing.assert_array_equal(gas.centroids[:3], np.eye(3))
    assert edges_of(gas) == {frozenset((0, 1)): 0}
    assert gas.linked.sum() == 2


def clusters(random, count):
    """(count, 2) around three far corners, and which."""
    corners = np.array([[0, 0], [20, 0], [0, 20]])
    which = random.integers(3, size=count)
    return (corners[which] + random.normal(size=(count, 2))).astype(np.float32), which


def test_the_fit_covers_the_features_and_links_neighbours_only():
    features, which = clusters(np.random.default_rng(0), 600)
    gas = NeuralGas.fit(features, 30, seed=0)
    distance = np.linalg.norm(features[:, None] - gas.centroids, axis=2)
    assert distance.min(1).mean() < 0.5
    home = which[distance.argmin(0)]
    assert set(home) == {0, 1, 2}
    assert all(home[a] == home[b] for a, b in np.argwhere(gas.linked))
    assert (gas.linked.sum(1) >= 1).all()


@pytest.mark.parametrize("nodes", [2, 10])
def test_as_many_nodes_as_features_at_most_and_the_same_for_the_same_seed(nodes):
    features, _ = clusters(np.random.default_rng(1), 10)
    untouched = features.copy()
    first, again, other = (NeuralGas.fit(features, nodes, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(features, untouched)
    assert first.centroids.shape == (nodes, 2)
    np.testing.assert_array_equal(first.centroids, again.centroids)
    np.testing.assert_array_equal(first.ages, again.ages)
    assert not np.array_equal(first.centroids, other.centroids)
