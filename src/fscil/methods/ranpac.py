"""RanPAC (McDonnell et al., NeurIPS 2023): ridge regression on features that passed a fixed random ReLU layer.

The random layer makes classes easier to part by a linear map; its weights are never trained. Gram matrix and class sums
add up over the sessions, so that the regression is that of all data seen, with no image kept. The paper's layer has
10,000 outputs on features of 768; here it is WIDEN times as wide as the features, at most MAX_WIDTH. The ridge is
chosen as in the paper, on a held-out part of the base images.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context

WIDEN, MAX_WIDTH = 8, 4096
RIDGES = tuple(10.0**power for power in range(-4, 9))
HELD_OUT = 0.2  # of the base images, to choose the ridge


class RanPac(FrozenFeatureMethod):
    """Keeps the Gram matrix and the sums of each class."""

    title = "RanPAC"
    table_order = 170

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        dim = self.backbone.feature_dim
        width = min(WIDEN * dim, MAX_WIDTH)
        generator = torch.Generator().manual_seed(config.train.seed)
        self._layer = torch.randn(dim, width, generator=generator)
        # In double precision: rounded to single, a Gram matrix is not positive definite with a small ridge.
        self.gram = torch.zeros(width, width, dtype=torch.float64)
        self.sums = torch.zeros(0, width, dtype=torch.float64)  # (classes, width)
        self.ridge = 1.0
        self._weights: Tensor | None = None  # (width, classes), until a session adds to the sums

    def widen(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, width) float64"""
        return F.relu(features @ self._layer).double()

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.gram, self.sums = torch.zeros_like(self.gram), self.sums[:0]
        self.ridge = self._chosen_ridge(base)
        self._add_images(base)

    def _chosen_ridge(self, base: Images) -> float:
        """The one with the smallest squared error on held-out base images."""
        features, labels = self.widen(self.features(base)), torch.from_numpy(base.labels)
        held_out = torch.from_numpy(np.random.default_rng(self.config.train.seed).random(len(base)) < HELD_OUT)
        targets = F.one_hot(labels, len(base.counts)).double()
        gram, sums = features[~held_out].T @ features[~held_out], features[~held_out].T @ targets[~held_out]
        errors = [
            (features[held_out] @ ridge_regression(gram, sums, ridge) - targets[held_out]).square().mean()
            for ridge in RIDGES
        ]
        return RIDGES[int(torch.stack(errors).argmin())]

    def learn(self, new: Images) -> None:
        check_numbers(new, len(self.sums))
        self._add_images(new)

    def _add_images(self, images: Images) -> None:
        labels = torch.from_numpy(images.labels - len(self.sums))
        self.add(self.widen(self.features(images)), labels, len(images.counts))

    def add(self, widened: Tensor, labels: Tensor, classes: int) -> None:
        """(n, width) features of further classes, and (n,) labels 0..classes-1 among them."""
        self.gram = self.gram + widened.T @ widened
        sums = torch.zeros(classes, widened.shape[1], dtype=torch.float64)
        self.sums = torch.cat([self.sums, sums.index_add_(0, labels, widened)])
        self._weights = None

    def scores(self, images: Images) -> Tensor:
        if self._weights is None:
            self._weights = ridge_regression(self.gram, self.sums.T, self.ridge)
        return (self.widen(self.features(images)) @ self._weights).float()

    def memory(self) -> Memory:
        return Memory(floats=self.gram.numel() + self.sums.numel() + 1)  # and the ridge

    def own_state(self) -> dict[str, Tensor]:
        """gram, sums, ridge"""
        return {"gram": self.gram, "sums": self.sums, "ridge": torch.tensor(self.ridge, dtype=torch.float64)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.gram, self.sums, self.ridge = state["gram"], state["sums"], float(state["ridge"])
        self._weights = None


def ridge_regression(gram: Tensor, sums: Tensor, ridge: float) -> Tensor:
    """(M, M) Gram matrix, (M, C) sums of the features of each class -> (M, C) weights."""
    regularised = gram + ridge * torch.eye(len(gram), dtype=gram.dtype)
    return torch.cholesky_solve(sums, torch.linalg.cholesky(regularised))
