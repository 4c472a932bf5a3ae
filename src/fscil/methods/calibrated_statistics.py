"""C-FeCAM and C-RanPAC (Goswami et al., 2024): statistics of few images, calibrated by those of similar base classes.

A covariance of five images measures four directions, and a regression of five images beside five hundred hardly names
their class. So a new class borrows: its mean moves towards the base classes it resembles, as in TEEN, and their
covariances are blended into its own by the same weights. FeCAM then measures distances under it; RanPAC regresses
features drawn from the Gaussian.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.gallery import class_means, cosine_scores
from fscil.methods.base import Memory
from fscil.methods.fecam import MAX_OWN_WIDTH, POWER, SHRINKAGE, FeCam, inverse_factor
from fscil.methods.ranpac import RanPac
from fscil.methods.teen import FINE_GRAINED, SCALE
from fscil.methods.toolkit.frozen_features import tukey
from fscil.methods.toolkit.growing_network import check_numbers

COARSE, FINE = 0.25, 0.1  # weight of the base means: CIFAR100, and CUB200 and other fine-grained classes
DRAWN = 800  # features of a new class that C-RanPAC learns from


def class_covariances(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(n, d) features -> (classes, d, d); nothing where a class has one image."""
    parts = [features[labels == label] for label in range(classes)]
    return torch.stack([torch.cov(own.T) if len(own) > 1 else own.T @ own * 0 for own in parts])


def resemblance(means: Tensor, base: Tensor) -> Tensor:
    """(new, d) and (base, d) means -> (new, base) weights of the base classes, with the sum 1."""
    return (SCALE * cosine_scores(means, base)).softmax(1).to(base.dtype)


class CalibratedFeCam(FeCam):
    """Keeps the covariances of the base classes beside what FeCAM keeps; wide features share one matrix, as there."""

    title = "C-FeCAM"
    table_order = 165
    covariances = torch.empty(0)  # (base classes, d, d)
    base_classes = 0

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        super().fit_base(base, shots)
        self.base_classes = len(base.counts)
        features, labels = tukey(self.features(base), POWER), torch.from_numpy(base.labels)
        if features.shape[1] <= MAX_OWN_WIDTH:
            self.covariances = class_covariances(features, labels, self.base_classes).float()

    def learn(self, new: Images) -> None:
        first = len(self.means)
        means, base = self.transformed_means(new, first), self.means[: self.base_classes]
        features, labels = tukey(self.features(new), POWER), torch.from_numpy(new.labels - first)
        weights = resemblance(means, base)
        share = FINE if self.config.data.name in FINE_GRAINED else COARSE
        own, borrowed = F.normalize(means, dim=1), F.normalize(weights @ F.normalize(base, dim=1), dim=1)
        self.means = torch.cat([self.means, (1 - share) * own + share * borrowed])
        if features.shape[1] <= MAX_OWN_WIDTH:
            blended = torch.tensordot(weights.double(), self.covariances.double(), 1)
            blended += class_covariances(features, labels, len(new.counts))
            self.factors = torch.cat([self.factors, torch.stack([inverse_factor(one, SHRINKAGE) for one in blended])])

    def memory(self) -> Memory:
        return Memory(floats=super().memory().floats + self.covariances.numel())

    def own_state(self) -> dict[str, Tensor]:
        """FeCAM's, covariances, base_classes"""
        calibration = {"covariances": self.covariances, "base_classes": torch.tensor(self.base_classes)}
        return {**super().own_state(), **calibration}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.covariances, self.base_classes = state["covariances"], int(state["base_classes"])


class CalibratedRanPac(RanPac):
    """Keeps mean and covariance of the base classes beside what RanPAC keeps."""

    title = "C-RanPAC"
    table_order = 175
    base_means = torch.empty(0)  # (base classes, d)
    covariances = torch.empty(0)  # (base classes, d, d); (1, d, d), their mean, where features are wide

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        super().fit_base(base, shots)
        features, labels = self.features(base).double(), torch.from_numpy(base.labels)
        self.base_means = class_means(features, labels, len(base.counts)).float()
        if features.shape[1] <= MAX_OWN_WIDTH:
            self.covariances = class_covariances(features, labels, len(base.counts)).float()
        else:
            self.covariances = torch.cov((features - self.base_means.double()[labels]).T).float()[None]

    def learn(self, new: Images) -> None:
        first, classes = len(self.sums), len(new.counts)
        check_numbers(new, first)
        features, labels = self.features(new).double(), torch.from_numpy(new.labels - first)
        means = class_means(features, labels, classes)
        weights = resemblance(means, self.base_means.double())
        share = FINE if self.config.data.name in FINE_GRAINED else COARSE
        centres = (1 - share) * means + share * weights @ self.base_means.double()
        many = len(self.covariances) > 1
        blended = torch.tensordot(weights if many else torch.ones(classes, 1).double(), self.covariances.double(), 1)
        spreads = (blended + class_covariances(features, labels, classes)) / 2
        generator = torch.Generator().manual_seed(self.config.train.seed + first)
        drawn = [_draw(centre, spread, generator) for centre, spread in zip(centres, spreads, strict=True)]
        self.add(self.widen(torch.cat(drawn).float()), torch.arange(classes).repeat_interleave(DRAWN), classes)

    def memory(self) -> Memory:
        return Memory(floats=super().memory().floats + self.base_means.numel() + self.covariances.numel())

    def own_state(self) -> dict[str, Tensor]:
        """RanPAC's, base_means, covariances"""
        return {**super().own_state(), "base_means": self.base_means, "covariances": self.covariances}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.base_means, self.covariances = state["base_means"], state["covariances"]


def _draw(mean: Tensor, covariance: Tensor, generator: torch.Generator) -> Tensor:
    """(DRAWN, d) from the Gaussian; the covariance need not have full rank."""
    variances, directions = torch.linalg.eigh(covariance)
    noise = torch.randn(DRAWN, len(mean), generator=generator, dtype=torch.float64)
    drawn: Tensor = mean + (noise * variances.clamp_min(0).sqrt()) @ directions.T
    return drawn
