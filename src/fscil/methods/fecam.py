"""FeCAM (Goswami et al., NeurIPS 2023): the Mahalanobis distance to a class mean, under the class's own covariance.

Features and the class means of features pass Tukey's power transform, and both have unit length. A covariance is shrunk
towards its mean diagonal, because few images leave most directions unmeasured, and normalised to a correlation matrix,
so that the distances to classes of different spread can be compared. Base classes are shrunk as much as new ones: under
a matrix that is trusted more, all images are nearer. The paper also shrinks towards the mean off-diagonal value; its
authors leave that out for few shots (Goswami et al., 2024), as is done here. A class with a single image has none and
takes that of the base classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.gallery import class_means
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod, tukey

POWER = 0.5  # of Tukey's transform
SHRINKAGE = 100.0  # weight of the mean variance on the diagonal: the authors' for few shots, for base classes too
MAX_OWN_WIDTH = 512  # of the features for which every class has a covariance of its own, as memory allows


def shrunk_correlation(covariance: Tensor, shrinkage: float) -> Tensor:
    """(d, d) covariance -> its correlation matrix, after `shrinkage` mean variances were added to the diagonal."""
    added = shrinkage * covariance.diagonal().mean().clamp_min(1e-12)
    shrunk = covariance + added * torch.eye(len(covariance), dtype=covariance.dtype)
    deviations = shrunk.diagonal().sqrt()
    return shrunk.div(deviations[:, None]).div(deviations)


def inverse_factor(covariance: Tensor, shrinkage: float) -> Tensor:
    """(d, d) covariance -> F with F' F = the inverse of its shrunk correlation matrix"""
    inverse = torch.linalg.inv(shrunk_correlation(covariance, shrinkage))
    factor: Tensor = torch.linalg.cholesky((inverse + inverse.T) / 2).T.float()
    return factor


class FeCam(FrozenFeatureMethod):
    """Keeps per class a mean and a factor of its inverse correlation matrix; wide features share one matrix."""

    title = "FeCAM"
    table_order = 160
    means = torch.empty(0)  # (classes, d)
    factors = torch.empty(0)  # (classes, d, d): F with F' F = inverse correlation; (1, d, d) where it is shared
    shared = torch.empty(0)  # (d, d): the same of the mean covariance of the base classes

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.means = self.transformed_means(base, 0)
        features, labels = tukey(self.features(base), POWER), torch.from_numpy(base.labels)
        within = torch.cov((features - class_means(features, labels, len(base.counts))[labels]).T)
        self.shared = inverse_factor(within, SHRINKAGE)
        if features.shape[1] > MAX_OWN_WIDTH:
            self.factors = self.shared[None].clone()  # tensors that share memory cannot be saved
        else:
            self.factors = torch.stack([self._factor(features[labels == c]) for c in base.counts])

    def learn(self, new: Images) -> None:
        first = len(self.means)
        self.means = torch.cat([self.means, self.transformed_means(new, first)])
        features, labels = tukey(self.features(new), POWER), torch.from_numpy(new.labels - first)
        if features.shape[1] <= MAX_OWN_WIDTH:
            added = [self._factor(features[labels == c]) for c in range(len(new.counts))]
            self.factors = torch.cat([self.factors, torch.stack(added)])

    def transformed_means(self, images: Images, first: int) -> Tensor:
        """(classes, d) Tukey's transform of each class's mean feature; classes are numbered from `first`."""
        return tukey(self.means_of(images, first), POWER).float()

    def _factor(self, features: Tensor) -> Tensor:
        """(n, d) features of one class -> (d, d)"""
        return inverse_factor(torch.cov(features.T), SHRINKAGE) if len(features) > 1 else self.shared

    def scores(self, images: Images) -> Tensor:
        """Negative squared Mahalanobis distances, of unit vectors."""
        features, means = tukey(self.features(images), POWER), F.normalize(self.means)
        if len(self.factors) < len(self.means):  # one for all: every image and mean is mapped once
            factor = self.factors[0].double()
            return -torch.cdist(features @ factor.T, means.double() @ factor.T).square().float()
        distances = [
            ((features.float() - mean) @ factor.T).square().sum(1)
            for mean, factor in zip(means, self.factors, strict=True)
        ]
        return -torch.stack(distances, 1)

    def memory(self) -> Memory:
        return Memory(floats=self.means.numel() + self.factors.numel() + self.shared.numel())

    def own_state(self) -> dict[str, Tensor]:
        """means, factors, shared"""
        return {"means": self.means, "factors": self.factors, "shared": self.shared}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.means, self.factors, self.shared = state["means"], state["factors"], state["shared"]
