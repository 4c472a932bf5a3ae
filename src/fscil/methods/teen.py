"""TEEN (Wang et al., NeurIPS 2023): nearest means; those of new classes move towards the base classes they resemble.

Needs no training after the base session. The direction of a mean of few images is calibrated by those of the base
means, weighted by a softmax of their cosines.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.gallery import cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod

SCALE = 16.0  # of the cosines between a new mean and the base means
COARSE, FINE = 0.1, 0.5  # the paper's weight of the base means: CIFAR100 and miniImageNet; CUB200
FINE_GRAINED = ("cub200",)


def calibrated(means: Tensor, base: Tensor, weight: float) -> Tensor:
    """(new, d) means and (base, d) means -> (new, d): (1 - weight) of the own direction, weight of what it resembles.

    All of them count by their directions: means, base means and the weighted sum of these.
    """
    resembled = (SCALE * cosine_scores(means, base)).softmax(1) @ F.normalize(base)
    return (1 - weight) * F.normalize(means) + weight * F.normalize(resembled)


class Teen(FrozenFeatureMethod):
    """Keeps one mean per class."""

    title = "TEEN"
    table_order = 110
    means = torch.empty(0)  # (classes, d)
    base_classes = 0

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.means, self.base_classes = self.means_of(base, 0), len(base.counts)

    def learn(self, new: Images) -> None:
        weight = FINE if self.config.data.name in FINE_GRAINED else COARSE
        means = calibrated(self.means_of(new, len(self.means)), self.means[: self.base_classes], weight)
        self.means = torch.cat([self.means, means])

    def scores(self, images: Images) -> Tensor:
        return cosine_scores(self.features(images), self.means)

    def memory(self) -> Memory:
        return Memory(floats=self.means.numel())

    def own_state(self) -> dict[str, Tensor]:
        """means, base_classes"""
        return {"means": self.means, "base_classes": torch.tensor(self.base_classes)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.means, self.base_classes = state["means"], int(state["base_classes"])
