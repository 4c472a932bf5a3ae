"""Neural gas (Martinetz & Schulten, 1991): nodes that spread over features, linked where features lie between them."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]

RATE = 0.02  # step of the nearest node towards a feature
DECAY = 1.0  # the i-th nearest moves by exp(-i / DECAY) of that
MAX_AGE = 200  # an edge older than that is removed
UPDATES = 100  # features shown per node, on average
NO_EDGE = -1

# Steps of the nearest nodes; those of higher rank would be lost in rounding.
_STEPS = (RATE * np.exp(-np.arange(20) / DECAY)).astype(np.float32)[:, None]


class NeuralGas:
    """centroids: (N, d). ages: (N, N) symmetric, the age of each edge or NO_EDGE."""

    def __init__(self, centroids: Floats, ages: NDArray[np.int64] | None = None) -> None:
        self.centroids = centroids
        self.ages = np.full((len(centroids),) * 2, NO_EDGE, np.int64) if ages is None else ages

    @classmethod
    def fit(cls, features: Floats, nodes: int, seed: int) -> "NeuralGas":
        """(n, d) features, n >= nodes >= 2: the nodes start at random ones, then adapt to all in random order."""
        random = np.random.default_rng(seed)
        gas = cls(features[random.choice(len(features), nodes, replace=False)])
        left = UPDATES * nodes
        while left > 0:
            for row in random.permutation(len(features))[:left]:
                gas.adapt(features[row])
            left -= len(features)
        return gas

    def adapt(self, feature: Floats) -> None:
        """(d,): the nodes move towards it, each by its rank of distance; the two nearest are linked."""
        towards = feature - self.centroids
        order = np.argsort(np.einsum("nd,nd->n", towards, towards), kind="stable")
        moved = order[: len(_STEPS)]
        self.centroids[moved] += _STEPS[: len(moved)] * towards[moved]
        self._link(order[0], order[1])

    def link(self, feature: Floats) -> None:
        """(d,): the two nodes nearest to it are linked; no node moves."""
        away = feature - self.centroids
        order = np.argsort(np.einsum("nd,nd->n", away, away), kind="stable")
        self._link(order[0], order[1])

    def _link(self, winner: int, second: int) -> None:
        """Competitive Hebbian learning: the winner's edges age, except that to the second nearest, which is renewed."""
        ages = self.ages[winner]
        ages[ages != NO_EDGE] += 1
        ages[second] = 0
        ages[ages > MAX_AGE] = NO_EDGE
        self.ages[:, winner] = ages

    def grow(self, centroids: Floats) -> None:
        """(k, d): add nodes, without edges."""
        self.centroids = np.concatenate([self.centroids, centroids])
        self.ages = np.pad(self.ages, (0, len(centroids)), constant_values=NO_EDGE)

    @property
    def linked(self) -> NDArray[np.bool_]:
        """(N, N)"""
        linked: NDArray[Any] = self.ages != NO_EDGE
        return linked
